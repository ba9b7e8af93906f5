//! All or nothing over many charges.
//!
//! What every store does before and after it looks at buckets stands here once: charges on one bucket are added up and put
//! in the order in which locks are taken, and what the buckets come to is told charge by charge.

use smallvec::SmallVec;

use crate::{
    Bucket, Budget, Charge, ChargeError, Cost, Decision, Few, Grant, Key, Refusal, Scope, Standing,
    Timestamp, Wait,
};

/// The most charges of one take: each is a row to lock.
pub const MAX_CHARGES: usize = 64;

/// Positions of charges or lines. A byte holds each, as there are no more than [`MAX_CHARGES`].
type Positions = SmallVec<[u8; 16]>;

/// The position of the line of a charge that costs nothing.
const NO_LINE: u8 = u8::MAX;

/// A take that was checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepared {
    /// Decided without a look at any bucket: nothing costs anything, or something never fits.
    Decided(Decision),
    /// The buckets decide.
    Ask(Take),
}

/// A take whose outcome depends on buckets. A store reads those of its [lines](Take::lines), asks it to
/// [decide](Take::decide) and writes what it is given; or it does the same in a dialect of its own, and hands back what
/// it saw.
///
/// ```
/// use admit::{Charge, Key, Prepared, Rules, Scope, Timestamp};
///
/// let scope = Scope::from_static("ingest");
/// let rules = Rules::new([scope.clone()])?;
/// let charge = Charge::one(scope, Key::of("tenant"), "10/second".parse()?);
///
/// let Prepared::Ask(take) = rules.prepare(&[charge])? else { unreachable!("a cost of 1 needs a bucket") };
/// let (decision, buckets) = take.decide(Timestamp::MIN, &[None]);
/// assert!(decision.is_granted());
/// assert_eq!(buckets.map(|b| b[0].tokens), Some(9.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Take {
    lines: Few<Line>,
    /// For each charge the line it is part of; [`NO_LINE`] for a cost of zero.
    line_of: Positions,
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

impl Take {
    /// `charges`, no more than [`MAX_CHARGES`], by bucket, in lock order.
    pub(crate) fn gather(charges: &[Charge]) -> Result<Self, ChargeError> {
        debug_assert!(charges.len() <= MAX_CHARGES, "a byte holds each position");
        let charge = |i: u8| &charges[usize::from(i)];
        let mut order: Positions = (0..charges.len() as u8).filter(|&i| !charge(i).cost.is_zero()).collect();
        order.sort_by(|&a, &b| (&charge(a).scope, charge(a).key).cmp(&(&charge(b).scope, charge(b).key)));

        let mut lines: Few<Line> = Few::new();
        let mut line_of = Positions::from_elem(NO_LINE, charges.len());
        for i in order {
            let Charge { scope, key, cost, budget } = charge(i);
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
            line_of[usize::from(i)] = (lines.len() - 1) as u8;
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
    pub fn decide(&self, now: Timestamp, buckets: &[Option<Bucket>]) -> (Decision, Option<Few<Bucket>>) {
        assert_eq!(buckets.len(), self.lines.len(), "a bucket, or none, for each line");
        let debited: Option<Few<Bucket>> = (self.lines.iter().zip(buckets))
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
        let levels: Few<Bucket> = (self.lines.iter().zip(buckets))
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
        let left = self.lines_of_charges().map(|line| Some(debited[line?].tokens)).collect();
        Decision::Granted(Grant { at: Some(now), left })
    }

    /// The decision of a store that at `now` found these buckets, a missing one being full, and debited none of them.
    ///
    /// # Panics
    /// If there are not as many buckets as lines.
    pub fn refused(&self, now: Timestamp, buckets: &[Option<Bucket>]) -> Decision {
        assert_eq!(buckets.len(), self.lines.len(), "a bucket, or none, for each line");
        let lines: Few<Standing> = (self.lines.iter().zip(buckets))
            .map(|(line, bucket)| standing(line.bucket(*bucket, now), line.cost, line.budget, now))
            .collect();
        Decision::Refused(Refusal { at: Some(now), standings: self.spread(|line| lines[line]) })
    }

    /// The refusal of a take with lines that never fit.
    pub(crate) fn refusal_without_buckets(&self) -> Refusal {
        let never = |line: usize| {
            let Line { cost, budget, .. } = &self.lines[line];
            Standing { level: None, wait: (cost.tokens() > budget.burst().tokens()).then_some(Wait::Never) }
        };
        Refusal { at: None, standings: self.spread(never) }
    }

    /// From lines back to charges; a charge of nothing always fits.
    fn spread(&self, standing: impl Fn(usize) -> Standing) -> Few<Standing> {
        let fits = Standing { level: None, wait: None };
        self.lines_of_charges().map(|line| line.map_or(fits, &standing)).collect()
    }

    /// For each charge the position of its line; none for a cost of zero.
    fn lines_of_charges(&self) -> impl Iterator<Item = Option<usize>> {
        self.line_of.iter().map(|&line| (line != NO_LINE).then_some(usize::from(line)))
    }
}

/// How a charge that was not debited stood.
pub(crate) fn standing(bucket: Bucket, cost: Cost, budget: Budget, now: Timestamp) -> Standing {
    Standing { level: Some(bucket.level(budget, now)), wait: bucket.wait(cost, budget, now) }
}

impl Line {
    fn bucket(&self, stored: Option<Bucket>, now: Timestamp) -> Bucket {
        stored.unwrap_or_else(|| Bucket::full(self.budget, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_on_one_bucket_add_up_and_lines_are_in_lock_order() {
        let charge = |scope, cost: u32| {
            let one = Charge::one(Scope::from_static(scope), Key::of("k"), "10/s".parse().unwrap());
            Charge { cost: cost.into(), ..one }
        };
        let take = Take::gather(&[charge("b", 1), charge("a", 2), charge("b", 3)]).unwrap();
        let costs: Vec<_> =
            take.lines().iter().map(|line| (line.scope.as_str(), line.cost.tokens())).collect();
        assert_eq!(costs, [("a", 2.0), ("b", 4.0)]);
        let (decision, _) = take.decide(Timestamp::MIN, &[None, None]);
        let Decision::Granted(grant) = decision else { panic!() };
        assert_eq!(grant.left, [Some(6.0), Some(8.0), Some(6.0)]);
    }
}
