//! The inputs of a fold besides the messages: options, pins, and the ledger of facts from outside.
//!
//! Plain values, resolved by the caller. No fold is decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::conversation::{Conversation, Message, PartId, Role};
use crate::engine::cancel::CancelFlag;
use crate::engine::handle::Handle;
use crate::engine::marker::MarkerHandle;
use crate::engine::policy::Policy;
use crate::engine::record::FoldRecord;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::stage::Stage;
use crate::engine::summary::PrefixSummary;
use crate::laws::{Law, LawProfile};
use crate::models::prices::Prices;
use crate::models::table::ModelTable;
use crate::tokens::{Meter, Tokens};
use crate::wire::format::Format;
use crate::wire::rules::OldReasoning;

/// The options of a fold. Two folds with equal options, ledgers and messages give equal bytes.
///
/// ```
/// use foldline::{FoldOptions, Meter, ModelTable, Policy, Prices};
///
/// let (table, model) = (ModelTable::builtin(), Some("gpt-4o"));
/// let mut options = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), 32_000);
/// options.policy = Policy::lossless();
/// assert!(!options.handles, "handles need a store");
/// assert!(FoldOptions::for_model("gpt-4o", 32_000).handles);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FoldOptions {
    /// Token meter of the model.
    pub meter: Meter,
    /// Token prices of the model.
    pub prices: Prices,
    /// Maximum tokens of a request.
    pub budget: Tokens,
    /// Policy: what is folded, and when.
    pub policy: Policy,
    /// True if markers carry handles: an archive holds the originals and the model has a way to unfold them.
    pub handles: bool,
    /// True if handles in markers have hexadecimal digits, for hosts whose retrieval tool accepts nothing else.
    pub hex_handles: bool,
    /// True if no message may be added or removed, so that the caller can put each one back in its place.
    pub keep_messages: bool,
    /// True if the messages are results without the turns that requested them. Each is a round of its own, with a
    /// request point after it.
    pub results_only: bool,
    /// Parts that are never folded.
    pub pins: PinRules,
    /// Tokens of the request besides its messages: system, tools, overhead.
    pub overhead_tokens: Tokens,
    /// Old reasoning that the provider allows to drop.
    pub reasoning_retention: ReasoningRetention,
    /// True if the provider signs reasoning together with all messages before it.
    pub signed_history: bool,
    /// True if the server requires user and assistant messages to alternate.
    pub alternate_roles: bool,
    /// True if arguments of calls may be folded.
    pub edit_arguments: bool,
    /// True if images and files may be folded.
    pub edit_media: bool,
    /// True if the provider requires a turn with open tool calls to start with reasoning.
    pub turn_starts_with_reasoning: bool,
    /// Flag with which the caller stops the fold.
    pub cancel: CancelFlag,
}

/// Old reasoning that may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningRetention {
    /// None.
    KeepAll,
    /// Reasoning of turns before the newest user message.
    DropFinishedTurns,
    /// Reasoning of any old round.
    DropOld,
}

impl ReasoningRetention {
    /// Returns the retention that a provider's laws require.
    pub fn for_profile(profile: &LawProfile) -> Self {
        match profile.rules().old_reasoning {
            OldReasoning::Required => ReasoningRetention::KeepAll,
            OldReasoning::RequiredInOpenTurn => ReasoningRetention::DropFinishedTurns,
            OldReasoning::Optional if profile.has(Law::ReasoningReturned) || profile.has(Law::ThoughtSignature) => {
                ReasoningRetention::KeepAll
            }
            OldReasoning::Optional => ReasoningRetention::DropOld,
        }
    }
}

/// Rules for parts that are never folded, in addition to instructions and user messages.
///
/// ```
/// use foldline::Role;
/// use foldline::engine::PinRules;
///
/// let plan = PinRules { tools: vec!["todo_write".into()], targets: vec!["PLAN.md".into()], ..PinRules::default() };
/// let assistant = PinRules { roles: vec![Role::Assistant], ..PinRules::default() };
/// # drop((plan, assistant));
/// ```
#[derive(Clone, Default)]
pub struct PinRules {
    /// Results and arguments of these tools.
    pub tools: Vec<String>,
    /// Results and arguments of calls whose target contains one of these: a file, a command, a query.
    pub targets: Vec<String>,
    /// All parts in these roles.
    pub roles: Vec<Role>,
    /// Parts for which this function returns true.
    pub parts: Option<Arc<dyn Fn(PartId) -> bool + Send + Sync>>,
}

