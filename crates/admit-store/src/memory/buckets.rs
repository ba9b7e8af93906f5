//! Buckets in the memory of one process.
//!
//! # When a bucket is dropped
//!
//! A bucket makes room for another once it is full under every budget that took from it. The next take by one of those
//! budgets would mint what the bucket holds, so that none of them is ever granted more than its burst and its rate.
//!
//! A budget that the bucket has not met may have a larger burst. Where the bucket was dropped, its next take mints that
//! burst, as for a key that was never seen; where it is still there, the larger burst is room to refill. Raising a burst
//! may so give once what it was raised by, and no more: from then on the bucket knows this budget too.

use std::collections::BTreeMap;
use std::time::Duration;

use admit::{Bucket, Budget, Decision, Key, Scope, Take, Timestamp, Unavailable};

use super::Full;
use super::scopes::{Numbered, Place};
use super::table::Table;

pub(super) struct Buckets {
    table: Table<Place, Kept>,
    max: usize,
}

struct Kept {
    bucket: Bucket,
    /// The smallest rate and the largest burst that took from it: a bucket that is full under both is full under each
    /// budget that did.
    slowest: Budget,
}

impl Buckets {
    pub(super) fn new(max: usize) -> Self {
        Self { table: Table::new(max), max }
    }

    /// Reads the clock, `now`, when it holds the places: a bucket that another dropped as full before that is full by
    /// then, too.
    pub(super) fn take(
        &self,
        scopes: &Numbered,
        retention: Duration,
        take: &Take,
        now: impl Fn() -> Timestamp,
    ) -> Result<Decision, Unavailable> {
        let places = scopes.places(take.lines())?;
        if let Some(decision) = self.try_take(&places, take, &now) {
            return Ok(decision);
        }
        let before = now();
        self.table.evict(|kept| kept.is_spare(retention, before));
        self.try_take(&places, take, &now)
            .ok_or_else(|| Unavailable::from(Full { what: "buckets", max: self.max }))
    }

    /// Nothing if a bucket is to be minted and there is no room.
    fn try_take(&self, places: &[Place], take: &Take, now: &impl Fn() -> Timestamp) -> Option<Decision> {
        let mut locked = self.table.lock(places);
        let now = now();
        let found: Vec<Option<Bucket>> =
            (0..places.len()).map(|i| locked.get(i).map(|kept| kept.bucket)).collect();
        let (decision, debited) = take.decide(now, &found);
        if let Some(debited) = debited {
            if !locked.reserve() {
                return None;
            }
            for (i, (bucket, line)) in debited.into_iter().zip(take.lines()).enumerate() {
                let slowest = locked.get(i).map_or(line.budget, |kept| slower(kept.slowest, line.budget));
                locked.put(i, Kept { bucket, slowest });
            }
        }
        Some(decision)
    }

    pub(super) fn peek(
        &self,
        scopes: &Numbered,
        take: &Take,
        now: Timestamp,
    ) -> Result<Decision, Unavailable> {
        let places = scopes.places(take.lines())?;
        let locked = self.table.lock(&places);
        let found: Vec<Option<Bucket>> =
            (0..places.len()).map(|i| locked.get(i).map(|kept| kept.bucket)).collect();
        Ok(take.peek(now, &found))
    }

    pub(super) fn refund(&self, scopes: &Numbered, take: &Take) -> Result<(), Unavailable> {
        let places = scopes.places(take.lines())?;
        let mut locked = self.table.lock(&places);
        for (i, line) in take.lines().iter().enumerate() {
            if let Some(kept) = locked.get_mut(i) {
                kept.bucket = kept.bucket.refund(line.cost, line.budget);
            }
        }
        Ok(())
    }

    pub(super) fn delete_idle(&self, retention: Duration, now: Timestamp) -> u64 {
        self.table.retain(|kept| !kept.is_idle(retention, now))
    }

    /// One page of the buckets of a scope, found by a look at all of them.
    pub(super) fn listed(
        &self,
        scopes: &Numbered,
        scope: &Scope,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Bucket)>, Unavailable> {
        let (number, _) = scopes.place(scope, Key::from_bytes([0; 16]))?;
        let mut listed = BTreeMap::new();
        self.table.each(|(of, key), kept| {
            if *of == number && after.is_none_or(|after| *key > after) {
                listed.insert(*key, kept.bucket);
                if listed.len() > limit {
                    listed.pop_last();
                }
            }
        });
        Ok(listed.into_iter().collect())
    }

    /// Deletes a bucket, and tells whether there was one.
    pub(super) fn delete(&self, scopes: &Numbered, scope: &Scope, key: Key) -> Result<bool, Unavailable> {
        Ok(self.table.lock(&[scopes.place(scope, key)?]).remove(0).is_some())
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
        let place = [scopes.place(scope, key)?];
        Ok(self.table.lock(&place).get(0).map(|kept| kept.bucket))
    }
}

impl Kept {
    /// Whether the next take would mint what this bucket holds.
    fn is_spare(&self, retention: Duration, now: Timestamp) -> bool {
        self.bucket.level(self.slowest, now) >= self.slowest.burst().tokens() || self.is_idle(retention, now)
    }

    /// Idle for longer than the retention, so full under every budget that a take may bring.
    fn is_idle(&self, retention: Duration, now: Timestamp) -> bool {
        now.since(self.bucket.refilled_at) > retention
    }
}

/// Fills no sooner than either, and holds no less.
fn slower(one: Budget, other: Budget) -> Budget {
    let rate = if other.rate() < one.rate() { other.rate() } else { one.rate() };
    let burst = if other.burst() > one.burst() { other.burst() } else { one.burst() };
    Budget::new(rate, burst)
}
