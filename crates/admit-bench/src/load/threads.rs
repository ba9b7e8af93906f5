//! Threads that call a function of this process.
#![allow(clippy::disallowed_methods)] // A bench reads the clock and ends when its time is over.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use admit::Key;
use anyhow::{Context, Result};
use governor::{Quota, RateLimiter};

use super::limiter::allowed;
use crate::case::{Accuracy, Side};

/// How many calls there are between two looks at whether the time is over.
const CHUNK: usize = 1_024;

/// How often each thread asks when accuracy is checked.
const TALLY: usize = 500_000;

/// Whether a bucket granted.
pub(crate) type Check = Box<dyn Fn(&Key) -> bool + Sync>;

/// Threads that go through one order of buckets, each from a place of its own.
pub(crate) struct Threads {
    pub(crate) threads: usize,
    pub(crate) order: Arc<[Key]>,
    /// The place of each in a list of all buckets.
    pub(crate) places: Arc<[u32]>,
    pub(crate) buckets: usize,
    /// Never refuses.
    pub(crate) open: Check,
    /// Makes one whose buckets have so many tokens.
    pub(crate) tight: Box<dyn Fn(u32) -> Result<Check> + Sync>,
}

impl Threads {
    fn start(&self, thread: usize) -> usize {
        self.order.len() / self.threads * thread
    }
}

impl Side for Threads {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let stop = AtomicBool::new(false);
        let calls = AtomicU64::new(0);
        let started = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let (stop, calls) = (&stop, &calls);
                scope.spawn(move || {
                    let mut order = self.order.iter().cycle().skip(self.start(thread));
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        for key in order.by_ref().take(CHUNK) {
                            std::hint::black_box((self.open)(key));
                        }
                        done += CHUNK as u64;
                    }
                    calls.fetch_add(done, Ordering::Relaxed);
                });
            }
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
        });
        let nanos = started.elapsed().as_secs_f64() * 1e9 * self.threads as f64;
        Ok(vec![nanos / calls.into_inner() as f64])
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        let burst = (TALLY * self.threads / self.buckets / 2).max(1) as u32;
        let check = (self.tight)(burst)?;
        let granted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let (check, granted) = (&check, &granted);
                scope.spawn(move || {
                    let order = self.order.iter().cycle().skip(self.start(thread)).take(TALLY);
                    granted.fetch_add(order.filter(|key| check(key)).count() as u64, Ordering::Relaxed);
                });
            }
        });
        let asked = (0..self.threads).flat_map(|thread| {
            let places = self.places.iter().cycle().skip(self.start(thread)).take(TALLY);
            places.map(|&place| place as usize)
        });
        let allowed = allowed(asked, self.buckets, burst.into());
        Ok(Some(Accuracy { admitted: granted.into_inner(), allowed }))
    }
}

/// A limiter of governor on a DashMap, whose buckets hold `burst` tokens, or any number.
pub(crate) fn governor(burst: Option<u32>) -> Result<Check> {
    let quota = match burst {
        None => Quota::per_second(NonZeroU32::new(1_000_000_000).context("not zero")?),
        Some(burst) => Quota::with_period(Duration::from_secs(3_600))
            .context("a period of zero")?
            .allow_burst(NonZeroU32::new(burst).context("a burst of zero")?),
    };
    let limiter = RateLimiter::dashmap(quota);
    Ok(Box::new(move |key| limiter.check_key(key).is_ok()))
}
