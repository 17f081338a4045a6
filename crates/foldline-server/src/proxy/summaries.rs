//! Summaries of old rounds, written by a model, off the way of requests.
//!
//! When a conversation nears the mark at which it must be folded, a model at the client's own provider, asked with the
//! client's own credentials, writes what its older rounds were about. What passes the gate of `foldline-rlm` goes to the
//! archive's ledger under the fingerprint of what it tells of; the next request that still begins with these very
//! messages takes note of it, and at the next forced crease it stands beside the list of the rounds that went. No
//! request waits for any of this unless the settings say so, and then not for long.
//!
//! What may not happen here: credentials are held while a summary is written and nowhere else, and no word of an answer
//! is logged, since a provider may repeat them in its error.

use std::sync::Arc;
use std::time::Duration;

use foldline::laws::LawProfile;
use foldline::{Conversation, Crease, Meter, Stage, Tokens, Trigger};
use foldline_archive::Shelf;
use foldline_rlm::{
    Endpoint, Enforce, HttpModel, Limits, NEAR, Outcome, Preparation, Speech, Spent, Summariser, Traits, prepare,
};
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::{HeaderMap, Uri};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::decision::Again;
use super::lineage::Lineage;
use super::memory::Facts;
use super::metrics;
use super::models::Model;
use super::server::Shared;
use super::settings::{Mode, Summarise};
use super::turn::{Folded, Turn};

/// Conversations that are summarised at the same time.
const AT_ONCE: usize = 4;
/// A conversation grows by so many messages before the next attempt.
const GROWN: usize = 16;
/// What the models are shown at once, whatever their windows: a summary that costs more than a few requests of an agent
/// does not pay.
const WINDOW: Tokens = 16_384;
/// Tokens and dollars of one summary at most.
const TOKENS: Tokens = 300_000;
const DOLLARS: f64 = 0.5;
/// How long one may take in the background.
const BACKGROUND: Duration = Duration::from_secs(180);

/// By which a provider knows who asks.
const CREDENTIALS: [HeaderName; 8] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("anthropic-version"),
    HeaderName::from_static("anthropic-beta"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];

/// Who writes summaries: a few at a time, until the proxy ends.
pub(crate) struct Writers {
    free: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Writers {
    /// With what ends them when it is dropped.
    pub(crate) fn new() -> (Self, DropGuard) {
        let stop = CancellationToken::new();
        (Self { free: Arc::new(Semaphore::new(AT_ONCE)), stop: stop.clone() }, stop.drop_guard())
    }
}

/// A conversation of which a summary is due.
pub(crate) struct Due {
    pub(crate) conversation: Conversation<'static>,
    pub(crate) lineage: Lineage,
    pub(crate) facts: Arc<Facts>,
    pub(crate) profile: LawProfile,
    pub(crate) meter: Meter,
    pub(crate) budget: Tokens,
    /// The share of the budget below which the newest rounds are left as they are.
    pub(crate) low: f64,
    pub(crate) journal: Option<Shelf>,
}

/// Whether a conversation is to be summarised now, given where its creases are and how many tokens it has.
pub(crate) fn is_due(
    proxy: &Shared,
    facts: &Facts,
    lineage: &Lineage,
    creases: &[Crease],
    sent: Tokens,
    budget: Tokens,
) -> bool {
    let settings = &proxy.settings;
    if settings.mode != Mode::Fold || settings.policy.max_stage < Stage::Rounds {
        return false;
    }
    let len = lineage.len();
    let mut forced =
        creases.iter().rev().filter(|crease| crease.trigger == Trigger::OverBudget).map(|crease| crease.request_point);
    let newest = forced.clone().next();
    let time = match settings.summarise {
        Summarise::Off => false,
        Summarise::Prepared => sent as f64 >= budget as f64 * settings.policy.trigger_ratio * NEAR,
        Summarise::Inline(_) => newest == Some(len),
    };
    // One that no crease has used yet is enough.
    time && !facts.awaits_crease(lineage, forced.find(|&at| at < len).unwrap_or(0)) && facts.may_write(len, GROWN)
}

impl Shared {
    /// Sees to it that a summary is written, if one is due. Gives the request folded again when it waited for one.
    pub(crate) async fn summarise(
        self: &Arc<Self>,
        turn: Option<&Arc<Turn>>,
        folded: &mut Option<Folded>,
        headers: &HeaderMap,
        address: &Uri,
    ) {
        let (Some(turn), Some(due)) = (turn, folded.as_mut().and_then(|folded| folded.due.take())) else { return };
        let Ok(permit) = self.writers.free.clone().try_acquire_owned() else { return };
        let Some(writing) = due.facts.write(due.lineage.len()) else { return };
        let asked = self.settings.summary_model.clone().unwrap_or_else(|| due.model_name().to_owned());
        let endpoint = Endpoint {
            format: turn.format,
            base: self.upstream(turn.side).to_string(),
            model: asked.clone(),
            key: None,
            headers: credentials(headers),
        };
        let traits = traits(&self.models.get(turn.tenant, turn.side, &asked), asked);
        let Ok(model) = HttpModel::with_traits(endpoint, traits) else { return };
        let (time, waits) = match self.settings.summarise {
            Summarise::Inline(time) => (time, true),
            _ => (BACKGROUND, false),
        };
        let limits = Limits { time, call_time: time, tokens: TOKENS, dollars: DOLLARS, ..Limits::default() };
        let summariser = Summariser::new(Arc::new(model.at(address.clone())))
            .with_limits(limits)
            .with_abort(self.writers.stop.child_token());
        let (proxy, runtime) = (self.clone(), tokio::runtime::Handle::current());
        // Reading a long conversation takes a while, and no request is to wait for that.
        let written = tokio::task::spawn_blocking(move || {
            let written = runtime.block_on(proxy.write(&due, &summariser));
            drop((writing, permit));
            written
        });
        if waits && written.await.unwrap_or(false) {
            *folded = super::exchange::fold(self, Some(turn), Some(Again::Told)).await;
        }
    }

