//! A hash table in one array, for entries that are small and many.
//!
//! The place of an entry is where its hash points to, or the first free one behind that. Nothing else is looked at, so a
//! find costs one miss of the cache. A large array grows by a fifth at a time, so that it is never less than two thirds full
//! unless entries were dropped, where a table that doubles would be down to half of what it can hold.

/// The places of the first array.
const FIRST: usize = 8;

/// From this size on, an array grows by a fifth; below, it doubles.
const DOUBLES_BELOW: usize = 1_024;

/// The entries of a map. Whoever calls brings the hash of the key, always the same for one key, and of good quality in
/// its upper bits.
pub(super) struct Slots<K, V> {
    /// Never all in use, so that a search ends.
    places: Vec<Option<(K, V)>>,
    len: usize,
}

impl<K: Eq, V> Slots<K, V> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), len: 0 }
    }

    /// How many places there are, free or not.
    pub(super) const fn places(&self) -> usize {
        self.places.len()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &(K, V)> {
        self.places.iter().flatten()
    }

    /// The place of `key`.
    #[inline]
    pub(super) fn find(&self, hash: u64, key: &K) -> Option<usize> {
        let mut place = self.home(hash);
        while let Some((other, _)) = self.at(place) {
            if other == key {
                return Some(place);
            }
            place = self.behind(place);
        }
        None
    }

    /// The entry at a place, if there is one.
    #[inline]
    pub(super) fn at(&self, place: usize) -> Option<&(K, V)> {
        self.places.get(place)?.as_ref()
    }

    #[inline]
    pub(super) fn at_mut(&mut self, place: usize) -> Option<&mut V> {
        self.places.get_mut(place)?.as_mut().map(|(_, value)| value)
    }

    /// Adds a key that is not there. May move all others.
    pub(super) fn insert(&mut self, hash: u64, key: K, value: V, hash_of: impl Fn(&K) -> u64) {
        if self.len == room(self.places.len()) {
            self.rebuild(grown(self.places.len()), &hash_of);
        }
        self.len += 1;
        self.put_behind(hash, (key, value));
    }

    /// Drops the entry at a place, and returns it. Those behind it may move up, one of them to this place.
    pub(super) fn remove(&mut self, place: usize, hash_of: impl Fn(&K) -> u64) -> Option<(K, V)> {
        let removed = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        // A search stops at a free place, so each that was put behind this one because it was taken moves up.
        let (mut free, mut next) = (place, self.behind(place));
        while let Some((key, _)) = self.at(next) {
            let home = self.home(hash_of(key));
            if self.distance(home, next) >= self.distance(free, next) {
                self.places.swap(free, next);
                free = next;
            }
            next = self.behind(next);
        }
        Some(removed)
    }

    /// Drops all entries that `keep` does not want, and tells how many. Gives back room if less than half is in use then: to
    /// move all that is kept is worth it only where much was dropped.
    pub(super) fn retain(&mut self, keep: impl Fn(&V) -> bool, hash_of: impl Fn(&K) -> u64) -> usize {
        let before = self.len;
        let mut place = 0;
        while let Some(entry) = self.places.get(place) {
            match entry {
                // Another may have moved up to this place. None that was not looked at moves to a place behind.
                Some((_, value)) if !keep(value) => drop(self.remove(place, &hash_of)),
                _ => place += 1,
            }
        }
        if self.len < self.places.len() / 2 {
            let mut places = 0;
            while self.len > room(places) {
                places = grown(places);
            }
            self.rebuild(places, &hash_of);
        }
        before - self.len
    }

    /// Moves the entries to an array of another size, for which they are few enough.
    fn rebuild(&mut self, places: usize, hash_of: impl Fn(&K) -> u64) {
        let mut array = Vec::with_capacity(places);
        array.resize_with(places, || None);
        for entry in std::mem::replace(&mut self.places, array).into_iter().flatten() {
            self.put_behind(hash_of(&entry.0), entry);
        }
    }

    /// Puts an entry at the first free place from its home on. There is one.
    fn put_behind(&mut self, hash: u64, entry: (K, V)) {
        let mut place = self.home(hash);
        while self.at(place).is_some() {
            place = self.behind(place);
        }
        self.places[place] = Some(entry);
    }

    /// Where a hash points to: its fraction of the array. The upper bits decide.
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.places.len() as u128) >> 64) as usize
    }

    /// The next place; behind the last comes the first.
    fn behind(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// How many steps lead from one place to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.places.len() - from }
    }
}

