//! What a store holds every charge to, before any bucket is asked.

use std::time::Duration;

use crate::{
    Budget, Charge, Decision, Grant, MAX_CHARGES, Prepared, Retention, Scope, Scopes, ScopesError, Single,
    Take,
};

/// What a store was built with, and holds every charge to.
///
/// ```
/// use admit::{Retention, Rules, Scope};
/// use std::time::Duration;
///
/// let rules = Rules::new([Scope::from_static("ingest")])?;
/// assert_eq!(rules.retention, Retention::DEFAULT);
///
/// let daily = Rules { retention: Retention::new(Duration::from_secs(86_400))?, ..rules };
/// assert!(daily.retention.allows("100/day".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The closed set of scopes.
    pub scopes: Scopes,
    /// How long idle buckets are kept.
    pub retention: Retention,
}

/// A charge that no store evaluates: a mistake in the caller's code or configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChargeError {
    /// The scope is not one of the store's.
    #[error("unknown scope {scope:?}; this store knows {known}", scope = scope.as_str())]
    UnknownScope {
        /// The scope of the charge.
        scope: Scope,
        /// The set the store was built with.
        known: Scopes,
    },
    /// The key is all zeros.
    #[error("the key of the charge on scope {scope} is all zeros; was its identifier never set?")]
    ZeroKey {
        /// The scope of the charge.
        scope: Scope,
    },
    /// An empty bucket of this budget would not be full after the retention, so that the sweep would mint tokens.
    #[error(
        "budget {budget} of scope {scope} takes {needed:?} to fill, longer than the store keeps idle buckets \
         ({retention:?}); set the retention to {needed:?} or more", needed = budget.time_to_fill()
    )]
    FillsTooSlowly {
        /// The scope of the charge.
        scope: Scope,
        /// Its budget.
        budget: Budget,
        /// The store's retention.
        retention: Duration,
    },
    /// Two charges of one take hold one bucket to different budgets.
    #[error("two charges on scope {scope} and one key disagree on the budget: {first} and {second}")]
    ConflictingBudgets {
        /// The scope of both charges.
        scope: Scope,
        /// The budget of the earlier charge.
        first: Budget,
        /// The budget of the later charge.
        second: Budget,
    },
    /// More charges than [`MAX_CHARGES`].
    #[error("{0} charges in one take are more than {MAX_CHARGES}")]
    TooMany(usize),
}

impl Rules {
    /// These scopes, duplicates counted once, with the default retention. For another, `Rules { retention, ..rules }`.
    ///
    /// # Errors
    /// [`ScopesError`] if there is no scope, or more than [`Scopes::MAX`].
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Result<Self, ScopesError> {
        Ok(Self { scopes: Scopes::new(scopes)?, retention: Retention::DEFAULT })
    }

    /// Checks `charges` and gathers them by bucket.
    ///
    /// # Errors
    /// [`ChargeError`] for the first charge that no store evaluates.
    pub fn prepare(&self, charges: &[Charge]) -> Result<Prepared, ChargeError> {
        let take = self.prepare_refund(charges)?;
        if take.lines().iter().any(|line| line.cost.tokens() > line.budget.burst().tokens()) {
            return Ok(Prepared::Decided(Decision::Refused(take.refusal_without_buckets())));
        }
        if take.lines().is_empty() {
            let left = charges.iter().map(|_| None).collect();
            return Ok(Prepared::Decided(Decision::Granted(Grant { at: None, left })));
        }
        Ok(Prepared::Ask(take))
    }

