//! The facts that the renderings of a conversation depend on, besides the conversation itself.
//!
//! They are written to the archive's ledger before a rendering that depends on them is sent, so that a restart and
//! another proxy compute the same bytes. A request reads them once ([`SessionFacts::known`]), adopts what applies from it
//! on ([`SessionFacts::adopt`]), and records what its fold decided ([`SessionFacts::record_fold`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldline::engine::{PinPatterns, PrefixSummary};
use foldline::tokens::Tokens;
use foldline::wire::HiddenRound;
use foldline::{Handle, Ledger, Message};
use foldline_archive::{LedgerFact, TenantArchive};
use foldline_summarize::{ModelSpend, PreparedSummary};

use crate::proxy::fold::archive_writer::StoredHandles;
use crate::proxy::fold::prefix_id::PrefixHashes;

/// Returns the archive's session name of a conversation whose client sends none.
pub(crate) fn session_name(root: u128) -> String {
    format!("{root:032x}")
}

/// External facts on which the renderings of a conversation depend, each about one of its prefixes.
#[derive(Default)]
pub(crate) struct SessionFacts {
    by_prefix: Mutex<HashMap<u128, PrefixFacts>>,
    /// The session's ledger.
    archive: Option<TenantArchive>,
    progress: Mutex<SummaryProgress>,
    fold_counts: Mutex<FoldCounts>,
    /// True if the unfold tool is part of the conversation; `None` before the first request with tools.
    has_tool: Mutex<Option<bool>>,
    unfolds: Mutex<UnfoldTotals>,
    /// The budget of a retry that succeeded after a refusal, and its time.
    ceiling: Mutex<Option<(Tokens, Instant)>>,
    /// Pins of the session when the facts were read.
    recorded_pins: PinPatterns,
}

/// What the model read in hidden rounds of a conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnfoldTotals {
    /// Originals.
    pub(crate) count: u64,
    /// Prompt tokens of the rounds before the last of each response.
    pub(crate) tokens: Tokens,
}

impl UnfoldTotals {
    fn add(&mut self, count: u64, tokens: Tokens) {
        self.count += count;
        self.tokens += tokens;
    }
}

/// Progress and cost of the summaries of a conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SummaryProgress {
    /// Number of messages when the last summary was started, and whether it is still being written.
    pub(crate) last_started_len: usize,
    pub(crate) in_progress: bool,
    cost: ModelSpend,
}

/// Number of folds by pass.
pub(crate) type FoldCounts = HashMap<&'static str, u64>;

/// The facts about a conversation at one of its requests.
pub(crate) struct KnownFacts {
    /// Facts for the engine.
    pub(crate) ledger: Ledger,
    /// Rounds hidden from the client, for each response to a request point.
    pub(crate) hidden_rounds: Vec<(usize, Vec<Arc<[HiddenRound]>>)>,
    /// Summary of the longest prefix, and whether a request has adopted it.
    pub(crate) newest_summary: Option<Arc<PreparedSummary>>,
    pub(crate) is_summary_adopted: bool,
    pub(crate) summary_progress: SummaryProgress,
    /// The budget of a retry that succeeded after a refusal, and its time.
    ceiling: Option<(Tokens, Instant)>,
}

impl KnownFacts {
    /// Returns the budget that the conversation keeps after a refusal, until `lifetime` has passed.
    pub(crate) fn ceiling(&self, lifetime: Duration) -> Tokens {
        self.ceiling.filter(|(_, since)| since.elapsed() < lifetime).map_or(Tokens::MAX, |(budget, _)| budget)
    }
}

/// The state of the provider's prompt cache when a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProviderCache {
    /// It has the conversation's prefix, or nothing is known about it.
    Warm,
    /// It expired since the last request.
    Cold,
}

/// Facts that a request adopts before it is folded.
pub(crate) struct Adoption<'a> {
    /// The messages, if the newest summary is adopted where it matches them.
    pub(crate) summarized: Option<&'a [Message<'a>]>,
    /// The pins of the session, if they apply from this request on.
    pub(crate) pins: Option<&'a PinPatterns>,
    /// True if a summary is adopted from this request on; false if after it, because the request was decided before.
    pub(crate) is_open: bool,
}

/// The facts about one prefix of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
struct PrefixFacts {
    cold_cache: bool,
    budget: Option<Tokens>,
    /// Rounds hidden from the client, for each response to this prefix.
    hidden_rounds: Vec<Arc<[HiddenRound]>>,
    /// A summary of this prefix.
    summary: Option<Arc<PreparedSummary>>,
    /// After this prefix, the summary of this other prefix is used.
    adopted_summary: Option<u128>,
    /// Originals folded in the history of a stored response.
    handles: Vec<Handle>,
    /// Pins from this prefix on.
    pins: Option<PinPatterns>,
}

