//! Refusals that need no look at the store.
//!
//! A bucket that was seen too empty stays too empty until its level by the law covers the cost. So what was seen is remembered,
//! and a take that it could not pay for at the latest moment that it may be now is refused here. Nothing is ever granted from
//! memory. A smaller cost or a larger budget needs no rule of its own, as the law is asked with those of the take; and what
//! this process itself grants or gives back is forgotten.
//!
//! The one error there can be is a refusal too many, for ten seconds at most: another process gave back tokens, deleted the
//! bucket or took from it by a larger budget, the store's clock stepped forward, or this machine slept.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admit::{Bucket, Decision, Key, Line, Now, Scope, Take, Timestamp};

/// How long a sighting is believed, even if the wait it tells is longer: so that what others give back or delete is seen soon.
const KEPT: Duration = Duration::from_secs(10);

/// A bounded memory of buckets: each has one place, which it shares with others, and the last that was seen keeps it.
pub(crate) struct Refusals {
    places: Box<[Mutex<Place>]>,
    hasher: RandomState,
    recalled: AtomicU64,
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

/// When a bucket was seen: between two moments of a clock of this process that never steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
    /// What the store's own clock showed meanwhile. Nothing if the caller said what time it was, or if it is a clock that this
    /// process reads too, so that each take says [what time it is](Now::At).
    pub(crate) at: Option<Timestamp>,
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
        Self { places, hasher: RandomState::new(), recalled: AtomicU64::new(0) }
    }

    /// Whether the buckets of a take, as they were seen, cannot pay for it. `local` is a clock of this process that never
    /// steps.
    pub(crate) fn recall(&self, take: &Take, now: Now, local: impl FnOnce() -> Timestamp) -> Recalled {
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
                self.recalled.fetch_add(1, Ordering::Relaxed);
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

    /// How many takes were refused so.
    pub(crate) fn recalled(&self) -> u64 {
        self.recalled.load(Ordering::Relaxed)
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
    local: impl FnOnce() -> Timestamp,
) -> Option<Timestamp> {
    let local = local();
    if seen.iter().any(|(_, _, sighting)| local.since(sighting.answered) > KEPT) {
        return None;
    }
    let (mut earliest, mut latest) = (Timestamp::MIN, Timestamp::MAX);
    match now {
        Now::At(moment) => (earliest, latest) = (moment, moment),
        Now::Store => {
            for (_, _, Sighting { sent, answered, at }) in seen {
                earliest = earliest.max((*at)?.saturating_add(local.since(*answered)));
                latest = latest.min((*at)?.saturating_add(local.since(*sent)));
            }
        }
    }
    if earliest > latest {
        return None; // The store's clock stepped back between two sightings.
    }
    let is_short = |(line, bucket, _): &(&Line, Option<Bucket>, Sighting)| {
        bucket.is_some_and(|bucket| bucket.level(line.budget, latest) < line.cost.tokens())
    };
    seen.iter().any(is_short).then_some(earliest)
}

#[cfg(test)]
mod tests {
    use admit::{Budget, Charge, Prepared, Rules};

    use super::*;

    /// Two lines, of one token each.
    fn take(budget: &str) -> Take {
        let (scope, budget): (_, Budget) = (Scope::from_static("a"), budget.parse().unwrap());
        let charges = ["k", "l"].map(|key| Charge::one(scope.clone(), Key::hashed(key), budget));
        let Prepared::Ask(take) = Rules::new([scope]).unwrap().prepare(&charges).unwrap() else { panic!() };
        take
    }

    /// The store's clock is ahead of the local one by an hour.
    fn moment(clock: char, millis: u64) -> Timestamp {
        let begin = if clock == 's' { 3_600 } else { 0 };
        let began = Timestamp::MIN.saturating_add(Duration::from_secs(100_000 + begin));
        began.saturating_add(Duration::from_millis(millis))
    }

    /// Where the caller brought the moment, what was seen on PostgreSQL was believed until the wait was over, which may be a day:
    /// what another process gave back was not seen.
    #[test]
    fn a_sighting_is_believed_for_ten_seconds_and_only_while_no_level_can_cover_the_cost() {
        let (slow, quick) = (take("1/hour"), take("1/second"));
        let seen_at = |sent, answered, store: Option<u64>| Sighting {
            sent: moment('l', sent),
            answered: moment('l', answered),
            at: store.map(|millis| moment('s', millis)),
        };
        let by_store = seen_at(0, 20, Some(10));
        let given = seen_at(0, 20, None);
        let (at_begin, later) = (Now::At(moment('s', 10)), Now::At(moment('s', 1_010)));
        let at = |millis| Some(moment('s', millis));
        // Two sightings of an empty bucket, when the take comes by either clock, and the moment of the refusal if there is one.
        let cases = [
            ("at once", &slow, [by_store; 2], Now::Store, 20, at(10)),
            ("ten seconds", &slow, [by_store; 2], Now::Store, 10_020, at(10_010)),
            ("longer", &slow, [by_store; 2], Now::Store, 10_021, None),
            ("of given moments, ten seconds", &slow, [given; 2], at_begin, 10_020, at(10)),
            ("longer", &slow, [given; 2], at_begin, 10_021, None),
            (
                "by the store, and then of a given moment, longer",
                &slow,
                [by_store; 2],
                at_begin,
                10_021,
                None,
            ),
            ("one is older", &slow, [by_store, seen_at(100, 120, Some(110))], Now::Store, 10_021, None),
            (
                "by given moments nothing is known of the store's clock",
                &slow,
                [given; 2],
                Now::Store,
                20,
                None,
            ),
            ("nor by one", &slow, [by_store, given], Now::Store, 20, None),
            // It was asked at 0, so the store's clock may be 990 ms on at 980, and 1,010 at 1,000: then it may fit.
            ("it cannot fit yet", &quick, [by_store; 2], Now::Store, 980, at(970)),
            ("it may fit", &quick, [by_store; 2], Now::Store, 1_000, None),
            ("it fits to the microsecond", &quick, [given; 2], later, 20, None),
            // The second tells more closely what time it is there.
            ("the closest", &slow, [by_store, seen_at(100, 104, Some(102))], Now::Store, 110, at(108)),
            ("its clock stepped back", &slow, [by_store, seen_at(100, 104, Some(50))], Now::Store, 110, None),
        ];
        for (case, take, sightings, now, local, expected) in cases {
            let empty = Bucket { tokens: 0.0, refilled_at: moment('s', 10) };
            let seen: Vec<_> = take
                .lines()
                .iter()
                .zip(sightings)
                .map(|(line, sighting)| (line, Some(empty), sighting))
                .collect();
            assert_eq!(refused_at(&seen, now, || moment('l', local)), expected, "{case}");
            let full: Vec<_> = seen.iter().map(|&(line, _, sighting)| (line, None, sighting)).collect();
            assert_eq!(refused_at(&full, now, || moment('l', local)), None, "{case}, without rows");
            let one: Vec<_> = seen.iter().take(1).chain(full.iter().skip(1)).copied().collect();
            assert_eq!(refused_at(&one, now, || moment('l', local)), expected, "{case}, one without a row");
        }
    }
}
