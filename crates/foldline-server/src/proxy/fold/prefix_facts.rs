//! The facts about prefixes of a conversation, and their form in the archive's ledger.
//!
//! Every fact reaches memory through [`FactTable::add`], whether it was read from the ledger or was just written, so that
//! all proxies know the same. The order in which facts arrive does not matter.

use std::collections::HashMap;
use std::sync::Arc;

use foldline::engine::{FoldRecord, PinPatterns, PrefixSummary};
use foldline::tokens::Tokens;
use foldline::wire::HiddenRound;
use foldline::{Handle, Ledger};
use foldline_archive::LedgerFact;
use foldline_summarize::PreparedSummary;

use crate::proxy::fold::prefix_id::PrefixHashes;

/// Kinds of facts in the archive's ledger.
pub(crate) const COLD_CACHE_KIND: &str = "cold_cache";
pub(crate) const BUDGET_KIND: &str = "budget";
pub(crate) const FOLDS_KIND: &str = "folds";
pub(crate) const CEILING_KIND: &str = "ceiling";
pub(crate) const HIDDEN_ROUNDS_KIND: &str = "hidden_rounds";
pub(crate) const SUMMARY_KIND: &str = "summary";
pub(crate) const ADOPTED_SUMMARY_KIND: &str = "adopted_summary";
pub(crate) const HANDLES_KIND: &str = "handles";
pub(crate) const TOOL_KIND: &str = "tool";
pub(crate) const ADOPTED_PINS_KIND: &str = "adopted_pins";
/// Pins that a user set; the newest fact of a session counts.
pub(crate) const SESSION_PINS_KIND: &str = "session_pins";
/// Bytes of the prefix hash at the start of each fingerprint.
const PREFIX_HASH_BYTES: usize = size_of::<u128>();

/// The hidden rounds of each response to a request point.
pub(crate) type HiddenRoundsByPoint = Vec<(usize, Vec<Arc<[HiddenRound]>>)>;

/// A fact as it is in the ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FactContent<'f> {
    pub(crate) kind: &'f str,
    pub(crate) fingerprint: &'f [u8],
    pub(crate) payload: &'f [u8],
    /// Time at which it was recorded, in milliseconds since 1970.
    pub(crate) at: i64,
    /// False if it could not be written.
    pub(crate) is_recorded: bool,
}

impl<'f> From<&'f LedgerFact> for FactContent<'f> {
    fn from(fact: &'f LedgerFact) -> Self {
        let LedgerFact { kind, fingerprint, payload, at, .. } = fact;
        Self { kind, fingerprint, payload, at: *at, is_recorded: true }
    }
}

/// The facts of a session.
#[derive(Debug, Default)]
pub(crate) struct FactTable {
    by_prefix: HashMap<u128, PrefixFacts>,
    /// True if the unfold tool is part of the conversation; `None` before the first request with tools.
    pub(crate) has_tool: Option<bool>,
    /// The budget of a retry that succeeded after a refusal, and its time in milliseconds since 1970.
    pub(crate) ceiling: Option<(Tokens, i64)>,
}

/// The facts about one prefix of a conversation.
#[derive(Clone, Debug, Default)]
struct PrefixFacts {
    cold_cache: bool,
    budget: Option<PrefixBudget>,
    /// Records of the folds that were decided at this prefix.
    records: Vec<Arc<FoldRecord>>,
    /// Rounds hidden from the client, for each response to this prefix, oldest first, with its time and its hash.
    hidden_rounds: Vec<(i64, u64, Arc<[HiddenRound]>)>,
    /// A summary of this prefix.
    summary: Option<Arc<PreparedSummary>>,
    /// After this prefix, the summary of this other prefix is used.
    adopted_summary: Option<u128>,
    /// Originals folded in the history of a stored response.
    handles: Vec<Handle>,
    /// Pins from this prefix on, and the time at which they were adopted.
    pins: Option<(i64, PinPatterns)>,
}

/// The budget and the decision rules that apply from a prefix on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DecisionBudget {
    pub(crate) tokens: Tokens,
    /// Hash of the rules by which folds are decided.
    pub(crate) rules: u64,
}

