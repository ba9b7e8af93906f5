//! The bucket law.

use std::time::Duration;

use crate::{Budget, Cost, Timestamp};

/// The tokens of one (scope, key), and when they were last brought up to date.
///
/// The law, in IEEE 754 doubles and in this order of operations, so that every store decides to the last bit alike:
///
/// ```text
/// elapsed = max(0, now − refilled_at)                       in µs
/// level   = min(burst, tokens + elapsed / 1e6 · rate)
/// granted ⇔ level ≥ cost
/// on grant: tokens ← level − cost;  refilled_at ← max(refilled_at, now)
/// on refusal: nothing is written
/// ```
///
/// A bucket that does not exist is a full one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// What was left at `refilled_at`. Never negative.
    pub tokens: f64,
    /// When `tokens` was true. It never moves back.
    pub refilled_at: Timestamp,
}

/// How long until a cost fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// It fits after this time, a whole number of microseconds and at least one, if nobody else takes meanwhile; a
    /// microsecond earlier it does not.
    After(Duration),
    /// The cost is above the burst: it never fits.
    Never,
}

impl Bucket {
    /// A bucket that holds its burst.
    #[inline]
    pub fn full(budget: Budget, now: Timestamp) -> Self {
        Self { tokens: budget.burst().tokens(), refilled_at: now }
    }

    /// The tokens there are at `now`. A `now` before `refilled_at` counts as `refilled_at`: skew cannot mint.
    #[inline]
    pub fn level(&self, budget: Budget, now: Timestamp) -> f64 {
        let elapsed = (now.unix_micros() - self.refilled_at.unix_micros()).max(0);
        self.level_after(budget, elapsed)
    }

    #[inline]
    fn level_after(&self, budget: Budget, elapsed_micros: i64) -> f64 {
        let refilled = self.tokens + elapsed_micros as f64 / 1e6 * budget.rate().tokens_per_second();
        refilled.min(budget.burst().tokens())
    }

    /// The bucket after `cost` is taken at `now`, or nothing if the level does not cover it.
    #[must_use]
    #[inline]
    pub fn debit(&self, cost: Cost, budget: Budget, now: Timestamp) -> Option<Self> {
        let level = self.level(budget, now);
        (level >= cost.tokens())
            .then(|| Self { tokens: level - cost.tokens(), refilled_at: self.refilled_at.max(now) })
    }

    /// The bucket after `cost` is given back, up to the burst.
    ///
    /// The time plays no part: capping before or after the refill comes to the same level.
    #[must_use]
    pub fn refund(&self, cost: Cost, budget: Budget) -> Self {
        Self { tokens: (self.tokens + cost.tokens()).min(budget.burst().tokens()), ..*self }
    }

    /// How long after `now` the level covers `cost`; nothing if it does already.
    pub fn wait(&self, cost: Cost, budget: Budget, now: Timestamp) -> Option<Wait> {
        if cost.tokens() > budget.burst().tokens() {
            return Some(Wait::Never);
        }
        let covers = |elapsed: i64| self.level_after(budget, elapsed) >= cost.tokens();
        let elapsed_now = now.unix_micros() - self.refilled_at.unix_micros();
        if covers(elapsed_now.max(0)) {
            return None;
        }
        // The level never falls as time passes, whatever the rounding, so the first microsecond that covers the cost is
        // found by bisection. The quotient is right to a few units in its last place; the bracket grows from there.
        let quotient = ((cost.tokens() - self.tokens) / budget.rate().tokens_per_second() * 1e6) as i64;
        let (mut short, mut enough, mut step) =
            (elapsed_now.max(0), quotient.max(elapsed_now.max(0) + 1), 1_i64);
        while !covers(enough) {
            if enough == i64::MAX {
                return Some(Wait::Never); // Some 292,000 years; no store takes such a budget.
            }
            short = enough;
            enough = enough.saturating_add(step);
            step = step.saturating_mul(2);
        }
        step = 1_i64;
        while enough - step > short && covers(enough - step) {
            enough -= step;
            step *= 2;
        }
        short = short.max(enough - step);
        while enough - short > 1 {
            let middle = short + (enough - short) / 2;
            if covers(middle) { enough = middle } else { short = middle }
        }
        Some(Wait::After(Duration::from_micros((enough - elapsed_now).unsigned_abs())))
    }

    /// How long after `now` the bucket is full again, if nobody takes meanwhile.
    pub fn time_until_full(&self, budget: Budget, now: Timestamp) -> Duration {
        let burst = Cost::new(budget.burst().tokens()).unwrap_or(Cost::ZERO);
        match self.wait(burst, budget, now) {
            None => Duration::ZERO,
            Some(Wait::After(wait)) => wait,
            Some(Wait::Never) => budget.time_to_fill(), // No store takes such a budget.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_unix_micros(1_700_000_000_000_000 + micros).unwrap()
    }

    #[test]
    fn a_wait_counts_from_the_callers_clock_even_when_that_runs_behind() {
        let budget: Budget = "1/second".parse().unwrap();
        let bucket = Bucket { tokens: 0.0, refilled_at: at(500_000) };
        assert_eq!(
            bucket.wait(Cost::ONE, budget, at(0)),
            Some(Wait::After(Duration::from_micros(1_500_000)))
        );
    }

    #[test]
    fn a_cost_above_the_burst_never_fits() {
        let budget: Budget = "1/second".parse().unwrap();
        assert_eq!(
            Bucket::full(budget, at(0)).wait(Cost::new(1.5).unwrap(), budget, at(0)),
            Some(Wait::Never)
        );
    }

    #[test]
    fn a_refusal_leaves_the_tokens_that_accrued() {
        // A limiter that stamps refusals starves a caller that polls faster than the refill.
        let budget: Budget = "1/second".parse().unwrap();
        let bucket = Bucket { tokens: 0.0, refilled_at: at(0) };
        for poll in 0..9 {
            assert_eq!(bucket.debit(Cost::ONE, budget, at(poll * 100_000)), None);
        }
        assert!(bucket.debit(Cost::ONE, budget, at(1_000_000)).is_some());
    }
}
