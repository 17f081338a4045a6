//! The facts that the renderings of a conversation depend on, besides the conversation itself.
//!
//! They are written to the archive's ledger before a rendering that depends on them is sent, so that a restart and
//! another proxy compute the same bytes. The ledger is read again when another proxy served the request before
//! ([`SessionFacts::refresh`]). A request gets its facts once ([`SessionFacts::known`]), adopts what applies from it on
//! ([`SessionFacts::adopt`]), and records what its fold decided ([`SessionFacts::record_fold`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldline::engine::{FoldRecord, PinPatterns};
use foldline::tokens::Tokens;
use foldline::wire::HiddenRound;
use foldline::{Ledger, Message};
use foldline_archive::{Error, TenantArchive};
use foldline_summarize::{ModelSpend, PreparedSummary};

use crate::activity::now_millis;
use crate::proxy::fold::archive_writer::StoredHandles;
use crate::proxy::fold::known_requests::KnownRequests;
use crate::proxy::fold::prefix_facts::{
    ADOPTED_PINS_KIND, ADOPTED_SUMMARY_KIND, BUDGET_KIND, CEILING_KIND, COLD_CACHE_KIND, DecisionBudget, FOLDS_KIND,
    FactContent, FactTable, HANDLES_KIND, HIDDEN_ROUNDS_KIND, HiddenRoundsByPoint, SUMMARY_KIND, TOOL_KIND,
    newest_pins,
};
use crate::proxy::fold::prefix_id::PrefixHashes;

/// Returns the archive's session name of a conversation whose client sends none.
pub(crate) fn session_name(root: u128) -> String {
    format!("{root:032x}")
}

/// Maximum number of names of clients that a conversation remembers.
const MAX_KNOWN_NAMES: usize = 64;

