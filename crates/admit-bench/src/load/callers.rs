//! Callers that each ask again as soon as they have their answer.
#![allow(clippy::disallowed_methods)] // A bench reads the clock and ends when its time is over.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use admit::{Budget, Key};
use anyhow::Result;
use futures::future::try_join_all;
use tokio::runtime::Handle;

use super::limiter::{Limiter, allowed, fresh_salt, keys, open, tight, uniform};
use crate::case::{Accuracy, Side, Unit};

/// The fewest and the most requests of one check of accuracy.
const TALLY: (u64, u64) = (2_000, 200_000);

/// The most buckets of one.
const MOST_TALLIED: usize = 10_000;

/// What callers did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) requests: u64,
    pub(crate) granted: u64,
    pub(crate) elapsed: Duration,
}

impl Done {
    pub(crate) fn per_second(self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }
}

/// Until when callers ask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Time(Duration),
    Requests(u64),
}

/// Lets `callers` tasks ask about `keys`, uniformly: those of the turns from `first` on.
pub(crate) async fn ask(
    limiter: &impl Limiter,
    callers: usize,
    keys: &Arc<[Key]>,
    budget: Budget,
    first: u64,
    until: Until,
) -> Result<Done> {
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU64::new(first));
    let end = match until {
        Until::Time(_) => u64::MAX,
        Until::Requests(requests) => first + requests,
    };
    let started = Instant::now();
    if let Until::Time(time) = until {
        // A thread, as callers that are answered at once may keep the runtime from its timers.
        let stop = stop.clone();
        std::thread::spawn(move || {
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
        });
    }
    let tasks = (0..callers).map(|_| {
        let (limiter, keys, stop, turns) = (limiter.clone(), keys.clone(), stop.clone(), turns.clone());
        tokio::spawn(async move {
            let mut done = Done::default();
            while !stop.load(Ordering::Relaxed) {
                let turn = turns.fetch_add(1, Ordering::Relaxed);
                if turn >= end {
                    break;
                }
                match limiter.take(keys[uniform(turn, keys.len())], budget).await {
                    Ok(granted) => done.granted += u64::from(granted),
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
                done.requests += 1;
                tokio::task::consume_budget().await; // Lets the others have their turn.
            }
            Ok(done)
        })
    });
    let mut all = Done::default();
    for done in try_join_all(tasks).await? {
        let done = done?;
        all.requests += done.requests;
        all.granted += done.granted;
    }
    all.elapsed = started.elapsed();
    Ok(all)
}

/// As many requests as take about a second, and at least four for each bucket, to be held to half as many grants.
pub(crate) fn tally_size(per_second: f64, buckets: u64) -> (u64, u64) {
    let requests = (per_second as u64).clamp(TALLY.0, TALLY.1).max(4 * buckets);
    (requests, requests / buckets / 2)
}

/// Callers of one limiter.
pub(crate) struct Callers<L> {
    limiter: L,
    callers: usize,
    keys: Arc<[Key]>,
    unit: Unit,
    /// What the buckets are held to; [`open`] if nothing else is said.
    budget: Option<Budget>,
    /// Whether it holds anybody to anything.
    limits: bool,
    runtime: Handle,
    /// The next turn: each run goes on where the last one ended, so that no run finds its buckets warm.
    turn: Cell<u64>,
    per_second: Cell<f64>,
}

impl<L: Limiter> Callers<L> {
    pub(crate) fn new(limiter: L, callers: usize, keys: Arc<[Key]>, runtime: &Handle) -> Self {
        let unit = Unit::PerSecond;
        let (budget, limits) = (None, true);
        let (turn, per_second) = (Cell::new(0), Cell::new(0.0));
        Self { limiter, callers, keys, unit, budget, limits, runtime: runtime.clone(), turn, per_second }
    }

    /// Measures the mean time of a request, instead of how many there are.
    pub(crate) fn latency(self) -> Self {
        Self { unit: Unit::Microseconds, ..self }
    }

    /// Asks by another budget than an open one, which does not refuse while the case runs either.
    pub(crate) fn on(self, budget: Budget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// Lets accuracy be checked with as many requests as if it had been measured, and found as fast as the other.
    pub(crate) fn be_as_fast_as<O>(&self, other: &Callers<O>) {
        self.per_second.set(other.per_second.get());
    }

    /// It grants everything.
    pub(crate) fn unlimited(self) -> Self {
        Self { limits: false, ..self }
    }
}

impl<L: Limiter> Side for Callers<L> {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let budget = self.budget.map_or_else(open, Ok)?;
        let (first, until) = (self.turn.get(), Until::Time(time));
        let asking = ask(&self.limiter, self.callers, &self.keys, budget, first, until);
        let done = self.runtime.block_on(asking)?;
        self.turn.set(first + done.requests);
        anyhow::ensure!(done.granted == done.requests, "an open budget refused");
        self.per_second.set(done.per_second());
        Ok(vec![match self.unit {
            Unit::Microseconds => 1e6 * self.callers as f64 / done.per_second(),
            _ => done.per_second(),
        }])
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        if !self.limits {
            return Ok(None);
        }
        let buckets = self.keys.len().min(MOST_TALLIED);
        let (requests, burst) = tally_size(self.per_second.get(), buckets as u64);
        let fresh = keys(fresh_salt(), buckets as u64);
        let asking = ask(&self.limiter, self.callers, &fresh, tight(burst)?, 0, Until::Requests(requests));
        let admitted = self.runtime.block_on(asking)?.granted;
        let allowed = allowed((0..requests).map(|turn| uniform(turn, buckets)), buckets, burst);
        Ok(Some(Accuracy { admitted, allowed }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use tokio::runtime::Runtime;

    use super::*;

    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<Key>>>);

    impl Limiter for Seen {
        async fn take(&self, key: Key, _: Budget) -> Result<bool> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(key);
            Ok(true)
        }
    }

    /// Every run began with the first turn, and so all rounds asked about the same few buckets of a large table.
    #[test]
    fn a_run_goes_on_where_the_run_before_ended() {
        let (runtime, seen, all) = (Runtime::new().unwrap(), Seen::default(), keys(0, 1_000));
        let callers = Callers::new(seen.clone(), 1, all.clone(), runtime.handle());
        for _ in 0..2 {
            let so_many = seen.0.lock().unwrap().len();
            while seen.0.lock().unwrap().len() == so_many {
                callers.run(Duration::from_millis(1)).unwrap();
            }
        }
        let seen = seen.0.lock().unwrap();
        let turns = (0..seen.len() as u64).map(|turn| all[uniform(turn, all.len())]);
        assert!(seen.iter().copied().eq(turns));
    }
}
