//! Idempotency records as rows. What to write is decided by the core, from what was read in the same transaction.

use admit::idempotency::{
    Claim, Fence, Fingerprint, Outcome, Record, RecordKey, Response, State, Terms, Ticket, TicketLost,
};
use admit::{IdempotencyError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::headers;
use super::writer::{Failure, unavailable};

pub(super) const READ: &str = include_str!("sql/read_record.sql");
pub(super) const WRITE: &str = include_str!("sql/write_record.sql");
pub(super) const DELETE: &str = include_str!("sql/delete_record.sql");
pub(super) const DELETE_EXPIRED: &str = include_str!("sql/delete_expired.sql");
pub(super) const READ_FENCE: &str = include_str!("sql/read_fence.sql");
pub(super) const WRITE_FENCE: &str = include_str!("sql/write_fence.sql");

/// What a ticket was used for: refused by the law, or done.
pub(super) type Used<T> = Result<Result<T, TicketLost>, Failure>;

pub(super) fn timestamp(micros: i64) -> Result<Timestamp, Failure> {
    Timestamp::from_unix_micros(micros)
        .map_err(|_| Failure::Corrupt("a time outside of the years 1970 to 9999"))
}

struct Row {
    fingerprint: [u8; 32],
    fence: i64,
    lease_until: Option<i64>,
    expires_at: i64,
    status: Option<u16>,
    headers: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
}

impl Row {
    fn record(self) -> Result<Record, Failure> {
        let state = match (self.lease_until, self.status, self.headers, self.body) {
            (Some(until), None, None, None) => State::Running { lease_until: timestamp(until)? },
            (None, Some(status), None, None) => State::Completed(Outcome::Tombstone { status }),
            (None, Some(status), Some(headers), Some(body)) => {
                let headers = headers::decode(&headers).ok_or(Failure::Corrupt("headers cut off"))?;
                State::Completed(Outcome::Response(Response { status, headers, body }))
            }
            _ => return Err(Failure::Corrupt("a record both running and completed")),
        };
        Ok(Record {
            fingerprint: Fingerprint::from_bytes(self.fingerprint),
            fence: Fence::new(self.fence),
            state,
            expires_at: timestamp(self.expires_at)?,
        })
    }
}

pub(super) fn read(connection: &Connection, key: RecordKey) -> Result<Option<Record>, Failure> {
    let mut statement = connection.prepare_cached(READ)?;
    let row = statement
        .query_row(params![key.as_bytes()], |row| {
            Ok(Row {
                fingerprint: row.get(0)?,
                fence: row.get(1)?,
                lease_until: row.get(2)?,
                expires_at: row.get(3)?,
                status: row.get(4)?,
                headers: row.get(5)?,
                body: row.get(6)?,
            })
        })
        .optional()?;
    row.map(Row::record).transpose()
}

fn write(connection: &Connection, key: RecordKey, record: &Record) -> Result<(), Failure> {
    let (lease_until, status, headers, body) = match &record.state {
        State::Running { lease_until } => (Some(lease_until.unix_micros()), None, None, None),
        State::Completed(Outcome::Tombstone { status }) => (None, Some(*status), None, None),
        State::Completed(Outcome::Response(Response { status, headers, body })) => {
            (None, Some(*status), Some(headers::encode(headers)), Some(body))
        }
    };
    connection.prepare_cached(WRITE)?.execute(params![
        key.as_bytes(),
        record.fingerprint.as_bytes(),
        record.fence.number(),
        lease_until,
        record.expires_at.unix_micros(),
        status,
        headers,
        body,
    ])?;
    Ok(())
}

pub(super) fn claim(
    connection: &Connection,
    key: RecordKey,
    fingerprint: Fingerprint,
    terms: &Terms,
    now: Timestamp,
) -> Result<Claim, Failure> {
    let existing = read(connection, key)?;
    let last: i64 = connection.prepare_cached(READ_FENCE)?.query_row([], |row| row.get(0))?;
    let fence = Fence::new(last + 1);
    let (claim, record) = Record::claim(existing.as_ref(), key, fingerprint, fence, terms, now);
    if let Some(record) = record {
        connection.prepare_cached(WRITE_FENCE)?.execute([fence.number()])?;
        write(connection, key, &record)?;
    }
    Ok(claim)
}

pub(super) fn renew(connection: &Connection, ticket: &Ticket, terms: &Terms, now: Timestamp) -> Used<Ticket> {
    let Some(record) = read(connection, ticket.key)? else { return Ok(Err(TicketLost)) };
    let renewed = record.renew(ticket, terms, now);
    if let Ok((record, _)) = &renewed {
        write(connection, ticket.key, record)?;
    }
    Ok(renewed.map(|(_, ticket)| ticket))
}

pub(super) fn complete(
    connection: &Connection,
    ticket: &Ticket,
    outcome: &Outcome,
    terms: &Terms,
    now: Timestamp,
) -> Used<()> {
    let Some(record) = read(connection, ticket.key)? else { return Ok(Err(TicketLost)) };
    match record.complete(ticket, outcome.clone(), terms, now) {
        Ok(record) => write(connection, ticket.key, &record).map(Ok),
        Err(lost) => Ok(Err(lost)),
    }
}

/// As [`complete`], for a transaction of the caller's.
pub(super) fn complete_in(
    connection: &Connection,
    ticket: &Ticket,
    outcome: &Outcome,
    terms: &Terms,
    now: Timestamp,
) -> Result<(), IdempotencyError> {
    Ok(complete(connection, ticket, outcome, terms, now).map_err(unavailable)??)
}

pub(super) fn release(connection: &Connection, ticket: &Ticket, now: Timestamp) -> Used<()> {
    let Some(record) = read(connection, ticket.key)? else { return Ok(Err(TicketLost)) };
    if let Err(lost) = record.release(ticket, now) {
        return Ok(Err(lost));
    }
    connection.prepare_cached(DELETE)?.execute(params![ticket.key.as_bytes()])?;
    Ok(Ok(()))
}

/// Deletes at most `limit` records whose time is over.
pub(super) fn delete_expired(connection: &Connection, now: Timestamp, limit: u64) -> Result<u64, Failure> {
    let mut statement = connection.prepare_cached(DELETE_EXPIRED)?;
    Ok(statement.execute(params![now.unix_micros(), limit as i64])? as u64)
}
