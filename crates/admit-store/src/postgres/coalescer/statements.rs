//! The statements that settle a batch, and what their answers leave to remember.

use admit::{Clock, Decision, Now, Timestamp};
use tokio_postgres::types::Type;

use super::super::batch::{Batch, Outcome, Want};
use super::super::database::{CallError, Param, moment};
use super::super::held::Buckets;
use super::{Coalescer, Operation, alone};
use crate::refusals::Sighting;

/// How a batch is settled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Buckets pay all that is wanted of them, where they can.
    Paying,
    /// The operations are walked, one by one.
    Walking,
    /// The same, and hardly waiting for locks: a statement has waited in vain, and it is not known for what.
    Hasty,
}

impl Way {
    /// How a part of a batch begins.
    pub(super) fn anew(self) -> Self {
        match self {
            Self::Paying | Self::Walking => Self::Paying,
            Self::Hasty => Self::Hasty,
        }
    }
}

/// The calls of the functions in the schema.
pub(super) struct Statements {
    pub(super) one: String,
    each: String,
    many: String,
}

impl Statements {
    pub(super) fn new(schema: &str) -> Self {
        Self {
            one: alone::statement(schema),
            each: format!(
                "SELECT decided_at, debited, bucket_tokens, bucket_refilled_at \
                 FROM {schema}.take_each($1, $2, $3, $4, $5, $6, $7)"
            ),
            many: format!(
                "SELECT decided_at, bucket_tokens, bucket_refilled_at, granted \
                 FROM {schema}.take_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
            ),
        }
    }
}

impl Coalescer {
    /// Nothing for those that this way does not settle.
    pub(super) async fn outcomes(
        &self,
        operations: &[Operation],
        way: Way,
        over: &Buckets,
    ) -> Result<Vec<Option<Outcome>>, CallError> {
        if let [alone] = operations
            && way != Way::Hasty
            && over.is_empty()
            && alone.want == Want::Debit
            && alone.take.lines().len() == 1
        {
            return Ok(vec![Some(self.send_one(alone).await?)]);
        }
        let batch = Batch::of(operations.iter().map(|operation| (operation.want, &operation.take)))?;
        match batch.totals() {
            Some(totals) if way == Way::Paying && over.is_empty() => {
                self.send_each(operations, &batch, &totals).await
            }
            _ => Ok(self.send_many(operations, &batch, way, over).await?.into_iter().map(Some).collect()),
        }
    }

    /// When a bucket was seen at `at`, by an answer that is there now.
    pub(super) fn sighting(&self, now: Now, at: Timestamp, sent: Timestamp) -> Sighting {
        let at = (now == Now::Store).then_some(at);
        Sighting { sent, answered: self.0.clock.now(), at }
    }

    /// The quickest, for takes whose buckets hold all that is wanted of them; as mostly they do.
    async fn send_each(
        &self,
        operations: &[Operation],
        batch: &Batch<'_>,
        totals: &[f64],
    ) -> Result<Vec<Option<Outcome>>, CallError> {
        let now = operations.first().map_or(Now::Store, |operation| operation.now);
        let (scopes, keys) = batch.places();
        let params: [Param<'_>; 7] = [
            (&scopes, Type::TEXT_ARRAY),
            (&keys, Type::UUID_ARRAY),
            (&totals, Type::FLOAT8_ARRAY),
            (&batch.bounds.rates, Type::FLOAT8_ARRAY),
            (&batch.bounds.bursts, Type::FLOAT8_ARRAY),
            (&moment(now), Type::TIMESTAMPTZ),
            (&self.0.database.lock_timeout_ms(), Type::INT4),
        ];
        let row = self.0.database.row(&self.0.statements.each, &params).await?;
        let takes = operations.iter().map(|operation| &operation.take);
        let outcomes = batch.paid(takes, &row, now == Now::Store)?;
        batch.buckets().iter().for_each(|&(scope, key)| self.0.refusals.clear(scope, key));
        Ok(outcomes)
    }

    /// One statement for all of them, whatever they want.
    async fn send_many(
        &self,
        operations: &[Operation],
        batch: &Batch<'_>,
        way: Way,
        over: &Buckets,
    ) -> Result<Vec<Outcome>, CallError> {
        let now = operations.first().map_or(Now::Store, |operation| operation.now);
        let told = batch.told(now, &self.0.database, way == Way::Hasty, over)?;
        let sent = self.0.clock.now();
        let row = self.0.database.row(&self.0.statements.many, &told.params()).await?;
        let each = operations.iter().map(|operation| (operation.want, &operation.take));
        let answer = batch.answer(each, &row, now == Now::Store)?;
        let sighting = self.sighting(now, answer.at, sent);
        batch.buckets().iter().for_each(|&(scope, key)| self.0.refusals.clear(scope, key));
        for (i, (operation, outcome)) in operations.iter().zip(&answer.outcomes).enumerate() {
            if let (Some(stamp), Outcome::Decided(Decision::Refused(_))) = (operation.stamp, outcome) {
                let left = batch.left(&answer, i, &operation.take);
                self.0.refusals.remember(stamp, &operation.take, &left, sighting);
            }
        }
        Ok(answer.outcomes)
    }
}
