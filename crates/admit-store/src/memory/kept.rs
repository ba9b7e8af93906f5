//! What is kept of a bucket.

use admit::{Bucket, Budget, Burst, Rate, Timestamp};

use super::scopes::Place;

/// A bucket, and under which budgets it must be full before it may be dropped. In bytes, since alignment would make it
/// larger: there are millions.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    tokens: [u8; 8],
    refilled_at: [u8; 8],
    slowest: Slowest,
}

/// With its key, and the mark of a free place.
const _: () = assert!(size_of::<Option<(Place, Kept)>>() == 40);

/// The smallest rate and the largest burst that took from a bucket: one that is full under both is full under each budget
/// that did.
///
/// Each is a number of 24 bits in the order of what it stands for, the burst in the lower ones. The rate is rounded down
/// and the burst up, by less than 1/100,000: a bucket may count as full later than it is, by so much of its time to fill,
/// and never sooner.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slowest([u8; 6]);

/// The bits of a double that are left out. Those of its exponent and 17 of its mantissa stay.
const CUT: u32 = f64::MANTISSA_DIGITS - 1 - 17;

/// What the smallest rate and burst there are come to, so that all of them, up to 2^53, fit into 24 bits.
const LEAST: u64 = 1e-9_f64.to_bits() >> CUT;

const _: () = assert!((Burst::MAX_TOKENS.to_bits() >> CUT) - LEAST < 1 << 24);

impl Kept {
    pub(super) fn new(bucket: Bucket, budget: Budget) -> Self {
        let slowest = Slowest::of(budget);
        Self { slowest, tokens: bucket.tokens.to_ne_bytes(), refilled_at: micros(bucket).to_ne_bytes() }
    }

    #[inline]
    pub(super) fn bucket(&self) -> Bucket {
        let refilled_at = Timestamp::from_unix_micros(i64::from_ne_bytes(self.refilled_at));
        Bucket {
            tokens: f64::from_ne_bytes(self.tokens),
            refilled_at: refilled_at.unwrap_or(Timestamp::MIN), // It was a timestamp.
        }
    }

    /// Keeps what a budget left.
    #[inline]
    pub(super) fn debited(&mut self, bucket: Bucket, budget: Budget) {
        self.tokens = bucket.tokens.to_ne_bytes();
        self.refilled_at = micros(bucket).to_ne_bytes();
        let slowest = Slowest::of(budget);
        if slowest != self.slowest {
            self.slowest = self.slowest.and(slowest);
        }
    }

    /// Keeps what there is after something was given back.
    pub(super) fn refunded(&mut self, bucket: Bucket) {
        self.tokens = bucket.tokens.to_ne_bytes();
    }

    /// Whether it is full under every budget that took from it.
    pub(super) fn is_full(&self, now: Timestamp) -> bool {
        let slowest = self.slowest.budget();
        slowest.is_some_and(|slowest| self.bucket().level(slowest, now) >= slowest.burst().tokens())
    }
}

fn micros(bucket: Bucket) -> i64 {
    bucket.refilled_at.unix_micros()
}

impl Slowest {
    #[inline]
    fn of(budget: Budget) -> Self {
        let rate = budget.rate().tokens_per_second().to_bits() >> CUT;
        let burst = budget.burst().tokens().to_bits().div_ceil(1 << CUT);
        Self::new(rate - LEAST, burst - LEAST)
    }

    #[inline]
    fn new(rate: u64, burst: u64) -> Self {
        let [a, b, c, d, e, f, ..] = (rate << 24 | burst).to_le_bytes();
        Self([a, b, c, d, e, f])
    }

    fn parts(self) -> (u64, u64) {
        let Self([a, b, c, d, e, f]) = self;
        let both = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        (both >> 24, both & ((1 << 24) - 1))
    }

    /// Fills no sooner than either, and holds no less.
    fn and(self, other: Self) -> Self {
        let ((rate, burst), (other_rate, other_burst)) = (self.parts(), other.parts());
        Self::new(rate.min(other_rate), burst.max(other_burst))
    }

    /// Nothing for the smallest rate, which rounded down is none.
    fn budget(self) -> Option<Budget> {
        let quantity = |code| f64::from_bits((code + LEAST) << CUT);
        let (rate, burst) = self.parts();
        Some(Budget::new(Rate::per_second(quantity(rate)).ok()?, Burst::new(quantity(burst)).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_unix_micros(1_700_000_000_000_000)
            .unwrap()
            .saturating_add(Duration::from_micros(micros))
    }

    #[test]
    fn a_bucket_comes_out_as_it_went_in() {
        let bucket = Bucket { tokens: 0.1 + 0.2, refilled_at: at(123_456) };
        assert_eq!(Kept::new(bucket, "1/s".parse().unwrap()).bucket(), bucket);
    }

    #[test]
    fn it_is_full_no_sooner_than_under_each_budget_and_little_later() {
        let budgets =
            ["10/second", "100/hour", "1000/hour burst 7", "0.3/s burst 0.7", "333/minute", "3GB/s"];
        for (one, other) in budgets.iter().flat_map(|one| budgets.map(|other| (*one, other))) {
            let (one, other): (Budget, Budget) = (one.parse().unwrap(), other.parse().unwrap());
            let empty = Bucket { tokens: 0.0, refilled_at: at(0) };
            let mut kept = Kept::new(empty, one);
            kept.debited(empty, other);
            let rate = one.rate().tokens_per_second().min(other.rate().tokens_per_second());
            let micros = one.burst().tokens().max(other.burst().tokens()) / rate * 1e6;
            assert!(!kept.is_full(at((micros * 0.999_999).floor() as u64)), "{one} and {other}");
            assert!(kept.is_full(at((micros * 1.000_02).ceil() as u64 + 1)), "{one} and {other}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_kept() {
        let (least, most) = (1e-9, Burst::MAX_TOKENS);
        let budget = |rate, burst| Budget::new(Rate::per_second(rate).unwrap(), Burst::new(burst).unwrap());
        let full = |budget| Kept::new(Bucket::full(budget, at(0)), budget).is_full(at(1_000_000));
        assert!(full(budget(most, most)));
        assert!(full(budget(most, least)));
        assert!(!full(budget(least, least)), "it counts as full when it is idle, not before");
    }
}
