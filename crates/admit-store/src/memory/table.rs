//! A bounded map in shards.

use std::hash::{BuildHasher, Hash};

use smallvec::SmallVec;

use super::primitives::{AtomicUsize, Guard, Lock, Ordering, RandomState, SHARDS, lock};
use super::slots::Slots;

/// The most places that one call of [`Table::evict`] looks at, so that no take pays for a scan of the whole table.
const EVICTION_WINDOW: usize = 512;

/// A map whose size is bounded and whose shards are locked one by one, in order. The hasher is keyed at random, so that
/// nobody knows beforehand which keys collide. It is a fast one, and withstands no one who can measure that.
pub(super) struct Table<K, V> {
    shards: [Shard<K, V>; SHARDS],
    hasher: RandomState,
    /// The entries of all shards, and those that are reserved.
    count: AtomicUsize,
    max: usize,
    /// The shard at which the next eviction starts.
    hand: AtomicUsize,
}

/// On a cache line of its own, so that who locks one shard does not slow down who locks the next.
#[repr(align(64))]
struct Shard<K, V>(Lock<Entries<K, V>>);

struct Entries<K, V> {
    slots: Slots<K, V>,
    /// The place at which the next eviction starts.
    hand: usize,
}

/// There is no room for another entry.
#[derive(Debug)]
pub(super) struct NoRoom;

/// The shard of one key, locked.
pub(super) struct LockedOne<'a, K, V> {
    table: &'a Table<K, V>,
    /// Not a copy, for which each take would wait until the key is written.
    key: &'a K,
    hash: u64,
    entries: Guard<'a, Entries<K, V>>,
    place: Option<usize>,
}

/// The shards of some keys, locked.
pub(super) struct Locked<'a, K, V> {
    table: &'a Table<K, V>,
    keys: &'a [K],
    guards: SmallVec<[Guard<'a, Entries<K, V>>; 4]>,
    /// Where each key is.
    spots: SmallVec<[Spot; 4]>,
}

#[derive(Clone, Copy)]
struct Spot {
    hash: u64,
    /// The position of its shard among the guards.
    guard: usize,
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    pub(super) fn new(max: usize) -> Self {
        let shard = |_| Shard(Lock::new(Entries { slots: Slots::new(), hand: 0 }));
        Self {
            shards: std::array::from_fn(shard),
            hasher: RandomState::default(),
            count: AtomicUsize::new(0),
            max,
            hand: AtomicUsize::new(0),
        }
    }

    /// Locks the shard of `key`.
    #[inline]
    pub(super) fn lock_one<'a>(&'a self, key: &'a K) -> LockedOne<'a, K, V> {
        let hash = self.hash(key);
        let entries = self.shards[shard_of(hash)].lock();
        let place = entries.slots.find(hash, key);
        LockedOne { table: self, key, hash, entries, place }
    }

    /// Locks the shards of `keys`, in the order of the shards, so that two callers cannot wait for each other.
    pub(super) fn lock<'a>(&'a self, keys: &'a [K]) -> Locked<'a, K, V> {
        let hashes: SmallVec<[u64; 4]> = keys.iter().map(|key| self.hash(key)).collect();
        let mut shards: SmallVec<[usize; 4]> = hashes.iter().map(|&hash| shard_of(hash)).collect();
        shards.sort_unstable();
        shards.dedup();
        // As the shards are in order and each key's is among them, those before it are as many as its position.
        let guard_of = |hash| shards.partition_point(|&shard| shard < shard_of(hash));
        let spots = hashes.iter().map(|&hash| Spot { hash, guard: guard_of(hash) }).collect();
        let guards = shards.iter().map(|&shard| self.shards[shard].lock()).collect();
        Locked { table: self, keys, guards, spots }
    }

    /// Makes room, if it can, by dropping entries that `is_spare` says are not needed. Bounded work: successive calls go
    /// around the table. Holds one lock at a time; the caller must hold none.
    pub(super) fn evict(&self, is_spare: impl Fn(&V) -> bool) {
        let mut places = EVICTION_WINDOW;
        for _ in 0..SHARDS {
            let shard = self.hand.load(Ordering::Relaxed) % SHARDS;
            let done = self.evict_from(&mut self.shards[shard].lock(), &mut places, &is_spare);
            if !done {
                return; // The next call goes on in this shard.
            }
            self.hand.store((shard + 1) % SHARDS, Ordering::Relaxed);
        }
    }

    /// Whether the end of the shard was reached before `places` were used up.
    fn evict_from(
        &self,
        entries: &mut Entries<K, V>,
        places: &mut usize,
        is_spare: &impl Fn(&V) -> bool,
    ) -> bool {
        while entries.hand < entries.slots.places() {
            if *places == 0 {
                return false;
            }
            *places -= 1;
            if entries.slots.at(entries.hand).is_some_and(|(_, value)| is_spare(value)) {
                entries.slots.remove(entries.hand, |key| self.hash(key)); // Another may have moved up to this place.
                self.count.fetch_sub(1, Ordering::Relaxed);
            } else {
                entries.hand += 1;
            }
        }
        entries.hand = 0;
        true
    }

