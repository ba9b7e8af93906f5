//! A take of one bucket that nobody shares a statement with: a shorter one, which sessions keep parsed.

use admit::{Bucket, Clock, Line, Now, Timestamp};
use time::OffsetDateTime;
use tokio_postgres::types::Type;
use tokio_postgres::{Row, SimpleQueryRow};
use uuid::Uuid;

use super::super::batch::{self, Outcome};
use super::super::database::{CallError, Param, get, moment, timestamp};
use super::super::kept_statement::KeptStatement;
use super::{Coalescer, Operation};

/// The server's moments count from the year 2000, in microseconds.
const SERVER_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The calls of `take_one`.
pub(super) struct Statements {
    kept: KeptStatement,
    unnamed: String,
}

/// What it answers.
struct Answer {
    granted: bool,
    at: Timestamp,
    bucket: Option<Bucket>,
}

impl Statements {
    pub(super) fn new(schema: &str, keeps: bool) -> Self {
        // As the bytes that the server sends in binary: no setting of the session changes what they look like, and no digit is lost.
        let kept = format!(
            "SELECT granted, encode(timestamptz_send(decided_at), 'hex'), encode(float8send(bucket_tokens), 'hex'), \
             encode(timestamptz_send(bucket_refilled_at), 'hex') FROM {schema}.take_one($1, $2, $3, $4, $5, $6, $7)"
        );
        Self {
            kept: KeptStatement::new("text, uuid, float8, float8, float8, timestamptz, int4", &kept, keeps),
            unnamed: format!(
                "SELECT granted, decided_at, bucket_tokens, bucket_refilled_at \
                 FROM {schema}.take_one($1, $2, $3, $4, $5, $6, $7)"
            ),
        }
    }
}

impl Coalescer {
    pub(super) async fn send_one(&self, operation: &Operation) -> Result<Outcome, CallError> {
        let (take, now) = (&operation.take, operation.now);
        let [line] = take.lines() else { return Err(CallError::Answer("not one line".into())) };
        let sent = self.0.clock.now();
        let Answer { granted, at, bucket } = self.ask_one(line, now).await?;
        if granted {
            self.0.refusals.clear(&line.scope, line.key);
            let bucket = bucket.ok_or_else(|| CallError::Answer("the debited bucket is missing".into()))?;
            let at = if now == Now::Store { at.max(bucket.refilled_at) } else { at };
            return Ok(Outcome::Decided(take.granted(at, &[bucket])));
        }
        if let Some(stamp) = operation.stamp {
            self.0.refusals.remember(stamp, take, &[bucket], self.sighting(now, at, sent));
        }
        Ok(Outcome::Decided(take.refused(at, &[bucket])))
    }

    async fn ask_one(&self, line: &Line, now: Now) -> Result<Answer, CallError> {
        let (database, statements) = (&self.0.database, &self.0.statements.one);
        let kept = database.kept_row(&statements.kept, || literals(line, now, *database.lock_timeout_ms()));
        if let Some(row) = kept.await? {
            return answer_in_text(&row);
        }
        let params: [Param<'_>; 7] = [
            (&line.scope.as_str(), Type::TEXT),
            (&Uuid::from_bytes(*line.key.as_bytes()), Type::UUID),
            (&line.cost.tokens(), Type::FLOAT8),
            (&line.budget.rate().tokens_per_second(), Type::FLOAT8),
            (&line.budget.burst().tokens(), Type::FLOAT8),
            (&moment(now), Type::TIMESTAMPTZ),
            (database.lock_timeout_ms(), Type::INT4),
        ];
        answer(&database.row(&statements.unnamed, &params).await?)
    }
}

/// The arguments. Scopes hold no quotes; a double is told in the fewest digits that name it, which the server reads as the same.
fn literals(line: &Line, now: Now, lock_timeout_ms: i32) -> String {
    let at = moment(now).map_or("NULL".to_owned(), |at| {
        let at = OffsetDateTime::from(at);
        let (date, month) = (at.date(), u8::from(at.month()));
        let (hour, minute, second, micros) = at.to_hms_micro();
        let (year, day) = (date.year(), date.day());
        format!("'{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}+00'")
    });
    format!(
        "('{}', '{}', '{}', '{}', '{}', {at}, {lock_timeout_ms})",
        line.scope,
        line.key,
        line.cost.tokens(),
        line.budget.rate().tokens_per_second(),
        line.budget.burst().tokens(),
    )
}

fn answer(row: &Row) -> Result<Answer, CallError> {
    let (granted, at) = (get(row, 0)?, timestamp(get(row, 1)?)?);
    Ok(Answer { granted, at, bucket: batch::bucket(get(row, 2)?, get(row, 3)?)? })
}

fn answer_in_text(row: &SimpleQueryRow) -> Result<Answer, CallError> {
    let bits = |column: usize| -> Result<Option<u64>, CallError> {
        let wrong = |error| CallError::Answer(Box::new(error));
        row.try_get(column)?.map(|hex| u64::from_str_radix(hex, 16).map_err(wrong)).transpose()
    };
    let moment = |column: usize| -> Result<Option<Timestamp>, CallError> {
        let read = |bits: u64| {
            Timestamp::from_unix_micros(bits.cast_signed().saturating_add(SERVER_EPOCH_MICROS))
                .map_err(|error| CallError::Answer(error.into()))
        };
        bits(column)?.map(read).transpose()
    };
    let bucket = match (bits(2)?, moment(3)?) {
        (Some(tokens), Some(refilled_at)) => Some(Bucket { tokens: f64::from_bits(tokens), refilled_at }),
        _ => None,
    };
    let at = moment(1)?.ok_or_else(|| CallError::Answer("no moment".into()))?;
    Ok(Answer { granted: row.try_get(0)? == Some("t"), at, bucket })
}
