//! How long the store keeps idle buckets while its rules change. Those that processes share keep it in a row.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admit::Retention;

/// The longest retention that a store was given since it was opened, in microseconds. Clones share it.
///
/// A take that began under rules with a longer retention may still be under way when shorter ones come, and another
/// handle of the store may go on with the longer ones. A sweep by the shorter retention would delete buckets that are
/// not full under those takes' budgets, and so mint tokens. Keeping idle buckets longer costs space alone.
#[derive(Clone, Debug)]
pub(super) struct SweepRetention(Arc<AtomicU64>);

impl SweepRetention {
    pub(super) fn new(retention: Retention) -> Self {
        Self(Arc::new(AtomicU64::new(micros(retention))))
    }

    /// Raises it, if `retention` is longer.
    pub(super) fn raise(&self, retention: Retention) {
        self.0.fetch_max(micros(retention), Ordering::SeqCst);
    }

    pub(super) fn duration(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }
}

fn micros(retention: Retention) -> u64 {
    u64::try_from(retention.duration().as_micros()).unwrap_or(u64::MAX)
}
