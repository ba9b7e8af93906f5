//! What callers ask, and with which buckets and budgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admit::{Budget, Burst, Key, Rate, Retention, Rules, Scope};
use anyhow::Result;

pub(crate) const SCOPE: Scope = Scope::from_static("bench");

/// One that decides whether a token may be taken from a bucket.
pub(crate) trait Limiter: Clone + Send + Sync + 'static {
    /// Whether it was granted.
    fn take(&self, key: Key, budget: Budget) -> impl Future<Output = Result<bool>> + Send;
}

/// For a store that takes [`open`] and [`tight`] budgets.
pub(crate) fn rules() -> Result<Rules> {
    Ok(Rules { retention: Retention::LONGEST, ..Rules::new([SCOPE])? })
}

/// A budget that never refuses.
pub(crate) fn open() -> Result<Budget> {
    Ok("1000000000/second".parse()?)
}

/// A budget of `burst` tokens that refills by none while a case runs: what it allows is a whole number.
pub(crate) fn tight(burst: u64) -> Result<Budget> {
    const FILLS_IN_SECONDS: f64 = 300.0 * 86_400.0;
    let tokens = burst as f64;
    Ok(Budget::new(Rate::per_second(tokens / FILLS_IN_SECONDS)?, Burst::new(tokens)?))
}

/// `count` keys that no case had before, the same in every process that asks for them by the same `salt`.
pub(crate) fn keys(salt: u64, count: u64) -> Arc<[Key]> {
    (0..count).map(|i| Key::hashed([salt.to_be_bytes(), i.to_be_bytes()].concat())).collect()
}

/// A salt for keys that this process did not use before.
pub(crate) fn fresh_salt() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Which of `count` buckets is asked at a turn: uniform over them, and in no order.
pub(crate) fn uniform(turn: u64, count: usize) -> usize {
    (mixed(turn) % count as u64) as usize
}

/// What budgets of `burst` allow of requests to buckets, each named as often as it was asked.
pub(crate) fn allowed(asked: impl Iterator<Item = usize>, buckets: usize, burst: u64) -> u64 {
    let mut counts = vec![0_u64; buckets];
    asked.for_each(|bucket| counts[bucket] += 1);
    counts.iter().map(|&count| count.min(burst)).sum()
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): numbers that look random, the same in every run.
fn mixed(turn: u64) -> u64 {
    let mut mixed = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Which of `count` buckets is asked at each of `turns`: the nth most popular one n times as seldom as the first.
pub(crate) fn zipf(turns: u64, count: usize) -> impl Iterator<Item = usize> {
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            total += 1.0 / rank as f64;
            total
        })
        .collect();
    (0..turns).map(move |turn| {
        let place = mixed(turn) as f64 / u64::MAX as f64 * total;
        sums.partition_point(|&sum| sum < place).min(count - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_zipfs_law_is_asked_twice_as_often_as_the_second() {
        let mut counts = [0_u32; 100];
        zipf(100_000, 100).for_each(|place| counts[place] += 1);
        let ratio = f64::from(counts[0]) / f64::from(counts[1]);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert!(counts.iter().all(|&count| count > 0));
    }

    #[test]
    fn a_bucket_allows_what_it_was_asked_for_up_to_its_burst() {
        assert_eq!(allowed([0, 0, 0, 1].into_iter(), 3, 2), 3);
    }
}
