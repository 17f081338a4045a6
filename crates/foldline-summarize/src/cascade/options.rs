//! The options of the cascade, and its result.

use std::fmt;
use std::sync::Arc;

use foldline::engine::PinRules;
use foldline::laws::LawProfile;
use foldline::tokens::{Budget, Tokens};
use foldline::wire::{ContextOverflow, Format, LearnedLimit};
use foldline::{Conversation, Handle, Message, Meter, ModelTable, OriginalStore};

use crate::cascade::event::EnforceStrategy;
use crate::limits::ModelSpend;
use crate::prepared_summary::PreparedSummary;
use crate::summarizer::Summarizer;
use crate::tool_table::ToolTable;

/// Options for keeping a session inside its window.
#[derive(Clone)]
pub struct EnforceOptions {
    /// The window of the agent's model.
    pub window: Tokens,
    /// The token meter of the agent's model.
    pub meter: Meter,
    /// The cascade runs above this number of tokens.
    pub budget: Tokens,
    /// Share of the budget to which the session is reduced, so that the cascade does not run at every step.
    pub target_ratio: f64,
    /// The laws that the session obeys.
    pub profile: LawProfile,
    /// Numbers of newest messages to keep, tried in this order; finally, only the newest round.
    pub keep_last: Vec<usize>,
    /// Rounds that match one of these rules are kept.
    pub pins: PinRules,
    /// The classes of tools, which decide what the record lists as done and what as viewed.
    pub tools: ToolTable,
    /// The summarizer. Without one no model is called.
    pub summarizer: Option<Summarizer>,
    /// A prepared summary; it is used if its source is unchanged.
    pub prepared: Option<PreparedSummary>,
    /// The store for dropped messages. It is called before anything is dropped; if it fails, nothing is.
    pub store: Option<Arc<dyn OriginalStore + Send + Sync>>,
}

impl fmt::Debug for EnforceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnforceOptions")
            .field("window", &self.window)
            .field("budget", &self.budget)
            .field("target_ratio", &self.target_ratio)
            .field("keep_last", &self.keep_last)
            .field("pins", &self.pins)
            .field("summarizer", &self.summarizer)
            .field("has_prepared", &self.prepared.is_some())
            .field("has_store", &self.store.is_some())
            .finish_non_exhaustive()
    }
}

impl EnforceOptions {
    /// Creates options for a window: nine tenths of the window without a response of 8192 tokens and 2048 more, in
    /// windows below 32 768 tokens proportionally less; never more than the input limit of the meter's model; keeps the
    /// last 16, 12, 8 or 6 messages; no model.
    pub fn new(window: Tokens, meter: Meter) -> Self {
        Self {
            window,
            budget: default_budget(window).min(meter.row().max_input.unwrap_or(Tokens::MAX)),
            meter,
            target_ratio: 0.6,
            profile: LawProfile::for_model(Format::OpenAiChat, None),
            keep_last: vec![16, 12, 8, 6],
            pins: PinRules::default(),
            tools: ToolTable::default(),
            summarizer: None,
            prepared: None,
            store: None,
        }
    }

    /// Creates options for a model of the built-in table: its window, its meter and the laws of its provider.
    ///
    /// ```
    /// use foldline_summarize::EnforceOptions;
    ///
    /// let options = EnforceOptions::for_model("gpt-5");
    /// assert_eq!(options.window, 400_000);
    /// assert!(options.budget <= 272_000, "the model accepts no larger input");
    /// ```
    pub fn for_model(model: &str) -> Self {
        let meter = Meter::for_model(ModelTable::builtin(), Some(model));
        let profile = LawProfile::for_model(Format::for_provider(&meter.row().provider), Some(model));
        Self { profile, ..Self::new(meter.row().window, meter) }
    }

    /// Sets the summarizer.
    #[must_use]
    pub fn with_summarizer(self, summarizer: Summarizer) -> Self {
        Self { summarizer: Some(summarizer), ..self }
    }

    /// Sets the store for dropped messages.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn OriginalStore + Send + Sync>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Returns tighter options for a retry, after a server rejected `sent` tokens (by the local count) as too large.
    #[must_use]
    pub fn tightened(&self, overflow: &ContextOverflow, sent: Tokens) -> Self {
        let mut tighter = self.clone();
        match overflow.learned_limit(sent) {
            LearnedLimit::Stated { tokens, .. } if tokens < self.window => {
                tighter.window = tokens;
                tighter.budget = default_budget(tokens).min(self.budget);
            }
            // The window is as expected, or unknown: the local count was too low.
            LearnedLimit::Stated { .. } | LearnedLimit::BelowCount(_) => {}
        }
        if tighter.budget >= sent {
            tighter.budget = sent / 4 * 3;
        }
        tighter
    }

    /// Returns the number of tokens to which the session is reduced.
    pub(crate) fn target_tokens(&self) -> Tokens {
        (self.budget as f64 * self.target_ratio.clamp(0.1, 1.0)) as Tokens
    }

    /// Returns the tokens besides the messages.
    pub(crate) fn overhead_tokens(&self, session: &Conversation<'_>) -> Tokens {
        self.meter.system(&session.system) + self.meter.tools(&session.tools) + self.meter.request_overhead()
    }
}

fn default_budget(window: Tokens) -> Tokens {
    match window {
        0..32_768 => (window - window / 4 - window / 16) / 10 * 9,
        _ => Budget::for_cascade(window).tokens,
    }
}

/// The result for a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EnforceResult<'m> {
    /// The outcome.
    pub outcome: EnforceOutcome,
    /// Tokens before.
    pub tokens_before: Tokens,
    /// Tokens after; for an unchanged session, those before.
    pub tokens_after: Tokens,
    /// The budget in tokens.
    pub budget: Tokens,
    /// The dropped messages, unchanged and in order.
    pub dropped: Vec<Message<'m>>,
    /// The handle of [`EnforceResult::dropped`] as JSON, under which the store holds it if there is one.
    pub handle: Option<Handle>,
    /// The spending of the summarizer.
    pub spent: ModelSpend,
}

/// The outcome for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnforceOutcome {
    /// The session was inside its budget; nothing happened.
    Unchanged,
    /// The session was brought into its budget.
    Fits(EnforceStrategy),
    /// The session is unchanged: not even the protected messages fit.
    CannotFit {
        /// The fewest tokens that it can be reduced to.
        floor: Tokens,
    },
    /// The session is unchanged: the result would break a law of the provider that the session does not break.
    BreaksLaw(String),
    /// The session is unchanged: the dropped messages could not be stored.
    NotStored(String),
    /// The session is unchanged: the summarizer was aborted.
    Aborted,
}

impl EnforceResult<'_> {
    /// Returns true if the session is inside its budget now.
    pub fn fits(&self) -> bool {
        matches!(self.outcome, EnforceOutcome::Unchanged | EnforceOutcome::Fits(_))
    }
}
