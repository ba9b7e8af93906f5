//! Buckets whose rows somebody holds, as in a session that was left open.
//!
//! A statement that waits for such a row keeps all takes behind it waiting, for as long as a statement waits for locks. So what
//! has been waited for in vain is asked apart from the others, in a way that does not wait, until its row is free. Takes and
//! admissions know of each other's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admit::{Clock, Key, MonotonicClock, Scope, Take, Timestamp};

/// The most buckets that are known to be held. With more all are forgotten, and waited for once again.
const MAX_HELD: usize = 1_024;

/// For so long. Then it is waited for as any other: of a row that others lock in turns, who does not wait may find none of the
/// moments between them.
const KEPT: Duration = Duration::from_secs(10);

/// Buckets that were waited for in vain, and since when.
#[derive(Debug)]
pub(super) struct Held {
    clock: MonotonicClock,
    since: Mutex<BTreeMap<(Scope, Key), Timestamp>>,
}

impl Held {
    pub(super) fn new(clock: MonotonicClock) -> Self {
        Self { clock, since: Mutex::default() }
    }

    /// The row of one of the take's buckets is held.
    pub(super) fn add(&self, take: &Take) {
        let mut held = self.lock();
        if held.len().saturating_add(take.lines().len()) > MAX_HELD {
            held.clear();
        }
        let now = self.clock.now();
        for line in take.lines() {
            held.entry((line.scope.clone(), line.key)).or_insert(now);
        }
    }

    /// The rows of the take's buckets are free.
    pub(super) fn remove(&self, take: &Take) {
        let mut held = self.lock();
        for line in take.lines() {
            held.remove(&(line.scope.clone(), line.key));
        }
    }

    /// Takes those operations out of a batch that need a bucket which is held; and those that come after one of these on
    /// another bucket, so that the order on each bucket stays.
    pub(super) fn part<T>(&self, batch: &mut Vec<T>, take_of: impl Fn(&T) -> &Take) -> Vec<T> {
        let mut held = {
            let mut held = self.lock();
            if held.is_empty() {
                return Vec::new();
            }
            let now = self.clock.now();
            held.retain(|_, since| now.since(*since) < KEPT);
            held.keys().cloned().collect::<BTreeSet<_>>()
        };
        let apart = |operation: &mut T| {
            let lines = take_of(operation).lines();
            let needs = lines.iter().any(|line| held.contains(&(line.scope.clone(), line.key)));
            if needs {
                held.extend(lines.iter().map(|line| (line.scope.clone(), line.key)));
            }
            needs
        };
        batch.extract_if(.., apart).collect()
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Scope, Key), Timestamp>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
