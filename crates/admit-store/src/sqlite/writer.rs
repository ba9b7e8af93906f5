//! One thread that owns the connection, and commits in groups.
//!
//! While one commit is on its way to the disk, the operations that arrive wait; the next transaction carries them all, in
//! the order in which they arrived, so that one flush pays for many. An operation is answered only once its transaction
//! is committed. One that finds nothing to write costs no flush. One whose turn comes too late is not done.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use admit::{Causes, Clock, MonotonicClock, Timestamp, Unavailable, UnavailableKind};
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

/// The most operations of one transaction: they share a flush, and wait for each other.
const MAX_BATCH: usize = 256;

/// Why the file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error("the row holds {0}, which no store writes")]
    Corrupt(&'static str),
    #[error(
        "{0} was deleted or replaced while it was in use, and what is written would be lost; put it back, or restart to \
         begin with what is there"
    )]
    Replaced(PathBuf),
    #[error("the queue of {0} operations is full")]
    QueueFull(usize),
    #[error("the operations before it took longer than {0:?}")]
    Late(Duration),
    #[error("the thread that owns the connection has ended")]
    Ended,
}

/// Hands operations to the thread. The thread ends, and closes the file, when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Writer {
    queue: mpsc::Sender<Queued>,
    /// Never steps.
    clock: MonotonicClock,
}

struct Queued {
    since: Timestamp,
    job: Box<dyn Job>,
}

/// An operation for the thread.
pub(super) trait Job: Send {
    /// Whether it is to be done: mostly, whether somebody still waits for the answer.
    fn is_wanted(&self) -> bool;
    /// Whether it is given up if those before it took too long.
    fn can_be_late(&self) -> bool {
        true
    }
    /// May run again, after its transaction was rolled back because of another operation.
    fn run(&mut self, connection: &Connection) -> Result<(), Failure>;
    /// Tells the caller. What has to be done because of that is done next.
    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>>;
}

struct Operation<F, T> {
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, Arc<Failure>>>,
}

impl<F, T> Job for Operation<F, T>
where
    F: FnMut(&Connection) -> Result<T, Failure> + Send,
    T: Send,
{
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        self.result = Some((self.work)(connection)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>> {
        let Self { result, reply, .. } = *self;
        let _ = reply.send(outcome(committed, result)?); // A caller that left wants no answer.
        None
    }
}

/// What the caller of an operation is told that had this result in a transaction which ended so; nothing if it did not run:
/// dropping the sender tells that.
pub(super) fn outcome<T>(
    committed: Result<(), Arc<Failure>>,
    result: Option<T>,
) -> Option<Result<T, Arc<Failure>>> {
    match committed {
        Ok(()) => result.map(Ok),
        Err(failure) => Some(Err(failure)),
    }
}

impl Writer {
    /// A queue of `capacity` operations, each of which waits no longer than `max_wait` for its turn, and what empties it: to be
    /// run on a thread of its own, with a check that the connection's file is still there.
    pub(super) fn new<C>(
        capacity: usize,
        max_wait: Duration,
    ) -> (Self, impl FnOnce(Connection, C) + Send + 'static)
    where
        C: Fn() -> Result<(), Failure> + 'static,
    {
        let (queue, mut waiting) = mpsc::channel::<Queued>(capacity);
        let clock = MonotonicClock::start();
        let run = move |connection: Connection, check: C| {
            let mut thread = Thread { connection, check, clock, max_wait, next: Vec::new() };
            loop {
                let mut batch = std::mem::take(&mut thread.next);
                if batch.is_empty() {
                    let Some(first) = waiting.blocking_recv() else { break };
                    batch.push(first);
                }
                while batch.len() < MAX_BATCH
                    && let Ok(next) = waiting.try_recv()
                {
                    batch.push(next);
                }
                batch.retain(|queued| queued.job.is_wanted());
                thread.commit(batch);
            }
            if (thread.check)().is_err() {
                empty_log(&thread.connection);
            }
        };
        (Self { queue, clock }, run)
    }

    /// Runs `work` in a transaction that may write, and tells its result once that is committed.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.push(Operation { work, result: None, reply })?;
        match answer.await {
            Ok(result) => result.map_err(unavailable),
            Err(_) => Err(unavailable(Failure::Ended)),
        }
    }

    /// Adds to what waits.
    pub(super) fn push(&self, job: impl Job + 'static) -> Result<(), Unavailable> {
        let queued = Queued { since: self.clock.now(), job: Box::new(job) };
        self.queue.try_send(queued).map_err(|error| {
            unavailable(match error {
                mpsc::error::TrySendError::Full(_) => Failure::QueueFull(self.queue.max_capacity()),
                mpsc::error::TrySendError::Closed(_) => Failure::Ended,
            })
        })
    }
}

impl Failure {
    fn kind(&self) -> UnavailableKind {
        match self {
            Self::Sql(error) => match error.sqlite_error_code() {
                // Another process wrote for as long as this one waits.
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => UnavailableKind::TimedOut,
                Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => UnavailableKind::Rejected,
                Some(ErrorCode::DiskFull) => UnavailableKind::Full,
                _ => UnavailableKind::Failed,
            },
            Self::QueueFull(_) => UnavailableKind::Full,
            Self::Late(_) => UnavailableKind::TimedOut,
            Self::Replaced(_) | Self::Ended => UnavailableKind::Broken,
            Self::Corrupt(_) => UnavailableKind::Failed,
        }
    }
}

/// A failure that several operations may share.
pub(super) fn unavailable(failure: impl Into<Arc<Failure>>) -> Unavailable {
    let failure = failure.into();
    let kind = failure.kind();
    Unavailable::new("SQLite", failure).of_kind(kind)
}

/// The thread: what it commits to.
struct Thread<C> {
    connection: Connection,
    check: C,
    clock: MonotonicClock,
    max_wait: Duration,
    /// What is done before those that wait: for each operation of the last batch one at most.
    next: Vec<Queued>,
}

impl<C: Fn() -> Result<(), Failure>> Thread<C> {
    fn commit(&mut self, mut batch: Vec<Queued>) {
        let begin = self.clock.now();
        let is_late =
            |queued: &mut Queued| queued.job.can_be_late() && begin.since(queued.since) > self.max_wait;
        let late: Vec<Queued> = batch.extract_if(.., is_late).collect();
        if !late.is_empty() {
            self.answer(late, Err(Failure::Late(self.max_wait)));
        }
        if batch.is_empty() {
            return;
        }
        match self.attempt(&mut batch) {
            Ok(()) => self.answer(batch, Ok(())),
            Err(Trouble::Operation(_)) if batch.len() > 1 => {
                // One operation must not take the others down with it.
                batch.into_iter().for_each(|queued| self.commit(vec![queued]));
            }
            Err(Trouble::Operation(failure) | Trouble::Transaction(failure)) => {
                self.answer(batch, Err(failure));
            }
        }
    }

    fn answer(&mut self, batch: Vec<Queued>, committed: Result<(), Failure>) {
        let committed = committed.map_err(Arc::new);
        let since = self.clock.now();
        let next = batch.into_iter().filter_map(|queued| queued.job.answer(committed.clone()));
        self.next.extend(next.map(|job| Queued { since, job }));
    }

    fn attempt(&mut self, batch: &mut [Queued]) -> Result<(), Trouble> {
        let sql = |error: rusqlite::Error| Trouble::Transaction(error.into());
        // Immediate, so that no other process writes between what is read here and what is written.
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql)?;
        for queued in batch {
            queued.job.run(&transaction).map_err(Trouble::Operation)?; // Dropping the transaction rolls it back.
        }
        transaction.commit().map_err(sql)?;
        (self.check)().map_err(|lost| {
            empty_log(&self.connection);
            Trouble::Transaction(lost)
        })
    }
}

