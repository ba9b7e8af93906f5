//! A rate and a burst.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::rate::parse_amount;
use crate::{Burst, BurstError, Rate, RateError};

/// What a bucket is held to: how fast it refills, and how much it holds.
///
/// A budget is never stored. It travels with every take, so that a changed setting applies with the next request and
/// one caller may size a bucket differently from another.
///
/// Read from text as a rate, whose amount is then the burst too, or as `RATE burst AMOUNT`:
///
/// ```
/// use admit::Budget;
///
/// let hourly: Budget = "100/hour".parse()?;
/// assert_eq!(hourly.burst().tokens(), 100.0);
///
/// let bytes: Budget = "256KiB/second burst 1MiB".parse()?;
/// assert_eq!(bytes.burst().tokens(), 1_048_576.0);
/// # Ok::<(), admit::BudgetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    rate: Rate,
    burst: Burst,
}

/// A text that cannot be a budget.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// The rate is wrong.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The burst is wrong.
    #[error(transparent)]
    Burst(#[from] BurstError),
}

impl Budget {
    /// A budget of its two parts.
    pub const fn new(rate: Rate, burst: Burst) -> Self {
        Self { rate, burst }
    }

    /// How fast the bucket refills.
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// How much the bucket holds.
    pub const fn burst(self) -> Burst {
        self.burst
    }

    /// How long an empty bucket takes to be full: `burst / rate`, to the nearest microsecond. The window `w` in which
    /// the `RateLimit-Policy` field states its quota.
    pub fn time_to_fill(self) -> Duration {
        let micros = (self.burst.tokens() / self.rate.tokens_per_second() * 1e6).round();
        Duration::from_micros(micros as u64) // `as` saturates.
    }
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let (rate, burst) = match text.split_once("burst") {
            Some((rate, burst)) => (rate.trim().parse()?, parse_amount(burst.trim())?),
            None => Rate::parse_with_amount(text.trim())?,
        };
        Ok(Self { rate, burst: Burst::new(burst)? })
    }
}

/// As it is read: `100/hour burst 100`.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} burst {}", self.rate, self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_amount_of_the_rate_is_the_burst_unless_one_is_given() {
        let budget: Budget = "1000/hour".parse().unwrap();
        assert_eq!((budget.burst().tokens(), budget.time_to_fill()), (1000.0, Duration::from_secs(3600)));
        assert_eq!("1000/hour burst 10".parse::<Budget>().unwrap().burst().tokens(), 10.0);
        assert_eq!(budget.to_string().parse(), Ok(budget));
        assert!(matches!("1/s burst 0".parse::<Budget>(), Err(BudgetError::Burst(_))));
        assert!(matches!("1/s burst x".parse::<Budget>(), Err(BudgetError::Rate(RateError::Amount(_)))));
    }
}
