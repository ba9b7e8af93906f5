//! The one way in which the store's statements are run: bounded, and repeated where that is safe.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use admit::{Now, Timestamp, Unavailable};
use backon::{ExponentialBuilder, Retryable};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::{ConnectError, ConnectionError, Connections, PostgresConfig, StatementError, outage};

/// A parameter with its type: statements are sent unnamed and whole, so that a pooler may run each on any connection.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The store's SQL raises it in a transaction that is not `read committed`.
const NOT_READ_COMMITTED: &str = "AD001";

/// How long a hasty statement may wait for a lock: one before it has waited in vain already, and others who take do not hold
/// a row that long.
const HASTY_WAIT_MS: i32 = 50;

/// How often a statement is repeated that the server undid because of others.
const RETRIES: usize = 5;

/// The connections of one store. Clones share them.
#[derive(Clone)]
pub(super) struct Database(Arc<Shared>);

struct Shared {
    connections: Connections,
    schema: String,
    lock_timeout_ms: i32,
    /// Whether statements are sent within a transaction that states its isolation, because the server's default is
    /// another one.
    states_isolation: AtomicBool,
}

/// Why a statement gave no rows.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("a statement failed")]
    Statement(#[source] StatementError),
    #[error("the answer is not as it should be: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
}

impl CallError {
    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Statement(error) => error.code(),
            _ => None,
        }
    }

    /// Whether the server has undone the statement, and may well do it when asked again.
    pub(super) fn is_transient(&self) -> bool {
        self.code().is_some_and(|code| {
            [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
        })
    }
}

impl From<tokio_postgres::Error> for CallError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Statement(error.into())
    }
}

impl From<CallError> for Unavailable {
    fn from(error: CallError) -> Self {
        let kind = outage::kind(&error);
        Self::new("PostgreSQL", error).of_kind(kind)
    }
}

impl Database {
    /// Makes no connection yet.
    pub(super) fn new(config: &PostgresConfig) -> Result<Self, ConnectError> {
        Ok(Self(Arc::new(Shared {
            connections: Connections::new("admit", config)?,
            schema: config.schema.quoted(),
            lock_timeout_ms: millis(config.lock_timeout),
            states_isolation: AtomicBool::new(false),
        })))
    }

    pub(super) fn connections(&self) -> &Connections {
        &self.0.connections
    }

    /// The schema as it stands in SQL.
    pub(super) fn schema(&self) -> &str {
        &self.0.schema
    }

    /// What the SQL functions take as the bound of their waits for locks.
    pub(super) fn lock_timeout_ms(&self) -> i32 {
        self.0.lock_timeout_ms
    }

    /// The same for a statement that waits as long as it may, or hardly.
    pub(super) fn lock_wait_ms(&self, hasty: bool) -> i32 {
        let longest = self.0.lock_timeout_ms;
        if hasty { longest.min(HASTY_WAIT_MS) } else { longest }
    }

    /// Runs a statement that gives one row, in a transaction of its own, `read committed`.
    pub(super) async fn row(&self, sql: &str, params: &[Param<'_>]) -> Result<Row, CallError> {
        match <[Row; 1]>::try_from(self.rows(sql, params).await?) {
            Ok([row]) => Ok(row),
            Err(rows) => Err(CallError::Answer(format!("{} rows in place of one", rows.len()).into())),
        }
    }

    /// The same for a statement that gives many.
    pub(super) async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, CallError> {
        (|| self.attempt(sql, params)).retry(retries()).when(CallError::is_transient).await
    }

    async fn attempt(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, CallError> {
        let states_isolation = self.0.states_isolation.load(Ordering::Relaxed);
        match self.send(sql, params, states_isolation).await {
            Err(error)
                if error.code().is_some_and(|code| code.code() == NOT_READ_COMMITTED)
                    && !states_isolation =>
            {
                self.0.states_isolation.store(true, Ordering::Relaxed);
                self.send(sql, params, true).await
            }
            answer => answer,
        }
    }

    async fn send(
        &self,
        sql: &str,
        params: &[Param<'_>],
        states_isolation: bool,
    ) -> Result<Vec<Row>, CallError> {
        let answer = async |client: &mut Client| match states_isolation {
            true => Ok(in_read_committed(client, sql, params).await?),
            false => Ok(client.query_typed(sql, params).await?),
        };
        self.0.connections.run(answer).await
    }
}

/// Tiny waits: what interfered is most likely over, and the jitter keeps two from interfering again.
fn retries() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(1))
        .with_max_delay(Duration::from_millis(20))
        .with_max_times(RETRIES)
        .with_jitter()
}

/// Sends the transaction's three statements at once: still one round trip.
async fn in_read_committed(
    client: &Client,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let (begin, rows, commit) = tokio::join!(
        client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
        client.query_typed(sql, params),
        client.batch_execute("COMMIT"), // Rolls back if the statement failed.
    );
    begin?;
    let rows = rows?;
    commit?; // Not committed is not done.
    Ok(rows)
}

/// `NULL` is the server's clock. Whole microseconds, on both sides.
pub(super) fn moment(now: Now) -> Option<SystemTime> {
    now.given().map(SystemTime::from)
}

/// A column of an answer.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, CallError> {
    row.try_get(column).map_err(CallError::from)
}

/// A moment of an answer.
pub(super) fn timestamp(time: SystemTime) -> Result<Timestamp, CallError> {
    Timestamp::try_from(time).map_err(|error| CallError::Answer(error.into()))
}

/// Whole microseconds, no more than there are timestamps.
pub(super) fn micros(duration: Duration) -> i64 {
    Timestamp::MIN.saturating_add(duration).unix_micros()
}

/// Whole milliseconds, at least one (zero would be no bound), as the server's settings take them.
pub(super) fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX).max(1)
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("schema", &self.0.schema).finish_non_exhaustive()
    }
}
