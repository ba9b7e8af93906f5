//! Refusals that need no look at the store.
//!
//! A bucket that was seen too empty stays too empty until its level by the law covers the cost. So what was seen is remembered,
//! and a take that it could not pay for at the latest moment that it may be now is refused here. Nothing is ever granted from
//! memory. A smaller cost or a larger budget needs no rule of its own, as the law is asked with those of the take; and what
//! this process itself grants or gives back is forgotten.
//!
//! The one error there can be is a refusal too many, for ten seconds or until the wait that was told is over: another process gave back tokens,
//! deleted the bucket or took from it by a larger budget, the store's clock stepped forward, or this machine slept.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admit::{Bucket, Decision, Key, Line, Now, Scope, Take, Timestamp};

/// For so long what was seen is believed, however long the wait: so that what others give back or delete is seen soon.
const KEPT: Duration = Duration::from_secs(10);

/// A bounded memory of buckets: each has one place, which it shares with others, and the last that was seen keeps it.
pub(crate) struct Refusals {
    places: Box<[Mutex<Place>]>,
    hasher: RandomState,
}

#[derive(Default)]
struct Place {
    seen: Option<Seen>,
    /// How often something was forgotten here.
    forgotten: u64,
}

/// A bucket as the store told it, at most as full as that since; none if it had no row, and so was full.
struct Seen {
    scope: Scope,
    key: Key,
    bucket: Option<Bucket>,
    sighting: Sighting,
}

/// When a bucket was seen.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(all(feature = "sqlite", feature = "postgres")), allow(dead_code))] // Each store has its own.
pub(crate) enum Sighting {
    /// At this moment of a clock of this process that never steps. The store's clock is one that this process reads too, so
    /// that it says [what time it is](Now::At).
    OnSharedClock { seen: Timestamp },
    /// The store's clock showed `at`, some time between these two moments of a clock of this process.
    ByStore { at: Timestamp, sent: Timestamp, answered: Timestamp },
    /// The caller said what time it was.
    ByCaller,
}

/// What memory says to a take.
pub(crate) enum Recalled {
    /// Its buckets, as they were seen, cannot pay for it.
    Refused(Decision),
    /// The store has to be asked, and what it tells be [remembered](Refusals::remember) with this.
    Unknown(Stamp),
}

/// How often the buckets of a take were forgotten, when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

impl Refusals {
    /// Remembers up to `places` buckets; with none, nothing.
    pub(crate) fn new(places: usize) -> Self {
        let places = (0..places).map(|_| Mutex::default()).collect();
        Self { places, hasher: RandomState::new() }
    }

    /// Whether the buckets of a take, as they were seen, cannot pay for it. `local` is a clock of this process that never
    /// steps.
    pub(crate) fn recall(&self, take: &Take, now: Now, local: impl Fn() -> Timestamp) -> Recalled {
        let (mut seen, mut forgotten) = (Vec::new(), 0_u64);
        for line in take.lines() {
            let Some(number) = self.number(&line.scope, line.key) else { break };
            let place = self.place(number);
            let this = |seen: &&Seen| seen.key == line.key && seen.scope == line.scope;
            seen.extend(place.seen.as_ref().filter(this).map(|seen| (line, seen.bucket, seen.sighting)));
            forgotten = forgotten.wrapping_add(place.forgotten);
        }
        if seen.is_empty() {
            return Recalled::Unknown(Stamp(forgotten));
        }
        match refused_at(&seen, now, local) {
            Some(earliest) if seen.len() == take.lines().len() => {
                let buckets: Vec<Option<Bucket>> = seen.iter().map(|(_, bucket, _)| *bucket).collect();
                // By the earliest moment that it may be, so that no wait is told too short.
                Recalled::Refused(take.refused(earliest, &buckets))
            }
            // It is refused for sure, and changes nothing; the store has to tell how long it waits for those that were not seen.
            Some(_) => Recalled::Unknown(Stamp(forgotten)),
            None => {
                // By its budget there may come to be more than was seen; those that come after it have to wait for that.
                take.lines().iter().for_each(|line| self.forget(&line.scope, line.key));
                Recalled::Unknown(self.stamp(take))
            }
        }
    }

    fn stamp(&self, take: &Take) -> Stamp {
        let numbers = take.lines().iter().filter_map(|line| self.number(&line.scope, line.key));
        Stamp(numbers.fold(0, |sum, number| sum.wrapping_add(self.place(number).forgotten)))
    }

