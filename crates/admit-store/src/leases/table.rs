//! What is held of the buckets of one scope: a bounded map in shards.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use admit::{Budget, Key, Timestamp};
use hashbrown::{DefaultHashBuilder, HashTable};

use super::counts::Counts;
use super::holding::{Holding, Moment};

/// Enough that a few dozen threads seldom meet on one lock.
const SHARDS: usize = 64;

/// A table of fewer places for each shard has fewer shards, so that no shard is full much sooner than the others.
const LEAST_OF_SHARD: usize = 16;

/// The most places that are looked at for one that can be dropped.
const EVICTION_WINDOW: usize = 64;

/// A map of bounded size. Locks are held for a few steps of arithmetic, one at a time.
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
    /// Keyed at random, so that nobody knows beforehand which keys collide. It withstands no one who can measure that.
    hasher: DefaultHashBuilder,
    /// The most entries of a shard.
    max_of_shard: usize,
    /// How many holdings there ever were: an answer that comes late must not meet another of its bucket.
    numbers: AtomicU64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashTable<(Key, Holding)>,
    /// The place at which the next eviction starts.
    hand: usize,
}

impl Table {
    pub(super) fn new(max: usize, counts: Counts) -> Self {
        let shards = (max / LEAST_OF_SHARD).clamp(1, SHARDS);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            hasher: DefaultHashBuilder::default(),
            max_of_shard: max / shards,
            numbers: AtomicU64::new(0),
            counts,
        }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What is held of a bucket; nothing if it is not known here.
    pub(super) fn with<T>(&self, key: &Key, act: impl FnOnce(&mut Holding) -> T) -> Option<T> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(hash);
        let (_, holding) = shard.entries.find_mut(hash, |(known, _)| known == key)?;
        Some(self.counted(holding, act))
    }

    /// The same, and a bucket that was not known is from now on; nothing if there is no room for it.
    pub(super) fn with_new<T>(
        &self,
        key: &Key,
        budget: Budget,
        moment: Moment,
        act: impl FnOnce(&mut Holding) -> T,
    ) -> Option<T> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(hash);
        if shard.entries.find(hash, |(known, _)| known == key).is_none() {
            if shard.entries.len() >= self.max_of_shard && !self.evict_from(&mut shard) {
                return None;
            }
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let new = (*key, Holding::new(number, budget, moment));
            shard.entries.insert_unique(hash, new, |(key, _)| self.hasher.hash_one(key));
        }
        let (_, holding) = shard.entries.find_mut(hash, |(known, _)| known == key)?;
        Some(self.counted(holding, act))
    }

    /// Forgets a bucket. What was held of it lapses.
    pub(super) fn forget(&self, key: &Key) {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(hash);
        if let Ok(entry) = shard.entries.find_entry(hash, |(known, _)| known == key) {
            self.dropped(entry.remove().0.1);
        }
    }

    /// The tokens that are held of all buckets. `now` is by the clock of this process.
    pub(super) fn held(&self, now: Timestamp) -> f64 {
        let mut held = 0.0;
        for shard in &self.shards {
            for (_, holding) in &mut lock(shard).entries {
                held += self.counted(holding, |holding| holding.held(now));
            }
        }
        held
    }

    fn counted<T>(&self, holding: &mut Holding, act: impl FnOnce(&mut Holding) -> T) -> T {
        let result = act(holding);
        self.counts.lapsed(holding.take_lapsed());
        result
    }

    /// Makes room for one, preferably of what holds nothing; whether it could.
    fn evict_from(&self, shard: &mut Shard) -> bool {
        let places = shard.entries.num_buckets();
        let window = places.min(EVICTION_WINDOW);
        let mut second_best = None;
        let mut chosen = None;
        for step in 0..window {
            let place = (shard.hand + step) % places;
            let Some((_, holding)) = shard.entries.get_bucket(place) else { continue };
            if holding.is_spare() {
                chosen = Some(place);
                break;
            }
            if !holding.is_awaited() {
                second_best.get_or_insert(place);
            }
        }
        let Some(place) = chosen.or(second_best) else {
            shard.hand = (shard.hand + window).checked_rem(places).unwrap_or(0); // The next one looks elsewhere.
            return false;
        };
        shard.hand = (place + 1) % places;
        if let Ok(entry) = shard.entries.get_bucket_entry(place) {
            self.dropped(entry.remove().0.1);
        }
        true
    }

    fn dropped(&self, mut holding: Holding) {
        holding.drop_all();
        self.counts.lapsed(holding.take_lapsed());
    }

    /// The bits that choose a shard are ones that the shard's own table does not look at first.
    fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 40) as usize % self.shards.len()])
    }
}

impl Drop for Table {
    /// What is held of a scope that is leased no more lapses.
    fn drop(&mut self) {
        for shard in &self.shards {
            for (_, holding) in &mut lock(shard).entries {
                holding.drop_all();
                self.counts.lapsed(holding.take_lapsed());
            }
        }
    }
}

/// A panic while a lock is held leaves whole entries behind: what is held is only ever too little.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment { at: Timestamp::MIN, given: true };

    fn is_there(table: &Table, key: usize) -> bool {
        let budget = "10/second".parse().unwrap();
        table.with_new(&Key::hashed(key.to_string()), budget, NOW, |_| ()).is_some()
    }

    /// A shard that had no place looked in itself alone for one to give up, and had none: its keys were never leased, while
    /// the places of other shards were idle.
    #[test]
    fn a_key_that_comes_displaces_one_that_is_idle_in_a_table_of_any_size() {
        for max in [1, 2, 15, 16, 100, 1_000] {
            let table = Table::new(max, Counts::default());
            assert!((0..5_000).all(|key| is_there(&table, key)), "of {max}");
            let entries: usize = table.shards.iter().map(|shard| lock(shard).entries.len()).sum();
            assert!(entries <= max && entries * 20 > max * 19, "{entries} of {max}");
        }
        assert!(!is_there(&Table::new(0, Counts::default()), 1));
    }
}
