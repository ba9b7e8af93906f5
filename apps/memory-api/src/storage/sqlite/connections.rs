//! Connections to one SQLite file: one that writes, a few that read.
//!
//! SQLite admits one writer at a time; with one writing connection, writers of this process queue in memory, in order,
//! and wait for the file's lock only when another process has it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use admit::{IdempotencyError, Unavailable};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Semaphore;

use crate::storage::STATEMENT_TIMEOUT;

/// Reads are short and mostly in the page cache; more at once than this would only take turns on the processor.
const READERS: usize = 4;

/// The connections; clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    writer: Pool,
    readers: Pool,
}

/// Idle connections. A permit is held for each that is in use, so there is always one to take or room to open one.
struct Pool {
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    writes: bool,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no connection was free for {STATEMENT_TIMEOUT:?}")]
    Busy,
    #[error("the connections are closed")]
    Closed,
    #[error("the statement panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

/// The failure of a statement as the callers of a store know it.
pub(super) fn unavailable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Unavailable {
    Unavailable::new("SQLite", cause)
}

impl Connections {
    pub(super) fn new(path: &Path) -> Self {
        let pool = |connections: usize, writes: bool| Pool {
            permits: Arc::new(Semaphore::new(connections)),
            idle: Mutex::new(Vec::with_capacity(connections)),
            writes,
        };
        let inner = Inner { path: path.to_owned(), writer: pool(1, true), readers: pool(READERS, false) };
        Self { inner: Arc::new(inner) }
    }

    /// Runs `work` in a transaction that has the file's write lock, and commits it. It is carried through even if the
    /// caller goes away.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, WriteError> + Send + 'static,
    ) -> Result<T, WriteError> {
        self.run(
            |inner| &inner.writer,
            move |connection| {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let done = work(&transaction)?;
                transaction.commit()?;
                Ok(done)
            },
        )
        .await
    }

    /// Runs `work` on a snapshot of the file.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let read =
            self.run(|inner| &inner.readers, move |connection| Ok(work(&connection.transaction()?)?)).await;
        read.map_err(WriteError::into_unavailable)
    }

    async fn run<T: Send + 'static>(
        &self,
        pool: fn(&Inner) -> &Pool,
        work: impl FnOnce(&mut Connection) -> Result<T, WriteError> + Send + 'static,
    ) -> Result<T, WriteError> {
        let permits = Arc::clone(&pool(&self.inner).permits);
        let permit = match tokio::time::timeout(STATEMENT_TIMEOUT, permits.acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(unavailable(Failure::Closed).into()),
            Err(_) => return Err(unavailable(Failure::Busy).into()),
        };
        let inner = Arc::clone(&self.inner);
        let run = move || {
            let _permit = permit;
            let pool = pool(&inner);
            let idle = pool.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => open(&inner.path, pool.writes)?,
            };
            let done = work(&mut connection)?; // A connection that failed is closed, in case that it is to blame.
            pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            Ok(done)
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(done) => done,
            Err(panicked) => Err(unavailable(Failure::Panicked(panicked)).into()),
        }
    }
}

/// Why a transaction was not committed.
#[derive(Debug)]
pub(super) enum WriteError {
    /// A statement failed.
    Statement(rusqlite::Error),
    /// No statement was run.
    Unavailable(Unavailable),
    /// The idempotency record could not be completed.
    Record(IdempotencyError),
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Statement(error)
    }
}

impl From<Unavailable> for WriteError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

impl WriteError {
    pub(super) fn into_unavailable(self) -> Unavailable {
        match self {
            Self::Statement(error) => unavailable(error),
            Self::Unavailable(unavailable) | Self::Record(IdempotencyError::Unavailable(unavailable)) => {
                unavailable
            }
            Self::Record(lost @ IdempotencyError::TicketLost) => unavailable(lost),
        }
    }

    /// Whether it was the data that the file did not take, so that trying again would fail again.
    pub(super) fn is_about_data(&self) -> bool {
        use rusqlite::ErrorCode;
        let Self::Statement(error) = self else { return false };
        matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch)
        ) || matches!(error, rusqlite::Error::ToSqlConversionFailure(_))
    }
}

fn open(path: &Path, writes: bool) -> rusqlite::Result<Connection> {
    // The store has made the file. One that is gone since must not come back empty.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(STATEMENT_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(32);
    // WAL: readers and the writer do not wait for each other. FULL: what was answered 202 outlives a power cut.
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    if !writes {
        connection.pragma_update(None, "query_only", true)?;
    }
    Ok(connection)
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({})", self.inner.path.display())
    }
}
