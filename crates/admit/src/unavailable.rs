//! A store that could not be asked, or did not answer.

use std::error::Error;
use std::fmt;

/// The store could not be asked, or did not answer: neither a grant nor a refusal.
///
/// Whether the operation took effect is not known; a take that did counts against the bucket, never for it.
#[derive(Debug, thiserror::Error)]
#[error("the {store} store is unavailable")]
pub struct Unavailable {
    store: &'static str,
    kind: UnavailableKind,
    #[source]
    cause: Box<dyn Error + Send + Sync>,
}

/// In what way a store is unavailable: a closed set, fit for the label of a metric. What to do differs with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnavailableKind {
    /// It takes no connection: nobody listens, it starts or stops, has too many connections, or knows not who asks.
    Refused,
    /// It gave no answer in time: it hangs, is overloaded, or the network drops what is sent.
    TimedOut,
    /// The connection broke off before the answer.
    Broken,
    /// It answered that it does not do this: a right is missing, it is read-only.
    Rejected,
    /// There is no room: in a queue, on its disk, or under the bound of a store in memory.
    Full,
    /// Anything else.
    Failed,
}

impl Unavailable {
    /// `store` names the kind of store, as in `PostgreSQL`. Of kind [`UnavailableKind::Failed`].
    pub fn new(store: &'static str, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { store, kind: UnavailableKind::Failed, cause: cause.into() }
    }

    /// It gave no answer within a time limit.
    pub fn timed_out(store: &'static str, elapsed: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(store, elapsed).of_kind(UnavailableKind::TimedOut)
    }

    /// The same, unavailable in this way.
    #[must_use]
    pub fn of_kind(self, kind: UnavailableKind) -> Self {
        Self { kind, ..self }
    }

    /// In what way it is unavailable.
    pub fn kind(&self) -> UnavailableKind {
        self.kind
    }
}

impl UnavailableKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Refused, Self::TimedOut, Self::Broken, Self::Rejected, Self::Full, Self::Failed];

    /// One word, as in the label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::TimedOut => "timeout",
            Self::Broken => "broken",
            Self::Rejected => "rejected",
            Self::Full => "full",
            Self::Failed => "failed",
        }
    }
}

/// As [`UnavailableKind::as_str`].
impl fmt::Display for UnavailableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
