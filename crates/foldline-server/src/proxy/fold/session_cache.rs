//! What is remembered of conversations: where their folds stand, and the facts that they depend on.
//!
//! Where the folds stand is only a shortcut: forgotten, it is computed again from the conversation and
//! the facts, and comes out the same. The facts are not: they go to the archive's ledger before a
//! rendering that depends on them goes out. Both are bounded, and no lock is held while anything is
//! computed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldline::wire::HiddenRound;
use foldline::{FoldState, Handle, Ledger, Message, PrefixSummary, Tokens};
use foldline_archive::TenantArchive;
use foldline_summarize::{ModelSpend, PreparedSummary};

use crate::proxy::fold::archive_writer::StoredHandles;
use crate::proxy::fold::prefix_id::PrefixHashes;

/// Locks, so that requests rarely wait for each other; a power of two.
const SHARD_COUNT: usize = 32;

/// What is remembered of all conversations.
pub(crate) struct SessionCache {
    shards: Vec<Mutex<CacheShard>>,
    /// Conversations that a shard remembers.
    shard_capacity: usize,
}

#[derive(Default)]
struct CacheShard {
    states: LruMap<CachedState>,
    facts: LruMap<Arc<SessionFacts>>,
}

/// Where the folds of a conversation stand after some of its messages.
pub(crate) struct CachedState {
    pub(crate) state: FoldState,
    pub(crate) stored: StoredHandles,
    cached_at: Instant,
}

impl CachedState {
    pub(crate) fn new(state: FoldState, held: StoredHandles) -> Self {
        Self { state, stored: held, cached_at: Instant::now() }
    }

    /// How long ago the conversation was last sent.
    pub(crate) fn age(&self) -> Duration {
        self.cached_at.elapsed()
    }
}

impl SessionCache {
    /// A memory of about so many conversations.
    pub(crate) fn new(conversations: usize) -> Self {
        Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            shard_capacity: conversations.div_ceil(SHARD_COUNT),
        }
    }

    fn shard(&self, lineage: &PrefixHashes) -> std::sync::MutexGuard<'_, CacheShard> {
        let shard = &self.shards[lineage.root() as usize % SHARD_COUNT];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the folds stand after the longest beginning that is remembered. It is taken, not copied: it is large, and
    /// where they stand now is remembered in its place. Whoever comes meanwhile computes it again.
    pub(crate) fn take(&self, lineage: &PrefixHashes) -> Option<CachedState> {
        let mut shard = self.shard(lineage);
        lineage.longest_first().find_map(|(_, beginning)| shard.states.remove(beginning))
    }

    /// Remembers where the folds of a conversation stand now.
    pub(crate) fn insert(&self, lineage: &PrefixHashes, now: CachedState) {
        self.shard(lineage).states.insert(lineage.full(), now, self.shard_capacity);
    }

    /// The facts of a conversation; from the ledger of the archive when they are not remembered.
    pub(crate) fn facts(&self, lineage: &PrefixHashes, shelf: Option<&TenantArchive>) -> Arc<SessionFacts> {
        let root = lineage.root();
        if let Some(facts) = self.shard(lineage).facts.get(root) {
            return facts;
        }
        let facts = Arc::new(SessionFacts::load(shelf.map(|shelf| shelf.in_session(session_name(root)))));
        let mut shard = self.shard(lineage);
        // Whoever was faster may have recorded something already.
        match shard.facts.get(root) {
            Some(others) => others,
            None => {
                shard.facts.insert(root, facts.clone(), self.shard_capacity);
                facts
            }
        }
    }
}

/// The name of a conversation in the archive, where its client gives none.
pub(crate) fn session_name(root: u128) -> String {
    format!("{root:032x}")
}

/// Facts from outside on which the renderings of a conversation depend, each about one of its
/// beginnings.
#[derive(Default)]
pub(crate) struct SessionFacts {
    by_prefix: Mutex<HashMap<u128, PrefixFacts>>,
    /// Where they are recorded.
    archive: Option<TenantArchive>,
    progress: Mutex<SummaryProgress>,
    fold_counts: Mutex<FoldCounts>,
    /// The budget of a retry that succeeded after the provider had refused more, and when that was.
    ceiling: Mutex<Option<(Tokens, Instant)>>,
}

