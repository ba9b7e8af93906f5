//! Buckets as rows. What to write is decided by the core, from what was read in the same transaction.

use admit::{Bucket, Decision, Key, Retention, Scope, Take, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::records::timestamp;
use super::writer::Failure;

pub(super) const READ: &str = include_str!("sql/read_bucket.sql");
pub(super) const WRITE: &str = include_str!("sql/write_bucket.sql");
pub(super) const DELETE_IDLE: &str = include_str!("sql/delete_idle.sql");
const RAISE_RETENTION: &str = include_str!("sql/raise_retention.sql");
const LIST: &str = include_str!("sql/list_buckets.sql");
const DELETE: &str = include_str!("sql/delete_bucket.sql");
pub(super) const ADD_SCOPE: &str = "INSERT INTO rate_budget_scopes VALUES (?1) ON CONFLICT DO NOTHING";

pub(super) fn add_scopes(connection: &Connection, scopes: &[Scope]) -> Result<(), Failure> {
    scopes.iter().try_for_each(|scope| Ok(connection.execute(ADD_SCOPE, [scope.as_str()]).map(drop)?))
}

/// Raises the retention that the file keeps, for every sweep to come, whoever runs it; never lowers it. To be committed
/// before a take by a budget that needs it.
pub(super) fn raise_retention(connection: &Connection, retention: Retention) -> rusqlite::Result<()> {
    connection.execute(RAISE_RETENTION, [micros(retention)]).map(drop)
}

/// No retention is as long as an `i64` of microseconds.
fn micros(retention: Retention) -> i64 {
    Timestamp::MIN.saturating_add(retention.duration()).unix_micros()
}

pub(super) fn read(connection: &Connection, scope: &Scope, key: Key) -> Result<Option<Bucket>, Failure> {
    let mut statement = connection.prepare_cached(READ)?;
    let row = statement
        .query_row(params![scope.as_str(), key.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    row.map(|(tokens, refilled_at)| Ok(Bucket { tokens, refilled_at: timestamp(refilled_at)? })).transpose()
}

fn write(connection: &Connection, scope: &Scope, key: Key, bucket: Bucket) -> Result<(), Failure> {
    let mut statement = connection.prepare_cached(WRITE)?;
    let refilled_at = bucket.refilled_at.unix_micros();
    statement.execute(params![scope.as_str(), key.to_string(), bucket.tokens, refilled_at])?;
    Ok(())
}

fn read_all(connection: &Connection, take: &Take) -> Result<Vec<Option<Bucket>>, Failure> {
    take.lines().iter().map(|line| read(connection, &line.scope, line.key)).collect()
}

/// The decision, and the buckets as they were before.
pub(super) fn take(
    connection: &Connection,
    take: &Take,
    now: Timestamp,
) -> Result<(Decision, Vec<Option<Bucket>>), Failure> {
    let found = read_all(connection, take)?;
    let (decision, debited) = take.decide(now, &found);
    for (line, bucket) in take.lines().iter().zip(debited.into_iter().flatten()) {
        write(connection, &line.scope, line.key, bucket)?;
    }
    Ok((decision, found))
}

pub(super) fn peek(connection: &Connection, take: &Take, now: Timestamp) -> Result<Decision, Failure> {
    Ok(take.peek(now, &read_all(connection, take)?))
}

pub(super) fn refund(connection: &Connection, take: &Take) -> Result<(), Failure> {
    for line in take.lines() {
        if let Some(bucket) = read(connection, &line.scope, line.key)? {
            write(connection, &line.scope, line.key, bucket.refund(line.cost, line.budget))?;
        }
    }
    Ok(())
}

/// Deletes at most `limit` buckets that are idle at `now` for longer than `retention`, and than the one the file keeps.
pub(super) fn delete_idle(
    connection: &Connection,
    retention: Retention,
    now: Timestamp,
    limit: u64,
) -> Result<u64, Failure> {
    let mut statement = connection.prepare_cached(DELETE_IDLE)?;
    Ok(statement.execute(params![now.unix_micros(), micros(retention), limit as i64])? as u64)
}

/// One page of the buckets of a scope.
pub(super) fn listed(
    connection: &Connection,
    scope: &Scope,
    after: Option<Key>,
    limit: usize,
) -> Result<Vec<(Key, Bucket)>, Failure> {
    let mut statement = connection.prepare_cached(LIST)?;
    let after = after.map(|key| key.to_string()).unwrap_or_default();
    let mut rows = statement.query(params![scope.as_str(), after, limit as i64])?; // Bounded by MAX_LISTED.
    let mut listed = Vec::new();
    while let Some(row) = rows.next()? {
        let bucket = Bucket { tokens: row.get(1)?, refilled_at: timestamp(row.get(2)?)? };
        listed.push((Key::of(&row.get::<_, String>(0)?), bucket)); // A UUID is its own key.
    }
    Ok(listed)
}

/// Deletes a bucket, and tells whether there was one.
pub(super) fn delete(connection: &Connection, scope: &Scope, key: Key) -> Result<bool, Failure> {
    Ok(connection.prepare_cached(DELETE)?.execute(params![scope.as_str(), key.to_string()])? > 0)
}