/// The most entries of an array: four fifths of it. More room would make fewer steps, and cost more than it saves: a step
/// is to the next place in memory, and what is spread over more pages is found less often in the cache.
fn room(places: usize) -> usize {
    places / 5 * 4
}

fn grown(places: usize) -> usize {
    if places < DOUBLES_BELOW { (places * 2).max(FIRST) } else { places + places / 5 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Few different hashes, so that entries crowd and go around the end of the array.
    fn crowded(key: &u32) -> u64 {
        u64::from(key % 7).wrapping_mul(0x2aaa_aaaa_aaaa_aaaa).wrapping_add(u64::from(*key) << 32)
    }

    fn find(slots: &Slots<u32, u32>, key: u32) -> Option<&u32> {
        slots.find(crowded(&key), &key).and_then(|place| slots.at(place)).map(|(_, value)| value)
    }

    #[test]
    fn it_is_the_map_that_it_should_be_many_settings() {
        for round in 0..200_u32 {
            let (mut slots, mut model) = (Slots::new(), HashMap::new());
            let mut random = round;
            for step in 0..600 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let key = (random >> 16) % (20 + round);
                let place = slots.find(crowded(&key), &key);
                assert_eq!(place.is_some(), model.contains_key(&key));
                match (place, random >> 29) {
                    (Some(place), 0..4) => {
                        assert_eq!(slots.remove(place, crowded).map(|entry| entry.1), model.remove(&key));
                    }
                    (Some(place), _) => {
                        *slots.at_mut(place).unwrap() = step;
                        model.insert(key, step);
                    }
                    (None, _) => {
                        slots.insert(crowded(&key), key, step, crowded);
                        model.insert(key, step);
                    }
                }
                if step % 200 == 150 {
                    let before = model.len();
                    model.retain(|_, value| *value % 3 > 0);
                    assert_eq!(slots.retain(|value| value % 3 > 0, crowded), before - model.len());
                }
                assert!(slots.len <= room(slots.places()));
            }
            assert_eq!(slots.entries().count(), model.len());
            assert!((0..220).all(|key| find(&slots, key) == model.get(&key)));
        }
    }

    #[test]
    fn it_is_never_less_than_two_thirds_full_once_it_is_large() {
        let mut slots = Slots::new();
        let mut hash = 1_u64;
        for key in 0..20_000_u64 {
            hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            slots.insert(hash, (key, hash), (), |(_, hash)| *hash);
            assert!(
                key < 1_000 || slots.places() * 2 <= slots.len * 3 + 10,
                "{} of {}",
                slots.len,
                slots.places()
            );
        }
        assert_eq!(slots.retain(|()| false, |(_, hash)| *hash), 20_000);
        assert_eq!(slots.places(), 0, "room is given back");
    }

    /// A sweep that dropped a single entry of a shard moved all others, with the shard locked meanwhile.
    #[test]
    fn what_is_kept_stays_where_it_is_unless_much_is_dropped() {
        let mut slots = Slots::new();
        let hash_of = |key: &u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..20_000_u64).for_each(|key| slots.insert(hash_of(&key), key, key, hash_of));
        let array = slots.places.as_ptr();
        assert_eq!(slots.retain(|value| value % 100 > 0, hash_of), 200);
        assert_eq!(slots.places.as_ptr(), array);
        let is_there = |slots: &Slots<u64, u64>, key: u64| slots.find(hash_of(&key), &key).is_some();
        assert!((0..20_000).all(|key| is_there(&slots, key) == (key % 100 > 0)));
        assert_eq!(slots.retain(|value| value % 100 == 1, hash_of), 19_600);
        assert!(slots.places() < 1_024 && (0..20_000).all(|key| is_there(&slots, key) == (key % 100 == 1)));
    }
}
