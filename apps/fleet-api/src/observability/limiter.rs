//! The port through which ingest is limited.

use std::error::Error;
use std::future::Future;

use crate::fleet::{DomainId, NodeId};

/// Admits batches by their bytes on the wire, from the node's budget and from its domain's.
pub trait IngestLimiter: Send + Sync + 'static {
    /// Takes `wire_bytes` from both budgets, or from none.
    ///
    /// # Errors
    /// [`IngestLimitError`].
    fn admit(
        &self,
        node: NodeId,
        domain: DomainId,
        wire_bytes: u64,
    ) -> impl Future<Output = Result<(), IngestLimitError>> + Send;
}

/// Why a batch was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum IngestLimitError {
    /// A budget does not cover it.
    #[error(transparent)]
    Refused(#[from] IngestRefused),
    /// The budgets could not be evaluated; whether the batch would have been admitted is not known.
    #[error("the ingest budgets could not be evaluated")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
}

/// A budget does not cover the batch. Of two, the one with the longer wait is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngestRefused {
    /// The node's.
    #[error("the node sends more bytes of telemetry than it may")]
    PerNode {
        /// When a retry is admitted, in seconds; nothing if it never is.
        retry_after_seconds: Option<u64>,
    },
    /// The domain's.
    #[error("the domain's nodes together send more bytes of telemetry than they may")]
    PerDomain {
        /// As above.
        retry_after_seconds: Option<u64>,
    },
}
