//! The port through which secret reads are limited.

use std::error::Error;
use std::future::Future;

use crate::fleet::{DomainId, NodeId};

/// Admits secret reads, one token of the node's budget and one of its domain's.
pub trait ReadLimiter: Send + Sync + 'static {
    /// Takes a read from both budgets, or from none.
    ///
    /// # Errors
    /// [`ReadLimitError`].
    fn admit(
        &self,
        node: NodeId,
        domain: DomainId,
    ) -> impl Future<Output = Result<(), ReadLimitError>> + Send;
}

/// Why a read was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum ReadLimitError {
    /// A budget does not cover it.
    #[error(transparent)]
    Refused(#[from] ReadRefused),
    /// The budgets could not be evaluated; whether the read would have been admitted is not known.
    #[error("the secret read budgets could not be evaluated")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
}

/// A budget does not cover the read. Of two, the one with the longer wait is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadRefused {
    /// The node's.
    #[error("the node reads secrets faster than it may")]
    PerNode {
        /// When a retry is admitted, in seconds; nothing if it never is.
        retry_after_seconds: Option<u64>,
    },
    /// The domain's.
    #[error("the domain's nodes together read secrets faster than they may")]
    PerDomain {
        /// As above.
        retry_after_seconds: Option<u64>,
    },
}
