//! A cache of counts, keyed by the hash of the text.
//!
//! A conversation is sent again at every step, so nearly every text was counted one step earlier. The cache holds
//! hashes and numbers, never text, and never exceeds its bound.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::tokens::Tokens;
use crate::tokens::line_counts::LineCountCache;

/// Number of shards, so that threads rarely wait for each other; a power of two.
const SHARD_COUNT: usize = 64;

/// A bounded cache of counts, shared by its clones.
///
/// Each shard has two generations. A count enters the young one; when that is full, it becomes the old one and the
/// old one is discarded. A count that is requested again moves back to the young one, so entries in use are kept.
#[derive(Clone)]
pub struct CountCache {
    shards: Arc<[Mutex<CacheShard>]>,
    /// Capacity of one generation of a shard.
    generation_capacity: usize,
    pub(crate) line_cache: Arc<LineCountCache>,
}

#[derive(Default)]
struct CacheShard {
    young: CacheGeneration,
    old: CacheGeneration,
}

type CacheGeneration = HashMap<u128, Tokens, BuildHasherDefault<CountKeyHasher>>;

impl CountCache {
    /// Creates a cache of at most `counts` counts, at about 32 bytes each when full.
    pub fn new(counts: usize) -> Self {
        let shards = (0..SHARD_COUNT).map(|_| Mutex::default()).collect();
        CountCache { shards, generation_capacity: counts.div_ceil(SHARD_COUNT * 2), line_cache: Arc::default() }
    }

    /// Returns the key of a text for the counting method identified by `seed`.
    pub(crate) fn key(text: &str, seed: u64) -> u128 {
        Self::key_for_hash(xxhash_rust::xxh3::xxh3_128(text.as_bytes()), seed)
    }

    /// Returns the key of the text with this hash.
    pub(crate) fn key_for_hash(hash: u128, seed: u64) -> u128 {
        hash ^ (u128::from(seed) << 64 | u128::from(seed))
    }

    /// Returns the count under this key, computed by `count` if it is missing. Not locked meanwhile: two threads may
    /// compute the same count, and neither waits for the other.
    pub(crate) fn get_or_count(&self, key: u128, count: impl FnOnce() -> Tokens) -> Tokens {
        self.get(key).unwrap_or_else(|| self.insert(key, count()))
    }

    /// Returns the count under this key.
    pub(crate) fn get(&self, key: u128) -> Option<Tokens> {
        lock_shard(self.shard(key)).get(key, self.generation_capacity)
    }

    /// Stores the count under this key and returns it.
    pub(crate) fn insert(&self, key: u128, tokens: Tokens) -> Tokens {
        lock_shard(self.shard(key)).insert(key, tokens, self.generation_capacity);
        tokens
    }

    fn shard(&self, key: u128) -> &Mutex<CacheShard> {
        &self.shards[(key >> 64) as usize % SHARD_COUNT]
    }

    /// Returns the number of counts.
    pub fn len(&self) -> usize {
        self.shards.iter().map(lock_shard).map(|shard| shard.young.len() + shard.old.len()).sum()
    }

    /// Returns true if the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for CountCache {
    /// Creates a cache for 65,536 counts: the texts of a few dozen long conversations in about 2 MB.
    fn default() -> Self {
        Self::new(1 << 16)
    }
}

impl std::fmt::Debug for CountCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountCache").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl CacheShard {
    fn get(&mut self, key: u128, capacity: usize) -> Option<Tokens> {
        if let Some(&known) = self.young.get(&key) {
            return Some(known);
        }
        let known = self.old.remove(&key)?;
        self.insert(key, known, capacity);
        Some(known)
    }

    fn insert(&mut self, key: u128, tokens: Tokens, capacity: usize) {
        if self.young.len() >= capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, tokens);
    }
}

/// Locks a shard. A panic cannot leave a shard half written, so a poisoned lock is safe to use.
fn lock_shard(shard: &Mutex<CacheShard>) -> std::sync::MutexGuard<'_, CacheShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An identity hasher: the keys are already hashes.
#[derive(Default)]
struct CountKeyHasher(u64);

impl Hasher for CountKeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            self.0 ^= u64::from(*byte) << (at % 8 * 8);
        }
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn text_is_counted_once() {
        let cache = CountCache::default();
        let counted = AtomicUsize::new(0);
        let count = |text: &str| {
            cache.get_or_count(CountCache::key(text, 1), || {
                counted.fetch_add(1, Ordering::Relaxed);
                text.len() as Tokens
            })
        };
        for _ in 0..3 {
            assert_eq!((count("some text"), count("another text")), (9, 12));
        }
        assert_eq!(counted.into_inner(), 2);
    }

    /// One cache may serve meters of different vocabularies.
    #[test]
    fn seeds_separate_counts() {
        assert_ne!(CountCache::key("text", 1), CountCache::key("text", 2));
    }

    #[test]
    fn cache_size_is_bounded() {
        let cache = CountCache::new(1_024);
        for number in 0..50_000_u64 {
            cache.get_or_count(CountCache::key(&number.to_string(), 0), || number);
        }
        assert!(cache.len() <= 1_024, "{}", cache.len());
        assert!(!cache.is_empty());
    }

    /// An entry that is used at every step is kept, whatever else is inserted.
    #[test]
    fn used_entries_are_retained() {
        let cache = CountCache::new(1_024);
        let mut missed = 0;
        for number in 0..20_000_u64 {
            cache.get_or_count(CountCache::key(&number.to_string(), 0), || number);
            cache.get_or_count(CountCache::key("in use", 0), || {
                missed += 1;
                7
            });
        }
        assert_eq!(missed, 1);
    }

    #[test]
    fn cache_is_shared_between_threads() {
        let cache = CountCache::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let cache = cache.clone();
                scope.spawn(move || {
                    for number in 0..1_000_u64 {
                        let key = CountCache::key(&number.to_string(), 0);
                        assert_eq!(cache.get_or_count(key, || number), number);
                    }
                });
            }
        });
        assert_eq!(cache.len(), 1_000);
    }
}
