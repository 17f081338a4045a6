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
use foldline_archive::Shelf;
use foldline_rlm::{Prepared, Spent};

use super::keeper::Held;
use super::lineage::Lineage;

/// Locks, so that requests rarely wait for each other; a power of two.
const SHARDS: usize = 32;

/// What is remembered of all conversations.
pub(crate) struct Memory {
    shards: Vec<Mutex<Shard>>,
    /// Conversations that a shard remembers.
    room: usize,
}

#[derive(Default)]
struct Shard {
    places: Bounded<Place>,
    facts: Bounded<Arc<Facts>>,
}

/// Where the folds of a conversation stand after some of its messages.
pub(crate) struct Place {
    pub(crate) state: FoldState,
    pub(crate) held: Held,
    at: Instant,
}

impl Place {
    pub(crate) fn new(state: FoldState, held: Held) -> Self {
        Self { state, held, at: Instant::now() }
    }

    /// How long ago the conversation was last sent.
    pub(crate) fn age(&self) -> Duration {
        self.at.elapsed()
    }
}

impl Memory {
    /// A memory of about so many conversations.
    pub(crate) fn new(conversations: usize) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), room: conversations.div_ceil(SHARDS) }
    }

    fn shard(&self, lineage: &Lineage) -> std::sync::MutexGuard<'_, Shard> {
        let shard = &self.shards[lineage.root() as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the folds stand after the longest beginning that is remembered. It is taken, not copied: it is large, and
    /// where they stand now is remembered in its place. Whoever comes meanwhile computes it again.
    pub(crate) fn take(&self, lineage: &Lineage) -> Option<Place> {
        let mut shard = self.shard(lineage);
        lineage.longest_first().find_map(|(_, beginning)| shard.places.remove(beginning))
    }

    /// Remembers where the folds of a conversation stand now.
    pub(crate) fn remember(&self, lineage: &Lineage, now: Place) {
        self.shard(lineage).places.put(lineage.whole(), now, self.room);
    }

    /// The facts of a conversation; from the ledger of the archive when they are not remembered.
    pub(crate) fn facts(&self, lineage: &Lineage, shelf: Option<&Shelf>) -> Arc<Facts> {
        let root = lineage.root();
        if let Some(facts) = self.shard(lineage).facts.get(root) {
            return facts;
        }
        let facts = Arc::new(Facts::load(shelf.map(|shelf| shelf.in_session(name(root)))));
        let mut shard = self.shard(lineage);
        // Whoever was faster may have recorded something already.
        match shard.facts.get(root) {
            Some(others) => others,
            None => {
                shard.facts.put(root, facts.clone(), self.room);
                facts
            }
        }
    }
}

/// The name of a conversation in the archive, where its client gives none.
pub(crate) fn name(root: u128) -> String {
    format!("{root:032x}")
}

/// Facts from outside on which the renderings of a conversation depend, each about one of its
/// beginnings.
#[derive(Default)]
pub(crate) struct Facts {
    known: Mutex<HashMap<u128, Fact>>,
    /// Where they are recorded.
    ledger: Option<Shelf>,
    book: Mutex<Book>,
    told: Mutex<Told>,
    /// The budget of a retry that succeeded after the provider had refused more, and when that was.
    ceiling: Mutex<Option<(Tokens, Instant)>>,
}

/// What is known of the summaries of a conversation beside themselves.
#[derive(Clone, Copy, Debug, Default)]
struct Book {
    /// How many messages it had when one was last begun, and whether that one is being written.
    begun: usize,
    under_way: bool,
    spent: Spent,
}

/// How many folds of each pass a conversation was known to have.
pub(crate) type Told = HashMap<&'static str, u64>;

/// What is known of one beginning of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
struct Fact {
    cold: bool,
    budget: Option<Tokens>,
    /// What clients' copies of the answer lack, for each answer that was given.
    hidden: Vec<Arc<[HiddenRound]>>,
    /// A summary of all of it.
    summary: Option<Arc<Prepared>>,
    /// Behind it, the summary of this other beginning counts.
    told: Option<u128>,
    /// The originals that were folded in the history of an answer that the provider stores.
    handles: Vec<Handle>,
}

/// Kinds of facts in the archive's ledger.
const COLD: &str = "cold";
const BUDGET: &str = "budget";
const HIDDEN: &str = "hidden";
const SUMMARY: &str = "summary";
const TOLD: &str = "told";
const HANDLES: &str = "handles";
/// Bytes of a beginning's hash, at the front of each fingerprint.
const BEGINNING: usize = size_of::<u128>();

