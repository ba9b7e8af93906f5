//! A take of one bucket that nobody shares a statement with: a shorter one.

use admit::{Clock, Now};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::super::batch::{self, Outcome};
use super::super::database::{CallError, Param, get, moment, timestamp};
use super::{Coalescer, Operation};

/// The call of `take_one`.
pub(super) fn statement(schema: &str) -> String {
    format!(
        "SELECT granted, decided_at, bucket_tokens, bucket_refilled_at \
         FROM {schema}.take_one($1, $2, $3, $4, $5, $6, $7)"
    )
}

impl Coalescer {
    pub(super) async fn send_one(&self, operation: &Operation) -> Result<Outcome, CallError> {
        let (take, now) = (&operation.take, operation.now);
        let [line] = take.lines() else { return Err(CallError::Answer("not one line".into())) };
        let sent = self.0.clock.now();
        let params: [Param<'_>; 7] = [
            (&line.scope.as_str(), Type::TEXT),
            (&Uuid::from_bytes(*line.key.as_bytes()), Type::UUID),
            (&line.cost.tokens(), Type::FLOAT8),
            (&line.budget.rate().tokens_per_second(), Type::FLOAT8),
            (&line.budget.burst().tokens(), Type::FLOAT8),
            (&moment(now), Type::TIMESTAMPTZ),
            (&self.0.database.lock_timeout_ms(), Type::INT4),
        ];
        let row = self.0.database.row(&self.0.statements.one, &params).await?;
        let (at, bucket) = (timestamp(get(&row, 1)?)?, batch::bucket(get(&row, 2)?, get(&row, 3)?)?);
        if get(&row, 0)? {
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
}
