//! Why what waited for a statement was not done, and what a statement that failed may have left.

use std::sync::Arc;

use admit::{Unavailable, UnavailableKind};
use tokio_postgres::error::SqlState;

use super::database::CallError;
use super::queue::{QueueFull, TooLong};
use super::{ConnectionError, outage};

/// A statement that failed for all that were in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct OfAll(Arc<CallError>);

impl OfAll {
    pub(super) fn new(error: CallError) -> Self {
        Self(Arc::new(error))
    }

    /// As one of them is told.
    pub(super) fn unavailable(&self) -> Unavailable {
        Unavailable::new("PostgreSQL", self.clone()).of_kind(outage::kind(&self.0))
    }
}

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undone {
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("somebody else holds the bucket")]
    Busy,
    #[error("the runtime that ran the statements has ended")]
    RuntimeEnded,
}

impl Undone {
    pub(super) fn unavailable(self) -> Unavailable {
        let kind = match self {
            Self::TooLong(_) | Self::Busy => UnavailableKind::TimedOut,
            Self::RuntimeEnded => UnavailableKind::Broken,
        };
        Unavailable::new("PostgreSQL", self).of_kind(kind)
    }
}

impl From<QueueFull> for Unavailable {
    fn from(full: QueueFull) -> Self {
        Self::new("PostgreSQL", full).of_kind(UnavailableKind::Full)
    }
}

/// Whether somebody held a row for longer than the lock timeout.
pub(super) fn is_held(error: &CallError) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Whether the server found fault with what it was sent, and so may not with the rest of it.
pub(super) fn is_of_one(error: &CallError) -> bool {
    error.code().is_some_and(|code| ["22", "23"].contains(&&code.code()[..2]))
}

/// Whether the statement may have been committed all the same.
pub(super) fn may_be_done(error: &CallError) -> bool {
    match error {
        CallError::Connection(ConnectionError::Pool(_)) => false, // It was not sent.
        CallError::Connection(ConnectionError::TimedOut(_)) | CallError::Answer(_) => true,
        // What the server fails it undoes, unless it ends the session.
        CallError::Statement(error) => error.code().is_none_or(outage::ends_sessions),
    }
}
