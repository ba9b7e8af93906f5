//! A process that holds many buckets in memory.
#![allow(clippy::disallowed_methods)] // A bench reads the clock.

use std::time::{Duration, Instant};

use admit::{BudgetStore, Charge, Key, MonotonicClock, Now};
use admit_store::memory::{Limits, MemoryStore};
use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use serde::{Deserialize, Serialize};

use crate::load::limiter::{SCOPE, cheap_key, rules, tight, uniform};

/// What a bucket holds: more than is taken from it, and it is never full again.
const BURST: u64 = 1 << 40;

/// How many takes there are between two looks at the clock.
const CHUNK: u64 = 1_024;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) milliseconds: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Of one take.
    pub(crate) nanoseconds: f64,
    /// Of one bucket.
    pub(crate) bytes: f64,
}

pub(super) fn run(buckets: u64) -> Result<()> {
    let limits = Limits { max_buckets: (buckets + buckets / 8) as usize, ..Limits::default() };
    let before = resident_bytes()?;
    let store = MemoryStore::with(rules()?, limits, MonotonicClock::start());
    let budget = tight(BURST)?;
    let take = |key: Key| -> Result<()> {
        let charge = Charge::one(SCOPE, key, budget);
        let decision = store.take(std::slice::from_ref(&charge), Now::Store).now_or_never();
        ensure!(decision.context("the store waits")??.is_granted(), "an open budget refused");
        Ok(())
    };
    (0..buckets).try_for_each(|bucket| take(cheap_key(bucket)))?;
    ensure!(store.bucket_count() as u64 == buckets, "buckets are missing");
    let bytes = resident_bytes()?.saturating_sub(before) as f64 / buckets as f64;
    let mut turn = 0;
    super::serve(|order: Order| {
        let (started, time) = (Instant::now(), Duration::from_millis(order.milliseconds));
        let first = turn;
        while started.elapsed() < time {
            for _ in 0..CHUNK {
                take(cheap_key(uniform(turn, buckets as usize) as u64))?;
                turn += 1;
            }
        }
        let nanoseconds = started.elapsed().as_secs_f64() * 1e9 / (turn - first) as f64;
        Ok(Answer { nanoseconds, bytes })
    })
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .context("this system does not tell what memory is used")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()).context("no resident size")?;
    Ok(kib.parse::<u64>()? * 1_024)
}
