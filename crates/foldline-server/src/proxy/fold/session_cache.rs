//! Fold states and facts of the conversations in memory.
//!
//! Both are only caches: an evicted state is computed again from the conversation and its facts, with the same result,
//! and facts are read from the archive's ledger. Both are bounded, and no lock is held during computation.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foldline::tokens::Tokens;
use foldline::{Error, FoldState};
use foldline_archive::TenantArchive;

use crate::proxy::fold::archive_writer::StoredHandles;
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_facts::{SessionFacts, session_name};
use crate::proxy::lru_map::LruMap;

/// Number of locks, so that requests rarely contend; a power of two.
const SHARD_COUNT: usize = 32;

/// Fold states and facts of all conversations.
pub(crate) struct SessionCache {
    shards: Vec<Mutex<CacheShard>>,
    /// Maximum conversations per shard.
    shard_capacity: usize,
}

#[derive(Default)]
struct CacheShard {
    states: LruMap<CachedState>,
    facts: LruMap<Arc<SessionFacts>>,
}

/// The fold state of a conversation after some of its messages.
pub(crate) struct CachedState {
    pub(crate) state: FoldState,
    pub(crate) stored: StoredHandles,
    /// Set if the conversation could not be folded after these messages.
    pub(crate) failure: Option<FoldFailure>,
    cached_at: Instant,
}

/// A conversation that could not be folded to a budget.
#[derive(Clone, Debug)]
pub(crate) struct FoldFailure {
    pub(crate) budget: Tokens,
    pub(crate) error: Error,
}

impl CachedState {
    pub(crate) fn new(state: FoldState, stored: StoredHandles) -> Self {
        Self { state, stored, failure: None, cached_at: Instant::now() }
    }

    /// Returns the state of a conversation that could not be folded, so that it is not planned from the start again.
    pub(crate) fn failed(state: FoldState, stored: StoredHandles, failure: FoldFailure) -> Self {
        Self { failure: Some(failure), ..Self::new(state, stored) }
    }

    /// Returns the time since the conversation was last sent.
    pub(crate) fn age(&self) -> Duration {
        self.cached_at.elapsed()
    }
}

impl SessionCache {
    /// Creates a cache for about this many conversations.
    pub(crate) fn new(conversations: usize) -> Self {
        Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            shard_capacity: conversations.div_ceil(SHARD_COUNT),
        }
    }

    fn shard(&self, prefixes: &PrefixHashes) -> std::sync::MutexGuard<'_, CacheShard> {
        let shard = &self.shards[prefixes.root() as usize % SHARD_COUNT];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the state of the longest cached prefix. It is moved, not copied, because it is large and the
    /// new state replaces it. A concurrent request computes it again.
    pub(crate) fn take(&self, prefixes: &PrefixHashes) -> Option<CachedState> {
        let mut shard = self.shard(prefixes);
        prefixes.longest_first().find_map(|(_, prefix)| shard.states.remove(prefix))
    }

    /// Caches the current state of a conversation.
    pub(crate) fn insert(&self, prefixes: &PrefixHashes, state: CachedState) {
        self.shard(prefixes).states.insert(prefixes.full(), state, self.shard_capacity);
    }

    /// Returns the facts of a conversation; reads them from the archive's ledger if they are not cached.
    pub(crate) fn facts(&self, prefixes: &PrefixHashes, archive: Option<&TenantArchive>) -> Arc<SessionFacts> {
        let root = prefixes.root();
        if let Some(facts) = self.shard(prefixes).facts.get(root) {
            return facts;
        }
        let facts = Arc::new(SessionFacts::load(archive.map(|archive| archive.in_session(session_name(root)))));
        let mut shard = self.shard(prefixes);
        // A concurrent request may have recorded something already.
        match shard.facts.get(root) {
            Some(others) => others,
            None => {
                shard.facts.insert(root, facts.clone(), self.shard_capacity);
                facts
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::{Conversation, Message, Role};

    fn prefixes(words: &[&'static str]) -> PrefixHashes {
        let messages = words.iter().map(|word| Message::text(Role::User, *word)).collect();
        PrefixHashes::for_conversation(&[], &Conversation { messages, ..Conversation::default() })
    }

    fn cached_state() -> CachedState {
        CachedState::new(FoldState::default(), StoredHandles::default())
    }

    #[test]
    fn longest_cached_prefix_is_taken() {
        let cache = SessionCache::new(64);
        let (one, two) = (prefixes(&["a"]), prefixes(&["a", "b"]));
        cache.insert(&one, cached_state());
        assert!(cache.take(&prefixes(&["b"])).is_none(), "another conversation");
        assert!(cache.take(&two).is_some(), "its prefix is cached");
        assert!(cache.take(&one).is_none(), "it was taken");
    }
}