impl fmt::Debug for PinRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinRules")
            .field("tools", &self.tools)
            .field("targets", &self.targets)
            .field("roles", &self.roles)
            .field("parts", &self.parts.as_ref().map(|_| "a function"))
            .finish()
    }
}

impl PinRules {
    /// Adds patterns that are not among the rules yet.
    pub(crate) fn add(&mut self, patterns: &PinPatterns) {
        let add = |rules: &mut Vec<String>, names: &[String]| {
            let new: Vec<String> = names.iter().filter(|name| !rules.contains(name)).cloned().collect();
            rules.extend(new);
        };
        add(&mut self.tools, &patterns.tools);
        add(&mut self.targets, &patterns.targets);
    }

    pub(crate) fn matches(&self, segment: &Segment) -> bool {
        if self.tools.is_empty() && self.targets.is_empty() && self.roles.is_empty() && self.parts.is_none() {
            return false;
        }
        let role = match segment.kind {
            SegmentKind::InputText => Role::User,
            SegmentKind::Prose | SegmentKind::Arguments | SegmentKind::Reasoning => Role::Assistant,
            SegmentKind::Media if segment.tool_call.is_none() => Role::User,
            SegmentKind::Result | SegmentKind::Media => Role::Tool,
        };
        let is_target = |target: &str| self.targets.iter().any(|name| target.contains(name.as_str()));
        self.roles.contains(&role)
            || segment
                .tool_call
                .as_ref()
                .is_some_and(|call| self.tools.contains(&call.tool) || is_target(&call.action.target))
            || self.parts.as_ref().is_some_and(|pinned| pinned(segment.at))
    }
}

/// Names of tools and targets that a user pins while a conversation goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PinPatterns {
    /// Results and arguments of these tools.
    pub tools: Vec<String>,
    /// Results and arguments of calls whose target contains one of these: a file, a command, a query.
    pub targets: Vec<String>,
}

impl PinPatterns {
    /// Returns true if nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty() && self.targets.is_empty()
    }
}

/// Facts from outside that a fold may depend on, each bound to a request point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Request points at which the provider's cache was cold.
    pub cold_points: BTreeSet<usize>,
    /// Budgets that apply from a request point on, learned from a server that reported its real window.
    pub budgets: BTreeMap<usize, Tokens>,
    /// Summaries of the first messages, by the request point after which each is known. Forced creases at later points
    /// may use them.
    pub summaries: BTreeMap<usize, PrefixSummary>,
    /// Pins that apply from a request point on, in addition to those of the options; each entry replaces the one before.
    /// They hold from the next crease on: what is folded already stays folded.
    pub pins: BTreeMap<usize, PinPatterns>,
    /// Decision rules that apply from a request point on. At points with other rules than those of the options nothing is
    /// decided: there are only the folds of the records.
    pub rules: BTreeMap<usize, u64>,
    /// Records of the folds that were decided at request points. Sessions in memory do not use them.
    pub records: BTreeMap<usize, Vec<Arc<FoldRecord>>>,
}

impl Ledger {
    /// Returns true if the folds of this request point are decided by these rules.
    pub(crate) fn is_decided_by(&self, rules: u64, at: usize) -> bool {
        self.rules.range(..=at).next_back().is_none_or(|(_, &known)| known == rules)
    }

    /// Returns the ledger without what was decided before, so that everything is decided again.
    pub(crate) fn undecided(&self) -> Self {
        Self { rules: BTreeMap::new(), records: BTreeMap::new(), ..self.clone() }
    }

    /// Returns the pins that apply at this request point.
    pub(crate) fn pins_at(&self, at: usize) -> Option<&PinPatterns> {
        self.pins.range(..=at).next_back().map(|(_, pins)| pins)
    }

    pub(crate) fn budget_at(&self, at: usize, options: &FoldOptions) -> Tokens {
        self.budgets.range(..=at).next_back().map_or(options.budget, |(_, &tokens)| tokens)
    }