/// What is known of the summaries of a conversation beside themselves.
#[derive(Clone, Copy, Debug, Default)]
struct SummaryProgress {
    /// How many messages it had when one was last begun, and whether that one is being written.
    last_started_len: usize,
    in_progress: bool,
    cost: ModelSpend,
}

/// How many folds of each pass a conversation was known to have.
pub(crate) type FoldCounts = HashMap<&'static str, u64>;

/// What is known of one beginning of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
struct PrefixFacts {
    cold_cache: bool,
    budget: Option<Tokens>,
    /// What clients' copies of the answer lack, for each answer that was given.
    hidden_rounds: Vec<Arc<[HiddenRound]>>,
    /// A summary of all of it.
    summary: Option<Arc<PreparedSummary>>,
    /// Behind it, the summary of this other beginning counts.
    adopted_summary: Option<u128>,
    /// The originals that were folded in the history of an answer that the provider stores.
    handles: Vec<Handle>,
}

/// Kinds of facts in the archive's ledger.
const COLD_CACHE_KIND: &str = "cold";
const BUDGET_KIND: &str = "budget";
const HIDDEN_ROUNDS_KIND: &str = "hidden";
const SUMMARY_KIND: &str = "summary";
const ADOPTED_SUMMARY_KIND: &str = "told";
const HANDLES: &str = "handles";
/// Bytes of a beginning's hash, at the front of each fingerprint.
const PREFIX_HASH_BYTES: usize = size_of::<u128>();

impl SessionFacts {
    fn load(ledger: Option<TenantArchive>) -> Self {
        let mut known: HashMap<u128, PrefixFacts> = HashMap::new();
        let recorded = ledger.as_ref().and_then(|shelf| shelf.facts().ok()).unwrap_or_default();
        for fact in recorded {
            let Some((beginning, _)) = fact.fingerprint.split_first_chunk::<PREFIX_HASH_BYTES>() else { continue };
            let entry = known.entry(u128::from_le_bytes(*beginning)).or_default();
            match fact.kind.as_str() {
                COLD_CACHE_KIND => entry.cold_cache = true,
                BUDGET_KIND => entry.budget = fact.payload.try_into().ok().map(Tokens::from_le_bytes),
                HIDDEN_ROUNDS_KIND => {
                    entry.hidden_rounds.extend(serde_json::from_slice(&fact.payload).ok().map(Vec::into))
                }
                SUMMARY_KIND => entry.summary = serde_json::from_slice(&fact.payload).ok().map(Arc::new),
                ADOPTED_SUMMARY_KIND => entry.adopted_summary = fact.payload.try_into().ok().map(u128::from_le_bytes),
                HANDLES => entry.handles = serde_json::from_slice(&fact.payload).unwrap_or_default(),
                _ => {}
            }
        }
        let spent = known.values().filter_map(|fact| fact.summary.as_ref());
        let spent = spent.fold(ModelSpend::default(), |sum, summary| sum.plus(summary.spent));
        let book = Mutex::new(SummaryProgress { cost: spent, ..SummaryProgress::default() });
        Self {
            by_prefix: Mutex::new(known),
            archive: ledger,
            progress: book,
            fold_counts: Mutex::default(),
            ceiling: Mutex::default(),
        }
    }

    /// How many folds of each pass are new to a conversation that has so many now. Where folds are computed again, because
    /// a client has changed what it said before, they are no new ones.
    pub(crate) fn count_new_folds(&self, now: impl Iterator<Item = &'static str>) -> FoldCounts {
        let mut folds = FoldCounts::new();
        now.for_each(|pass| *folds.entry(pass).or_default() += 1);
        let mut told = self.fold_counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (pass, count) in &mut folds {
            let known = told.entry(pass).or_default();
            let new = count.saturating_sub(*known);
            *known = (*known).max(*count);
            *count = new;
        }
        folds
    }

