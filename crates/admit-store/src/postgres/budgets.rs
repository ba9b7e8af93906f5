//! Buckets in PostgreSQL: one statement a decision, sent whole.

use std::time::{Duration, SystemTime};

use admit::{
    Bucket, BudgetStore, Charge, Decision, Line, Now, Prepared, Rules, Take, TakeError, Timestamp,
    Unavailable,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::database::{CallError, Param, get, micros, moment, timestamp};

/// How many idle buckets one statement of the sweep deletes: some milliseconds of work.
const SWEEP_BATCH: i32 = 1_000;

impl BudgetStore for PostgresStore {
    fn rules(&self) -> &Rules {
        &self.rules
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let take = match self.rules.prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let lines = Columns::of(take.lines());
        let row = self
            .database
            .row(
                &self.budgets.take,
                &[
                    (&lines.scopes, Type::TEXT_ARRAY),
                    (&lines.keys, Type::UUID_ARRAY),
                    (&lines.costs, Type::FLOAT8_ARRAY),
                    (&lines.rates, Type::FLOAT8_ARRAY),
                    (&lines.bursts, Type::FLOAT8_ARRAY),
                    (&moment(now), Type::TIMESTAMPTZ),
                    (self.database.lock_timeout_ms(), Type::INT4),
                ],
            )
            .await
            .map_err(Unavailable::from)?;
        decision(&take, &row).map_err(|error| Unavailable::from(error).into())
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let take = match self.rules.prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let lines = Columns::of(take.lines());
        let row = self
            .database
            .row(
                &self.budgets.peek,
                &[
                    (&lines.scopes, Type::TEXT_ARRAY),
                    (&lines.keys, Type::UUID_ARRAY),
                    (&moment(now), Type::TIMESTAMPTZ),
                ],
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
        let lines = Columns::of(take.lines());
        self.database
            .row(
                &self.budgets.refund,
                &[
                    (&lines.scopes, Type::TEXT_ARRAY),
                    (&lines.keys, Type::UUID_ARRAY),
                    (&lines.costs, Type::FLOAT8_ARRAY),
                    (&lines.bursts, Type::FLOAT8_ARRAY),
                    (self.database.lock_timeout_ms(), Type::INT4),
                ],
            )
            .await
            .map_err(Unavailable::from)?;
        Ok(())
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        // A take reads the server's clock and may then wait for a row. Until it has ended, it must find the others as they
        // were at that moment, when they may not have been full yet.
        let under_way = match now {
            Now::Store => self.database.connections().longest_statement(),
            Now::At(_) => Duration::ZERO,
        };
        let idle = micros(self.rules.retention.duration().saturating_add(under_way));
        let params: [Param<'_>; 3] =
            [(&idle, Type::INT8), (&moment(now), Type::TIMESTAMPTZ), (&SWEEP_BATCH, Type::INT4)];
        self.database.sweep(&self.budgets.delete_idle, &params, SWEEP_BATCH).await
    }
}

/// The statements on buckets, with the schema in place.
#[derive(Debug)]
pub(super) struct Statements {
    take: String,
    peek: String,
    refund: String,
    delete_idle: String,
}

impl Statements {
    pub(super) fn new(schema: &str) -> Self {
        Self {
            take: format!(
                "SELECT granted, decided_at, bucket_tokens, bucket_refilled_at \
                 FROM {schema}.take($1, $2, $3, $4, $5, $6, $7)"
            ),
            peek: format!(
                "SELECT decided_at, bucket_tokens, bucket_refilled_at FROM {schema}.peek($1, $2, $3)"
            ),
            refund: format!("SELECT FROM {schema}.refund($1, $2, $3, $4, $5)"),
            delete_idle: format!("SELECT {schema}.delete_idle($1, $2, $3)"),
        }
    }
}

/// Lines as the arrays that the SQL functions take.
struct Columns<'a> {
    scopes: Vec<&'a str>,
    keys: Vec<Uuid>,
    costs: Vec<f64>,
    rates: Vec<f64>,
    bursts: Vec<f64>,
}

impl<'a> Columns<'a> {
    fn of(lines: &'a [Line]) -> Self {
        Self {
            scopes: lines.iter().map(|line| line.scope.as_str()).collect(),
            keys: lines.iter().map(|line| Uuid::from_bytes(*line.key.as_bytes())).collect(),
            costs: lines.iter().map(|line| line.cost.tokens()).collect(),
            rates: lines.iter().map(|line| line.budget.rate().tokens_per_second()).collect(),
            bursts: lines.iter().map(|line| line.budget.burst().tokens()).collect(),
        }
    }
}

/// The decision of a row of `take`.
fn decision(take: &Take, row: &Row) -> Result<Decision, CallError> {
    let at = timestamp(get(row, 1)?)?;
    let buckets = buckets(take, get(row, 2)?, get(row, 3)?)?;
    if !get::<bool>(row, 0)? {
        return Ok(take.refused(at, &buckets));
    }
    let debited: Option<Vec<Bucket>> = buckets.into_iter().collect();
    let debited = debited.ok_or_else(|| CallError::Answer("a debited bucket is missing".into()))?;
    Ok(take.granted(at, &debited))
}

/// The moment and the buckets of a row of `peek`.
fn seen(take: &Take, row: &Row) -> Result<(Timestamp, Vec<Option<Bucket>>), CallError> {
    Ok((timestamp(get(row, 0)?)?, buckets(take, get(row, 1)?, get(row, 2)?)?))
}

fn buckets(
    take: &Take,
    tokens: Vec<Option<f64>>,
    refilled_at: Vec<Option<SystemTime>>,
) -> Result<Vec<Option<Bucket>>, CallError> {
    if [tokens.len(), refilled_at.len()] != [take.lines().len(); 2] {
        return Err(CallError::Answer("not one bucket for each line".into()));
    }
    (tokens.into_iter().zip(refilled_at))
        .map(|bucket| match bucket {
            (Some(tokens), Some(time)) => Ok(Some(Bucket { tokens, refilled_at: timestamp(time)? })),
            _ => Ok(None),
        })
        .collect()
}
