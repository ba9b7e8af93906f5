//! How long idle buckets are kept.

use std::time::Duration;

use crate::{Bucket, Budget, Timestamp};

/// How long an idle bucket is kept: from a second to 400 days. A bucket left alone for longer is full whatever its
/// budget, because budgets that take longer to fill are refused; so deleting it is what the next take would mint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Retention(Duration);

/// A duration that cannot be a retention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a retention of {0:?} is not between one second and 400 days")]
pub struct RetentionError(Duration);

impl Retention {
    /// One hour.
    pub const DEFAULT: Self = Self(Duration::from_secs(3_600));
    /// The longest one: 400 days.
    pub const LONGEST: Self = Self(Self::MAX);
    const MIN: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(400 * 86_400);

    /// A retention of `duration`, cut to whole microseconds.
    ///
    /// # Errors
    /// [`RetentionError`] unless it lies between one second and 400 days.
    pub fn new(duration: Duration) -> Result<Self, RetentionError> {
        if !(Self::MIN..=Self::MAX).contains(&duration) {
            return Err(RetentionError(duration));
        }
        Ok(Self(Duration::from_micros(duration.as_micros() as u64))) // In range: checked above.
    }

    /// How long an idle bucket is kept.
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// Whether an empty bucket of this budget is full after the retention, by the bucket law itself.
    #[inline]
    pub fn allows(self, budget: Budget) -> bool {
        let empty = Bucket { tokens: 0.0, refilled_at: Timestamp::MIN };
        empty.level(budget, Timestamp::MIN.saturating_add(self.0)) >= budget.burst().tokens()
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_fills_in_exactly_the_retention_is_kept() {
        assert!(Retention::DEFAULT.allows("100/hour".parse().unwrap()));
        assert!(!Retention::DEFAULT.allows("100/hour burst 101".parse().unwrap()));
    }
}