    /// What the fold of this conversation may depend on.
    pub(crate) fn ledger(&self, lineage: &PrefixHashes) -> Ledger {
        let known = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = Ledger::default();
        if known.is_empty() {
            return ledger;
        }
        for (at, beginning) in lineage.longest_first() {
            let Some(fact) = known.get(&beginning) else { continue };
            if fact.cold_cache {
                ledger.cold_points.insert(at);
            }
            ledger.budgets.extend(fact.budget.map(|budget| (at, budget)));
            let told = fact.adopted_summary.and_then(|told| known.get(&told)?.summary.as_ref());
            let told = told.map(|summary| PrefixSummary { until: summary.until(), text: summary.text().into() });
            ledger.summaries.extend(told.map(|summary| (at, summary)));
        }
        ledger
    }

    /// The newest summary of a beginning of this conversation.
    pub(crate) fn latest_summary(&self, lineage: &PrefixHashes) -> Option<Arc<PreparedSummary>> {
        let known = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        lineage.longest_first().find_map(|(_, beginning)| known.get(&beginning)?.summary.clone())
    }

    /// A summary of one of its beginnings was written. It counts from the request on that takes note of it.
    pub(crate) fn add_summary(&self, lineage: &PrefixHashes, summary: PreparedSummary) {
        let beginning = lineage.prefix(summary.until());
        let fingerprint = [&beginning.to_le_bytes()[..], summary.fingerprint().as_bytes()].concat();
        self.write_fact(SUMMARY_KIND, &fingerprint, &serde_json::to_vec(&summary).unwrap_or_default());
        self.update(beginning, |fact| fact.summary = Some(fact.summary.take().unwrap_or_else(|| Arc::new(summary))));
    }

    /// Takes note of the newest summary, if it tells of these very messages and nobody has yet: from this request on if
    /// that is open still, else behind it. It is recorded before anything depends on it, so that every request of the
    /// past comes out as it was.
    pub(crate) fn adopt_summary(&self, lineage: &PrefixHashes, messages: &[Message<'_>], open: bool) {
        let Some(summary) = self.latest_summary(lineage) else { return };
        let of = lineage.prefix(summary.until());
        if self.is_adopted(of) || !summary.is_fresh(messages) {
            return;
        }
        let behind = lineage.prefix(lineage.len().saturating_sub(usize::from(open)));
        self.write_fact(ADOPTED_SUMMARY_KIND, &behind.to_le_bytes(), &of.to_le_bytes());
        self.update(behind, |fact| fact.adopted_summary = fact.adopted_summary.or(Some(of)));
    }

    /// Whether some request has taken note of the summary of this beginning. A second one that does not go on from it,
    /// but from before, would change what the first depends on.
    fn is_adopted(&self, of: u128) -> bool {
        let known = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().any(|fact| fact.adopted_summary == Some(of))
    }

    /// Whether there is a summary that no crease could use yet, the last one having been at this message.
    pub(crate) fn has_unused_summary(&self, lineage: &PrefixHashes, creased: usize) -> bool {
        let Some(newest) = self.latest_summary(lineage) else { return false };
        match self.ledger(lineage).summaries.last_key_value() {
            Some((&behind, told)) if told.until >= newest.until() => behind >= creased,
            _ => !self.is_adopted(lineage.prefix(newest.until())),
        }
    }

    /// Whether a summary may be begun: none is being written, and the conversation has grown since the last attempt.
    pub(crate) fn may_start_summary(&self, messages: usize, grown: usize) -> bool {
        let book = *self.progress();
        !book.in_progress
            && (book.last_started_len == 0
                || messages >= book.last_started_len + grown
                || messages < book.last_started_len)
    }

    /// Begins with a summary, unless one is being written.
    pub(crate) fn start_summary(self: &Arc<Self>, messages: usize) -> Option<SummaryGuard> {
        let mut book = self.progress();
        if book.in_progress {
            return None;
        }
        (book.last_started_len, book.in_progress) = (messages, true);
        Some(SummaryGuard(self.clone()))
    }

    /// What summaries have cost, and what one more did.
    pub(crate) fn summary_cost(&self) -> ModelSpend {
        self.progress().cost
    }

    pub(crate) fn add_summary_cost(&self, spent: ModelSpend) {
        let mut book = self.progress();
        book.cost = book.cost.plus(spent);
    }

    fn progress(&self) -> MutexGuard<'_, SummaryProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of this conversation behind which clients' copies of an answer lack something, with
    /// what each answer that was given there hid.
    pub(crate) fn hidden_rounds(&self, lineage: &PrefixHashes) -> Vec<(usize, Vec<Arc<[HiddenRound]>>)> {
        let known = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return Vec::new();
        }
        let hidden = |(at, beginning)| Some((at, known.get(&beginning)?.hidden_rounds.clone()));
        lineage.longest_first().filter_map(hidden).filter(|(_, hidden)| !hidden.is_empty()).collect()
    }