/// Kinds of facts in the archive's ledger.
const COLD_CACHE_KIND: &str = "cold_cache";
const BUDGET_KIND: &str = "budget";
const HIDDEN_ROUNDS_KIND: &str = "hidden_rounds";
const SUMMARY_KIND: &str = "summary";
const ADOPTED_SUMMARY_KIND: &str = "adopted_summary";
const HANDLES_KIND: &str = "handles";
const TOOL_KIND: &str = "tool";
const ADOPTED_PINS_KIND: &str = "adopted_pins";
/// Pins that a user set; the newest fact of a session counts.
pub(crate) const SESSION_PINS_KIND: &str = "session_pins";
/// Bytes of the prefix hash at the start of each fingerprint.
const PREFIX_HASH_BYTES: usize = size_of::<u128>();

impl SessionFacts {
    /// Reads the facts of a session from its ledger.
    pub(crate) fn load(archive: Option<TenantArchive>) -> Self {
        let mut by_prefix: HashMap<u128, PrefixFacts> = HashMap::new();
        let mut has_tool = None;
        let recorded = archive.as_ref().and_then(|archive| archive.facts().ok()).unwrap_or_default();
        let recorded_pins = newest_pins(&recorded);
        for fact in recorded {
            if fact.kind == TOOL_KIND {
                has_tool = Some(fact.payload == [1]);
                continue;
            }
            let Some((prefix, _)) = fact.fingerprint.split_first_chunk::<PREFIX_HASH_BYTES>() else { continue };
            let entry = by_prefix.entry(u128::from_le_bytes(*prefix)).or_default();
            match fact.kind.as_str() {
                COLD_CACHE_KIND => entry.cold_cache = true,
                BUDGET_KIND => entry.budget = fact.payload.try_into().ok().map(Tokens::from_le_bytes),
                HIDDEN_ROUNDS_KIND => {
                    entry.hidden_rounds.extend(serde_json::from_slice(&fact.payload).ok().map(Vec::into))
                }
                SUMMARY_KIND => entry.summary = serde_json::from_slice(&fact.payload).ok().map(Arc::new),
                ADOPTED_SUMMARY_KIND => entry.adopted_summary = fact.payload.try_into().ok().map(u128::from_le_bytes),
                ADOPTED_PINS_KIND => entry.pins = serde_json::from_slice(&fact.payload).ok(),
                HANDLES_KIND => entry.handles = serde_json::from_slice(&fact.payload).unwrap_or_default(),
                _ => {}
            }
        }
        let spent = by_prefix.values().filter_map(|fact| Some(fact.summary.as_ref()?.spent));
        let cost = spent.reduce(ModelSpend::plus).unwrap_or_default();
        let progress = Mutex::new(SummaryProgress { cost, ..SummaryProgress::default() });
        Self {
            by_prefix: Mutex::new(by_prefix),
            archive,
            progress,
            fold_counts: Mutex::default(),
            has_tool: Mutex::new(has_tool),
            unfolds: Mutex::default(),
            ceiling: Mutex::default(),
            recorded_pins,
        }
    }

    /// Returns the pins of the session when its facts were read.
    pub(crate) fn recorded_pins(&self) -> PinPatterns {
        self.recorded_pins.clone()
    }

    /// Returns the facts about a conversation. A cold cache is recorded first, because it is one of them.
    pub(crate) fn known(&self, prefixes: &PrefixHashes, cache: ProviderCache) -> KnownFacts {
        if cache == ProviderCache::Cold {
            self.record_cold_cache(prefixes.full());
        }
        let newest_summary = self.latest_summary(prefixes);
        let newest = newest_summary.as_ref().map(|summary| prefixes.prefix(summary.until()));
        KnownFacts {
            ledger: self.ledger(prefixes),
            hidden_rounds: self.hidden_rounds(prefixes),
            is_summary_adopted: newest.is_some_and(|summarized| self.is_adopted(summarized)),
            newest_summary,
            summary_progress: *self.progress(),
            ceiling: *lock(&self.ceiling),
        }
    }

    /// Records what a request adopts, before anything depends on it, and returns the facts with it.
    pub(crate) fn adopt(&self, prefixes: &PrefixHashes, adoption: &Adoption<'_>) -> KnownFacts {
        if let Some(messages) = adoption.summarized {
            self.adopt_summary(prefixes, messages, adoption.is_open);
        }
        if let Some(pins) = adoption.pins {
            self.adopt_pins(prefixes, pins);
        }
        self.known(prefixes, ProviderCache::Warm)
    }