enum Trouble {
    /// One operation failed; nothing was written.
    Operation(Failure),
    /// The transaction could not begin or commit, or was committed to a file that is gone.
    Transaction(Failure),
}

/// Brings what the log holds into the file, wherever that is now, and leaves an empty log: SQLite would take a log that is
/// left over for that of the file which was put in the place of this one.
fn empty_log(connection: &Connection) {
    if let Err(error) = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
        tracing::warn!(error = %Causes(&error), "the log of a file that is gone was not emptied");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_operation_that_fails_takes_no_other_with_it_and_leaves_nothing() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE numbers (n INTEGER CHECK (n < 10))").unwrap();
        let (writer, run) = Writer::new(8, Duration::MAX);
        let insert = |first: i64, second: i64| {
            writer.run(move |connection| {
                connection.execute("INSERT INTO numbers VALUES (?1)", [first])?;
                connection.execute("INSERT INTO numbers VALUES (?1)", [second])?;
                Ok(())
            })
        };
        // All three are queued before the thread starts, so they share a transaction.
        let (good, bad, other) = (insert(1, 2), insert(3, 99), insert(4, 5));
        let thread = async { std::thread::spawn(move || run(connection, || Ok(()))) };
        let (good, bad, other, _) = tokio::join!(biased; good, bad, other, thread);
        assert!(good.is_ok() && bad.is_err() && other.is_ok());
        let all = writer.run(|connection| {
            let mut statement = connection.prepare("SELECT n FROM numbers ORDER BY n")?;
            let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
            Ok(rows.collect::<Result<Vec<_>, _>>()?)
        });
        assert_eq!(all.await.unwrap(), [1, 2, 4, 5]);
    }

    #[tokio::test]
    async fn a_full_queue_is_unavailable() {
        let (writer, _run) = Writer::new::<fn() -> Result<(), Failure>>(1, Duration::MAX);
        let waiting = writer.run(|_| Ok(()));
        let refused = async { writer.run(|_| Ok(())).await.unwrap_err() };
        let error =
            tokio::select! { biased; _ = waiting => panic!("nobody runs it"), error = refused => error };
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "the queue of 1 operations is full");
    }
}
