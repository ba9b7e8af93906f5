//! What one request takes from a bucket.

/// Tokens that one request takes: finite and not negative. A cost of zero is always granted.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Cost(f64);

/// A number that cannot be a cost.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// Taking a negative cost would add tokens.
    #[error("cost {0} is negative; a cost is zero or more tokens")]
    Negative(f64),
    /// NaN or an infinity.
    #[error("cost {0} is not a finite number of tokens")]
    NotFinite(f64),
}

impl Cost {
    /// Nothing: granted without asking the store.
    pub const ZERO: Self = Self(0.0);
    /// One token: a request, a read, an issuance.
    pub const ONE: Self = Self(1.0);

    /// A cost of `tokens`.
    ///
    /// # Errors
    /// [`CostError`] if `tokens` is negative, NaN or infinite.
    pub fn new(tokens: f64) -> Result<Self, CostError> {
        if !tokens.is_finite() {
            return Err(CostError::NotFinite(tokens));
        }
        if tokens < 0.0 {
            return Err(CostError::Negative(tokens));
        }
        Ok(Self(tokens + 0.0)) // Turns −0.0 into 0.0.
    }

    /// One token a byte. Exact up to 2^53 bytes.
    pub fn bytes(count: u64) -> Self {
        Self(count as f64)
    }

    /// The number of tokens.
    pub const fn tokens(self) -> f64 {
        self.0
    }

    /// Whether this is [`Cost::ZERO`].
    pub fn is_zero(self) -> bool {
        self.0 == 0.0
    }

    /// Both costs together; the largest finite number if the sum is not finite.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self((self.0 + other.0).min(f64::MAX))
    }
}

impl From<u32> for Cost {
    fn from(tokens: u32) -> Self {
        Self(f64::from(tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_cost_is_named() {
        assert_eq!(Cost::new(-1.0), Err(CostError::Negative(-1.0)));
        assert!(matches!(Cost::new(f64::NAN), Err(CostError::NotFinite(_))));
        assert_eq!(Cost::new(f64::INFINITY), Err(CostError::NotFinite(f64::INFINITY)));
        assert!(Cost::new(-0.0).is_ok_and(|zero| zero.is_zero() && zero.tokens().is_sign_positive()));
    }
}