impl DecisionBudget {
    /// Returns its form in the ledger.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [self.tokens.to_le_bytes(), self.rules.to_le_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tokens, rules) = bytes.split_first_chunk()?;
        Some(Self { tokens: Tokens::from_le_bytes(*tokens), rules: u64::from_le_bytes(rules.try_into().ok()?) })
    }
}

/// The budget from a prefix on.
#[derive(Clone, Copy, Debug)]
struct PrefixBudget {
    decision: DecisionBudget,
    is_recorded: bool,
}

impl FactTable {
    /// Adds a fact. Returns the summary if it is one that was not known. A fact of a later version is ignored.
    pub(crate) fn add(&mut self, fact: FactContent<'_>) -> Option<Arc<PreparedSummary>> {
        let FactContent { kind, fingerprint, payload, at, is_recorded } = fact;
        if kind == TOOL_KIND {
            self.has_tool = Some(payload == [1]);
            return None;
        }
        let (prefix, rest) = fingerprint.split_first_chunk::<PREFIX_HASH_BYTES>()?;
        let entry = self.by_prefix.entry(u128::from_le_bytes(*prefix)).or_default();
        match kind {
            COLD_CACHE_KIND => entry.cold_cache = true,
            BUDGET_KIND => {
                let budget = PrefixBudget { decision: DecisionBudget::from_bytes(payload)?, is_recorded };
                // A refusal lowers the budget of a request; the lowest counts, whichever is known first.
                let is_new = entry.budget.is_none_or(|known| budget.decision <= known.decision);
                entry.budget = if is_new { Some(budget) } else { entry.budget };
            }
            FOLDS_KIND => {
                let basis = u64::from_le_bytes(rest.try_into().ok()?);
                if entry.records.iter().all(|known| known.basis() != basis) {
                    let record: FoldRecord = serde_json::from_slice(payload).ok()?;
                    entry.records.extend((record.basis() == basis).then(|| Arc::new(record)));
                }
            }
            CEILING_KIND => {
                let ceiling = (parse_tokens(payload)?, at);
                self.ceiling = self.ceiling.filter(|(_, since)| *since > at).or(Some(ceiling));
            }
            HIDDEN_ROUNDS_KIND => {
                let response = u64::from_le_bytes(rest.try_into().ok()?);
                let rounds: Vec<HiddenRound> = serde_json::from_slice(payload).ok()?;
                entry.hidden_rounds.retain(|(_, known, _)| *known != response);
                entry.hidden_rounds.push((at, response, rounds.into()));
                entry.hidden_rounds.sort_by_key(|(at, response, _)| (*at, *response));
            }
            SUMMARY_KIND if entry.summary.is_none() => {
                entry.summary = serde_json::from_slice(payload).ok().map(Arc::new);
                return entry.summary.clone();
            }
            ADOPTED_SUMMARY_KIND => {
                let adopted = payload.try_into().ok().map(u128::from_le_bytes);
                entry.adopted_summary = entry.adopted_summary.or(adopted);
            }
            ADOPTED_PINS_KIND if entry.pins.as_ref().is_none_or(|(since, _)| *since <= at) => {
                entry.pins = serde_json::from_slice(payload).ok().map(|pins| (at, pins));
            }
            HANDLES_KIND => entry.handles = serde_json::from_slice(payload).unwrap_or_default(),
            _ => {}
        }
        None
    }

    /// Forgets the budgets that are not in the ledger: other proxies do not know them.
    pub(crate) fn forget_unrecorded_budgets(&mut self) {
        for fact in self.by_prefix.values_mut() {
            fact.budget = fact.budget.filter(|budget| budget.is_recorded);
        }
    }

    /// Returns the budgets of a conversation that are not in the ledger, and their prefixes.
    pub(crate) fn unrecorded_budgets(&self, prefixes: &PrefixHashes) -> Vec<(u128, DecisionBudget)> {
        let budget = |(_, prefix)| Some((prefix, self.by_prefix.get(&prefix)?.budget?));
        let budgets = prefixes.longest_first().filter_map(budget).filter(|(_, budget)| !budget.is_recorded);
        budgets.map(|(prefix, budget)| (prefix, budget.decision)).collect()
    }