    /// Records what a fold decided: the budget from a request point on, and which folds there are. Budgets are written to
    /// the ledger if a crease depends on them. Returns how many folds of each pass are new.
    pub(crate) fn record_fold(
        &self,
        prefixes: &PrefixHashes,
        budget: Option<(usize, Tokens)>,
        has_new_crease: bool,
        passes: impl Iterator<Item = &'static str>,
    ) -> FoldCounts {
        if let Some((from, tokens)) = budget {
            self.set_budget(prefixes.prefix(from), tokens);
        }
        if has_new_crease {
            self.persist_budgets(prefixes);
        }
        self.count_new_folds(passes)
    }

    /// Records that pins apply from this request on, if they differ from those that apply to its prefixes.
    fn adopt_pins(&self, prefixes: &PrefixHashes, pins: &PinPatterns) {
        if pins.is_empty() && self.by_prefix().values().all(|fact| fact.pins.is_none()) {
            return;
        }
        let adopted = self.ledger(prefixes).pins.pop_last().map(|(_, pins)| pins).unwrap_or_default();
        if adopted == *pins {
            return;
        }
        let prefix = prefixes.full();
        // The first record of a fact wins; a second change before the next request needs a fingerprint of its own.
        let payload = serde_json::to_vec(pins).unwrap_or_default();
        let change = xxhash_rust::xxh3::xxh3_64(&payload);
        self.write_fact(ADOPTED_PINS_KIND, &[&prefix.to_le_bytes()[..], &change.to_le_bytes()].concat(), &payload);
        self.update(prefix, |fact| fact.pins = Some(pins.clone()));
    }

    /// Returns how many folds of each pass are new to the conversation. Folds that are computed again, because a client
    /// edited its history, are not new.
    fn count_new_folds(&self, passes: impl Iterator<Item = &'static str>) -> FoldCounts {
        let mut new_folds = FoldCounts::new();
        passes.for_each(|pass| *new_folds.entry(pass).or_default() += 1);
        let mut counts = lock(&self.fold_counts);
        for (pass, count) in &mut new_folds {
            let known = counts.entry(pass).or_default();
            let new = count.saturating_sub(*known);
            *known = (*known).max(*count);
            *count = new;
        }
        new_folds
    }

    /// Returns the ledger of this conversation for the engine.
    fn ledger(&self, prefixes: &PrefixHashes) -> Ledger {
        let by_prefix = self.by_prefix();
        let mut ledger = Ledger::default();
        if by_prefix.is_empty() {
            return ledger;
        }
        for (at, prefix) in prefixes.longest_first() {
            let Some(fact) = by_prefix.get(&prefix) else { continue };
            if fact.cold_cache {
                ledger.cold_points.insert(at);
            }
            ledger.budgets.extend(fact.budget.map(|budget| (at, budget)));
            ledger.pins.extend(fact.pins.clone().map(|pins| (at, pins)));
            let adopted = fact.adopted_summary.and_then(|prefix| by_prefix.get(&prefix)?.summary.as_ref());
            let adopted = adopted.map(|summary| PrefixSummary { until: summary.until(), text: summary.text().into() });
            ledger.summaries.extend(adopted.map(|summary| (at, summary)));
        }
        ledger
    }

    /// Returns the summary of the longest prefix of this conversation.
    pub(crate) fn latest_summary(&self, prefixes: &PrefixHashes) -> Option<Arc<PreparedSummary>> {
        let by_prefix = self.by_prefix();
        prefixes.longest_first().find_map(|(_, prefix)| by_prefix.get(&prefix)?.summary.clone())
    }

    /// Records a summary of a prefix. It is used from the request on that adopts it.
    fn add_summary(&self, prefixes: &PrefixHashes, summary: PreparedSummary) {
        let prefix = prefixes.prefix(summary.until());
        let fingerprint = [&prefix.to_le_bytes()[..], summary.fingerprint().as_bytes()].concat();
        self.write_fact(SUMMARY_KIND, &fingerprint, &serde_json::to_vec(&summary).unwrap_or_default());
        self.update(prefix, |fact| fact.summary = Some(fact.summary.take().unwrap_or_else(|| Arc::new(summary))));
    }

