//! A take of one charge.

use crate::take::standing;
use crate::{Bucket, Charge, Decision, Few, Grant, Refusal, Timestamp};

/// A take of one charge whose bucket decides: what [`Take`](crate::Take) is for many, with nothing to gather, nothing to
/// copy and no allocation. [`Rules::single`](crate::Rules::single) makes it.
///
/// ```
/// use admit::{Charge, Key, Rules, Scope, Timestamp};
///
/// let scope = Scope::from_static("ingest");
/// let rules = Rules::new([scope.clone()])?;
/// let charges = [Charge::one(scope, Key::of("tenant"), "10/second".parse()?)];
///
/// let single = rules.single(&charges)?.expect("one charge that costs 1 of 10");
/// let (decision, bucket) = single.decide(Timestamp::MIN, None);
/// assert!(decision.is_granted());
/// assert_eq!(bucket.map(|bucket| bucket.tokens), Some(9.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single<'a> {
    charge: &'a Charge,
    scope_position: usize,
}

impl<'a> Single<'a> {
    pub(crate) const fn new(charge: &'a Charge, scope_position: usize) -> Self {
        Self { charge, scope_position }
    }

    /// The charge. Its cost is not zero and not above the burst.
    pub const fn charge(&self) -> &'a Charge {
        self.charge
    }

    /// Where its scope stands among those of the rules.
    pub const fn scope_position(&self) -> usize {
        self.scope_position
    }

    /// Decides at `now` on the bucket, a missing one being full; if granted, also what to write.
    #[inline]
    pub fn decide(&self, now: Timestamp, bucket: Option<Bucket>) -> (Decision, Option<Bucket>) {
        let Charge { cost, budget, .. } = self.charge;
        let (cost, budget) = (*cost, *budget);
        let bucket = bucket.unwrap_or_else(|| Bucket::full(budget, now));
        let at = Some(now);
        match bucket.debit(cost, budget, now) {
            Some(debited) => {
                let left = Few::one(Some(debited.tokens));
                (Decision::Granted(Grant { at, left }), Some(debited))
            }
            None => {
                let standings = Few::one(standing(bucket, cost, budget, now));
                (Decision::Refused(Refusal { at, standings }), None)
            }
        }
    }
}