    /// Drops all entries that `keep` does not want, shard by shard, and tells how many.
    pub(super) fn retain(&self, keep: impl Fn(&V) -> bool) -> u64 {
        let mut dropped = 0;
        for shard in &self.shards {
            let gone = shard.lock().slots.retain(&keep, |key| self.hash(key));
            self.count.fetch_sub(gone, Ordering::Relaxed);
            dropped += gone as u64;
        }
        dropped
    }

    /// Looks at all entries, shard by shard.
    pub(super) fn each(&self, mut look: impl FnMut(&K, &V)) {
        for shard in &self.shards {
            shard.lock().slots.entries().for_each(|(key, value)| look(key, value));
        }
    }

    /// Books room for `more` entries; nothing is booked if there is not enough.
    fn reserve(&self, more: usize) -> Result<(), NoRoom> {
        let room = |count: usize| count.checked_add(more).filter(|&sum| sum <= self.max);
        match self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(_) => Ok(()),
            Err(_) => Err(NoRoom),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }
}

/// The lower bits choose a shard; those in it go by the upper ones.
fn shard_of(hash: u64) -> usize {
    hash as usize % SHARDS
}

impl<K, V> Shard<K, V> {
    /// A panic while a lock is held leaves whole entries behind: each is written in one step.
    #[inline]
    fn lock(&self) -> Guard<'_, Entries<K, V>> {
        lock(&self.0)
    }
}

impl<K: Copy + Eq + Hash, V> LockedOne<'_, K, V> {
    #[inline]
    pub(super) fn get(&self) -> Option<&V> {
        self.entries.slots.at(self.place?).map(|(_, value)| value)
    }

    #[inline]
    pub(super) fn get_mut(&mut self) -> Option<&mut V> {
        self.entries.slots.at_mut(self.place?)
    }

    /// Sets the value of a key that has none. Apart, so that the way of keys that have one stays short.
    ///
    /// # Errors
    /// [`NoRoom`] if the table takes no more.
    #[inline(never)]
    pub(super) fn insert(mut self, value: V) -> Result<(), NoRoom> {
        let table = self.table;
        table.reserve(1)?;
        self.entries.slots.insert(self.hash, *self.key, value, |key| table.hash(key));
        Ok(())
    }

    /// Books room for the key, if it has no value: then [`LockedOne::put_booked`] or [`LockedOne::unbook`] must follow.
    ///
    /// # Errors
    /// [`NoRoom`] if the table takes no more. Nothing was booked.
    pub(super) fn book(&self) -> Result<(), NoRoom> {
        if self.place.is_some() { Ok(()) } else { self.table.reserve(1) }
    }

    /// Gives up what was booked.
    pub(super) fn unbook(self) {
        if self.place.is_none() {
            self.table.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets the value, for which room was booked, and returns the one before.
    pub(super) fn put_booked(mut self, value: V) -> Option<V> {
        if let Some(before) = self.get_mut() {
            return Some(std::mem::replace(before, value));
        }
        let table = self.table;
        self.entries.slots.insert(self.hash, *self.key, value, |key| table.hash(key));
        None
    }

    /// Drops the key, and returns its value.
    pub(super) fn remove(mut self) -> Option<V> {
        let table = self.table;
        let (_, value) = self.entries.slots.remove(self.place?, |key| table.hash(key))?;
        self.table.count.fetch_sub(1, Ordering::Relaxed);
        Some(value)
    }
}

impl<K: Copy + Eq + Hash, V> Locked<'_, K, V> {
    /// The value of the `i`th key.
    pub(super) fn get(&self, i: usize) -> Option<&V> {
        let Spot { hash, guard } = self.spots[i];
        let slots = &self.guards[guard].slots;
        slots.at(slots.find(hash, &self.keys[i])?).map(|(_, value)| value)
    }

    /// The value of the `i`th key, to be changed.
    pub(super) fn get_mut(&mut self, i: usize) -> Option<&mut V> {
        let (Spot { hash, guard }, wanted) = (self.spots[i], self.keys[i]);
        let slots = &mut self.guards[guard].slots;
        slots.at_mut(slots.find(hash, &wanted)?)
    }

    /// Books room for those keys that have no value.
    ///
    /// # Errors
    /// [`NoRoom`] if there is not enough: nothing was booked, and nothing may be put.
    pub(super) fn reserve(&self) -> Result<(), NoRoom> {
        let missing = (0..self.keys.len()).filter(|&i| self.get(i).is_none()).count();
        if missing == 0 { Ok(()) } else { self.table.reserve(missing) }
    }

    /// Sets the value of the `i`th key, which has none and for which room was booked.
    pub(super) fn put(&mut self, i: usize, value: V) {
        let (Spot { hash, guard }, key) = (self.spots[i], self.keys[i]);
        let table = self.table;
        self.guards[guard].slots.insert(hash, key, value, |key| table.hash(key));
    }
}
