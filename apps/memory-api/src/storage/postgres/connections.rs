//! Connections to PostgreSQL, and the bounds that hold on them.
//!
//! The pool is the application's own: a burst of searches leaves the connections of the budgets alone. Statements are
//! sent unnamed and whole, so that a pooler in transaction mode may stand in between.

use std::fmt;

use admit::{IdempotencyError, Unavailable};
use admit_store::postgres::{MakeRustlsConnect, ScopeGuard, connector, give_back, in_flight, rustls};
use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use futures::future::BoxFuture;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, IsolationLevel, Row, Transaction};

use crate::storage::STATEMENT_TIMEOUT;

/// Enough to keep a small server busy; it is shared with other processes.
const CONNECTIONS: usize = 8;
/// How often a transaction is repeated that the server undid because of others.
const RETRIES: u32 = 3;

/// A parameter with its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The connections; clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    pool: Pool,
    tls: MakeRustlsConnect,
}

/// Why a statement gave nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("the URL of the database is malformed")]
    Url(#[source] tokio_postgres::Error),
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    #[error("the pool cannot be made")]
    Build(#[source] deadpool_postgres::BuildError),
    #[error("no connection")]
    Pool(#[source] PoolError),
    #[error("a statement failed")]
    Statement(#[from] tokio_postgres::Error),
    #[error("no answer within {STATEMENT_TIMEOUT:?}")]
    TimedOut,
    #[error("the tables are of version {0}; this service knows {1}")]
    Newer(i32, i32),
    #[error(transparent)]
    Record(#[from] IdempotencyError),
    #[error("a stored value is not one that this service wrote")]
    Stored(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<Failure> for Unavailable {
    fn from(failure: Failure) -> Self {
        Self::new("PostgreSQL", failure)
    }
}

impl Failure {
    /// A stored value that cannot be read.
    pub(super) fn stored(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Stored(error.into())
    }

    fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Statement(error) => error.code(),
            _ => None,
        }
    }

    /// Whether the server has undone the transaction and may take it when it comes again.
    fn is_transient(&self) -> bool {
        let transient = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
        self.code().is_some_and(|code| transient.contains(code))
    }

    /// Whether it was the data that the server did not take, so that trying again would fail again: data exceptions,
    /// constraint violations and exceeded program limits.
    pub(super) fn is_about_data(&self) -> bool {
        self.code().is_some_and(|code| ["22", "23", "54"].iter().any(|class| code.code().starts_with(class)))
    }
}

impl Connections {
    /// Makes no connection yet.
    pub(super) fn new(url: &str) -> Result<Self, Failure> {
        let mut config: tokio_postgres::Config = url.parse().map_err(Failure::Url)?;
        if config.get_application_name().is_none() {
            config.application_name("memory-api");
        }
        config.connect_timeout(STATEMENT_TIMEOUT).tcp_user_timeout(STATEMENT_TIMEOUT);
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let tls = connector(config.get_ssl_mode(), None).map_err(Failure::Tls)?;
        let pool = Pool::builder(Manager::from_config(config, tls.clone(), recycling))
            .max_size(CONNECTIONS)
            .wait_timeout(Some(STATEMENT_TIMEOUT))
            .create_timeout(Some(STATEMENT_TIMEOUT))
            .recycle_timeout(Some(STATEMENT_TIMEOUT))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(Failure::Build)?;
        Ok(Self { pool, tls })
    }

    /// The rows of one statement.
    pub(super) async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        self.bounded(async |connection| Ok(connection.query_typed(sql, parameters).await?)).await
    }

    /// How many rows one statement wrote.
    pub(super) async fn execute(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<u64, Failure> {
        self.bounded(async |connection| Ok(connection.execute_typed(sql, parameters).await?)).await
    }

    /// Runs `work` in a transaction and commits it. It is run again if the server undid it because of others.
    pub(super) async fn transaction<T>(
        &self,
        work: impl for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut tries = 0;
        loop {
            match self.attempt(&work).await {
                Err(failure) if failure.is_transient() && tries < RETRIES => tries += 1,
                done => return done,
            }
        }
    }

    async fn attempt<T>(
        &self,
        work: &impl for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let transaction = async |connection: &mut Client| {
            let transaction = connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
            let transaction = transaction.start().await?;
            let done = work(&transaction).await?;
            transaction.commit().await?;
            Ok(done)
        };
        self.bounded(transaction).await
    }

    /// Works on a connection, up to a time limit. A connection whose work is cut short, by that or because the caller
    /// has gone, is not handed to the next one before it is free.
    async fn bounded<T>(
        &self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let connection = self.pool.get().await.map_err(Failure::Pool)?;
        let mut busy = in_flight(connection, self.tls.clone(), STATEMENT_TIMEOUT);
        let done = timeout(STATEMENT_TIMEOUT, work(&mut busy)).await.map_err(|_| Failure::TimedOut)?;
        give_back(ScopeGuard::into_inner(busy), done.as_ref().err().and_then(Failure::code));
        done
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}
