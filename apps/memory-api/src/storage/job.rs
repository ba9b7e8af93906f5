//! Jobs: batches on their way to being searchable.

use admit::Timestamp;
use uuid::Uuid;

use crate::batch::NewItem;

/// A batch to keep.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Its id.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: String,
    /// The client's id of the batch, or the computed one.
    pub ingest_id: String,
    /// The project of all items.
    pub project: String,
    /// The items.
    pub items: Vec<NewItem>,
}

/// A job as its tenant sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: Uuid,
    /// The id of its batch.
    pub ingest_id: String,
    /// The project of its items.
    pub project: String,
    /// How far it is.
    pub status: JobStatus,
    /// How many items it has.
    pub items: i64,
    /// How many of them are searchable: none or all.
    pub items_indexed: i64,
    /// How often it failed.
    pub failures: i32,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When a worker first had it.
    pub started_at: Option<Timestamp>,
    /// When it was done, or given up.
    pub finished_at: Option<Timestamp>,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// It waits for a worker.
    Queued,
    /// A worker has it.
    Running,
    /// Its items are searchable.
    Done,
    /// Its items could not be indexed, however often it was tried.
    Failed,
}

impl JobStatus {
    /// As clients and tables read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// The status of this name. The tables hold no other; should one, the job is told as failed.
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "queued" => Self::Queued,
            "running" => Self::Running,
            "done" => Self::Done,
            _ => Self::Failed,
        }
    }
}

/// A job that a worker has, for as long as its claim lasts.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// Its id.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: String,
    /// The project of its items.
    pub project: String,
    /// Its items as JSON.
    pub(crate) payload: String,
    /// Which claim this is: a former claim can finish nothing.
    pub(crate) claim: i64,
    /// How often it failed before.
    pub(crate) failures: i32,
}

/// What finishing a job came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// This many items are searchable now.
    Indexed(usize),
    /// Another claim has the job; nothing was done.
    ClaimLost,
    /// The store refused the items; nothing was done.
    Rejected,
}
