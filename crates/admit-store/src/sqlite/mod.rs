//! Buckets and records in one file: the durable store for one machine.
//!
//! What was answered is on the disk: a process that is killed, or a machine that loses power, forgets neither debits nor
//! completed keys. Several processes may share a file; together they stay exact, except that a bucket which one of them saw too empty
//! may go on refusing there for ten seconds after another gave back to it. The file must be on a local disk, and
//! is made readable for its owner alone.
//!
//! A file that is deleted or replaced while it is in use makes the store unavailable, until it is put back or the process
//! starts again. Before a backup is put in its place, stop what uses it, and delete its log (`-wal`) if one is left.
//!
//! An operator reads it with `sqlite3`:
//!
//! ```sql
//! SELECT scope, bucket_key, tokens, datetime(refilled_at / 1e6, 'unixepoch') FROM rate_budgets;
//! ```
//!
//! ```
//! use admit::{BudgetStore, Charge, Key, Now, Rules, Scope};
//! use admit_store::sqlite::SqliteStore;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("admit.db");
//! let ingest = Scope::from_static("ingest");
//! let rules = Rules::new([ingest.clone()])?;
//! let charge = Charge::one(ingest, Key::hashed("tenant"), "1/minute".parse()?);
//!
//! let store = SqliteStore::open(&path, rules.clone()).await?;
//! assert!(store.take(&[charge.clone()], Now::Store).await?.is_granted());
//! drop(store);
//!
//! let store = SqliteStore::open(&path, rules).await?;
//! assert!(!store.take(&[charge], Now::Store).await?.is_granted());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admissions;
mod api_keys;
mod buckets;
mod headers;
mod leaderships;
mod named_file;
mod open;
mod operations;
mod records;
mod takes;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{
    BudgetStore, Charge, Clock, Decision, IdempotencyError, IdempotencyStore, Now, Prepared, Rules, Scope,
    SystemClock, TakeError, Timestamp, Unavailable,
};
/// For [`SqliteStore::complete_in`].
pub use rusqlite;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::leader::{Leader, Leadership};
use named_file::NamedFiles;
pub use open::OpenError;
use takes::Takes;
use writer::{Failure, Writer};

/// The most rows that one transaction of a sweep deletes, so that takes get their turn in between.
const SWEEP_BATCH: u64 = 1_000;

/// How a [`SqliteStore`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long to wait for another process that writes. Default 5 s.
    pub busy_timeout: Duration,
    /// The most operations that wait for the thread; more are unavailable. Default 4,096.
    pub queue: usize,
    /// How long an operation may wait for those before it; then it is unavailable. Default 5 s.
    pub max_wait: Duration,
    /// The most buckets that are remembered as too empty, so that refusing needs no look at the file; some 100 bytes each.
    /// What another process gives back to one of them, or deletes, is seen within ten seconds. Default 16,384; with 0, none
    /// are.
    pub refusals: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(5),
            queue: 4_096,
            max_wait: Duration::from_secs(5),
            refusals: 16_384,
        }
    }
}

/// A store in a file. Clones share one connection, on a thread of its own; it is closed when the last is dropped.
#[derive(Clone)]
pub struct SqliteStore {
    rules: Arc<Rules>,
    clock: Arc<dyn Clock>,
    files: Arc<NamedFiles>,
    writer: Writer,
    takes: Takes,
    migrated: Arc<str>,
}

impl SqliteStore {
    /// Opens the file at `path`, or makes it, with the default [`Settings`], on the [`SystemClock`].
    ///
    /// # Errors
    /// [`OpenError`], which names the path.
    pub async fn open(path: impl AsRef<Path>, rules: Rules) -> Result<Self, OpenError> {
        Self::open_with(path, rules, Settings::default(), SystemClock).await
    }