    /// The one charge of a take, checked, if it is one and its bucket decides; nothing if [`Rules::prepare`] has to look.
    /// What most takes are, and the quicker way for them.
    ///
    /// # Errors
    /// As [`Rules::prepare`].
    #[inline]
    pub fn single<'a>(&self, charges: &'a [Charge]) -> Result<Option<Single<'a>>, ChargeError> {
        let [charge] = charges else { return Ok(None) };
        let position = self.checked(charge)?;
        let decides = !charge.cost.is_zero() && charge.cost.tokens() <= charge.budget.burst().tokens();
        Ok(decides.then(|| Single::new(charge, position)))
    }

    /// Checks `charges` and gathers them by bucket for giving them back: nothing is decided, and a cost above the burst
    /// gives back the burst.
    ///
    /// # Errors
    /// As [`Rules::prepare`].
    pub fn prepare_refund(&self, charges: &[Charge]) -> Result<Take, ChargeError> {
        if charges.len() > MAX_CHARGES {
            return Err(ChargeError::TooMany(charges.len()));
        }
        for charge in charges {
            self.check(charge)?;
        }
        Take::gather(charges)
    }

    /// Whether a store with these rules evaluates `charge`: what a service asks at boot, to fail there.
    ///
    /// # Errors
    /// [`ChargeError`] if not.
    pub fn check(&self, charge: &Charge) -> Result<(), ChargeError> {
        self.checked(charge).map(|_| ())
    }

    /// The position of the charge's scope.
    #[inline]
    fn checked(&self, charge: &Charge) -> Result<usize, ChargeError> {
        match self.scopes.position(&charge.scope) {
            Some(position) if !charge.key.is_zero() && self.retention.allows(charge.budget) => Ok(position),
            position => Err(self.mistake(charge, position)),
        }
    }

    /// What is wrong with a charge that is not evaluated. Apart from the check, which all takes pass.
    #[cold]
    fn mistake(&self, charge: &Charge, position: Option<usize>) -> ChargeError {
        let scope = charge.scope.clone();
        if position.is_none() {
            return ChargeError::UnknownScope { scope, known: self.scopes.clone() };
        }
        if charge.key.is_zero() {
            return ChargeError::ZeroKey { scope };
        }
        let retention = self.retention.duration();
        ChargeError::FillsTooSlowly { scope, budget: charge.budget, retention }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, Key, Wait};

    const A: Scope = Scope::from_static("a");
    const B: Scope = Scope::from_static("b");

    fn rules() -> Rules {
        Rules::new([A, B]).unwrap()
    }

    fn charge(scope: Scope, key: &str, cost: f64, budget: &str) -> Charge {
        Charge { scope, key: Key::of(key), cost: Cost::new(cost).unwrap(), budget: budget.parse().unwrap() }
    }

    #[test]
    fn mistakes_are_named_before_any_bucket_is_asked() {
        let error = |charge: Charge| rules().prepare(&[charge]).unwrap_err().to_string();
        assert_eq!(
            error(charge(Scope::from_static("c"), "k", 1.0, "1/s")),
            "unknown scope \"c\"; this store knows a, b"
        );
        let zero = Charge { key: Key::from_bytes([0; 16]), ..charge(A, "k", 1.0, "1/s") };
        assert!(error(zero).contains("all zeros"));
        assert_eq!(
            error(charge(A, "k", 0.0, "100/day")),
            "budget 100/day burst 100 of scope a takes 86400s to fill, longer than the store keeps idle buckets \
             (3600s); set the retention to 86400s or more"
        );
        let twice = [charge(A, "k", 1.0, "1/s"), charge(A, "k", 1.0, "2/s")];
        assert!(matches!(rules().prepare(&twice), Err(ChargeError::ConflictingBudgets { .. })));
        let many = vec![charge(A, "k", 0.0, "1/s"); MAX_CHARGES + 1];
        assert_eq!(rules().prepare(&many), Err(ChargeError::TooMany(65)));
    }

    #[test]
    fn a_single_charge_is_one_that_its_bucket_decides() {
        let single = |charges: &[Charge]| rules().single(charges).map(|single| single.is_some());
        assert_eq!(single(&[charge(B, "k", 10.0, "10/s")]), Ok(true));
        assert_eq!(single(&[charge(B, "k", 0.0, "10/s")]), Ok(false));
        assert_eq!(single(&[charge(B, "k", 10.5, "10/s")]), Ok(false));
        assert_eq!(single(&[]), Ok(false));
        let two = [charge(A, "k", 1.0, "10/s"), charge(B, "k", 1.0, "10/s")];
        assert_eq!(single(&two), Ok(false));
        assert_eq!(rules().single(&two[1..]).map(|single| single.unwrap().scope_position()), Ok(1));

        let slow = [charge(A, "k", 1.0, "100/day")];
        assert_eq!(rules().single(&slow), Err(rules().prepare(&slow).unwrap_err()));
    }

    #[test]
    fn no_bucket_is_asked_where_none_decides() {
        let Ok(Prepared::Decided(free)) = rules().prepare(&[charge(A, "k", 0.0, "1/s")]) else { panic!() };
        assert!(free.is_granted());
        let sum = [charge(A, "k", 6.0, "10/s"), charge(B, "k", 1.0, "1/s"), charge(A, "k", 6.0, "10/s")];
        let Ok(Prepared::Decided(Decision::Refused(refusal))) = rules().prepare(&sum) else { panic!() };
        assert_eq!(refusal.refused().collect::<Vec<_>>(), [(0, Wait::Never), (2, Wait::Never)]);
        assert_eq!(refusal.retry_after_seconds(), None);
    }
}
