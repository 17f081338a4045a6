//! A map with a capacity, keyed by hashes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Returns the key of a client-chosen text in an [`LruMap`].
pub(crate) fn map_key(text: &[u8]) -> u128 {
    blake3::hash(text).as_bytes().split_first_chunk().map_or(0, |(first, _)| u128::from_le_bytes(*first))
}

/// A map that evicts the least recently used entry.
pub(crate) struct LruMap<T> {
    entries: HashMap<u128, (u64, T), BuildHasherDefault<IdentityHasher>>,
    clock: u64,
}

impl<T> Default for LruMap<T> {
    fn default() -> Self {
        Self { entries: HashMap::default(), clock: 0 }
    }
}

impl<T> LruMap<T> {
    /// Returns a copy of the value of a key, and marks it as used.
    pub(crate) fn get(&mut self, key: u128) -> Option<T>
    where
        T: Clone,
    {
        self.clock += 1;
        let (used, value) = self.entries.get_mut(&key)?;
        *used = self.clock;
        Some(value.clone())
    }

    /// Returns the value of a key mutably, and marks it as used.
    pub(crate) fn get_mut(&mut self, key: u128) -> Option<&mut T> {
        self.clock += 1;
        let (used, value) = self.entries.get_mut(&key)?;
        *used = self.clock;
        Some(value)
    }

    /// Returns the value of a key, inserted if missing, and marks it as used.
    pub(crate) fn get_or_insert_with(&mut self, key: u128, capacity: usize, make: impl FnOnce() -> T) -> &mut T {
        if !self.entries.contains_key(&key) {
            self.insert(key, make(), capacity);
        }
        self.get_mut(key).expect("the newest entry is never evicted")
    }

    /// Returns all values in arbitrary order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values().map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, key: u128) -> Option<T> {
        self.entries.remove(&key).map(|(_, value)| value)
    }

    /// Inserts a value, and evicts the least recently used ones above `capacity`.
    pub(crate) fn insert(&mut self, key: u128, value: T, capacity: usize) {
        self.clock += 1;
        self.entries.insert(key, (self.clock, value));
        while self.entries.len() > capacity.max(1) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(&key, _)| key);
            oldest.and_then(|key| self.entries.remove(&key));
        }
    }
}

/// A hasher for keys that are hashes already.
#[derive(Clone, Copy, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &byte| hash.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = (key >> 64) as u64 ^ key as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let mut map = LruMap::default();
        map.insert(1, "one", 2);
        map.insert(2, "two", 2);
        map.get(1);
        map.insert(3, "three", 2);
        assert_eq!((map.get(1), map.get(2), map.get(3)), (Some("one"), None, Some("three")));
    }
}
