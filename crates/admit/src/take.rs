//! All or nothing over many charges.
//!
//! What every store does before and after it looks at buckets stands here once: charges are checked, those that need no
//! bucket are decided, those on one bucket are added up, and the rest is put in the order in which locks are taken. A
//! store then only reads buckets, calls [`Take::decide`] and writes what it is given, or does the same in its own
//! dialect and hands back what it saw.
//!
//! ```
//! use admit::{Charge, Key, Prepared, Retention, Rules, Scope, Scopes, Timestamp};
//!
//! let scope = Scope::from_static("ingest");
//! let rules = Rules { scopes: Scopes::new([scope.clone()])?, retention: Retention::DEFAULT };
//! let charge = Charge::one(scope, Key::of("tenant"), "10/second".parse()?);
//!
//! let Prepared::Ask(take) = rules.prepare(&[charge])? else { unreachable!("a cost of 1 needs a bucket") };
//! let (decision, buckets) = take.decide(Timestamp::MIN, &[None]);
//! assert!(decision.is_granted());
//! assert_eq!(buckets.map(|b| b[0].tokens), Some(9.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use crate::{
    Bucket, Budget, Charge, Cost, Decision, Grant, Key, Refusal, Scope, Scopes, Standing, Timestamp, Wait,
};

/// The most charges of one take: each is a row to lock.
pub const MAX_CHARGES: usize = 64;

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

/// What a store was built with, and holds every charge to.
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

/// A take that was checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepared {
    /// Decided without a look at any bucket: nothing costs anything, or something never fits.
    Decided(Decision),
    /// The buckets decide.
    Ask(Take),
}

/// A take whose outcome depends on buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Take {
    lines: Vec<Line>,
    /// For each charge the line it is part of; none for a cost of zero.
    line_of: Vec<Option<usize>>,
}

/// What a take wants from one bucket: the sum of all its charges on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Which budget of the deployment the bucket belongs to.
    pub scope: Scope,
    /// Whose bucket it is.
    pub key: Key,
    /// The sum of the charges: not zero and, except in a refund, not above the burst.
    pub cost: Cost,
    /// What the bucket is held to.
    pub budget: Budget,
}

impl Rules {
    /// Checks `charges` and gathers them by bucket.
    ///
    /// # Errors
    /// [`ChargeError`] for the first charge that no store evaluates.
    pub fn prepare(&self, charges: &[Charge]) -> Result<Prepared, ChargeError> {
        let take = self.prepare_refund(charges)?;
        if take.lines.iter().any(|line| line.cost.tokens() > line.budget.burst().tokens()) {
            return Ok(Prepared::Decided(Decision::Refused(take.refusal_without_buckets())));
        }
        if take.lines.is_empty() {
            let left = vec![None; charges.len()];
            return Ok(Prepared::Decided(Decision::Granted(Grant { at: None, left })));
        }
        Ok(Prepared::Ask(take))
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
        let scope = || charge.scope.clone();
        if !self.scopes.contains(&charge.scope) {
            return Err(ChargeError::UnknownScope { scope: scope(), known: self.scopes.clone() });
        }
        if charge.key.is_zero() {
            return Err(ChargeError::ZeroKey { scope: scope() });
        }
        if !self.retention.allows(charge.budget) {
            let retention = self.retention.duration();
            return Err(ChargeError::FillsTooSlowly { scope: scope(), budget: charge.budget, retention });
        }
        Ok(())
    }
}

impl Take {
    fn gather(charges: &[Charge]) -> Result<Self, ChargeError> {
        let mut order: Vec<usize> = (0..charges.len()).filter(|&i| !charges[i].cost.is_zero()).collect();
        order.sort_by(|&a, &b| (&charges[a].scope, charges[a].key).cmp(&(&charges[b].scope, charges[b].key)));

        let mut lines: Vec<Line> = Vec::with_capacity(order.len());
        let mut line_of = vec![None; charges.len()];
        for i in order {
            let Charge { scope, key, cost, budget } = &charges[i];
            match lines.last_mut() {
                Some(line) if line.scope == *scope && line.key == *key => {
                    if line.budget != *budget {
                        return Err(ChargeError::ConflictingBudgets {
                            scope: scope.clone(),
                            first: line.budget,
                            second: *budget,
                        });
                    }
                    line.cost = line.cost.saturating_add(*cost);
                }
                _ => lines.push(Line { scope: scope.clone(), key: *key, cost: *cost, budget: *budget }),
            }
            line_of[i] = Some(lines.len() - 1);
        }
        Ok(Self { lines, line_of })
    }

    /// What the take wants, one line a bucket, in (scope, key) order: the order in which to lock.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Decides at `now` on the buckets of the lines, a missing one being full; if granted, also what to write, a bucket
    /// for each line.
    ///
    /// # Panics
    /// If there are not as many buckets as lines.
    pub fn decide(&self, now: Timestamp, buckets: &[Option<Bucket>]) -> (Decision, Option<Vec<Bucket>>) {
        assert_eq!(buckets.len(), self.lines.len(), "a bucket, or none, for each line");
        let debited: Option<Vec<Bucket>> = (self.lines.iter().zip(buckets))
            .map(|(line, bucket)| line.bucket(*bucket, now).debit(line.cost, line.budget, now))
            .collect();
        match debited {
            Some(debited) => (self.granted(now, &debited), Some(debited)),
            None => (self.refused(now, buckets), None),
        }
    }

