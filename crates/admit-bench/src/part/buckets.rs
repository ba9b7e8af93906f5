//! A process that holds many buckets in memory.
#![allow(clippy::disallowed_methods)] // A bench reads the clock.

use std::time::{Duration, Instant};

use admit::{Budget, Charge, Key, Now};
use admit_store::memory::{Limits, MemoryStore};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Whose;
use crate::case::Accuracy;
use crate::load::limiter::{SCOPE, allowed, fresh_salt, keys, rules, tight, uniform};
use crate::load::threads::governor;

/// What a bucket holds: more than is taken from it, and it is never full again.
const BURST: u64 = 1 << 40;

/// How many keys are drawn at once. The time that takes does not count.
const DRAWN: u64 = 1 << 20;

/// How many takes there are between two looks at the clock.
const CHUNK: usize = 1_024;

/// How many fresh buckets there are when accuracy is checked, what each holds, and how many requests there are for all.
const TALLIED: (usize, u64, u64) = (1_000, 100, 200_000);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Takes for so long.
    Run { milliseconds: u64 },
    /// Takes more from fresh buckets than they hold.
    Tally,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ran {
        /// Of one take.
        nanoseconds: f64,
        /// Of one bucket.
        bytes: f64,
    },
    Tallied(Accuracy),
}

pub(super) fn run(whose: Whose, buckets: u64) -> Result<()> {
    match whose {
        Whose::Admit => {
            let limits = Limits { max_buckets: buckets as usize + TALLIED.0, ..Limits::default() };
            let store = MemoryStore::with_limits(rules()?, limits);
            let budget = tight(BURST)?;
            let open = |key| take(&store, key, budget);
            let before = fill(buckets, open)?;
            ensure!(store.bucket_count() as u64 == buckets, "buckets are missing");
            hold(buckets, before, open, || tally(|burst| beside(&store, burst)))
        }
        Whose::Governor => {
            let limiter = governor(None)?;
            let open = |key| Ok(limiter(&key));
            let before = fill(buckets, open)?;
            let fresh = |burst: u64| governor(Some(burst as u32)).map(|check| move |key| Ok(check(&key)));
            hold(buckets, before, open, || tally(fresh))
        }
    }
}

/// Makes buckets by a take from each. Gives how many bytes this process had before.
fn fill(buckets: u64, take: impl Fn(Key) -> Result<bool>) -> Result<u64> {
    let before = resident_bytes()?;
    (0..buckets).try_for_each(|bucket| must_grant(take(key(bucket))))?;
    Ok(before)
}

/// Takes from the buckets as it is told.
fn hold(
    buckets: u64,
    before: u64,
    take: impl Fn(Key) -> Result<bool>,
    tally: impl Fn() -> Result<Accuracy>,
) -> Result<()> {
    let mut turn = 0;
    super::serve(|order| match order {
        Order::Run { milliseconds } => {
            // By then the allocator has given back what was left as the table grew.
            let bytes = resident_bytes()?.saturating_sub(before) as f64 / buckets as f64;
            let (mut taking, mut takes) = (Duration::ZERO, 0);
            while taking < Duration::from_millis(milliseconds) {
                let drawn = turn..turn + DRAWN;
                let drawn: Vec<Key> = drawn.map(|turn| key(uniform(turn, buckets as usize) as u64)).collect();
                turn += DRAWN;
                for chunk in drawn.chunks(CHUNK) {
                    let started = Instant::now();
                    chunk.iter().try_for_each(|&key| must_grant(take(key)))?;
                    taking += started.elapsed();
                    takes += chunk.len();
                }
            }
            Ok(Answer::Ran { nanoseconds: taking.as_secs_f64() * 1e9 / takes as f64, bytes })
        }
        Order::Tally => Ok(Answer::Tallied(tally()?)),
    })
}

fn must_grant(granted: Result<bool>) -> Result<()> {
    ensure!(granted?, "an open budget refused");
    Ok(())
}

/// By takes of one from fresh buckets of a burst.
fn tally<T: Fn(Key) -> Result<bool>>(fresh: impl Fn(u64) -> Result<T>) -> Result<Accuracy> {
    let (buckets, burst, requests) = TALLIED;
    let (keys, take) = (keys(fresh_salt(), buckets as u64), fresh(burst)?);
    let asked = || (0..requests).map(|turn| uniform(turn, buckets));
    let mut admitted = 0;
    for bucket in asked() {
        admitted += u64::from(take(keys[bucket])?);
    }
    Ok(Accuracy { admitted, allowed: allowed(asked(), buckets, burst) })
}

/// Takes from fresh buckets of a store that has others.
fn beside(store: &MemoryStore, burst: u64) -> Result<impl Fn(Key) -> Result<bool>> {
    let budget = tight(burst)?;
    Ok(move |key| take(store, key, budget))
}

fn take(store: &MemoryStore, key: Key, budget: Budget) -> Result<bool> {
    let charge = Charge::one(SCOPE, key, budget);
    Ok(store.take_now(std::slice::from_ref(&charge), Now::Store)?.is_granted())
}

/// A key that is made faster than by a digest: ten million are. Not that of all zeros, which no take accepts.
fn key(number: u64) -> Key {
    let number = number + 1;
    let halves = [number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number];
    Key::from_bytes(std::array::from_fn(|i| halves[i / 8].to_be_bytes()[i % 8]))
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .context("this system does not tell what memory is used")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()).context("no resident size")?;
    Ok(kib.parse::<u64>()? * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_buckets_grant_what_they_hold_beside_those_that_are_there() {
        let store = MemoryStore::with_limits(rules().unwrap(), Limits::default());
        let budget = tight(BURST).unwrap();
        (0..10).for_each(|bucket| assert!(take(&store, key(bucket), budget).unwrap()));
        let Accuracy { admitted, allowed } = tally(|burst| beside(&store, burst)).unwrap();
        assert!(admitted == allowed && allowed < TALLIED.2, "{admitted} of {allowed}");
    }
}