impl Facts {
    fn load(ledger: Option<Shelf>) -> Self {
        let mut known: HashMap<u128, Fact> = HashMap::new();
        let recorded = ledger.as_ref().and_then(|shelf| shelf.facts().ok()).unwrap_or_default();
        for fact in recorded {
            let Some((beginning, _)) = fact.fingerprint.split_first_chunk::<BEGINNING>() else { continue };
            let entry = known.entry(u128::from_le_bytes(*beginning)).or_default();
            match fact.kind.as_str() {
                COLD => entry.cold = true,
                BUDGET => entry.budget = fact.payload.try_into().ok().map(Tokens::from_le_bytes),
                HIDDEN => entry.hidden.extend(serde_json::from_slice(&fact.payload).ok().map(Vec::into)),
                SUMMARY => entry.summary = serde_json::from_slice(&fact.payload).ok().map(Arc::new),
                TOLD => entry.told = fact.payload.try_into().ok().map(u128::from_le_bytes),
                HANDLES => entry.handles = serde_json::from_slice(&fact.payload).unwrap_or_default(),
                _ => {}
            }
        }
        let spent = known.values().filter_map(|fact| fact.summary.as_ref());
        let spent = spent.fold(Spent::default(), |sum, summary| sum.and(summary.spent));
        let book = Mutex::new(Book { spent, ..Book::default() });
        Self { known: Mutex::new(known), ledger, book, told: Mutex::default(), ceiling: Mutex::default() }
    }

    /// How many folds of each pass are new to a conversation that has so many now. Where folds are computed again, because
    /// a client has changed what it said before, they are no new ones.
    pub(crate) fn new_folds(&self, now: impl Iterator<Item = &'static str>) -> Told {
        let mut folds = Told::new();
        now.for_each(|pass| *folds.entry(pass).or_default() += 1);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for (pass, count) in &mut folds {
            let known = told.entry(pass).or_default();
            let new = count.saturating_sub(*known);
            *known = (*known).max(*count);
            *count = new;
        }
        folds
    }

    /// What the fold of this conversation may depend on.
    pub(crate) fn ledger(&self, lineage: &Lineage) -> Ledger {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = Ledger::default();
        if known.is_empty() {
            return ledger;
        }
        for (at, beginning) in lineage.longest_first() {
            let Some(fact) = known.get(&beginning) else { continue };
            if fact.cold {
                ledger.cold_points.insert(at);
            }
            ledger.budgets.extend(fact.budget.map(|budget| (at, budget)));
            let told = fact.told.and_then(|told| known.get(&told)?.summary.as_ref());
            let told = told.map(|summary| PrefixSummary { until: summary.until(), text: summary.text().into() });
            ledger.summaries.extend(told.map(|summary| (at, summary)));
        }
        ledger
    }