    /// Adopts the latest summary, if it matches these messages and is not adopted yet: from this request on if `is_open`,
    /// otherwise after it. The adoption is recorded before anything depends on it, so that earlier requests are rendered
    /// the same.
    fn adopt_summary(&self, prefixes: &PrefixHashes, messages: &[Message<'_>], is_open: bool) {
        let Some(summary) = self.latest_summary(prefixes) else { return };
        let summarized = prefixes.prefix(summary.until());
        if self.is_adopted(summarized) || !summary.is_fresh(messages) {
            return;
        }
        let adopter = prefixes.prefix(prefixes.len().saturating_sub(usize::from(is_open)));
        self.write_fact(ADOPTED_SUMMARY_KIND, &adopter.to_le_bytes(), &summarized.to_le_bytes());
        self.update(adopter, |fact| fact.adopted_summary = fact.adopted_summary.or(Some(summarized)));
    }

    /// Returns true if a request has adopted the summary of this prefix. A second adoption at an earlier point would
    /// change what the first depends on.
    fn is_adopted(&self, summarized: u128) -> bool {
        let by_prefix = self.by_prefix();
        by_prefix.values().any(|fact| fact.adopted_summary == Some(summarized))
    }

    /// Starts a summary, unless one is being written.
    pub(crate) fn start_summary(self: &Arc<Self>, messages: usize) -> Option<SummaryGuard> {
        let mut progress = self.progress();
        if progress.in_progress {
            return None;
        }
        (progress.last_started_len, progress.in_progress) = (messages, true);
        Some(SummaryGuard(self.clone()))
    }

    /// Returns the cost of the summaries so far.
    pub(crate) fn summary_cost(&self) -> ModelSpend {
        self.progress().cost
    }

    /// Adds originals that the model read in hidden rounds, and the tokens that the rounds cost.
    pub(crate) fn add_unfolds(&self, count: u64, tokens: Tokens) {
        lock(&self.unfolds).add(count, tokens);
    }

    /// Returns what the model read in hidden rounds so far.
    pub(crate) fn unfolds(&self) -> UnfoldTotals {
        *lock(&self.unfolds)
    }

    fn progress(&self) -> MutexGuard<'_, SummaryProgress> {
        lock(&self.progress)
    }

    /// Returns the request points after which responses hid rounds from the client, with the hidden rounds of each
    /// response.
    fn hidden_rounds(&self, prefixes: &PrefixHashes) -> Vec<(usize, Vec<Arc<[HiddenRound]>>)> {
        let by_prefix = self.by_prefix();
        if by_prefix.is_empty() {
            return Vec::new();
        }
        let hidden = |(at, prefix)| Some((at, by_prefix.get(&prefix)?.hidden_rounds.clone()));
        prefixes.longest_first().filter_map(hidden).filter(|(_, hidden)| !hidden.is_empty()).collect()
    }

    /// Records the rounds that the response to this prefix hid from the client. They are on disk when this returns.
    pub(crate) fn record_hidden_rounds(&self, prefix: u128, rounds: Vec<HiddenRound>) {
        let payload = serde_json::to_vec(&rounds).unwrap_or_default();
        let response = xxhash_rust::xxh3::xxh3_64(&payload);
        self.update(prefix, |fact| fact.hidden_rounds.push(rounds.into()));
        self.write_fact(HIDDEN_ROUNDS_KIND, &[&prefix.to_le_bytes()[..], &response.to_le_bytes()].concat(), &payload);
        if let Some(Err(error)) = self.archive.as_ref().map(|archive| archive.request_sync().wait()) {
            tracing::warn!(%error, "archive sync failed; a hidden round may be lost in a power failure");
        }
    }

    /// Returns whether the unfold tool is part of this conversation. `offered` decides at the first request with tools; from
    /// then on the list of tools never changes.
    pub(crate) fn has_tool(&self, offered: bool) -> bool {
        let mut has_tool = lock(&self.has_tool);
        if has_tool.is_none() {
            self.write_fact(TOOL_KIND, TOOL_KIND.as_bytes(), &[u8::from(offered)]);
            *has_tool = Some(offered);
        }
        *has_tool == Some(true)
    }

    /// Returns the originals that were folded in the history of a stored response.
    pub(crate) fn handles(&self, response: u128) -> StoredHandles {
        let by_prefix = self.by_prefix();
        by_prefix.get(&response).into_iter().flat_map(|fact| fact.handles.iter().copied()).collect()
    }

    /// Records the originals that were folded in the history of a stored response.
    pub(crate) fn record_handles(&self, response: u128, stored: &StoredHandles) {
        let handles = stored.handles();
        if handles.is_empty() {
            return;
        }
        self.write_fact(HANDLES_KIND, &response.to_le_bytes(), &serde_json::to_vec(&handles).unwrap_or_default());
        self.update(response, |fact| fact.handles = handles);
    }

