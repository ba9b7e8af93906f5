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
/// let single = rules.single(&charges).expect("one charge that costs 1 of 10");
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
    pub fn decide(&self, now: Timestamp, bucket: Option<Bucket>) -> (Decision, Option<Bucket>) {
        match self.debit(now, bucket) {
            Some(debited) => (self.granted(now, debited), Some(debited)),
            None => (self.refused(now, bucket), None),
        }
    }

    /// The bucket, a missing one being full, after the charge is debited at `now`; nothing if it is refused. The first
    /// half of [`Single::decide`], for a store that writes before it answers.
    #[inline]
    pub fn debit(&self, now: Timestamp, bucket: Option<Bucket>) -> Option<Bucket> {
        self.bucket(bucket, now).debit(self.charge.cost, self.charge.budget, now)
    }

    /// The decision of a store that has debited the charge at `now` and left this bucket.
    #[inline]
    pub fn granted(&self, now: Timestamp, debited: Bucket) -> Decision {
        Decision::Granted(Grant { at: Some(now), left: Few::one(Some(debited.tokens)) })
    }

    /// The decision of a store that at `now` found this bucket, a missing one being full, and did not debit it.
    pub fn refused(&self, now: Timestamp, bucket: Option<Bucket>) -> Decision {
        let standing = standing(self.bucket(bucket, now), self.charge.cost, self.charge.budget, now);
        Decision::Refused(Refusal { at: Some(now), standings: Few::one(standing) })
    }

    fn bucket(&self, stored: Option<Bucket>, now: Timestamp) -> Bucket {
        stored.unwrap_or_else(|| Bucket::full(self.charge.budget, now))
    }
}
