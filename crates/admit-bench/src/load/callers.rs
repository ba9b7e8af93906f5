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

/// Lets `callers` tasks ask about `keys`, uniformly.
pub(crate) async fn ask(
    limiter: &impl Limiter,
    callers: usize,
    keys: &Arc<[Key]>,
    budget: Budget,
    until: Until,
) -> Result<Done> {
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU64::new(0));
    let last = match until {
        Until::Time(_) => u64::MAX,
        Until::Requests(requests) => requests,
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
                if turn >= last {
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
    per_second: Cell<f64>,
}

impl<L: Limiter> Callers<L> {
    pub(crate) fn new(limiter: L, callers: usize, keys: Arc<[Key]>, runtime: &Handle) -> Self {
        let unit = Unit::PerSecond;
        let per_second = Cell::new(0.0);
        let (budget, limits) = (None, true);
        Self { limiter, callers, keys, unit, budget, limits, runtime: runtime.clone(), per_second }
    }

    /// Measures the mean time of a request, instead of how many there are.
    pub(crate) fn latency(self) -> Self {
        Self { unit: Unit::Microseconds, ..self }
    }

    /// Asks by another budget than an open one, which does not refuse while the case runs either.
    pub(crate) fn on(self, budget: Budget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// It grants everything.
    pub(crate) fn unlimited(self) -> Self {
        Self { limits: false, ..self }
    }
}

impl<L: Limiter> Side for Callers<L> {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let budget = self.budget.map_or_else(open, Ok)?;
        let asking = ask(&self.limiter, self.callers, &self.keys, budget, Until::Time(time));
        let done = self.runtime.block_on(asking)?;
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
        let asking = ask(&self.limiter, self.callers, &fresh, tight(burst)?, Until::Requests(requests));
        let admitted = self.runtime.block_on(asking)?.granted;
        let allowed = allowed((0..requests).map(|turn| uniform(turn, buckets)), buckets, burst);
        Ok(Some(Accuracy { admitted, allowed }))
    }
}
