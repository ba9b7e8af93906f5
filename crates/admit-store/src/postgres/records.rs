//! Idempotency records in PostgreSQL: one statement an operation, and completion inside the service's transaction.

use std::time::SystemTime;

use admit::idempotency::{
    Claim, Fence, Fingerprint, OnLapse, Outcome, Record, RecordKey, Response, State, Terms, Ticket,
};
use admit::{IdempotencyError, IdempotencyStore, Now, Unavailable};
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use super::PostgresStore;
use super::database::{CallError, Database, Param, get, micros, moment, timestamp};

/// How many records one statement of the sweep deletes: each may hold a body of a mebibyte, which goes with it.
const SWEEP_BATCH: i32 = 1_000;

impl IdempotencyStore for PostgresStore {
    async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Option<Claim>, Unavailable> {
        let params: [Param<'_>; 2] =
            [(&key.as_bytes().as_slice(), Type::BYTEA), (&moment(now), Type::TIMESTAMPTZ)];
        let row = self.database.row(&self.records.look, &params).await?;
        let at = timestamp(get(&row, 0)?)?;
        Ok(record(&row, 1)?.and_then(|record| record.look(*fingerprint, terms, at)))
    }

    async fn claim(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Claim, Unavailable> {
        let stays_blocked = terms.on_lapse == OnLapse::StayBlocked;
        let params: [Param<'_>; 7] = [
            (&key.as_bytes().as_slice(), Type::BYTEA),
            (&fingerprint.as_bytes().as_slice(), Type::BYTEA),
            (&micros(terms.lease), Type::INT8),
            (&micros(terms.ttl), Type::INT8),
            (&stays_blocked, Type::BOOL),
            (&moment(now), Type::TIMESTAMPTZ),
            (&self.database.lock_timeout_ms(), Type::INT4),
        ];
        let row = self.database.row(&self.records.claim, &params).await?;
        let at = timestamp(get(&row, 0)?)?;
        let record = record(&row, 1)?.ok_or_else(|| CallError::Answer("the record is missing".into()))?;
        if !get::<bool>(&row, RECORD_COLUMNS + 1)? {
            let claim = record.look(*fingerprint, terms, at);
            return Ok(claim.ok_or_else(|| CallError::Answer("a free key was not claimed".into()))?);
        }
        match record.state {
            State::Running { lease_until } => {
                Ok(Claim::Run(Ticket { key: *key, fence: record.fence, lease_until }))
            }
            State::Completed(_) => Err(CallError::Answer("a claimed record does not run".into()).into()),
        }
    }

    async fn renew(&self, ticket: &Ticket, terms: &Terms, now: Now) -> Result<Ticket, IdempotencyError> {
        let params: [Param<'_>; 6] = [
            (&ticket.key.as_bytes().as_slice(), Type::BYTEA),
            (&ticket.fence.number(), Type::INT8),
            (&SystemTime::from(ticket.lease_until), Type::TIMESTAMPTZ),
            (&micros(terms.lease), Type::INT8),
            (&moment(now), Type::TIMESTAMPTZ),
            (&self.database.lock_timeout_ms(), Type::INT4),
        ];
        let row = self.database.row(&self.records.renew, &params).await.map_err(Unavailable::from)?;
        let until = get::<Option<SystemTime>>(&row, 0).map_err(Unavailable::from)?;
        let until = until.ok_or(IdempotencyError::TicketLost)?;
        Ok(Ticket { lease_until: timestamp(until).map_err(Unavailable::from)?, ..ticket.clone() })
    }

    async fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        let columns = OutcomeColumns::of(outcome);
        let (fence, ttl, now) = (ticket.fence.number(), micros(terms.ttl), moment(now));
        let key = ticket.key.as_bytes().as_slice();
        let params = columns.params(&key, &fence, &ttl, &now);
        had_its_say(self.database.row(&self.records.complete, &params).await)
    }

    async fn release(&self, ticket: &Ticket, now: Now) -> Result<(), IdempotencyError> {
        self.records.release(&self.database, ticket, now).await
    }

    async fn delete_expired(&self, now: Now) -> Result<u64, Unavailable> {
        let params: [Param<'_>; 2] = [(&moment(now), Type::TIMESTAMPTZ), (&SWEEP_BATCH, Type::INT4)];
        let mut total = 0;
        loop {
            let deleted = get::<i64>(&self.database.row(&self.records.delete_expired, &params).await?, 0)?;
            total += deleted.unsigned_abs();
            if deleted < i64::from(SWEEP_BATCH) {
                return Ok(total);
            }
        }
    }
}

impl PostgresStore {
    /// [`IdempotencyStore::complete`] inside the caller's own transaction, so that its rows and the record commit
    /// together: after a crash at any instant both are there, or neither.
    ///
    /// The transaction may be of any isolation, and of any connection to the database that holds the store's schema. The
    /// record is locked until it ends. Above `read committed` it fails with a serialization failure if the lease was
    /// renewed after the transaction's first statement, so keep such a transaction shorter than a third of the lease, or
    /// repeat it; and it must begin after the claim, or it does not see the record, and the ticket is lost to it.
    ///
    /// # Errors
    /// [`IdempotencyError::TicketLost`] if the lease had lapsed: roll back, as another run may have the key.
    /// [`IdempotencyError::Unavailable`] if the statement failed: the transaction is lost.
    pub async fn complete_in(
        &self,
        transaction: &impl GenericClient,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        let columns = OutcomeColumns::of(outcome);
        let (fence, ttl, now) = (ticket.fence.number(), micros(terms.ttl), moment(now));
        let key = ticket.key.as_bytes().as_slice();
        let params = columns.params(&key, &fence, &ttl, &now);
        let rows = transaction.query_typed(&self.records.complete, &params).await;
        let row = rows
            .map_err(CallError::from)
            .and_then(|mut rows| rows.pop().ok_or_else(|| CallError::Answer("no row".into())));
        had_its_say(row)
    }
}

/// The statements on records, with the schema in place.
#[derive(Debug)]
pub(super) struct Statements {
    look: String,
    claim: String,
    renew: String,
    complete: String,
    release: String,
    delete_expired: String,
}

/// The columns of a record in answers.
pub(super) const RECORD: &str = "(record).fingerprint, (record).fence, (record).lease_until, (record).expires_at, \
                                 (record).status, (record).header_names, (record).header_values, (record).body";

/// How many these are.
const RECORD_COLUMNS: usize = 8;

impl Statements {
    pub(super) fn new(schema: &str) -> Self {
        Self {
            look: format!("SELECT decided_at, {RECORD} FROM {schema}.idempotency_look($1, $2)"),
            claim: format!(
                "SELECT decided_at, {RECORD}, claimed FROM {schema}.idempotency_claim($1, $2, $3, $4, $5, $6, $7)"
            ),
            renew: format!("SELECT {schema}.idempotency_renew($1, $2, $3, $4, $5, $6)"),
            complete: format!("SELECT {schema}.idempotency_complete($1, $2, $3, $4, $5, $6, $7, $8)"),
            release: format!("SELECT {schema}.idempotency_release($1, $2, $3, $4)"),
            delete_expired: format!("SELECT {schema}.idempotency_delete_expired($1, $2)"),
        }
    }
}

impl Statements {
    pub(super) async fn release(
        &self,
        database: &Database,
        ticket: &Ticket,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        let params: [Param<'_>; 4] = [
            (&ticket.key.as_bytes().as_slice(), Type::BYTEA),
            (&ticket.fence.number(), Type::INT8),
            (&moment(now), Type::TIMESTAMPTZ),
            (&database.lock_timeout_ms(), Type::INT4),
        ];
        had_its_say(database.row(&self.release, &params).await)
    }
}

/// An outcome as columns: names and values of headers side by side, no body for a tombstone.
struct OutcomeColumns<'a> {
    status: i32,
    header_names: Option<Vec<&'a str>>,
    header_values: Option<Vec<&'a [u8]>>,
    body: Option<&'a [u8]>,
}

impl<'a> OutcomeColumns<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        match outcome {
            Outcome::Tombstone { status } => {
                Self { status: (*status).into(), header_names: None, header_values: None, body: None }
            }
            Outcome::Response(Response { status, headers, body }) => Self {
                status: (*status).into(),
                header_names: Some(headers.iter().map(|(name, _)| name.as_str()).collect()),
                header_values: Some(headers.iter().map(|(_, value)| value.as_slice()).collect()),
                body: Some(body),
            },
        }
    }

    fn params<'p>(
        &'p self,
        key: &'p &[u8],
        fence: &'p i64,
        ttl: &'p i64,
        now: &'p Option<SystemTime>,
    ) -> [Param<'p>; 8] {
        [
            (key, Type::BYTEA),
            (fence, Type::INT8),
            (ttl, Type::INT8),
            (&self.status, Type::INT4),
            (&self.header_names, Type::TEXT_ARRAY),
            (&self.header_values, Type::BYTEA_ARRAY),
            (&self.body, Type::BYTEA),
            (now, Type::TIMESTAMPTZ),
        ]
    }
}

