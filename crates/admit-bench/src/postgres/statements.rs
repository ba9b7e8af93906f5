//! The rate budget document's way: one statement for each take, prepared once for each connection of a pool.

use admit::{Budget, Key};
use anyhow::{Context, Result};
use deadpool_postgres::{Manager, Pool};
use tokio_postgres::NoTls;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::load::limiter::{Limiter, SCOPE};

/// How many connections the pool has.
const POOL: usize = 64;

const TABLE: &str = include_str!("single_table.sql");
const SINGLE_STATEMENT: &str = include_str!("single_statement.sql");
const GUARDED_UPDATE: &str = include_str!("guarded_update.sql");

/// Makes the table, and a pool of connections for its statements.
pub(crate) async fn statements(url: &str) -> Result<Pool> {
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls)).max_size(POOL).build()?;
    pool.get().await?.batch_execute(TABLE).await?;
    Ok(pool)
}

/// The document's statement: mints, refills and debits.
#[derive(Clone)]
pub(crate) struct SingleStatement(pub(crate) Pool);

/// A statement that debits a bucket that is there, and matches no row if that holds too little.
#[derive(Clone)]
pub(crate) struct GuardedUpdate(Pool);

impl GuardedUpdate {
    /// Mints the bucket `key` with `tokens`.
    pub(crate) async fn with_bucket(pool: Pool, key: Key, tokens: f64) -> Result<Self> {
        let key = Uuid::from_bytes(*key.as_bytes());
        let mint = "INSERT INTO single.rate_budgets VALUES ($1, $2, $3, clock_timestamp())";
        pool.get().await?.execute(mint, &[&SCOPE.as_str(), &key, &tokens]).await?;
        Ok(Self(pool))
    }
}

impl Limiter for SingleStatement {
    async fn take(&self, key: Key, budget: Budget) -> Result<bool> {
        returns_a_row(&self.0, SINGLE_STATEMENT, key, budget).await
    }
}

impl Limiter for GuardedUpdate {
    async fn take(&self, key: Key, budget: Budget) -> Result<bool> {
        returns_a_row(&self.0, GUARDED_UPDATE, key, budget).await
    }
}

async fn returns_a_row(pool: &Pool, statement: &str, key: Key, budget: Budget) -> Result<bool> {
    let client = pool.get().await.context("no connection")?;
    let statement = client.prepare_cached(statement).await?;
    let (scope, key, cost) = (SCOPE, Uuid::from_bytes(*key.as_bytes()), 1.0_f64);
    let scope = scope.as_str();
    let (rate, burst) = (budget.rate().tokens_per_second(), budget.burst().tokens());
    let arguments: [&(dyn ToSql + Sync); 5] = [&scope, &key, &cost, &rate, &burst];
    Ok(client.query_opt(&statement, &arguments).await?.is_some())
}