    /// The answer to this beginning hid something from the client. It is on disk when this returns.
    pub(crate) fn record_hidden_rounds(&self, beginning: u128, gaps: Vec<HiddenRound>) {
        let payload = serde_json::to_vec(&gaps).unwrap_or_default();
        let answer = xxhash_rust::xxh3::xxh3_64(&payload);
        self.update(beginning, |fact| fact.hidden_rounds.push(gaps.into()));
        self.write_fact(HIDDEN_ROUNDS_KIND, &[&beginning.to_le_bytes()[..], &answer.to_le_bytes()].concat(), &payload);
        if let Some(Err(error)) = self.archive.as_ref().map(|shelf| shelf.request_sync().wait()) {
            tracing::warn!(%error, "a hidden call is written, but may not survive a loss of power");
        }
    }

    /// Returns the originals that were folded in the history of a stored answer.
    pub(crate) fn handles(&self, answer: u128) -> StoredHandles {
        let known = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&answer).into_iter().flat_map(|fact| fact.handles.iter().copied()).collect()
    }

    /// Records the originals that were folded in the history of a stored answer.
    pub(crate) fn record_handles(&self, answer: u128, held: &StoredHandles) {
        let handles = held.handles();
        if handles.is_empty() {
            return;
        }
        self.write_fact(HANDLES, &answer.to_le_bytes(), &serde_json::to_vec(&handles).unwrap_or_default());
        self.update(answer, |fact| fact.handles = handles);
    }

    /// The provider's cache was cold when the conversation had this beginning.
    pub(crate) fn record_cold_cache(&self, beginning: u128) {
        self.update(beginning, |fact| fact.cold_cache = true);
        self.write_fact(COLD_CACHE_KIND, &beginning.to_le_bytes(), &[]);
    }

    /// From this beginning on the budget was this.
    pub(crate) fn set_budget(&self, beginning: u128, budget: Tokens) {
        self.update(beginning, |fact| fact.budget = Some(budget));
    }

    /// Records that this conversation was accepted only when it was folded to this budget. Later requests keep to it.
    pub(crate) fn hold_budget(&self, lineage: &PrefixHashes, budget: Tokens) {
        self.set_budget(lineage.full(), budget);
        self.persist_budgets(lineage);
        *self.ceiling.lock().unwrap_or_else(PoisonError::into_inner) = Some((budget, Instant::now()));
    }

    /// Returns the budget that the conversation keeps to after a refusal, for as long as it is believed.
    pub(crate) fn ceiling(&self, lifetime: Duration) -> Tokens {
        let ceiling = *self.ceiling.lock().unwrap_or_else(PoisonError::into_inner);
        ceiling.filter(|(_, since)| since.elapsed() < lifetime).map_or(Tokens::MAX, |(budget, _)| budget)
    }

    /// Records what was noted of budgets durably: from now on a rendering depends on it.
    pub(crate) fn persist_budgets(&self, lineage: &PrefixHashes) {
        let budgets = self.ledger(lineage).budgets;
        for (at, budget) in budgets {
            self.write_fact(BUDGET_KIND, &lineage.prefix(at).to_le_bytes(), &budget.to_le_bytes());
        }
    }

    fn update(&self, beginning: u128, note: impl FnOnce(&mut PrefixFacts)) {
        note(self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner).entry(beginning).or_default());
    }

    fn write_fact(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) {
        let recorded = self.archive.as_ref().map(|shelf| shelf.write_fact(kind, fingerprint, payload));
        if let Some(Err(error)) = recorded {
            // The rendering is right now, and right after a restart unless this very fact mattered.
            tracing::warn!(%error, kind, "a fact could not be recorded");
        }
    }
}

/// A summary that is being written, until this is dropped.
pub(crate) struct SummaryGuard(Arc<SessionFacts>);

