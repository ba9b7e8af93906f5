//! Buckets in PostgreSQL: what takes and refunds wait for, and the other statements, each sent whole.

use std::time::Duration;

use admit::{
    Bucket, BudgetStore, Charge, Decision, Now, Prepared, Rules, Take, TakeError, Timestamp, Unavailable,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::database::{CallError, get, micros, moment, timestamp};
use super::{PostgresStore, batch};

impl BudgetStore for PostgresStore {
    fn rules(&self) -> &Rules {
        &self.rules
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.decide(charges, now, false).await
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let take = match self.rules.prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let (scopes, keys) = batch::columns(take.lines().iter().map(batch::place));
        let row = self
            .database
            .row(
                &self.peek.0,
                &[(&scopes, Type::TEXT_ARRAY), (&keys, Type::UUID_ARRAY), (&moment(now), Type::TIMESTAMPTZ)],
            )
            .await
            .map_err(Unavailable::from)?;
        let (at, buckets) = seen(&take, &row).map_err(Unavailable::from)?;
        Ok(take.peek(at, &buckets))
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        let take = self.rules.prepare_refund(charges)?;
        if take.lines().is_empty() {
            return Ok(());
        }
        Ok(self.coalescer.refund(take).await?)
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        // A take reads the server's clock and may then wait for a row. Until it has ended, it must find the others as they
        // were at that moment, when they may not have been full yet.
        let under_way = match now {
            Now::Store => self.database.connections().longest_statement(),
            Now::At(_) => Duration::ZERO,
        };
        let idle = micros(self.rules.retention.duration().saturating_add(under_way));
        let swept = self.sweep.over_all(&self.database, idle, now).await;
        self.coalescer.refusals().forget_all();
        Ok(swept?)
    }
}

impl PostgresStore {
    /// Debits all charges, or none. What nobody waits for any more is given back unless it is taken `for_good`.
    pub(crate) async fn decide(
        &self,
        charges: &[Charge],
        now: Now,
        for_good: bool,
    ) -> Result<Decision, TakeError> {
        let take = match self.rules.prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        Ok(self.coalescer.take(take, now, for_good).await?)
    }
}

/// The statement that looks at buckets, with the schema in place.
#[derive(Debug)]
pub(super) struct Peek(String);

impl Peek {
    pub(super) fn new(schema: &str) -> Self {
        Self(format!("SELECT decided_at, bucket_tokens, bucket_refilled_at FROM {schema}.peek($1, $2, $3)"))
    }
}

/// The moment and the buckets of a row of `peek`.
fn seen(take: &Take, row: &Row) -> Result<(Timestamp, Vec<Option<Bucket>>), CallError> {
    Ok((timestamp(get(row, 0)?)?, batch::buckets(take.lines().len(), get(row, 1)?, get(row, 2)?)?))
}
