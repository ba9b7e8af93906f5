//! A bounded map in shards.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

/// Enough that a few dozen threads seldom meet on one lock.
const SHARDS: usize = 64;

/// The most places that one call of [`Table::evict`] looks at, so that no take pays for a scan of the whole table.
const EVICTION_WINDOW: usize = 512;

/// A map whose size is bounded and whose shards are locked one by one, in order. The hasher is keyed, so that no
/// client can choose keys that collide.
pub(super) struct Table<K, V> {
    shards: Box<[Mutex<Shard<K, V>>]>,
    hasher: RandomState,
    /// The entries of all shards, and those that are reserved.
    count: AtomicUsize,
    max: usize,
    /// The shard at which the next eviction starts.
    hand: AtomicUsize,
}

struct Shard<K, V> {
    entries: HashTable<(K, V)>,
    /// The place at which the next eviction starts.
    hand: usize,
}

/// The shards of some keys, locked.
pub(super) struct Locked<'a, K, V> {
    table: &'a Table<K, V>,
    keys: &'a [K],
    guards: Vec<MutexGuard<'a, Shard<K, V>>>,
    /// Where each key is.
    spots: Vec<Spot>,
}

#[derive(Clone, Copy)]
struct Spot {
    hash: u64,
    /// The position of its shard among the guards.
    guard: usize,
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    pub(super) fn new(max: usize) -> Self {
        let shard = || Mutex::new(Shard { entries: HashTable::new(), hand: 0 });
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
            max,
            hand: AtomicUsize::new(0),
        }
    }

    /// Locks the shards of `keys`, in the order of the shards, so that two callers cannot wait for each other.
    pub(super) fn lock<'a>(&'a self, keys: &'a [K]) -> Locked<'a, K, V> {
        let hashes: Vec<u64> = keys.iter().map(|key| self.hasher.hash_one(key)).collect();
        let mut shards: Vec<usize> = hashes.iter().map(|&hash| shard_of(hash)).collect();
        shards.sort_unstable();
        shards.dedup();
        // As the shards are in order and each key's is among them, those before it are as many as its position.
        let guard_of = |hash| shards.partition_point(|&shard| shard < shard_of(hash));
        let spots = hashes.iter().map(|&hash| Spot { hash, guard: guard_of(hash) }).collect();
        let guards = shards.iter().map(|&shard| lock(&self.shards[shard])).collect();
        Locked { table: self, keys, guards, spots }
    }

    /// Makes room, if it can, by dropping entries that `is_spare` says are not needed. Bounded work: successive calls go
    /// around the table. Holds one lock at a time; the caller must hold none.
    pub(super) fn evict(&self, is_spare: impl Fn(&V) -> bool) {
        let mut places = EVICTION_WINDOW;
        for _ in 0..SHARDS {
            let shard = self.hand.load(Ordering::Relaxed) % SHARDS;
            let done = self.evict_from(&mut lock(&self.shards[shard]), &mut places, &is_spare);
            if !done {
                return; // The next call goes on in this shard.
            }
            self.hand.store((shard + 1) % SHARDS, Ordering::Relaxed);
        }
    }

    /// Whether the end of the shard was reached before `places` were used up.
    fn evict_from(
        &self,
        shard: &mut Shard<K, V>,
        places: &mut usize,
        is_spare: &impl Fn(&V) -> bool,
    ) -> bool {
        let end = shard.entries.num_buckets();
        while shard.hand < end {
            if *places == 0 {
                return false;
            }
            *places -= 1;
            if let Ok(entry) = shard.entries.get_bucket_entry(shard.hand)
                && is_spare(&entry.get().1)
            {
                entry.remove();
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            shard.hand += 1;
        }
        shard.hand = 0;
        true
    }

    /// Drops all entries that `keep` does not want, shard by shard, and tells how many.
    pub(super) fn retain(&self, keep: impl Fn(&V) -> bool) -> u64 {
        let mut dropped = 0;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let before = shard.entries.len();
            shard.entries.retain(|(_, value)| keep(value));
            let gone = before - shard.entries.len();
            self.count.fetch_sub(gone, Ordering::Relaxed);
            dropped += gone as u64;
        }
        dropped
    }

    /// Looks at all entries, shard by shard.
    pub(super) fn each(&self, mut look: impl FnMut(&K, &V)) {
        for shard in &self.shards {
            lock(shard).entries.iter().for_each(|(key, value)| look(key, value));
        }
    }

    /// Books room for `more` entries; nothing is booked if there is not enough.
    fn reserve(&self, more: usize) -> bool {
        let room = |count: usize| count.checked_add(more).filter(|&sum| sum <= self.max);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// The bits that choose a shard are ones that the shard's own table does not look at first.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// A panic while a lock is held leaves whole entries behind: each is written in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Copy + Eq + Hash, V> Locked<'_, K, V> {
    /// The value of the `i`th key.
    pub(super) fn get(&self, i: usize) -> Option<&V> {
        let Spot { hash, guard } = self.spots[i];
        self.guards[guard].entries.find(hash, |(key, _)| *key == self.keys[i]).map(|(_, value)| value)
    }

    /// The value of the `i`th key, to be changed.
    pub(super) fn get_mut(&mut self, i: usize) -> Option<&mut V> {
        let (Spot { hash, guard }, wanted) = (self.spots[i], self.keys[i]);
        self.guards[guard].entries.find_mut(hash, |(key, _)| *key == wanted).map(|(_, value)| value)
    }

    /// Books room for those keys that have no value. If it tells `false`, nothing was booked and nothing may be put.
    #[must_use]
    pub(super) fn reserve(&self) -> bool {
        let missing = (0..self.keys.len()).filter(|&i| self.get(i).is_none()).count();
        missing == 0 || self.table.reserve(missing)
    }

    /// Sets the value of the `i`th key, for which room was booked, and returns the one before.
    pub(super) fn put(&mut self, i: usize, value: V) -> Option<V> {
        let (Spot { hash, guard }, wanted) = (self.spots[i], self.keys[i]);
        let hasher = &self.table.hasher;
        let entries = &mut self.guards[guard].entries;
        match entries.entry(hash, |(key, _)| *key == wanted, |(key, _)| hasher.hash_one(key)) {
            hashbrown::hash_table::Entry::Occupied(mut entry) => {
                Some(std::mem::replace(&mut entry.get_mut().1, value))
            }
            hashbrown::hash_table::Entry::Vacant(entry) => {
                entry.insert((wanted, value));
                None
            }
        }
    }

    /// Drops the `i`th key, and returns its value.
    pub(super) fn remove(&mut self, i: usize) -> Option<V> {
        let (Spot { hash, guard }, wanted) = (self.spots[i], self.keys[i]);
        let entry = self.guards[guard].entries.find_entry(hash, |(key, _)| *key == wanted).ok()?;
        self.table.count.fetch_sub(1, Ordering::Relaxed);
        Some(entry.remove().0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_eviction_goes_around_the_table() {
        let table = Table::<u32, u32>::new(1_000);
        for key in 0..1_000 {
            let keys = [key];
            let mut locked = table.lock(&keys);
            assert!(locked.reserve());
            locked.put(0, key);
        }
        assert!(!table.lock(&[1_000]).reserve());
        assert!(table.lock(&[7]).reserve(), "a key that is there needs no room");
        let mut rounds = 0;
        while table.len() == 1_000 {
            table.evict(|value| *value == 999);
            rounds += 1;
            assert!(rounds < 100, "the one spare entry is found");
        }
        assert!(table.lock(&[1_000]).reserve());
    }
}
