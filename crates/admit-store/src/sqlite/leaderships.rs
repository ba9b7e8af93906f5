//! Leaderships as rows.

use std::time::Duration;

use admit::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::records::timestamp;
use super::writer::Failure;
use crate::leader::{Held, Leadership};

pub(super) const READ: &str = include_str!("sql/read_leadership.sql");
pub(super) const WRITE: &str = include_str!("sql/write_leadership.sql");

pub(super) fn lead(
    connection: &Connection,
    name: &str,
    holder: &str,
    lease: Duration,
    now: Timestamp,
) -> Result<Option<Leadership>, Failure> {
    let row: Option<(String, i64, i64)> = connection
        .prepare_cached(READ)?
        .query_row([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let existing = match row {
        Some((holder, fence, until)) => {
            Some(Held { holder, leadership: Leadership { fence, lease_until: timestamp(until)? } })
        }
        None => None,
    };
    let Some(granted) = Held::lead(existing.as_ref(), holder, lease, now) else { return Ok(None) };
    let Leadership { fence, lease_until } = granted.leadership;
    let until = lease_until.unix_micros();
    connection.prepare_cached(WRITE)?.execute(params![name, granted.holder, fence, until])?;
    Ok(Some(granted.leadership))
}