    /// Opens the file at `path`, or makes it; the store reads `clock` where a caller passes [`Now::Store`].
    ///
    /// # Errors
    /// [`OpenError`], which names the path.
    pub async fn open_with(
        path: impl AsRef<Path>,
        rules: Rules,
        settings: Settings,
        clock: impl Clock + 'static,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let opened_with = rules.clone();
        let (writer, run) = Writer::new(settings.queue.max(1), settings.max_wait);
        let (opened, answer) = oneshot::channel();
        let thread_path = path.clone();
        let thread =
            std::thread::Builder::new().name("admit-sqlite".into()).spawn(move || {
                match open::open(&thread_path, &opened_with, settings.busy_timeout) {
                    Ok((connection, files, migrated)) => {
                        let files = Arc::new(files);
                        if opened.send(Ok((files.clone(), migrated))).is_ok() {
                            run(connection, move || files.check());
                        }
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
        let failed = |source| OpenError::Thread { path, source };
        thread.map_err(failed.clone())?;
        let (files, migrated) =
            answer.await.map_err(|_| failed(std::io::Error::other("the thread ended")))??;
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let takes = Takes::new(writer.clone(), clock.clone(), settings.refusals);
        Ok(Self { rules: Arc::new(rules), clock, files, writer, takes, migrated: migrated.into() })
    }

    /// A handle of the same file and connection that holds takes to other rules. Handles with the rules before go on.
    ///
    /// # Errors
    /// [`Unavailable`] if there are new scopes or a longer retention, and the file cannot take them.
    pub async fn with_rules(&self, rules: Rules) -> Result<Self, Unavailable> {
        let new: Vec<Scope> =
            rules.scopes.iter().filter(|scope| !self.rules.scopes.contains(scope)).cloned().collect();
        let retention = rules.retention;
        if !new.is_empty() || retention > self.rules.retention {
            let change = move |connection: &Connection| {
                buckets::add_scopes(connection, &new)?;
                Ok(buckets::raise_retention(connection, retention)?)
            };
            self.writer.run(change).await?;
        }
        Ok(Self { rules: Arc::new(rules), ..self.clone() })
    }

    /// Completes a record as [`IdempotencyStore::complete`] does, inside a transaction of the caller's on the same file,
    /// so that the work and its record are committed together. Blocks as the transaction does.
    ///
    /// The transaction must be immediate ([`rusqlite::TransactionBehavior::Immediate`]): one that first reads may find
    /// that another process wrote meanwhile, and fail. On an error, roll it back.
    ///
    /// # Errors
    /// [`IdempotencyError::TicketLost`] if the lease had lapsed: another run may have the key.
    pub fn complete_in(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        self.files.check().map_err(writer::unavailable)?;
        records::complete_in(transaction, ticket, outcome, terms, now.or_by(&*self.clock))
    }

    /// How many takes, and admissions, debited their buckets for nobody, since the store was opened: those of callers that went
    /// away, which could not be given back. A key that was claimed so is in flight until its lease lapses; where the terms are
    /// [`OnLapse::StayBlocked`](admit::idempotency::OnLapse::StayBlocked) it is then blocked until its time is over, though nothing
    /// ran.
    pub fn unanswered_takes(&self) -> u64 {
        self.takes.unanswered()
    }

    /// How many takes were refused from memory since the store was opened, without a look at the file.
    pub fn remembered_refusals(&self) -> u64 {
        self.takes.refusals().recalled()
    }

    /// Debits all charges, or none. What nobody waits for any more is given back unless it is taken `for_good`.
    pub(crate) async fn decide(
        &self,
        charges: &[Charge],
        now: Now,
        for_good: bool,
    ) -> Result<Decision, TakeError> {
        match self.rules.prepare(charges)? {
            Prepared::Decided(decision) => Ok(decision),
            Prepared::Ask(take) => Ok(self.takes.take(take, now, for_good).await?),
        }
    }

    /// Reads the clock when the operation runs, not when it is queued.
    fn moment(&self, now: Now) -> impl Fn() -> Timestamp + Send + 'static {
        let clock = self.clock.clone();
        move || now.or_by(&*clock)
    }

    /// Deletes batch by batch, each in a transaction of its own, until one is not full, and tells how much.
    async fn sweep(
        &self,
        delete: impl Fn(&Connection) -> Result<u64, Failure> + Clone + Send + 'static,
    ) -> Result<u64, Unavailable> {
        let mut deleted = 0;
        loop {
            let batch = self.writer.run(delete.clone()).await?;
            deleted += batch;
            if batch < SWEEP_BATCH {
                return Ok(deleted);
            }
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl BudgetStore for SqliteStore {
    fn rules(&self) -> &Rules {
        &self.rules
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.decide(charges, now, false).await
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        match self.rules.prepare(charges)? {
            Prepared::Decided(decision) => Ok(decision),
            Prepared::Ask(take) => {
                let now = self.moment(now);
                Ok(self.writer.run(move |connection| buckets::peek(connection, &take, now())).await?)
            }
        }
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        let take = self.rules.prepare_refund(charges)?;
        if take.lines().is_empty() {
            return Ok(());
        }
        Ok(self.takes.refund(take).await?)
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        let (retention, now) = (self.rules.retention, self.moment(now)());
        let refusals = self.takes.refusals();
        let delete = move |connection: &_| {
            let deleted = buckets::delete_idle(connection, retention, now, SWEEP_BATCH)?;
            if deleted > 0 {
                refusals.forget_all();
            }
            Ok(deleted)
        };
        self.sweep(delete).await
    }
}

impl IdempotencyStore for SqliteStore {
    async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Option<Claim>, Unavailable> {
        let (key, fingerprint, terms, now) = (*key, *fingerprint, terms.clone(), self.moment(now));
        let record = move |connection: &_| {
            let record = records::read(connection, key)?;
            Ok(record.and_then(|record| record.look(fingerprint, &terms, now())))
        };
        self.writer.run(record).await
    }

    async fn claim(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Claim, Unavailable> {
        let (key, fingerprint, terms, now) = (*key, *fingerprint, terms.clone(), self.moment(now));
        self.writer.run(move |connection| records::claim(connection, key, fingerprint, &terms, now())).await
    }

    async fn renew(&self, ticket: &Ticket, terms: &Terms, now: Now) -> Result<Ticket, IdempotencyError> {
        let (ticket, terms, now) = (ticket.clone(), terms.clone(), self.moment(now));
        let renew = move |connection: &_| records::renew(connection, &ticket, &terms, now());
        Ok(self.writer.run(renew).await??)
    }

    async fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        let (ticket, outcome, terms) = (ticket.clone(), outcome.clone(), terms.clone());
        let now = self.moment(now);
        let complete = move |connection: &_| records::complete(connection, &ticket, &outcome, &terms, now());
        Ok(self.writer.run(complete).await??)
    }

    async fn release(&self, ticket: &Ticket, now: Now) -> Result<(), IdempotencyError> {
        let (ticket, now) = (ticket.clone(), self.moment(now));
        let release = move |connection: &_| records::release(connection, &ticket, now());
        Ok(self.writer.run(release).await??)
    }

    async fn delete_expired(&self, now: Now) -> Result<u64, Unavailable> {
        let now = self.moment(now)();
        self.sweep(move |connection| records::delete_expired(connection, now, SWEEP_BATCH)).await
    }
}

impl Leader for SqliteStore {
    async fn lead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        now: Now,
    ) -> Result<Option<Leadership>, Unavailable> {
        let (name, holder, now) = (name.to_owned(), holder.to_owned(), self.moment(now));
        let lead = move |connection: &_| leaderships::lead(connection, &name, &holder, lease, now());
        self.writer.run(lead).await
    }
}

#[cfg(feature = "conformance")]
impl crate::conformance::Inspect for SqliteStore {
    #[allow(clippy::expect_used)] // For tests.
    async fn bucket(&self, scope: &Scope, key: &admit::Key) -> Option<admit::Bucket> {
        let (scope, key) = (scope.clone(), *key);
        self.writer
            .run(move |connection| buckets::read(connection, &scope, key))
            .await
            .expect("a bucket is read")
    }

    #[allow(clippy::expect_used)] // For tests.
    async fn record(&self, key: &RecordKey) -> Option<admit::idempotency::Record> {
        let key = *key;
        self.writer.run(move |connection| records::read(connection, key)).await.expect("a record is read")
    }
}

#[cfg(test)]
mod tests;
