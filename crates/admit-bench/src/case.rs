//! What is measured: a case puts Admit beside peers that do the same work, and says what it has to reach.

use std::any::Any;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

/// One row, or a few, of the table.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) measures: &'static [Measure],
    pub(crate) promise: Promise,
    /// Whether the quick form runs it, for its accuracy.
    pub(crate) quick: bool,
    pub(crate) sides: Start,
}

/// Starts all that a case needs. The runtime drives whatever is asynchronous.
pub(crate) type Start = Box<dyn Fn(&Handle) -> Result<Sides>>;

/// One value that every side gives for each run.
pub(crate) struct Measure {
    pub(crate) what: &'static str,
    pub(crate) unit: Unit,
    /// The most that Admit's own value may be, whatever the peers'.
    pub(crate) limit: Option<f64>,
}

impl Measure {
    pub(crate) const fn new(what: &'static str, unit: Unit) -> Self {
        Self { what, unit, limit: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    PerSecond,
    Milliseconds,
    Microseconds,
    Nanoseconds,
    Bytes,
}

impl Unit {
    /// As times and sizes are.
    pub(crate) fn is_better_if_less(self) -> bool {
        self != Self::PerSecond
    }
}

/// What the ratio of Admit to a peer has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

/// How much Admit may grant of what is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Promise {
    /// All of it.
    Exact,
    /// No more than it, and no less than it without the part that processes may hold of a bucket.
    NeverOver { held: f64 },
}

impl Promise {
    pub(crate) fn is_kept(self, accuracy: Accuracy) -> bool {
        match self {
            Self::Exact => accuracy.admitted == accuracy.allowed,
            Self::NeverOver { held } => {
                let least = accuracy.allowed as f64 * (1.0 - held);
                accuracy.admitted <= accuracy.allowed && accuracy.admitted as f64 >= least
            }
        }
    }
}

/// What was granted under the load of a case, of what the budgets allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Accuracy {
    pub(crate) admitted: u64,
    pub(crate) allowed: u64,
}

/// Who is compared.
pub(crate) struct Sides {
    pub(crate) ours: Box<dyn Side>,
    pub(crate) peers: Vec<Peer>,
    /// Servers that they share, gone after them. One of PostgreSQL is told to [settle](crate::postgres::settle) before each
    /// run.
    pub(crate) servers: Box<dyn Any>,
}

/// One that Admit is compared with.
pub(crate) struct Peer {
    pub(crate) name: String,
    /// One for each measure.
    pub(crate) bars: Vec<Option<Bar>>,
    /// Or why it cannot be measured.
    pub(crate) side: Result<Box<dyn Side>>,
}

impl Peer {
    pub(crate) fn new(name: &str, bar: Option<Bar>, side: Result<Box<dyn Side>>) -> Self {
        Self { name: name.to_owned(), bars: vec![bar], side }
    }
}

/// A program that a case cannot be measured without, and that is not here.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not installed")]
pub(crate) struct Missing(pub(crate) &'static str);

/// One way to do the work of a case.
pub(crate) trait Side {
    /// Works for `time` and gives one value for each measure.
    fn run(&self, time: Duration) -> Result<Vec<f64>>;

    /// Asks for more than is allowed, under the same load; nothing if it holds nobody to anything. Called after
    /// [`Side::run`].
    fn accuracy(&self) -> Result<Option<Accuracy>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leases passed that granted nothing at all.
    #[test]
    fn what_leases_may_hold_back_has_a_bound() {
        let keeps = |admitted| Promise::NeverOver { held: 0.1 }.is_kept(Accuracy { admitted, allowed: 100 });
        assert_eq!([0, 89, 90, 100, 101].map(keeps), [false, false, true, true, false]);
    }
}
