//! What the layers did, for metrics. This crate has no metrics library of its own.
//!
//! Every event is also in the log where it matters: refusals and replays at `debug`, the rest at `warn` or `error`.

use std::fmt;
use std::sync::Arc;

use admit::Scope;

/// Something that was decided. No event carries a key, so that labels made of it stay few.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A quota of a granted take was debited.
    Granted(&'a Scope),
    /// A quota did not fit; one event for each that did not.
    Refused(&'a Scope),
    /// The budgets could not be evaluated, and the request was turned away; one event for each quota.
    Unavailable(&'a Scope),
    /// The budgets could not be evaluated, and the request ran all the same; one event for each quota.
    FailedOpen(&'a Scope),
    /// What an idempotency key came to.
    Idempotency(Keyed),
}

/// What became of a request with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keyed {
    /// It ran and its response was recorded.
    Completed,
    /// It ran, and its response was too large, too slow, or of a kind that cannot be replayed: only that it ran was
    /// recorded.
    Tombstoned,
    /// It ran and came to a response that is not recorded, or failed; the key is free.
    Released,
    /// It ran, but that could not be recorded: the lease had lapsed, or the store was unavailable. Or it broke off, and
    /// its work must not be started twice. Or the store panicked, and whether it ran is not known.
    Unrecorded,
    /// It replayed an earlier response.
    Replayed,
    /// It was told that it ran before and that its response is not kept.
    Gone,
    /// It was told that another run has the key.
    InFlight,
    /// It was told that the key is blocked by a run that died.
    Blocked,
    /// It was told that the key belongs to another payload.
    Mismatch,
    /// Its key was missing, malformed, or not to be found in the body.
    Invalid,
    /// The store could not answer, so it did not run.
    Unavailable,
    /// Too many runs were under way, so it did not run.
    Overloaded,
}

impl Keyed {
    /// A name for a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Tombstoned => "tombstoned",
            Self::Released => "released",
            Self::Unrecorded => "unrecorded",
            Self::Replayed => "replayed",
            Self::Gone => "gone",
            Self::InFlight => "in_flight",
            Self::Blocked => "blocked",
            Self::Mismatch => "mismatch",
            Self::Invalid => "invalid",
            Self::Unavailable => "unavailable",
            Self::Overloaded => "overloaded",
        }
    }
}

impl fmt::Display for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Is told of every event as it happens. Closures are observers. It must be quick: it runs within the request.
pub trait Observer: Send + Sync + 'static {
    /// Called once for each event.
    fn observe(&self, event: Event<'_>);
}

impl<F: Fn(Event<'_>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: Event<'_>) {
        self(event);
    }
}

/// An observer, or none.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn new(observer: impl Observer) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(crate) fn tell(&self, event: Event<'_>) {
        if let Some(observer) = &self.0 {
            observer.observe(event);
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer" } else { "None" })
    }
}