    /// Returns the record of the folds at a prefix with this basis.
    pub(crate) fn record(&self, prefix: u128, basis: u64) -> Option<Arc<FoldRecord>> {
        self.by_prefix.get(&prefix)?.records.iter().find(|record| record.basis() == basis).cloned()
    }

    /// Returns the ledger of a conversation for the engine.
    pub(crate) fn ledger(&self, prefixes: &PrefixHashes) -> Ledger {
        let mut ledger = Ledger::default();
        if self.by_prefix.is_empty() {
            return ledger;
        }
        for (at, prefix) in prefixes.longest_first() {
            let Some(fact) = self.by_prefix.get(&prefix) else { continue };
            if fact.cold_cache {
                ledger.cold_points.insert(at);
            }
            ledger.budgets.extend(fact.budget.map(|budget| (at, budget.decision.tokens)));
            ledger.rules.extend(fact.budget.map(|budget| (at, budget.decision.rules)));
            if !fact.records.is_empty() {
                ledger.records.insert(at, fact.records.clone());
            }
            ledger.pins.extend(fact.pins.clone().map(|(_, pins)| (at, pins)));
            let adopted = fact.adopted_summary.and_then(|prefix| self.by_prefix.get(&prefix)?.summary.as_ref());
            let adopted = adopted.map(|summary| PrefixSummary { until: summary.until(), text: summary.text().into() });
            ledger.summaries.extend(adopted.map(|summary| (at, summary)));
        }
        ledger
    }

    /// Returns true if some prefix has pins.
    pub(crate) fn has_pins(&self) -> bool {
        self.by_prefix.values().any(|fact| fact.pins.is_some())
    }

    /// Returns the summary of the longest prefix of a conversation.
    pub(crate) fn latest_summary(&self, prefixes: &PrefixHashes) -> Option<Arc<PreparedSummary>> {
        prefixes.longest_first().find_map(|(_, prefix)| self.by_prefix.get(&prefix)?.summary.clone())
    }

    /// Returns true if a request has adopted the summary of this prefix. A second adoption at an earlier point would
    /// change what the first depends on.
    pub(crate) fn is_adopted(&self, summarized: u128) -> bool {
        self.by_prefix.values().any(|fact| fact.adopted_summary == Some(summarized))
    }

    /// Returns the request points after which responses hid rounds from the client, with the hidden rounds of each
    /// response.
    pub(crate) fn hidden_rounds(&self, prefixes: &PrefixHashes) -> HiddenRoundsByPoint {
        if self.by_prefix.is_empty() {
            return Vec::new();
        }
        let hidden = |(at, prefix)| {
            let rounds = self.by_prefix.get(&prefix)?.hidden_rounds.iter().map(|(_, _, rounds)| rounds.clone());
            Some((at, rounds.collect::<Vec<_>>()))
        };
        prefixes.longest_first().filter_map(hidden).filter(|(_, hidden)| !hidden.is_empty()).collect()
    }

    /// Returns the originals that were folded in the history of a stored response.
    pub(crate) fn handles(&self, response: u128) -> &[Handle] {
        self.by_prefix.get(&response).map_or(&[], |fact| &fact.handles)
    }
}

fn parse_tokens(payload: &[u8]) -> Option<Tokens> {
    payload.try_into().ok().map(Tokens::from_le_bytes)
}

/// Returns the newest pins among the facts of a session. Fingerprints are times, so the greatest is the newest.
pub(crate) fn newest_pins(facts: &[LedgerFact]) -> PinPatterns {
    let pins = facts.iter().filter(|fact| fact.kind == SESSION_PINS_KIND);
    let newest = pins.max_by(|one, other| one.fingerprint.cmp(&other.fingerprint));
    newest.and_then(|fact| serde_json::from_slice(&fact.payload).ok()).unwrap_or_default()
}