    /// The newest summary of a beginning of this conversation.
    pub(crate) fn summary(&self, lineage: &Lineage) -> Option<Arc<Prepared>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        lineage.longest_first().find_map(|(_, beginning)| known.get(&beginning)?.summary.clone())
    }

    /// A summary of one of its beginnings was written. It counts from the request on that takes note of it.
    pub(crate) fn summarised(&self, lineage: &Lineage, summary: Prepared) {
        let beginning = lineage.beginning(summary.until());
        let fingerprint = [&beginning.to_le_bytes()[..], summary.fingerprint().as_bytes()].concat();
        self.record(SUMMARY, &fingerprint, &serde_json::to_vec(&summary).unwrap_or_default());
        self.note(beginning, |fact| fact.summary = Some(fact.summary.take().unwrap_or_else(|| Arc::new(summary))));
    }

    /// Takes note of the newest summary, if it tells of these very messages and nobody has yet: from this request on if
    /// that is open still, else behind it. It is recorded before anything depends on it, so that every request of the
    /// past comes out as it was.
    pub(crate) fn tell(&self, lineage: &Lineage, messages: &[Message<'_>], open: bool) {
        let Some(summary) = self.summary(lineage) else { return };
        let of = lineage.beginning(summary.until());
        if self.is_told(of) || !summary.is_fresh(messages) {
            return;
        }
        let behind = lineage.beginning(lineage.len().saturating_sub(usize::from(open)));
        self.record(TOLD, &behind.to_le_bytes(), &of.to_le_bytes());
        self.note(behind, |fact| fact.told = fact.told.or(Some(of)));
    }

    /// Whether some request has taken note of the summary of this beginning. A second one that does not go on from it,
    /// but from before, would change what the first depends on.
    fn is_told(&self, of: u128) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().any(|fact| fact.told == Some(of))
    }

    /// Whether there is a summary that no crease could use yet, the last one having been at this message.
    pub(crate) fn awaits_crease(&self, lineage: &Lineage, creased: usize) -> bool {
        let Some(newest) = self.summary(lineage) else { return false };
        match self.ledger(lineage).summaries.last_key_value() {
            Some((&behind, told)) if told.until >= newest.until() => behind >= creased,
            _ => !self.is_told(lineage.beginning(newest.until())),
        }
    }

    /// Whether a summary may be begun: none is being written, and the conversation has grown since the last attempt.
    pub(crate) fn may_write(&self, messages: usize, grown: usize) -> bool {
        let book = *self.book();
        !book.under_way && (book.begun == 0 || messages >= book.begun + grown || messages < book.begun)
    }

    /// Begins with a summary, unless one is being written.
    pub(crate) fn write(self: &Arc<Self>, messages: usize) -> Option<Writing> {
        let mut book = self.book();
        if book.under_way {
            return None;
        }
        (book.begun, book.under_way) = (messages, true);
        Some(Writing(self.clone()))
    }

    /// What summaries have cost, and what one more did.
    pub(crate) fn spent(&self) -> Spent {
        self.book().spent
    }

    pub(crate) fn spend(&self, spent: Spent) {
        let mut book = self.book();
        book.spent = book.spent.and(spent);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of this conversation behind which clients' copies of an answer lack something, with
    /// what each answer that was given there hid.
    pub(crate) fn hidden(&self, lineage: &Lineage) -> Vec<(usize, Vec<Arc<[HiddenRound]>>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return Vec::new();
        }
        let hidden = |(at, beginning)| Some((at, known.get(&beginning)?.hidden.clone()));
        lineage.longest_first().filter_map(hidden).filter(|(_, hidden)| !hidden.is_empty()).collect()
    }

    /// The answer to this beginning hid something from the client. It is on disk when this returns.
    pub(crate) fn hide(&self, beginning: u128, gaps: Vec<HiddenRound>) {
        let payload = serde_json::to_vec(&gaps).unwrap_or_default();
        let answer = xxhash_rust::xxh3::xxh3_64(&payload);
        self.note(beginning, |fact| fact.hidden.push(gaps.into()));
        self.record(HIDDEN, &[&beginning.to_le_bytes()[..], &answer.to_le_bytes()].concat(), &payload);
        if let Some(Err(error)) = self.ledger.as_ref().map(|shelf| shelf.on_disk().wait()) {
            tracing::warn!(%error, "a hidden call is written, but may not survive a loss of power");
        }
    }

    /// Returns the originals that were folded in the history of a stored answer.
    pub(crate) fn handles(&self, answer: u128) -> Held {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&answer).into_iter().flat_map(|fact| fact.handles.iter().copied()).collect()
    }

    /// Records the originals that were folded in the history of a stored answer.
    pub(crate) fn record_handles(&self, answer: u128, held: &Held) {
        let handles = held.handles();
        if handles.is_empty() {
            return;
        }
        self.record(HANDLES, &answer.to_le_bytes(), &serde_json::to_vec(&handles).unwrap_or_default());
        self.note(answer, |fact| fact.handles = handles);
    }

    /// The provider's cache was cold when the conversation had this beginning.
    pub(crate) fn cold(&self, beginning: u128) {
        self.note(beginning, |fact| fact.cold = true);
        self.record(COLD, &beginning.to_le_bytes(), &[]);
    }

    /// From this beginning on the budget was this.
    pub(crate) fn budget(&self, beginning: u128, budget: Tokens) {
        self.note(beginning, |fact| fact.budget = Some(budget));
    }

    /// Records that this conversation was accepted only when it was folded to this budget. Later requests keep to it.
    pub(crate) fn hold_budget(&self, lineage: &Lineage, budget: Tokens) {
        self.budget(lineage.whole(), budget);
        self.settle(lineage);
        *self.ceiling.lock().unwrap_or_else(PoisonError::into_inner) = Some((budget, Instant::now()));
    }

    /// Returns the budget that the conversation keeps to after a refusal, for as long as it is believed.
    pub(crate) fn ceiling(&self, lifetime: Duration) -> Tokens {
        let ceiling = *self.ceiling.lock().unwrap_or_else(PoisonError::into_inner);
        ceiling.filter(|(_, since)| since.elapsed() < lifetime).map_or(Tokens::MAX, |(budget, _)| budget)
    }

    /// Records what was noted of budgets durably: from now on a rendering depends on it.
    pub(crate) fn settle(&self, lineage: &Lineage) {
        let budgets = self.ledger(lineage).budgets;
        for (at, budget) in budgets {
            self.record(BUDGET, &lineage.beginning(at).to_le_bytes(), &budget.to_le_bytes());
        }
    }

    fn note(&self, beginning: u128, note: impl FnOnce(&mut Fact)) {
        note(self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(beginning).or_default());
    }

    fn record(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) {
        let recorded = self.ledger.as_ref().map(|shelf| shelf.write_fact(kind, fingerprint, payload));
        if let Some(Err(error)) = recorded {
            // The rendering is right now, and right after a restart unless this very fact mattered.
            tracing::warn!(%error, kind, "a fact could not be recorded");
        }
    }
}

