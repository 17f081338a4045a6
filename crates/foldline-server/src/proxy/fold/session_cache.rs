//! Fold states and facts of the conversations in memory.
//!
//! Both are only caches: an evicted state is computed again from the conversation and its facts, with the same result,
//! and facts are read from the archive's ledger. Both are bounded, and no lock is held during computation.

use std::sync::{Arc, Mutex, PoisonError};

use foldline::tokens::Tokens;
use foldline::{Error, FoldState, Ledger};
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

/// Entries are found by hashes of conversations and returned only to their owner.
#[derive(Default)]
struct CacheShard {
    states: LruMap<OwnedEntry<CachedState>>,
    facts: LruMap<OwnedEntry<Arc<SessionFacts>>>,
}

/// An entry of the cache and its tenant.
#[derive(Clone)]
struct OwnedEntry<T> {
    owner: u128,
    entry: T,
}

impl<T> OwnedEntry<T> {
    fn new(prefixes: &PrefixHashes, entry: T) -> Self {
        Self { owner: prefixes.owner(), entry }
    }

    /// Returns the entry, unless it is another tenant's.
    fn for_owner(self, prefixes: &PrefixHashes) -> Option<T> {
        (self.owner == prefixes.owner()).then_some(self.entry)
    }
}

/// The fold state of a conversation after some of its messages.
pub(crate) struct CachedState {
    pub(crate) state: FoldState,
    pub(crate) stored: StoredHandles,
    /// Set if the conversation could not be folded after these messages.
    pub(crate) failure: Option<FoldFailure>,
    /// Facts on which its decisions depend.
    pub(crate) ledger: Ledger,
}

/// A conversation that could not be folded to a budget.
#[derive(Clone, Debug)]
pub(crate) struct FoldFailure {
    pub(crate) budget: Tokens,
    pub(crate) error: Error,
}

impl CachedState {
    /// Returns true if the state's decisions follow from this ledger. They do not if another proxy recorded facts about
    /// the same messages.
    pub(crate) fn follows_from(&self, ledger: &Ledger) -> bool {
        ledger_until(ledger, self.state.len()) == self.ledger
    }
}

/// Returns the facts on which the decisions up to this request point depend.
fn ledger_until(ledger: &Ledger, point: usize) -> Ledger {
    Ledger {
        cold_points: ledger.cold_points.range(..=point).copied().collect(),
        budgets: ledger.budgets.range(..=point).map(|(&at, &budget)| (at, budget)).collect(),
        // A summary is used after the request at which it is known.
        summaries: ledger.summaries.range(..point).map(|(&at, summary)| (at, summary.clone())).collect(),
        pins: ledger.pins.range(..=point).map(|(&at, pins)| (at, pins.clone())).collect(),
        rules: ledger.rules.range(..=point).map(|(&at, &rules)| (at, rules)).collect(),
        records: ledger.records.range(..=point).map(|(&at, records)| (at, records.clone())).collect(),
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
        prefixes.longest_first().find_map(|(_, prefix)| shard.states.remove(prefix)?.for_owner(prefixes))
    }

    /// Caches the current state of a conversation.
    pub(crate) fn insert(&self, prefixes: &PrefixHashes, state: CachedState) {
        let ledger = ledger_until(&state.ledger, state.state.len());
        let state = OwnedEntry::new(prefixes, CachedState { ledger, ..state });
        self.shard(prefixes).states.insert(prefixes.full(), state, self.shard_capacity);
    }

    /// Returns the facts of a conversation. If they are not cached, they were not read from the archive's ledger yet.
    pub(crate) fn facts(&self, prefixes: &PrefixHashes, archive: Option<&TenantArchive>) -> Arc<SessionFacts> {
        let root = prefixes.root();
        let mut shard = self.shard(prefixes);
        if let Some(facts) = shard.facts.get(root).and_then(|facts| facts.for_owner(prefixes)) {
            return facts;
        }
        let facts = Arc::new(SessionFacts::new(archive.map(|archive| archive.in_session(session_name(root)))));
        shard.facts.insert(root, OwnedEntry::new(prefixes, facts.clone()), self.shard_capacity);
        facts
    }

    /// Forgets which sessions include which conversations, after one was deleted.
    pub(crate) fn forget_client_sessions(&self) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.facts.values().for_each(|facts| facts.entry.forget_client_sessions());
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
        let (state, stored, ledger) = Default::default();
        CachedState { state, stored, failure: None, ledger }
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

    /// The hashes of conversations are not secure, so a tenant could know or make those of another.
    #[test]
    fn entries_are_returned_only_to_their_tenant() {
        let cache = SessionCache::new(64);
        let (mine, theirs) = (prefixes(&["a"]), prefixes(&["a"]).with_owner(7));
        assert_eq!(mine.full(), theirs.full());
        cache.insert(&mine, cached_state());
        assert!(cache.take(&theirs).is_none());
        let (my_facts, their_facts) = (cache.facts(&mine, None), cache.facts(&theirs, None));
        assert!(!Arc::ptr_eq(&my_facts, &their_facts));
    }
}
