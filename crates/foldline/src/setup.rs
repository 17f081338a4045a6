//! What a fold depends on beside the messages: the setup, what is pinned, and the ledger of facts from outside.
//!
//! Plain values that whoever folds has resolved before. Nothing here decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cancel::CancelFlag;
use crate::conversation::{Conversation, PartId, Role};
use crate::laws::{Law, Profile};
use crate::measure::{Meter, Tokens};
use crate::piece::{Class, Piece};
use crate::policy::Policy;
use crate::price::Prices;
use crate::summarised::Summarised;
use crate::wire::Format;

/// What a fold depends on beside the messages. Two folds with equal setups, ledgers and messages give
/// equal bytes.
#[derive(Clone)]
#[non_exhaustive]
pub struct Setup {
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
    pub pins: Pins,
    /// Tokens of the request beside its messages: system, tools, overhead.
    pub fixed: Tokens,
    /// Which old reasoning the provider lets go.
    pub thoughts: Thoughts,
    /// The provider binds reasoning to all that stood before it.
    pub signed: bool,
    /// The server wants user and assistant to take turns.
    pub alternate: bool,
    /// The provider wants a turn that is in the middle of its calls to begin with reasoning.
    pub opens_with_thought: bool,
    /// Stops the fold when the caller sets it.
    pub cancel: CancelFlag,
}

/// Which old reasoning may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Thoughts {
    /// None.
    Stay,
    /// That of turns before the last word of the user.
    FinishedTurns,
    /// That of any old round.
    AnyOld,
}

impl Thoughts {
    /// What a provider lets go.
    pub fn under(profile: &Profile) -> Self {
        match profile.format() {
            Format::Anthropic => Thoughts::FinishedTurns,
            Format::OpenAiResponses => Thoughts::Stay,
            Format::OpenAiChat if profile.has(Law::ReasoningBack) || profile.has(Law::ThoughtSignature) => {
                Thoughts::Stay
            }
            Format::OpenAiChat => Thoughts::AnyOld,
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
pub struct Pins {
    /// Results and arguments of these tools.
    pub tools: Vec<String>,
    /// Results and arguments of calls about one of these: a file, a command, a query.
    pub names: Vec<String>,
    /// All that is said in these roles.
    pub roles: Vec<Role>,
    /// Parts for which this holds.
    pub parts: Option<Arc<dyn Fn(PartId) -> bool + Send + Sync>>,
}

impl Pins {
    pub(crate) fn holds(&self, piece: &Piece) -> bool {
        if self.tools.is_empty() && self.names.is_empty() && self.roles.is_empty() && self.parts.is_none() {
            return false;
        }
        let role = match piece.class {
            Class::Said => Role::User,
            Class::Prose | Class::Arguments | Class::Reasoning => Role::Assistant,
            Class::Media if piece.deed.is_none() => Role::User,
            Class::Result | Class::Media => Role::Tool,
        };
        let named = |target: &str| self.names.iter().any(|name| target.contains(name.as_str()));
        self.roles.contains(&role)
            || piece.deed.as_ref().is_some_and(|done| self.tools.contains(&done.tool) || named(&done.deed.target))
            || self.parts.as_ref().is_some_and(|pinned| pinned(piece.at))
    }
}

/// Facts from outside that a fold may depend on, each bound to a request point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Request points at which the provider's cache was cold.
    pub cold: BTreeSet<usize>,
    /// From a request point on, the budget is this: a server told its real window.
    pub budgets: BTreeMap<usize, Tokens>,
    /// Behind a request point, what somebody wrote about the first messages is known: it may stand at forced creases of
    /// later points.
    pub summaries: BTreeMap<usize, Summarised>,
}

impl Ledger {
    pub(crate) fn budget(&self, at: usize, setup: &Setup) -> Tokens {
        self.budgets.range(..=at).next_back().map_or(setup.budget, |(_, &tokens)| tokens)
    }

    /// The newest summary that was known before the request at this point was made.
    pub(crate) fn summary(&self, at: usize) -> Option<&Summarised> {
        self.summaries.range(..at).next_back().map(|(_, summary)| summary).filter(|summary| summary.until <= at)
    }
}

impl Setup {
    /// A setup with defaults: the balanced policy, handles off, nothing pinned.
    pub fn new(meter: Meter, prices: Prices, budget: Tokens) -> Self {
        Self {
            meter,
            prices,
            budget,
            policy: Policy::balanced(),
            handles: false,
            pins: Pins::default(),
            fixed: 0,
            thoughts: Thoughts::Stay,
            signed: false,
            alternate: false,
            opens_with_thought: false,
            cancel: CancelFlag::default(),
        }
    }

    /// The same, under a provider's laws.
    pub fn under(self, profile: &Profile) -> Self {
        Self {
            thoughts: Thoughts::under(profile),
            signed: profile.signs_history(),
            alternate: profile.has(Law::Alternation),
            opens_with_thought: profile.has(Law::ThinkingFirst) && !profile.has(Law::NoManualThinking),
            ..self
        }
    }

    /// The same, for a request with these instructions and tools.
    pub fn beside(self, conversation: &Conversation<'_>) -> Self {
        let meter = &self.meter;
        let fixed = meter.system(&conversation.system) + meter.tools(&conversation.tools) + meter.request();
        Self { fixed, ..self }
    }

    /// Returns this share of the tokens that system and tools leave to the messages.
    pub(crate) fn room_at(&self, share: f64) -> Tokens {
        (self.budget.saturating_sub(self.fixed) as f64 * share) as Tokens
    }
}