/// External facts on which the renderings of a conversation depend, each about one of its prefixes.
#[derive(Default)]
pub(crate) struct SessionFacts {
    table: Mutex<FactTable>,
    /// The session's ledger.
    archive: Option<TenantArchive>,
    requests: Mutex<KnownRequests>,
    progress: Mutex<SummaryProgress>,
    fold_counts: Mutex<FoldCounts>,
    unfolds: Mutex<UnfoldTotals>,
    /// Pins of the session when the facts were read.
    recorded_pins: Mutex<PinPatterns>,
    /// Names that clients gave the session, which refer to this ledger.
    client_sessions: Mutex<BTreeSet<String>>,
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

impl SummaryProgress {
    /// Starts a summary of this many messages. Returns false if one is being written.
    fn start(&mut self, messages: usize) -> bool {
        if self.in_progress {
            return false;
        }
        (self.last_started_len, self.in_progress) = (messages, true);
        true
    }
}

/// Number of folds by pass.
pub(crate) type FoldCounts = HashMap<&'static str, u64>;

/// The facts about a conversation at one of its requests.
pub(crate) struct KnownFacts {
    /// Facts for the engine.
    pub(crate) ledger: Ledger,
    /// Summary of the longest prefix, and whether a request has adopted it.
    pub(crate) newest_summary: Option<Arc<PreparedSummary>>,
    pub(crate) is_summary_adopted: bool,
    pub(crate) summary_progress: SummaryProgress,
    /// The budget of a retry that succeeded after a refusal, and its time in milliseconds since 1970.
    ceiling: Option<(Tokens, i64)>,
}

impl KnownFacts {
    /// Returns the budget that the conversation keeps after a refusal, until `lifetime` has passed.
    pub(crate) fn ceiling(&self, lifetime: Duration) -> Tokens {
        self.ceiling.filter(|(_, since)| age(*since) < lifetime).map_or(Tokens::MAX, |(budget, _)| budget)
    }
}

/// Returns the time since a point in milliseconds since 1970.
fn age(since: i64) -> Duration {
    Duration::from_millis(u64::try_from(now_millis() - since).unwrap_or(0))
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

impl SessionFacts {
    /// Creates the facts of a session, whose ledger was not read yet.
    pub(crate) fn new(archive: Option<TenantArchive>) -> Self {
        Self { archive, ..Self::default() }
    }

    /// Reads the ledger, unless this proxy served the request before: then all facts are in memory. Pins are also read
    /// from the session with the name that the client sent. Returns true if the ledger was read.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read. The next request reads again, and this one has the facts that are known.
    pub(crate) fn refresh(&self, prefixes: &PrefixHashes, client_session: Option<&str>) -> Result<bool, Error> {
        let Some(archive) = &self.archive else { return Ok(false) };
        if let Some(name) = client_session {
            self.join_session(archive, name);
        }
        if lock(&self.requests).has_predecessor(prefixes) {
            return Ok(false);
        }
        let ledger = archive.session_ledger(client_session)?;
        *lock(&self.recorded_pins) = newest_pins(&ledger.facts);
        let mut table = self.table();
        table.forget_unrecorded_budgets();
        let new_summaries = ledger.facts.iter().filter_map(|fact| table.add(fact.into()));
        let cost = new_summaries.map(|summary| summary.spent).reduce(ModelSpend::plus);
        drop(table);
        let mut progress = self.progress();
        progress.cost = cost.map_or(progress.cost, |cost| progress.cost.plus(cost));
        let mut requests = lock(&self.requests);
        requests.is_read = true;
        if let Some(previous) = prefixes.previous_request() {
            requests.add(previous, ledger.used_at, true);
        }
        Ok(true)
    }

    /// Records that a session with a name that the client sent includes this conversation, so that the facts are deleted
    /// with it. If that fails, the next request tries again.
    fn join_session(&self, archive: &TenantArchive, name: &str) {
        if lock(&self.client_sessions).contains(name) {
            return;
        }
        match archive.join_session(name) {
            Ok(()) => {
                let mut names = lock(&self.client_sessions);
                if names.len() >= MAX_KNOWN_NAMES {
                    names.clear();
                }
                names.insert(name.to_owned());
            }
            Err(error) => tracing::warn!(%error, "cannot record the session of a conversation"),
        }
    }

    /// Forgets which sessions include this conversation: one of them was deleted.
    pub(crate) fn forget_client_sessions(&self) {
        lock(&self.client_sessions).clear();
    }

    /// Records that no other proxy writes the ledger of this session, so that it need not be read.
    pub(crate) fn skip_reading(&self) {
        lock(&self.requests).is_read = true;
    }

    /// Returns the time since the provider received the conversation; `None` if it is not known.
    pub(crate) fn idle_time(&self, prefixes: &PrefixHashes) -> Option<Duration> {
        lock(&self.requests).idle_time(prefixes)
    }

    /// Records that a request is sent now, without waiting. `is_answered` if no facts of its response can follow.
    pub(crate) fn note_sent(&self, prefix: u128, is_answered: bool) {
        lock(&self.requests).add(prefix, Some(now_millis()), is_answered);
        // If it is lost, another proxy assumes that the session was not used since.
        let _ = self.archive.as_ref().map(TenantArchive::touch_session);
    }

    /// Records that all facts of the response to a request are recorded.
    pub(crate) fn note_answered(&self, prefix: u128) {
        lock(&self.requests).set_answered(prefix);
    }

    /// Returns the pins of the session when its facts were read.
    pub(crate) fn recorded_pins(&self) -> PinPatterns {
        lock(&self.recorded_pins).clone()
    }

    /// Returns the facts about a conversation. A cold cache is recorded first, because it is one of them.
    pub(crate) fn known(&self, prefixes: &PrefixHashes, cache: ProviderCache) -> KnownFacts {
        if cache == ProviderCache::Cold {
            self.record_cold_cache(prefixes.full());
        }
        let (table, summary_progress) = (self.table(), *self.progress());
        let newest_summary = table.latest_summary(prefixes);
        let newest = newest_summary.as_ref().map(|summary| prefixes.prefix(summary.until()));
        KnownFacts {
            ledger: table.ledger(prefixes),
            is_summary_adopted: newest.is_some_and(|summarized| table.is_adopted(summarized)),
            newest_summary,
            summary_progress,
            ceiling: table.ceiling,
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

    /// Records what a fold decided: the budget from a request point on, and which folds there are. A budget that could
    /// not be written is written again if a crease depends on it. Returns how many folds of each pass are new.
    pub(crate) fn record_fold(
        &self,
        prefixes: &PrefixHashes,
        budget: Option<(usize, DecisionBudget)>,
        has_new_crease: bool,
        passes: impl Iterator<Item = &'static str>,
    ) -> FoldCounts {
        if let Some((from, budget)) = budget {
            self.record_budget(prefixes.prefix(from), budget);
        }
        if has_new_crease {
            let unrecorded = self.table().unrecorded_budgets(prefixes);
            unrecorded.into_iter().for_each(|(prefix, budget)| self.record_budget(prefix, budget));
        }
        self.count_new_folds(passes)
    }

    /// Records that pins apply from this request on, if they differ from those that apply to its prefixes.
    fn adopt_pins(&self, prefixes: &PrefixHashes, pins: &PinPatterns) {
        if pins.is_empty() && !self.table().has_pins() {
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
        self.record_fact(ADOPTED_PINS_KIND, &[&prefix.to_le_bytes()[..], &change.to_le_bytes()].concat(), &payload);
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
        self.table().ledger(prefixes)
    }

    /// Returns the rounds that responses to requests of this conversation hid from the client.
    pub(crate) fn hidden_rounds(&self, prefixes: &PrefixHashes) -> HiddenRoundsByPoint {
        self.table().hidden_rounds(prefixes)
    }

    /// Returns the summary of the longest prefix of this conversation.
    pub(crate) fn latest_summary(&self, prefixes: &PrefixHashes) -> Option<Arc<PreparedSummary>> {
        self.table().latest_summary(prefixes)
    }

    /// Records a summary of a prefix. It is used from the request on that adopts it.
    fn add_summary(&self, prefixes: &PrefixHashes, summary: &PreparedSummary) {
        let prefix = prefixes.prefix(summary.until());
        let fingerprint = [&prefix.to_le_bytes()[..], summary.fingerprint().as_bytes()].concat();
        self.record_fact(SUMMARY_KIND, &fingerprint, &serde_json::to_vec(summary).unwrap_or_default());
    }

    /// Adopts the latest summary, if it matches these messages and is not adopted yet: from this request on if `is_open`,
    /// otherwise after it. The adoption is recorded before anything depends on it, so that earlier requests are rendered
    /// the same.
    fn adopt_summary(&self, prefixes: &PrefixHashes, messages: &[Message<'_>], is_open: bool) {
        let Some(summary) = self.latest_summary(prefixes) else { return };
        let summarized = prefixes.prefix(summary.until());
        if self.table().is_adopted(summarized) || !summary.is_fresh(messages) {
            return;
        }
        let adopter = prefixes.prefix(prefixes.len().saturating_sub(usize::from(is_open)));
        self.record_fact(ADOPTED_SUMMARY_KIND, &adopter.to_le_bytes(), &summarized.to_le_bytes());
    }

    /// Starts a summary, unless one is being written.
    pub(crate) fn start_summary(self: &Arc<Self>, messages: usize) -> Option<SummaryGuard> {
        self.progress().start(messages).then(|| SummaryGuard(self.clone()))
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

    /// Records the rounds that the response to this prefix hid from the client. They are on disk when this returns.
    pub(crate) fn record_hidden_rounds(&self, prefix: u128, rounds: &[HiddenRound]) {
        let payload = serde_json::to_vec(rounds).unwrap_or_default();
        let response = xxhash_rust::xxh3::xxh3_64(&payload);
        self.record_fact(HIDDEN_ROUNDS_KIND, &[&prefix.to_le_bytes()[..], &response.to_le_bytes()].concat(), &payload);
        if let Some(Err(error)) = self.archive.as_ref().map(|archive| archive.request_sync().wait()) {
            tracing::warn!(%error, "archive sync failed; a hidden round may be lost in a power failure");
        }
    }

    /// Returns whether the unfold tool is part of this conversation. `offered` decides at the first request with tools; from
    /// then on the list of tools never changes.
    pub(crate) fn has_tool(&self, offered: bool) -> bool {
        if self.table().has_tool.is_none() {
            self.record_fact(TOOL_KIND, TOOL_KIND.as_bytes(), &[u8::from(offered)]);
        }
        self.table().has_tool == Some(true)
    }

    /// Returns the originals that were folded in the history of a stored response.
    pub(crate) fn handles(&self, response: u128) -> StoredHandles {
        self.table().handles(response).iter().copied().collect()
    }

    /// Records the originals that were folded in the history of a stored response.
    pub(crate) fn record_handles(&self, response: u128, stored: &StoredHandles) {
        let handles = stored.handles();
        if handles.is_empty() {
            return;
        }
        self.record_fact(HANDLES_KIND, &response.to_le_bytes(), &serde_json::to_vec(&handles).unwrap_or_default());
    }

    /// Records that the provider's cache was cold at this prefix.
    fn record_cold_cache(&self, prefix: u128) {
        self.record_fact(COLD_CACHE_KIND, &prefix.to_le_bytes(), &[]);
    }

    /// Records the budget and the decision rules from this prefix on.
    fn record_budget(&self, prefix: u128, budget: DecisionBudget) {
        // A prefix may get a second budget, after a refusal.
        let payload = budget.to_bytes();
        self.record_fact(BUDGET_KIND, &[&prefix.to_le_bytes()[..], &payload].concat(), &payload);
    }

    /// Records the folds that a request decided. Returns the record that counts: another proxy may have written one
    /// before. Returns `None` if there is no archive, or if it cannot be written; then the next request tries again.
    pub(crate) fn record_folds(&self, prefix: u128, record: &FoldRecord) -> Option<Arc<FoldRecord>> {
        let archive = self.archive.as_ref()?;
        let fingerprint = [&prefix.to_le_bytes()[..], &record.basis().to_le_bytes()].concat();
        let payload = serde_json::to_vec(record).unwrap_or_default();
        let stored = archive.write_fact(FOLDS_KIND, &fingerprint, &payload);
        let stored = stored.inspect_err(|error| tracing::warn!(%error, "cannot write the folds of a request")).ok()?;
        let mut table = self.table();
        table.add((&stored).into());
        table.record(prefix, record.basis())
    }

    fn table(&self) -> MutexGuard<'_, FactTable> {
        lock(&self.table)
    }

    /// Writes a fact to the ledger, and adds the one that counts: another proxy may have written it before.
    fn record_fact(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) {
        let recorded = self.archive.as_ref().map(|archive| archive.write_fact(kind, fingerprint, payload));
        let unrecorded = FactContent { kind, fingerprint, payload, at: now_millis(), is_recorded: false };
        match recorded {
            Some(Ok(stored)) => self.table().add((&stored).into()),
            Some(Err(error)) => {
                // This rendering is correct; it differs after a restart only if it depends on this fact.
                tracing::warn!(%error, kind, "cannot write a fact to the ledger");
                self.table().add(unrecorded)
            }
            None => self.table().add(unrecorded),
        };
    }
}

/// The budget of a retry after a refusal. It becomes a fact of the conversation when the retry is accepted; a retry
/// that is refused as well has no effect.
pub(crate) struct TightBudget {
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) budget: DecisionBudget,
    /// New folds of the retry.
    pub(crate) record: Option<FoldRecord>,
}

impl TightBudget {
    /// Records that the conversation was accepted only after it was folded to this budget, which later requests keep.
    pub(crate) fn hold(&self) {
        let (facts, prefix) = (&self.facts, self.prefixes.full());
        facts.record_budget(prefix, self.budget);
        facts.record_fact(CEILING_KIND, &prefix.to_le_bytes(), &self.budget.tokens.to_le_bytes());
        if let Some(record) = &self.record {
            facts.record_folds(prefix, record);
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.0.add_summary(prefixes, &summary);
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

    /// Requests of an agent: each has the task, and an assistant turn and a result for every turn before it.
    fn turn(turns: usize) -> PrefixHashes {
        let rounds = (0..turns)
            .flat_map(|_| [Message::text(Role::Assistant, "Reading on."), Message::text(Role::User, "The result.")]);
        let messages = std::iter::once(Message::text(Role::User, "The task.")).chain(rounds).collect();
        PrefixHashes::for_conversation(&[], &Conversation { messages, ..Conversation::default() })
    }

    #[test]
    fn ledger_is_read_only_after_foreign_turns() {
        let folder = tempfile::tempdir().unwrap();
        let open = || foldline_archive::Archive::open(folder.path().join("a.db")).unwrap();
        let [one, other] = [open(), open()].map(|archive| {
            let archive = archive.tenant(&foldline_archive::Namespace::local());
            SessionFacts::new(Some(archive.in_session("s".to_owned())))
        });
        let serve = |facts: &SessionFacts, at: usize| {
            let has_read = facts.refresh(&turn(at), None).unwrap();
            facts.note_sent(turn(at).full(), false);
            facts.record_budget(turn(at).full(), DecisionBudget { tokens: 9_000 - at as Tokens, rules: 1 });
            facts.note_answered(turn(at).full());
            has_read
        };
        assert_eq!([serve(&one, 0), serve(&one, 1), serve(&one, 2)], [true, false, false]);
        assert_eq!([serve(&other, 3), serve(&other, 4)], [true, false]);
        assert_eq!([serve(&one, 5), serve(&one, 5), serve(&one, 6)], [true, false, false]);
        assert_eq!(one.ledger(&turn(6)).budgets.len(), 7);
        other.note_sent(turn(7).full(), false);
        assert!(other.refresh(&turn(8), None).unwrap(), "its answer may be another replica's");
    }

    #[test]
    fn facts_survive_restart() {
        let folder = tempfile::tempdir().unwrap();
        let store = foldline_archive::Archive::open(folder.path().join("a.db")).unwrap();
        let archive = store.tenant(&foldline_archive::Namespace::local());
        let grown = prefixes(&["a", "b", "c"]);
        let load = || {
            let facts = SessionFacts::new(Some(archive.in_session("s".to_owned())));
            assert!(facts.refresh(&grown, None).unwrap());
            facts
        };
        let facts = load();
        facts.record_cold_cache(grown.prefix(2));
        facts.record_budget(grown.prefix(0), DecisionBudget { tokens: 9_000, rules: 1 });
        facts.record_budget(grown.prefix(3), DecisionBudget { tokens: 7_000, rules: 1 });
        let ledger = facts.ledger(&grown);
        assert_eq!(ledger.cold_points, [2].into());
        assert_eq!(ledger.budgets, [(0, 9_000), (3, 7_000)].into());
        let again = load();
        assert_eq!(again.ledger(&grown), ledger);
        assert_eq!(again.ledger(&prefixes(&["a", "x"])).cold_points.len(), 0, "another continuation");
    }
}
