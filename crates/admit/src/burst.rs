//! The ceiling of a bucket.

use std::fmt;

/// The most tokens a bucket can hold, from 10⁻⁹ to 2⁵³: what may be spent back to back before the rate applies.
///
/// Up to 2⁵³ whole tokens are counted exactly; the lower end keeps every product of the bucket law a normal number, so
/// that all stores round alike.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Burst(f64);

/// A number that cannot be a burst.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("burst {0:?} is not a number of tokens from 1e-9 to 2^53")]
pub struct BurstError(f64);

pub(crate) const MIN_QUANTITY: f64 = 1e-9;

impl Burst {
    /// 2⁵³, the most tokens a bucket can hold: up to here whole tokens are counted exactly.
    pub const MAX_TOKENS: f64 = 9_007_199_254_740_992.0;

    /// A ceiling of `tokens`.
    ///
    /// # Errors
    /// [`BurstError`] unless `tokens` lies between 10⁻⁹ and 2⁵³.
    pub fn new(tokens: f64) -> Result<Self, BurstError> {
        if (MIN_QUANTITY..=Self::MAX_TOKENS).contains(&tokens) {
            Ok(Self(tokens))
        } else {
            Err(BurstError(tokens))
        }
    }

    /// The number of tokens.
    pub const fn tokens(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_finite_and_positive() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-10, 1e16] {
            assert!(Burst::new(wrong).is_err(), "{wrong}");
        }
        assert!(Burst::new(0.5).is_ok_and(|half| half.tokens() == 0.5));
    }
}
