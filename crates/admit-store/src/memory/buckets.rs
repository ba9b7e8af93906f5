//! Buckets in the memory of one process.
//!
//! # When a bucket is dropped
//!
//! A bucket makes room for another once it is full under every budget that took from it. The next take by one of those
//! budgets would mint what the bucket holds, so that none of them is ever granted more than its burst and its rate. As
//! little is kept of those budgets, that may be noticed late, by less than a ten-thousandth of the time to fill.
//!
//! A budget that the bucket has not met may have a larger burst. Where the bucket was dropped, its next take mints that
//! burst, as for a key that was never seen; where it is still there, the larger burst is room to refill. Raising a burst
//! may so give once what it was raised by, and no more: from then on the bucket knows this budget too.

use std::collections::BTreeMap;
use std::time::Duration;

use admit::{Bucket, Decision, Key, Scope, Single, Take, TakeError, Timestamp, Unavailable};
use smallvec::SmallVec;

use super::full::Full;
use super::kept::Kept;
use super::scopes::{Numbered, Place};
use super::table::{Locked, NoRoom, Table};

pub(super) struct Buckets {
    table: Table<Place, Kept>,
    max: usize,
}

/// When a take decides.
///
/// A bucket that is minted needs a moment that is read while its place is held: what another dropped as full before that
/// is full by then, too. For a bucket that is there, and that no other took from since, an earlier reading will do.
pub(super) trait Moment {
    fn now(&self) -> Timestamp;

    /// Past by the readings of all: a bucket that is full then is full whenever another take decides.
    fn surely_past(&self) -> Timestamp;
}

/// What became of a take of one charge.
struct Decided {
    now: Timestamp,
    found: Option<Bucket>,
    debited: Option<Bucket>,
}

impl Buckets {
    pub(super) fn new(max: usize) -> Self {
        Self { table: Table::new(max), max }
    }

    /// A take of one charge: what most are, so that nothing is done here that is done for many alone.
    #[inline]
    pub(super) fn take_single(
        &self,
        scopes: &Numbered,
        retention: impl Fn() -> Duration,
        single: &Single<'_>,
        moment: &impl Moment,
    ) -> Result<Decision, TakeError> {
        let place = scopes.place_of(single);
        let decided = match self.try_take_single(place, single, moment) {
            Ok(decided) => decided,
            Err(NoRoom) => self.take_single_with_room(place, retention(), single, moment)?,
        };
        // The answer is made where it is handed out, and only once: it is larger than all that went into it.
        match decided.debited {
            Some(debited) => Ok(single.granted(decided.now, debited)),
            None => Ok(single.refused(decided.now, decided.found)),
        }
    }

    /// In line, and so what it comes to is never written to memory, from where it could be read only later.
    #[inline(always)]
    fn try_take_single(
        &self,
        place: Place,
        single: &Single<'_>,
        moment: &impl Moment,
    ) -> Result<Decided, NoRoom> {
        let before = moment.now(); // While the processor waits for the lock.
        let mut locked = self.table.lock_one(&place);
        let found = locked.get().map(Kept::bucket);
        let is_late = |bucket: Bucket| bucket.refilled_at > before;
        let now = if found.is_none_or(is_late) { read_again(moment) } else { before };
        let debited = single.debit(now, found);
        if let Some(bucket) = debited {
            let budget = single.charge().budget;
            match locked.get_mut() {
                Some(kept) => kept.debited(bucket, budget),
                None => locked.insert(Kept::new(bucket, budget))?,
            }
        }
        Ok(Decided { now, found, debited })
    }

    #[cold]
    #[inline(never)]
    fn take_single_with_room(
        &self,
        place: Place,
        retention: Duration,
        single: &Single<'_>,
        moment: &impl Moment,
    ) -> Result<Decided, Unavailable> {
        self.with_room(retention, moment, || self.try_take_single(place, single, moment))
    }

    pub(super) fn take(
        &self,
        scopes: &Numbered,
        retention: Duration,
        take: &Take,
        moment: &impl Moment,
    ) -> Result<Decision, Unavailable> {
        let places = scopes.places(take.lines())?;
        match self.try_take(&places, take, moment) {
            Ok(decision) => Ok(decision),
            Err(NoRoom) => self.with_room(retention, moment, || self.try_take(&places, take, moment)),
        }
    }