    /// Writes a summary. Says whether there is one now.
    async fn write(&self, due: &Due, summariser: &Summariser) -> bool {
        let (messages, model) = (due.conversation.messages.len(), summariser.root().traits().name.clone());
        let earlier = due.facts.summary(&due.lineage);
        let enforce = Enforce {
            budget: due.budget,
            low: due.low,
            profile: due.profile.clone(),
            // As many of the newest messages as are below the mark without any fold.
            keep_last: (1..16).rev().map(|part| messages * part / 16).chain([16, 12, 8, 6]).collect(),
            summariser: Some(summariser),
            ..Enforce::new(due.budget, due.meter.clone())
        };
        let Preparation { prepared, outcome, spent, .. } =
            prepare(&due.conversation, &enforce, earlier.as_deref(), &|_| ()).await;
        due.facts.spend(spent);
        self.book_summary(outcome.as_ref(), &spent);
        let (input, output, dollars) = (spent.usage.input, spent.usage.output, spent.dollars);
        let Some(prepared) = prepared else {
            tracing::info!(model, input, output, dollars, "no summary was written, or none that can be trusted");
            return false;
        };
        tracing::info!(model, messages = prepared.until(), input, output, dollars, "older rounds were summarised");
        if let (Some(journal), Ok(payload)) = (&due.journal, serde_json::to_vec(&spent)) {
            // The journal is for reading; nothing depends on it.
            let _ = journal.note_event("summarised", &payload);
        }
        due.facts.summarised(&due.lineage, prepared);
        true
    }

    fn book_summary(&self, outcome: Option<&Outcome>, spent: &Spent) {
        let kind = match outcome {
            Some(Outcome::Converged) => "written",
            Some(Outcome::Exhausted(_)) => "exhausted",
            Some(Outcome::Failed(_)) => "failed",
            Some(_) => "aborted",
            None => "nothing_to_tell",
        };
        self.metrics.summaries.get_or_create(&metrics::Kind { kind }).inc();
        for (of, tokens) in [("input", spent.usage.input), ("output", spent.usage.output)] {
            self.metrics.summary_tokens.get_or_create(&metrics::Direction { of }).inc_by(tokens);
        }
        self.metrics.summary_spent.inc_by(spent.dollars);
    }
}

impl Due {
    fn model_name(&self) -> &str {
        self.conversation.model.as_deref().unwrap_or_default()
    }
}

/// What the client showed its provider, for as long as a summary is written.
fn credentials(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let shown = |name: &HeaderName| {
        let mut value = headers.get(name)?.clone();
        value.set_sensitive(true);
        Some((name.clone(), value))
    };
    CREDENTIALS.iter().filter_map(shown).collect()
}

fn traits(model: &Model, name: String) -> Traits {
    let window = model.budget(Some(0)).min(WINDOW);
    Traits { name, window, meter: model.meter.clone(), prices: model.prices, speech: Speech::Calls }
}

/// What summaries of a conversation have cost, as an answer's header says it.
pub(crate) fn header(spent: &Spent) -> Option<String> {
    let tokens = spent.usage.input.saturating_add(spent.usage.output);
    (tokens > 0).then(|| format!("{tokens},{:.6}", spent.dollars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_names_the_client_goes_with_a_question_of_ours() {
        let given = [("authorization", "Bearer k"), ("idempotency-key", "7"), ("cookie", "c"), ("x-api-key", "k")];
        let headers = given.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
        let sent = credentials(&headers.collect());
        let names: Vec<&str> = sent.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["authorization", "x-api-key"]);
        assert!(!format!("{sent:?}").contains("Bearer k"), "nor does it stand in what is printed");
    }
}