    /// What [`Take::decide`] would decide, with the tokens that are there before any debit as what is left.
    ///
    /// # Panics
    /// If there are not as many buckets as lines.
    pub fn peek(&self, now: Timestamp, buckets: &[Option<Bucket>]) -> Decision {
        let (decision, debited) = self.decide(now, buckets);
        if debited.is_none() {
            return decision;
        }
        let levels: Vec<Bucket> = (self.lines.iter().zip(buckets))
            .map(|(line, bucket)| Bucket {
                tokens: line.bucket(*bucket, now).level(line.budget, now),
                refilled_at: now,
            })
            .collect();
        self.granted(now, &levels)
    }

    /// The decision of a store that has debited every line at `now` and left these buckets.
    ///
    /// # Panics
    /// If there are not as many buckets as lines.
    pub fn granted(&self, now: Timestamp, debited: &[Bucket]) -> Decision {
        assert_eq!(debited.len(), self.lines.len(), "a bucket for each line");
        let left = self.line_of.iter().map(|line| Some(debited[(*line)?].tokens)).collect();
        Decision::Granted(Grant { at: Some(now), left })
    }

    /// The decision of a store that at `now` found these buckets, a missing one being full, and debited none of them.
    ///
    /// # Panics
    /// If there are not as many buckets as lines.
    pub fn refused(&self, now: Timestamp, buckets: &[Option<Bucket>]) -> Decision {
        assert_eq!(buckets.len(), self.lines.len(), "a bucket, or none, for each line");
        let lines: Vec<Standing> = (self.lines.iter().zip(buckets))
            .map(|(line, bucket)| {
                let bucket = line.bucket(*bucket, now);
                let level = Some(bucket.level(line.budget, now));
                Standing { level, wait: bucket.wait(line.cost, line.budget, now) }
            })
            .collect();
        Decision::Refused(Refusal { at: Some(now), standings: self.spread(|line| lines[line]) })
    }

    fn refusal_without_buckets(&self) -> Refusal {
        let never = |line: usize| {
            let Line { cost, budget, .. } = &self.lines[line];
            Standing { level: None, wait: (cost.tokens() > budget.burst().tokens()).then_some(Wait::Never) }
        };
        Refusal { at: None, standings: self.spread(never) }
    }

    /// From lines back to charges; a charge of nothing always fits.
    fn spread(&self, standing: impl Fn(usize) -> Standing) -> Vec<Standing> {
        let fits = Standing { level: None, wait: None };
        self.line_of.iter().map(|line| line.map_or(fits, &standing)).collect()
    }
}

impl Line {
    fn bucket(&self, stored: Option<Bucket>, now: Timestamp) -> Bucket {
        stored.unwrap_or_else(|| Bucket::full(self.budget, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Scope = Scope::from_static("a");
    const B: Scope = Scope::from_static("b");

    fn rules() -> Rules {
        Rules { scopes: Scopes::new([A, B]).unwrap(), retention: Retention::DEFAULT }
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
    fn no_bucket_is_asked_where_none_decides() {
        let Ok(Prepared::Decided(free)) = rules().prepare(&[charge(A, "k", 0.0, "1/s")]) else { panic!() };
        assert!(free.is_granted());
        let sum = [charge(A, "k", 6.0, "10/s"), charge(B, "k", 1.0, "1/s"), charge(A, "k", 6.0, "10/s")];
        let Ok(Prepared::Decided(Decision::Refused(refusal))) = rules().prepare(&sum) else { panic!() };
        assert_eq!(refusal.refused().collect::<Vec<_>>(), [(0, Wait::Never), (2, Wait::Never)]);
        assert_eq!(refusal.retry_after_seconds(), None);
    }

    #[test]
    fn charges_on_one_bucket_add_up_and_lines_are_in_lock_order() {
        let charges = [charge(B, "k", 1.0, "10/s"), charge(A, "k", 2.0, "10/s"), charge(B, "k", 3.0, "10/s")];
        let Ok(Prepared::Ask(take)) = rules().prepare(&charges) else { panic!() };
        let costs: Vec<_> =
            take.lines().iter().map(|line| (line.scope.as_str(), line.cost.tokens())).collect();
        assert_eq!(costs, [("a", 2.0), ("b", 4.0)]);
        let (decision, _) = take.decide(Timestamp::MIN, &[None, None]);
        let Decision::Granted(grant) = decision else { panic!() };
        assert_eq!(grant.left, [Some(6.0), Some(8.0), Some(6.0)]);
    }

    #[test]
    fn a_budget_that_fills_in_exactly_the_retention_is_kept() {
        assert!(Retention::DEFAULT.allows("100/hour".parse().unwrap()));
        assert!(!Retention::DEFAULT.allows("100/hour burst 101".parse().unwrap()));
    }
}