/// Whether the ticket had its say.
fn had_its_say(answer: Result<Row, CallError>) -> Result<(), IdempotencyError> {
    let had = answer.and_then(|row| get::<bool>(&row, 0)).map_err(Unavailable::from)?;
    if had { Ok(()) } else { Err(IdempotencyError::TicketLost) }
}

/// The record in the columns from `first` on, if there is one.
pub(super) fn record(row: &Row, first: usize) -> Result<Option<Record>, CallError> {
    let Some(fingerprint) = get::<Option<&[u8]>>(row, first)? else { return Ok(None) };
    let fingerprint =
        fingerprint.try_into().map_err(|_| CallError::Answer("a fingerprint is not 32 bytes long".into()))?;
    let state = match get::<Option<SystemTime>>(row, first + 2)? {
        Some(lease_until) => State::Running { lease_until: timestamp(lease_until)? },
        None => State::Completed(outcome(row, first + 4)?),
    };
    Ok(Some(Record {
        fingerprint: Fingerprint::from_bytes(fingerprint),
        fence: Fence::new(get(row, first + 1)?),
        state,
        expires_at: timestamp(get(row, first + 3)?)?,
    }))
}

fn outcome(row: &Row, first: usize) -> Result<Outcome, CallError> {
    let status = u16::try_from(get::<i32>(row, first)?).map_err(|error| CallError::Answer(error.into()))?;
    let Some(body) = get::<Option<Vec<u8>>>(row, first + 3)? else {
        return Ok(Outcome::Tombstone { status });
    };
    let names = get::<Option<Vec<String>>>(row, first + 1)?.unwrap_or_default();
    let values = get::<Option<Vec<Vec<u8>>>>(row, first + 2)?.unwrap_or_default();
    Ok(Outcome::Response(Response { status, headers: names.into_iter().zip(values).collect(), body }))
}