    /// Returns the newest summary that was known before the request at this point was sent.
    pub(crate) fn summary_at(&self, at: usize) -> Option<&PrefixSummary> {
        self.summaries.range(..at).next_back().map(|(_, summary)| summary).filter(|summary| summary.until <= at)
    }
}

impl FoldOptions {
    /// Creates options with defaults: the balanced policy, no handles, no pins.
    pub fn new(meter: Meter, prices: Prices, budget: Tokens) -> Self {
        Self {
            meter,
            prices,
            budget,
            policy: Policy::balanced(),
            handles: false,
            hex_handles: false,
            keep_messages: false,
            results_only: false,
            pins: PinRules::default(),
            overhead_tokens: 0,
            reasoning_retention: ReasoningRetention::KeepAll,
            signed_history: false,
            alternate_roles: false,
            edit_arguments: true,
            edit_media: true,
            turn_starts_with_reasoning: false,
            cancel: CancelFlag::default(),
        }
    }

    /// Creates options for a model of the built-in table: its meter and prices, the laws of its provider, and markers
    /// with handles. The renderer restores the originals: [`FoldSession`](crate::FoldSession) by itself,
    /// [`apply`](crate::apply()) through a store.
    ///
    /// ```
    /// use foldline::{FoldOptions, Policy};
    ///
    /// let mut options = FoldOptions::for_model("claude-opus-4-6", 100_000);
    /// options.policy = Policy::tight();
    /// assert!(options.handles);
    /// ```
    pub fn for_model(model: &str, budget: Tokens) -> Self {
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, Some(model));
        let profile = LawProfile::for_model(Format::for_provider(&meter.row().provider), Some(model));
        let options = Self::new(meter, Prices::for_model(table, Some(model)), budget).with_rules(&profile);
        Self { handles: true, ..options }
    }

    /// Sets the fields that follow from a provider's laws.
    pub fn with_rules(self, profile: &LawProfile) -> Self {
        Self {
            reasoning_retention: ReasoningRetention::for_profile(profile),
            signed_history: profile.signs_history(),
            alternate_roles: profile.has(Law::Alternation),
            edit_arguments: profile.rules().arguments_are_editable,
            edit_media: profile.rules().media_is_editable,
            turn_starts_with_reasoning: profile.has(Law::ThinkingFirst) && !profile.has(Law::NoManualThinking),
            ..self
        }
    }

    /// Sets the overhead to the tokens of this conversation's system prompt, tools and request overhead.
    pub fn with_overhead_of(self, conversation: &Conversation<'_>) -> Self {
        let meter = &self.meter;
        let overhead_tokens =
            meter.system(&conversation.system) + meter.tools(&conversation.tools) + meter.request_overhead();
        Self { overhead_tokens, ..self }
    }

    /// Returns true if a request was sent before this message.
    pub(crate) fn has_request_point_before(&self, message: &Message<'_>, before: Option<&Message<'_>>) -> bool {
        if self.results_only { before.is_some() } else { message.opens_round(before) }
    }

    /// Returns the first request point after the message at this index.
    pub(crate) fn next_request_point(&self, messages: &[Message<'_>], message: usize) -> usize {
        let is_point = |&at: &usize| self.has_request_point_before(&messages[at], Some(&messages[at - 1]));
        (message + 1..messages.len()).find(is_point).unwrap_or(messages.len())
    }

    /// Returns true if whole rounds may be dropped.
    pub(crate) fn may_drop_rounds(&self) -> bool {
        self.policy.max_stage >= Stage::Rounds && !self.keep_messages && !self.results_only
    }

    /// Returns the form of a handle in a marker; `None` if markers carry none.
    pub(crate) fn marker_handle(&self, handle: impl FnOnce() -> Handle) -> Option<MarkerHandle> {
        let form = if self.hex_handles { MarkerHandle::Hash } else { MarkerHandle::Unfold };
        self.handles.then(|| form(handle()))
    }

    /// Returns this share of the budget that is left for messages after the overhead.
    pub(crate) fn message_budget(&self, share: f64) -> Tokens {
        (self.budget.saturating_sub(self.overhead_tokens) as f64 * share) as Tokens
    }
}