    fn try_take(&self, places: &[Place], take: &Take, moment: &impl Moment) -> Result<Decision, NoRoom> {
        let mut locked = self.table.lock(places);
        let (decision, debited) = take.decide(moment.now(), &found(&locked, places));
        if let Some(debited) = debited {
            locked.reserve()?;
            for (i, (bucket, line)) in debited.into_iter().zip(take.lines()).enumerate() {
                match locked.get_mut(i) {
                    Some(kept) => kept.debited(bucket, line.budget),
                    None => locked.put(i, Kept::new(bucket, line.budget)),
                }
            }
        }
        Ok(decision)
    }

    /// Drops buckets that are full again, then takes once more.
    #[cold]
    fn with_room<T>(
        &self,
        retention: Duration,
        moment: &impl Moment,
        take: impl FnOnce() -> Result<T, NoRoom>,
    ) -> Result<T, Unavailable> {
        let before = moment.surely_past();
        self.table.evict(|kept| kept.is_full(before) || is_idle(kept, retention, before));
        take().map_err(|NoRoom| Full { what: "buckets", max: self.max }.into())
    }

    pub(super) fn peek(
        &self,
        scopes: &Numbered,
        take: &Take,
        now: Timestamp,
    ) -> Result<Decision, Unavailable> {
        let places = scopes.places(take.lines())?;
        let locked = self.table.lock(&places);
        Ok(take.peek(now, &found(&locked, &places)))
    }

    pub(super) fn refund(&self, scopes: &Numbered, take: &Take) -> Result<(), Unavailable> {
        let places = scopes.places(take.lines())?;
        let mut locked = self.table.lock(&places);
        for (i, line) in take.lines().iter().enumerate() {
            if let Some(kept) = locked.get_mut(i) {
                kept.refunded(kept.bucket().refund(line.cost, line.budget));
            }
        }
        Ok(())
    }

    pub(super) fn delete_idle(&self, retention: Duration, now: Timestamp) -> u64 {
        self.table.retain(|kept| !is_idle(kept, retention, now))
    }

    /// One page of the buckets of a scope, found by a look at all of them.
    pub(super) fn listed(
        &self,
        scopes: &Numbered,
        scope: &Scope,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Bucket)>, Unavailable> {
        let number = scopes.place(scope, Key::from_bytes([0; 16]))?.scope;
        let mut listed = BTreeMap::new();
        self.table.each(|place, kept| {
            if place.scope == number && after.is_none_or(|after| place.key > after) {
                listed.insert(place.key, kept.bucket());
                if listed.len() > limit {
                    listed.pop_last();
                }
            }
        });
        Ok(listed.into_iter().collect())
    }

    /// Deletes a bucket, and tells whether there was one.
    pub(super) fn delete(&self, scopes: &Numbered, scope: &Scope, key: Key) -> Result<bool, Unavailable> {
        Ok(self.table.lock_one(&scopes.place(scope, key)?).remove().is_some())
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[cfg(feature = "conformance")]
    pub(super) fn bucket(
        &self,
        scopes: &Numbered,
        scope: &Scope,
        key: Key,
    ) -> Result<Option<Bucket>, Unavailable> {
        Ok(self.table.lock_one(&scopes.place(scope, key)?).get().map(Kept::bucket))
    }
}

/// Apart, so that the way of most takes stays short.
#[cold]
fn read_again(moment: &impl Moment) -> Timestamp {
    moment.now()
}

fn found(locked: &Locked<'_, Place, Kept>, places: &[Place]) -> SmallVec<[Option<Bucket>; 4]> {
    (0..places.len()).map(|i| locked.get(i).map(Kept::bucket)).collect()
}

/// Idle for longer than the retention, so full under every budget that a take may bring.
fn is_idle(kept: &Kept, retention: Duration, now: Timestamp) -> bool {
    now.since(kept.bucket().refilled_at) > retention
}