    /// Records that the provider's cache was cold at this prefix.
    fn record_cold_cache(&self, prefix: u128) {
        self.update(prefix, |fact| fact.cold_cache = true);
        self.write_fact(COLD_CACHE_KIND, &prefix.to_le_bytes(), &[]);
    }

    /// Sets the budget from this prefix on.
    fn set_budget(&self, prefix: u128, budget: Tokens) {
        self.update(prefix, |fact| fact.budget = Some(budget));
    }

    /// Records that this conversation was accepted only after it was folded to this budget, which later requests keep.
    pub(crate) fn hold_budget(&self, prefixes: &PrefixHashes, budget: Tokens) {
        self.set_budget(prefixes.full(), budget);
        self.persist_budgets(prefixes);
        *lock(&self.ceiling) = Some((budget, Instant::now()));
    }

    /// Writes the budgets to the ledger: from now on a rendering depends on them.
    fn persist_budgets(&self, prefixes: &PrefixHashes) {
        let budgets = self.ledger(prefixes).budgets;
        for (at, budget) in budgets {
            self.write_fact(BUDGET_KIND, &prefixes.prefix(at).to_le_bytes(), &budget.to_le_bytes());
        }
    }

    fn by_prefix(&self) -> MutexGuard<'_, HashMap<u128, PrefixFacts>> {
        lock(&self.by_prefix)
    }

    fn update(&self, prefix: u128, change: impl FnOnce(&mut PrefixFacts)) {
        change(self.by_prefix().entry(prefix).or_default());
    }

    fn write_fact(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) {
        let recorded = self.archive.as_ref().map(|archive| archive.write_fact(kind, fingerprint, payload));
        if let Some(Err(error)) = recorded {
            // This rendering is correct; it differs after a restart only if it depends on this fact.
            tracing::warn!(%error, kind, "cannot write a fact to the ledger");
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the newest pins among the facts of a session. Fingerprints are times, so the greatest is the newest.
pub(crate) fn newest_pins(facts: &[LedgerFact]) -> PinPatterns {
    let pins = facts.iter().filter(|fact| fact.kind == SESSION_PINS_KIND);
    let newest = pins.max_by(|one, other| one.fingerprint.cmp(&other.fingerprint));
    newest.and_then(|fact| serde_json::from_slice(&fact.payload).ok()).unwrap_or_default()
}

/// Marks a summary as being written until it is dropped.
pub(crate) struct SummaryGuard(Arc<SessionFacts>);

impl SummaryGuard {
    /// Records the cost of the summary, and the summary if there is one.
    pub(crate) fn finish_summary(self, prefixes: &PrefixHashes, cost: ModelSpend, summary: Option<PreparedSummary>) {
        let mut progress = self.0.progress();
        progress.cost = progress.cost.plus(cost);
        drop(progress);
        if let Some(summary) = summary {
            self.0.add_summary(prefixes, summary);
        }
    }
}

impl Drop for SummaryGuard {
    fn drop(&mut self) {
        self.0.progress().in_progress = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::{Conversation, Role};

    fn prefixes(words: &[&'static str]) -> PrefixHashes {
        let messages = words.iter().map(|word| Message::text(Role::User, *word)).collect();
        PrefixHashes::for_conversation(&[], &Conversation { messages, ..Conversation::default() })
    }

    /// A client that edits its history makes all folds after the edit be computed again.
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
    fn facts_survive_restart() {
        let folder = tempfile::tempdir().unwrap();
        let store = foldline_archive::Archive::open(folder.path().join("a.db")).unwrap();
        let archive = store.tenant(&foldline_archive::Namespace::local());
        let grown = prefixes(&["a", "b", "c"]);
        let load = || SessionFacts::load(Some(archive.in_session("s".to_owned())));
        let facts = load();
        facts.record_cold_cache(grown.prefix(2));
        facts.set_budget(grown.prefix(0), 9_000);
        facts.set_budget(grown.prefix(3), 7_000);
        facts.persist_budgets(&grown);
        let ledger = facts.ledger(&grown);
        assert_eq!(ledger.cold_points, [2].into());
        assert_eq!(ledger.budgets, [(0, 9_000), (3, 7_000)].into());
        let again = load();
        assert_eq!(again.ledger(&grown), ledger);
        assert_eq!(again.ledger(&prefixes(&["a", "x"])).cold_points.len(), 0, "another continuation");
    }
}
