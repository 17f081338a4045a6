//! What a fold depends on beside the messages: the setup, what is pinned, and the ledger of facts from outside.
//!
//! Plain values that whoever folds has resolved before. Nothing here decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::conversation::{Conversation, PartId, Role};
use crate::engine::cancel::CancelFlag;
use crate::engine::policy::Policy;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::summary::PrefixSummary;
use crate::laws::{Law, LawProfile};
use crate::models::prices::Prices;
use crate::tokens::{Meter, Tokens};
use crate::wire::Format;

/// What a fold depends on beside the messages. Two folds with equal setups, ledgers and messages give
/// equal bytes.
#[derive(Clone)]
#[non_exhaustive]
pub struct FoldOptions {
    /// Counts tokens.
    pub meter: Meter,
    /// What tokens cost.
    pub prices: Prices,
    /// Tokens that a request may have.
    pub budget: Tokens,
    /// What is folded, and when.
    pub policy: Policy,
    /// Markers carry handles: an archive keeps the originals, and there is a way to ask for them.
    pub handles: bool,
    /// What must never be folded.
    pub pins: PinRules,
    /// Tokens of the request beside its messages: system, tools, overhead.
    pub overhead_tokens: Tokens,
    /// Which old reasoning the provider lets go.
    pub reasoning_retention: ReasoningRetention,
    /// The provider binds reasoning to all that stood before it.
    pub signed_history: bool,
    /// The server wants user and assistant to take turns.
    pub alternate_roles: bool,
    /// The provider wants a turn that is in the middle of its calls to begin with reasoning.
    pub turn_starts_with_reasoning: bool,
    /// Stops the fold when the caller sets it.
    pub cancel: CancelFlag,
}

/// Which old reasoning may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningRetention {
    /// None.
    KeepAll,
    /// That of turns before the last word of the user.
    DropFinishedTurns,
    /// That of any old round.
    DropOld,
}

impl ReasoningRetention {
    /// What a provider lets go.
    pub fn for_profile(profile: &LawProfile) -> Self {
        match profile.format() {
            Format::Anthropic => ReasoningRetention::DropFinishedTurns,
            Format::OpenAiResponses => ReasoningRetention::KeepAll,
            Format::OpenAiChat if profile.has(Law::ReasoningReturned) || profile.has(Law::ThoughtSignature) => {
                ReasoningRetention::KeepAll
            }
            Format::OpenAiChat => ReasoningRetention::DropOld,
        }
    }
}

/// What must never be folded, beside instructions and the words of users.
///
/// ```
/// use foldline::{Pins, Role};
///
/// let pins = Pins { tools: vec!["todo_write".into()], names: vec!["PLAN.md".into()], ..Pins::default() };
/// let all_that_the_model_wrote = Pins { roles: vec![Role::Assistant], ..Pins::default() };
/// # drop((pins, all_that_the_model_wrote));
/// ```
#[derive(Clone, Default)]
pub struct PinRules {
    /// Results and arguments of these tools.
    pub tools: Vec<String>,
    /// Results and arguments of calls about one of these: a file, a command, a query.
    pub targets: Vec<String>,
    /// All that is said in these roles.
    pub roles: Vec<Role>,
    /// Parts for which this holds.
    pub parts: Option<Arc<dyn Fn(PartId) -> bool + Send + Sync>>,
}

impl PinRules {
    pub(crate) fn matches(&self, piece: &Segment) -> bool {
        if self.tools.is_empty() && self.targets.is_empty() && self.roles.is_empty() && self.parts.is_none() {
            return false;
        }
        let role = match piece.kind {
            SegmentKind::InputText => Role::User,
            SegmentKind::Prose | SegmentKind::Arguments | SegmentKind::Reasoning => Role::Assistant,
            SegmentKind::Media if piece.tool_call.is_none() => Role::User,
            SegmentKind::Result | SegmentKind::Media => Role::Tool,
        };
        let named = |target: &str| self.targets.iter().any(|name| target.contains(name.as_str()));
        self.roles.contains(&role)
            || piece
                .tool_call
                .as_ref()
                .is_some_and(|done| self.tools.contains(&done.tool) || named(&done.action.target))
            || self.parts.as_ref().is_some_and(|pinned| pinned(piece.at))
    }
}

/// Facts from outside that a fold may depend on, each bound to a request point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Request points at which the provider's cache was cold.
    pub cold_points: BTreeSet<usize>,
    /// From a request point on, the budget is this: a server told its real window.
    pub budgets: BTreeMap<usize, Tokens>,
    /// Behind a request point, what somebody wrote about the first messages is known: it may stand at forced creases of
    /// later points.
    pub summaries: BTreeMap<usize, PrefixSummary>,
}

impl Ledger {
    pub(crate) fn budget_at(&self, at: usize, setup: &FoldOptions) -> Tokens {
        self.budgets.range(..=at).next_back().map_or(setup.budget, |(_, &tokens)| tokens)
    }

    /// The newest summary that was known before the request at this point was made.
    pub(crate) fn summary_at(&self, at: usize) -> Option<&PrefixSummary> {
        self.summaries.range(..at).next_back().map(|(_, summary)| summary).filter(|summary| summary.until <= at)
    }
}

impl FoldOptions {
    /// A setup with defaults: the balanced policy, handles off, nothing pinned.
    pub fn new(meter: Meter, prices: Prices, budget: Tokens) -> Self {
        Self {
            meter,
            prices,
            budget,
            policy: Policy::balanced(),
            handles: false,
            pins: PinRules::default(),
            overhead_tokens: 0,
            reasoning_retention: ReasoningRetention::KeepAll,
            signed_history: false,
            alternate_roles: false,
            turn_starts_with_reasoning: false,
            cancel: CancelFlag::default(),
        }
    }

    /// The same, under a provider's laws.
    pub fn with_rules(self, profile: &LawProfile) -> Self {
        Self {
            reasoning_retention: ReasoningRetention::for_profile(profile),
            signed_history: profile.signs_history(),
            alternate_roles: profile.has(Law::Alternation),
            turn_starts_with_reasoning: profile.has(Law::ThinkingFirst) && !profile.has(Law::NoManualThinking),
            ..self
        }
    }

    /// The same, for a request with these instructions and tools.
    pub fn with_overhead_of(self, conversation: &Conversation<'_>) -> Self {
        let meter = &self.meter;
        let fixed = meter.system(&conversation.system) + meter.tools(&conversation.tools) + meter.request_overhead();
        Self { overhead_tokens: fixed, ..self }
    }

    /// Returns this share of the tokens that system and tools leave to the messages.
    pub(crate) fn message_budget(&self, share: f64) -> Tokens {
        (self.budget.saturating_sub(self.overhead_tokens) as f64 * share) as Tokens
    }
}
