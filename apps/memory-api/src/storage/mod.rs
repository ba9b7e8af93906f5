//! Where jobs and items are kept: SQLite on one machine, PostgreSQL for several processes.
//!
//! Both stores do the same; each has its SQL in files of its own. A batch becomes a job, in the same transaction that
//! completes its idempotency record. A worker claims the job for a while, and makes its items searchable in the
//! transaction that finishes it: whatever dies on the way, items are indexed once.

mod item;
mod job;
mod page;
pub mod postgres;
mod search_index;
pub mod sqlite;

use std::time::Duration;

use admit::idempotency::{Outcome, Terms, Ticket};
use admit::{IdempotencyError, Now, Unavailable};
use uuid::Uuid;

pub use item::{Item, Project, Skill};
pub use job::{ClaimedJob, Finish, Job, JobStatus, NewJob};
pub use page::{ItemName, Position, Search, Slice};

/// How often the items of a job may fail to be indexed before the job is given up.
pub const MAX_FAILURES: i32 = 5;
/// How long a finished job is kept at least. Longer if its batch is replayed for longer: a replay names the job.
pub const JOB_RETENTION: Duration = Duration::from_secs(7 * 86_400);
/// How many jobs one statement trims, so that none holds its locks for long.
const TRIM_BATCH: u32 = 1_000;
/// How long a statement may take before it counts as failed.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait before the next try of a job that failed `failures` times.
fn retry_after(failures: i32) -> Duration {
    Duration::from_secs(1_u64 << failures.clamp(0, 6))
}

/// The store that was configured. Clones share its connections.
#[derive(Clone, Debug)]
pub enum Storage {
    /// A file.
    Sqlite(sqlite::SqliteStorage),
    /// A server.
    Postgres(postgres::PostgresStorage),
}

/// Calls the same function of whichever store it is.
macro_rules! on_either {
    ($storage:expr, $store:ident => $call:expr) => {
        match $storage {
            Storage::Sqlite($store) => $call.await,
            Storage::Postgres($store) => $call.await,
        }
    };
}

impl Storage {
    /// Keeps a job and what its request is answered with, both or neither.
    ///
    /// # Errors
    /// [`IdempotencyError::TicketLost`] if another request may have the key; nothing was kept then.
    pub async fn enqueue(
        &self,
        job: NewJob,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        on_either!(self, store => store.enqueue(job, ticket, outcome, terms, now))
    }

    /// The job, if it is the tenant's.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed; so for all that follow.
    pub async fn job(&self, tenant: &str, id: Uuid) -> Result<Option<Job>, Unavailable> {
        on_either!(self, store => store.job(tenant, id))
    }

    /// Claims up to `most` jobs for `lease`, oldest first: queued ones, and those whose worker let its lease lapse.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn claim_jobs(
        &self,
        most: u32,
        lease: Duration,
        now: Now,
    ) -> Result<Vec<ClaimedJob>, Unavailable> {
        on_either!(self, store => store.claim_jobs(most, lease, now))
    }

    /// Makes the items of a job searchable and finishes it, unless its claim has lapsed and another has it.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn finish_job(&self, job: &ClaimedJob, now: Now) -> Result<Finish, Unavailable> {
        on_either!(self, store => store.finish_job(job, now))
    }

    /// Notes that the items of a job could not be indexed. It is tried again later, at most [`MAX_FAILURES`] times.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn fail_job(&self, job: &ClaimedJob, now: Now) -> Result<(), Unavailable> {
        on_either!(self, store => store.fail_job(job, now))
    }

    /// Items, best first if words are searched for, else newest first.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn search(&self, search: Search) -> Result<Slice<Item>, Unavailable> {
        on_either!(self, store => store.search(search))
    }

    /// The projects of a tenant by name, those behind `after`.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn projects(
        &self,
        tenant: &str,
        after: Option<String>,
        limit: u32,
    ) -> Result<Slice<Project>, Unavailable> {
        on_either!(self, store => store.projects(tenant, after, limit))
    }

    /// The distinct skills of a tenant, the newest first, those older than the one whose text has the SHA-256 `before`.
    /// Learning a skill again leaves it at its place, so that no page is missed while a client reads on.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn skills(
        &self,
        tenant: &str,
        before: Option<[u8; 32]>,
        limit: u32,
    ) -> Result<Slice<Skill>, Unavailable> {
        on_either!(self, store => store.skills(tenant, before, limit))
    }

    /// Deletes jobs that were finished longer than `retention` ago, and tells how many.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn trim_jobs(&self, retention: Duration, now: Now) -> Result<u64, Unavailable> {
        on_either!(self, store => store.trim_jobs(retention, now))
    }

    /// How many jobs wait or run.
    ///
    /// # Errors
    /// As [`Storage::job`].
    pub async fn open_jobs(&self) -> Result<u64, Unavailable> {
        on_either!(self, store => store.open_jobs())
    }
}
