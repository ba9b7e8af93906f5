//! The service's own connections to PostgreSQL, and how its statements are run on them.
//!
//! They are apart from those of the budgets, which a burst of searches leaves alone. Statements are sent unnamed and
//! whole, so that a pooler in transaction mode may stand in between.

use admit::{IdempotencyError, Unavailable};
use admit_store::postgres::{ConnectError, ConnectionError, PostgresConfig, StatementError};
use futures::future::BoxFuture;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, IsolationLevel, Row, Transaction};

use crate::storage::STATEMENT_TIMEOUT;

/// How often a transaction is repeated that the server undid because of others.
const RETRIES: u32 = 3;

/// What to do about tables that somebody has changed.
const RESTORE: &str =
    "restore it from a backup, or drop or rename the schema, and the next start makes it anew, empty";

/// A parameter with its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The connections; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Connections(admit_store::postgres::Connections);

/// Why a statement gave nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("a statement failed")]
    Statement(#[source] StatementError),
    #[error(
        "the schema memory is of version {0}, newer than the {1} that this service knows; upgrade the service"
    )]
    Newer(i32, i32),
    #[error("memory.schema_version must hold one version, and holds {0:?}; {RESTORE}")]
    NoVersion(Vec<i32>),
    #[error("the schema memory is not as its migrations made it; {RESTORE}")]
    Damaged(#[source] tokio_postgres::Error),
    #[error(transparent)]
    Record(#[from] IdempotencyError),
    #[error("a stored value is not one that this service wrote")]
    Stored(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Statement(error.into())
    }
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
        let mut config = PostgresConfig::new(url);
        config.statement_timeout = STATEMENT_TIMEOUT;
        Ok(Self(admit_store::postgres::Connections::new("memory-api", &config)?))
    }

    /// The rows of one statement.
    pub(super) async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        self.0.run(async |client| Ok(client.query_typed(sql, parameters).await?)).await
    }

    /// How many rows one statement wrote.
    pub(super) async fn execute(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<u64, Failure> {
        self.0.run(async |client| Ok(client.execute_typed(sql, parameters).await?)).await
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
        let transaction = async |client: &mut Client| {
            let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
            let transaction = transaction.start().await?;
            let done = work(&transaction).await?;
            transaction.commit().await?;
            Ok(done)
        };
        self.0.run(transaction).await
    }
}