/// A summary that is being written, until this is dropped.
pub(crate) struct Writing(Arc<Facts>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.book().under_way = false;
    }
}

/// Returns a key of a [`Bounded`] map for a text that clients choose.
pub(crate) fn map_key(text: &[u8]) -> u128 {
    blake3::hash(text).as_bytes().split_first_chunk().map_or(0, |(first, _)| u128::from_le_bytes(*first))
}

/// A map that forgets what was not asked for the longest.
pub(crate) struct Bounded<T> {
    entries: HashMap<u128, (u64, T), BuildHasherDefault<Hashed>>,
    clock: u64,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self { entries: HashMap::default(), clock: 0 }
    }
}

impl<T> Bounded<T> {
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
            self.put(key, make(), room);
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

    fn put(&mut self, key: u128, value: T, room: usize) {
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
struct Hashed(u64);

impl Hasher for Hashed {
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

    fn lineage(words: &[&'static str]) -> Lineage {
        let messages = words.iter().map(|word| Message::text(Role::User, *word)).collect();
        Lineage::of(&[], &Conversation { messages, ..Conversation::default() })
    }

    fn place() -> Place {
        Place::new(FoldState::default(), Held::default())
    }

    #[test]
    fn the_longest_beginning_is_taken() {
        let memory = Memory::new(64);
        let (one, two) = (lineage(&["a"]), lineage(&["a", "b"]));
        memory.remember(&one, place());
        assert!(memory.take(&lineage(&["b"])).is_none(), "another conversation");
        assert!(memory.take(&two).is_some(), "its beginning is remembered");
        assert!(memory.take(&one).is_none(), "once");
    }

    /// A client that edits its past makes all folds behind the edit be computed again.
    #[test]
    fn folds_that_are_computed_again_are_not_counted_again() {
        let facts = Facts::default();
        assert_eq!(
            facts.new_folds(["excerpt", "excerpt", "rounds"].into_iter()),
            [("excerpt", 2), ("rounds", 1)].into()
        );
        assert_eq!(facts.new_folds(["excerpt", "excerpt"].into_iter()), [("excerpt", 0)].into());
        assert_eq!(facts.new_folds(["excerpt"; 3].into_iter()), [("excerpt", 1)].into());
    }

    #[test]
    fn what_was_not_used_the_longest_is_forgotten() {
        let mut bounded = Bounded::default();
        bounded.put(1, "one", 2);
        bounded.put(2, "two", 2);
        bounded.get(1);
        bounded.put(3, "three", 2);
        assert_eq!((bounded.get(1), bounded.get(2), bounded.get(3)), (Some("one"), None, Some("three")));
    }

    #[test]
    fn facts_survive_in_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let archive = foldline_archive::Archive::open(folder.path().join("a.db")).unwrap();
        let shelf = archive.shelf(&foldline_archive::Namespace::local());
        let grown = lineage(&["a", "b", "c"]);
        let facts = Memory::new(8).facts(&grown, Some(&shelf));
        facts.cold(grown.beginning(2));
        facts.budget(grown.beginning(0), 9_000);
        facts.budget(grown.beginning(3), 7_000);
        facts.settle(&grown);
        let told = facts.ledger(&grown);
        assert_eq!(told.cold_points, [2].into());
        assert_eq!(told.budgets, [(0, 9_000), (3, 7_000)].into());
        let again = Memory::new(8).facts(&grown, Some(&shelf));
        assert_eq!(again.ledger(&grown), told);
        assert_eq!(again.ledger(&lineage(&["a", "x"])).cold_points.len(), 0, "another way of going on");
    }
}
