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

use admit::{Bucket, Decision, Key, Scope, Single, Take, Timestamp, Unavailable};
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
pub(super) trait Moment {
    /// Read while the places are held: a bucket that another dropped as full before that is full by then, too.
    fn now(&self) -> Timestamp;

    /// Past by the readings of all: a bucket that is full then is full whenever another take decides.
    fn surely_past(&self) -> Timestamp;
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
    ) -> Result<Decision, Unavailable> {
        let place = scopes.place_of(single)?;
        match self.try_take_single(place, single, moment) {
            Ok(decision) => Ok(decision),
            Err(NoRoom) => {
                self.with_room(retention(), moment, || self.try_take_single(place, single, moment))
            }
        }
    }

    #[inline]
    fn try_take_single(
        &self,
        place: Place,
        single: &Single<'_>,
        moment: &impl Moment,
    ) -> Result<Decision, NoRoom> {
        let mut locked = self.table.lock_one(place);
        let (decision, debited) = single.decide(moment.now(), locked.get().map(Kept::bucket));
        if let Some(bucket) = debited {
            let budget = single.charge().budget;
            match locked.get_mut() {
                Some(kept) => kept.debited(bucket, budget),
                None => {
                    locked.put(Kept::new(bucket, budget))?;
                }
            }
        }
        Ok(decision)
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
    fn with_room(
        &self,
        retention: Duration,
        moment: &impl Moment,
        take: impl FnOnce() -> Result<Decision, NoRoom>,
    ) -> Result<Decision, Unavailable> {
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
        Ok(self.table.lock_one(scopes.place(scope, key)?).remove().is_some())
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
        Ok(self.table.lock_one(scopes.place(scope, key)?).get().map(Kept::bucket))
    }
}

fn found(locked: &Locked<'_, Place, Kept>, places: &[Place]) -> SmallVec<[Option<Bucket>; 4]> {
    (0..places.len()).map(|i| locked.get(i).map(Kept::bucket)).collect()
}

/// Idle for longer than the retention, so full under every budget that a take may bring.
fn is_idle(kept: &Kept, retention: Duration, now: Timestamp) -> bool {
    now.since(kept.bucket().refilled_at) > retention
}