impl Drop for SummaryGuard {
    fn drop(&mut self) {
        self.0.progress().in_progress = false;
    }
}

/// Returns a key of a [`Bounded`] map for a text that clients choose.
pub(crate) fn map_key(text: &[u8]) -> u128 {
    blake3::hash(text).as_bytes().split_first_chunk().map_or(0, |(first, _)| u128::from_le_bytes(*first))
}

/// A map that forgets what was not asked for the longest.
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
    fn get(&mut self, key: u128) -> Option<T>
    where
        T: Clone,
    {
        self.clock += 1;
        let (used, value) = self.entries.get_mut(&key)?;
        *used = self.clock;
        Some(value.clone())
    }

    /// Returns the value of a key for changes, and marks it as used.
    pub(crate) fn get_mut(&mut self, key: u128) -> Option<&mut T> {
        self.clock += 1;
        let (used, value) = self.entries.get_mut(&key)?;
        *used = self.clock;
        Some(value)
    }

    /// Returns the value of a key, made if there is none, and marks it as used.
    pub(crate) fn get_or_insert_with(&mut self, key: u128, room: usize, make: impl FnOnce() -> T) -> &mut T {
        if !self.entries.contains_key(&key) {
            self.insert(key, make(), room);
        }
        self.get_mut(key).expect("the newest entry is never the one that is evicted")
    }

    /// Returns all values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values().map(|(_, value)| value)
    }

    fn remove(&mut self, key: u128) -> Option<T> {
        self.entries.remove(&key).map(|(_, value)| value)
    }

    fn insert(&mut self, key: u128, value: T, room: usize) {
        self.clock += 1;
        self.entries.insert(key, (self.clock, value));
        while self.entries.len() > room.max(1) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(&key, _)| key);
            oldest.and_then(|key| self.entries.remove(&key));
        }
    }
}

/// Keys are hashes already.
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
        let memory = SessionCache::new(64);
        let (one, two) = (prefixes(&["a"]), prefixes(&["a", "b"]));
        memory.insert(&one, cached_state());
        assert!(memory.take(&prefixes(&["b"])).is_none(), "another conversation");
        assert!(memory.take(&two).is_some(), "its beginning is remembered");
        assert!(memory.take(&one).is_none(), "once");
    }

    /// A client that edits its past makes all folds behind the edit be computed again.
    #[test]
    fn recomputed_folds_are_not_counted_twice() {
        let facts = SessionFacts::default();
        assert_eq!(
            facts.count_new_folds(["excerpt", "excerpt", "rounds"].into_iter()),
            [("excerpt", 2), ("rounds", 1)].into()
        );
        assert_eq!(facts.count_new_folds(["excerpt", "excerpt"].into_iter()), [("excerpt", 0)].into());
        assert_eq!(facts.count_new_folds(["excerpt"; 3].into_iter()), [("excerpt", 1)].into());
    }

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let mut bounded = LruMap::default();
        bounded.insert(1, "one", 2);
        bounded.insert(2, "two", 2);
        bounded.get(1);
        bounded.insert(3, "three", 2);
        assert_eq!((bounded.get(1), bounded.get(2), bounded.get(3)), (Some("one"), None, Some("three")));
    }

    #[test]
    fn facts_survive_restart() {
        let folder = tempfile::tempdir().unwrap();
        let archive = foldline_archive::Archive::open(folder.path().join("a.db")).unwrap();
        let shelf = archive.tenant(&foldline_archive::Namespace::local());
        let grown = prefixes(&["a", "b", "c"]);
        let facts = SessionCache::new(8).facts(&grown, Some(&shelf));
        facts.record_cold_cache(grown.prefix(2));
        facts.set_budget(grown.prefix(0), 9_000);
        facts.set_budget(grown.prefix(3), 7_000);
        facts.persist_budgets(&grown);
        let told = facts.ledger(&grown);
        assert_eq!(told.cold_points, [2].into());
        assert_eq!(told.budgets, [(0, 9_000), (3, 7_000)].into());
        let again = SessionCache::new(8).facts(&grown, Some(&shelf));
        assert_eq!(again.ledger(&grown), told);
        assert_eq!(again.ledger(&prefixes(&["a", "x"])).cold_points.len(), 0, "another way of going on");
    }
}