    /// Remembers the buckets of a take that the store refused, unless one was forgotten since it came.
    pub(crate) fn remember(&self, stamp: Stamp, take: &Take, buckets: &[Option<Bucket>], sighting: Sighting) {
        let numbers: Option<Vec<usize>> =
            take.lines().iter().map(|line| self.number(&line.scope, line.key)).collect();
        let Some(numbers) = numbers else { return };
        // All at once, and in one order, so that nothing is forgotten in between.
        let mut held: BTreeMap<usize, MutexGuard<'_, Place>> = numbers
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|n| (n, self.place(n)))
            .collect();
        let forgotten = numbers.iter().fold(0_u64, |sum, number| sum.wrapping_add(held[number].forgotten));
        if Stamp(forgotten) != stamp {
            return;
        }
        for ((line, number), bucket) in take.lines().iter().zip(numbers).zip(buckets) {
            if let Some(place) = held.get_mut(&number) {
                place.seen =
                    Some(Seen { scope: line.scope.clone(), key: line.key, bucket: *bucket, sighting });
            }
        }
    }

    /// The bucket may come to be fuller than it was seen. To be called before what fills it is queued, if takes that are queued
    /// later are decided later; else after it is done.
    pub(crate) fn forget(&self, scope: &Scope, key: Key) {
        if let Some(number) = self.number(scope, key) {
            let mut place = self.place(number);
            place.forgotten = place.forgotten.wrapping_add(1);
            place.seen = None;
        }
    }

    /// Forgets all buckets, after some were swept.
    pub(crate) fn forget_all(&self) {
        for number in 0..self.places.len() {
            let mut place = self.place(number);
            place.forgotten = place.forgotten.wrapping_add(1);
            place.seen = None;
        }
    }

    /// The bucket was seen again, and paid.
    pub(crate) fn clear(&self, scope: &Scope, key: Key) {
        if let Some(number) = self.number(scope, key) {
            self.place(number).seen = None;
        }
    }

    /// Where a bucket is kept; nowhere if there are no places.
    fn number(&self, scope: &Scope, key: Key) -> Option<usize> {
        (self.hasher.hash_one((scope, key)) as usize).checked_rem(self.places.len())
    }

    fn place(&self, number: usize) -> MutexGuard<'_, Place> {
        self.places[number].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The earliest moment that it may be at the store, if at no moment that it may be these buckets can all pay for their lines.
fn refused_at(
    seen: &[(&Line, Option<Bucket>, Sighting)],
    now: Now,
    local: impl Fn() -> Timestamp,
) -> Option<Timestamp> {
    let (earliest, latest) = match now {
        Now::At(moment) => {
            let is_old = |(_, _, sighting): &(&Line, Option<Bucket>, Sighting)| match *sighting {
                Sighting::OnSharedClock { seen } => local().since(seen) > KEPT,
                _ => false,
            };
            if seen.iter().any(is_old) {
                return None;
            }
            (moment, moment)
        }
        Now::Store => {
            let local = local();
            let mut bounds = (Timestamp::MIN, Timestamp::MAX);
            for (_, _, sighting) in seen {
                let Sighting::ByStore { at, sent, answered } = *sighting else { return None };
                if local.since(answered) > KEPT {
                    return None;
                }
                bounds.0 = bounds.0.max(at.saturating_add(local.since(answered)));
                bounds.1 = bounds.1.min(at.saturating_add(local.since(sent)));
            }
            if bounds.0 > bounds.1 {
                return None; // The store's clock stepped back between the two sightings.
            }
            bounds
        }
    };
    let is_short = |(line, bucket, _): &(&Line, Option<Bucket>, Sighting)| {
        bucket.is_some_and(|bucket| bucket.level(line.budget, latest) < line.cost.tokens())
    };
    seen.iter().any(is_short).then_some(earliest)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use admit::{Budget, Charge, Prepared, Rules};

    use super::*;

    /// Another process may have given back meanwhile. The wall clock, which may have been set back, has no say in it.
    #[test]
    fn what_was_seen_on_the_stores_own_clock_is_believed_for_ten_seconds() {
        let scope = Scope::from_static("a");
        let budget: Budget = "1/hour".parse().unwrap();
        let charge = Charge::one(scope.clone(), Key::hashed("k"), budget);
        let Prepared::Ask(take) = Rules::new([scope]).unwrap().prepare(&[charge]).unwrap() else { panic!() };
        let refusals = Refusals::new(1);
        let began = Timestamp::MIN.saturating_add(Duration::from_secs(1_000));
        let recall =
            |after: Duration| refusals.recall(&take, Now::At(Timestamp::MIN), || began.saturating_add(after));
        let Recalled::Unknown(stamp) = recall(Duration::ZERO) else { panic!("nothing was seen") };
        let empty = Bucket { tokens: 0.0, refilled_at: Timestamp::MIN };
        refusals.remember(stamp, &take, &[Some(empty)], Sighting::OnSharedClock { seen: began });
        assert!(matches!(recall(KEPT), Recalled::Refused(_)));
        assert!(matches!(recall(KEPT + Duration::from_micros(1)), Recalled::Unknown(_)));
    }
}
