//! Summaries of old rounds, written by a model, off the way of requests.
//!
//! When a conversation nears the mark at which it must be folded, a model at the client's own provider, asked with the
//! client's own credentials, writes what its older rounds were about. What passes the gate of `foldline-summarize` goes to the
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
use foldline_archive::TenantArchive;
use foldline_summarize::{
    EnforceOptions, HttpModel, ModelEndpoint, ModelInfo, ModelSpend, PREPARE_THRESHOLD, PrepareResult, Summarizer,
    SummaryLimits, SummaryOutcome, ToolStyle, prepare_summary,
};
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::{HeaderMap, Uri};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::proxy::admin::metrics;
use crate::proxy::downstream::listener::AppState;
use crate::proxy::fold::job::{FoldJob, PreparedRequest};
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::prepare::Refold;
use crate::proxy::fold::session_cache::SessionFacts;
use crate::proxy::settings::{ProxyMode, SummaryMode};
use crate::proxy::upstream::models::UpstreamModel;

/// Conversations that are summarised at the same time.
const MAX_CONCURRENT_SUMMARIES: usize = 4;
/// A conversation grows by so many messages before the next attempt.
const MIN_NEW_MESSAGES: usize = 16;
/// What the models are shown at once, whatever their windows: a summary that costs more than a few requests of an agent
/// does not pay.
const SUMMARY_WINDOW_TOKENS: Tokens = 16_384;
/// Tokens and dollars of one summary at most.
const MAX_SUMMARY_TOKENS: Tokens = 300_000;
const MAX_SUMMARY_USD: f64 = 0.5;
/// How long one may take in the background.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(180);

/// By which a provider knows who asks.
const FORWARDED_HEADERS: [HeaderName; 8] = [
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
pub(crate) struct SummaryTasks {
    permits: Arc<Semaphore>,
    stop: CancellationToken,
}

impl SummaryTasks {
    /// With what ends them when it is dropped.
    pub(crate) fn new() -> (Self, DropGuard) {
        let stop = CancellationToken::new();
        (Self { permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SUMMARIES)), stop: stop.clone() }, stop.drop_guard())
    }
}

/// A conversation of which a summary is due.
pub(crate) struct SummaryJob {
    pub(crate) conversation: Conversation<'static>,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) profile: LawProfile,
    pub(crate) meter: Meter,
    pub(crate) budget: Tokens,
    /// The share of the budget below which the newest rounds are left as they are.
    pub(crate) target_ratio: f64,
    pub(crate) archive: Option<TenantArchive>,
}

/// Whether a conversation is to be summarised now, given where its creases are and how many tokens it has.
pub(crate) fn is_summary_due(
    proxy: &AppState,
    facts: &SessionFacts,
    lineage: &PrefixHashes,
    creases: &[Crease],
    sent: Tokens,
    budget: Tokens,
) -> bool {
    let settings = &proxy.settings;
    if settings.mode != ProxyMode::Fold || settings.policy.max_stage < Stage::Rounds {
        return false;
    }
    let len = lineage.len();
    let mut forced =
        creases.iter().rev().filter(|crease| crease.trigger == Trigger::OverBudget).map(|crease| crease.request_point);
    let newest = forced.clone().next();
    let time = match settings.summary_mode {
        SummaryMode::Off => false,
        SummaryMode::Prepared => sent as f64 >= budget as f64 * settings.policy.trigger_ratio * PREPARE_THRESHOLD,
        SummaryMode::Inline(_) => newest == Some(len),
    };
    // One that no crease has used yet is enough.
    time && !facts.has_unused_summary(lineage, forced.find(|&at| at < len).unwrap_or(0))
        && facts.may_start_summary(len, MIN_NEW_MESSAGES)
}

impl AppState {
    /// Sees to it that a summary is written, if one is due. Gives the request folded again when it waited for one.
    pub(crate) async fn summarize_if_due(
        self: &Arc<Self>,
        turn: Option<&Arc<FoldJob>>,
        folded: &mut Option<PreparedRequest>,
        headers: &HeaderMap,
        address: &Uri,
    ) {
        let (Some(turn), Some(due)) = (turn, folded.as_mut().and_then(|folded| folded.summary_job.take())) else {
            return;
        };
        let Ok(permit) = self.summary_tasks.permits.clone().try_acquire_owned() else { return };
        let Some(writing) = due.facts.start_summary(due.prefixes.len()) else { return };
        let asked = self.settings.summary_model.clone().unwrap_or_else(|| due.model_name().to_owned());
        let endpoint = ModelEndpoint {
            format: turn.format,
            base_url: self.upstream(turn.upstream).to_string(),
            model: asked.clone(),
            api_key: None,
            headers: forwarded_credentials(headers),
        };
        let traits = model_traits(&self.models.get(turn.tenant, turn.upstream, &asked), asked);
        let Ok(model) = HttpModel::with_info(endpoint, traits) else { return };
        let (time, waits) = match self.settings.summary_mode {
            SummaryMode::Inline(time) => (time, true),
            _ => (BACKGROUND_TIMEOUT, false),
        };
        let limits = SummaryLimits {
            total_time: time,
            call_time: time,
            tokens: MAX_SUMMARY_TOKENS,
            dollars: MAX_SUMMARY_USD,
            ..SummaryLimits::default()
        };
        let summariser = Summarizer::new(Arc::new(model.with_url(address.clone())))
            .with_limits(limits)
            .with_abort(self.summary_tasks.stop.child_token());
        let (proxy, runtime) = (self.clone(), tokio::runtime::Handle::current());
        // Reading a long conversation takes a while, and no request is to wait for that.
        let written = tokio::task::spawn_blocking(move || {
            let written = runtime.block_on(proxy.write_summary(&due, &summariser));
            drop((writing, permit));
            written
        });
        if waits && written.await.unwrap_or(false) {
            *folded = crate::proxy::handler::fold_blocking(self, Some(turn), Some(Refold::WithSummary)).await;
        }
    }

    /// Writes a summary. Says whether there is one now.
    async fn write_summary(&self, due: &SummaryJob, summariser: &Summarizer) -> bool {
        let (messages, model) = (due.conversation.messages.len(), summariser.root_model().info().name.clone());
        let earlier = due.facts.latest_summary(&due.prefixes);
        let enforce = EnforceOptions {
            budget: due.budget,
            target_ratio: due.target_ratio,
            profile: due.profile.clone(),
            // As many of the newest messages as are below the mark without any fold.
            keep_last: (1..16).rev().map(|part| messages * part / 16).chain([16, 12, 8, 6]).collect(),
            summarizer: Some(summariser),
            ..EnforceOptions::new(due.budget, due.meter.clone())
        };
        let PrepareResult { prepared, outcome, spent, .. } =
            prepare_summary(&due.conversation, &enforce, earlier.as_deref(), &|_| ()).await;
        due.facts.add_summary_cost(spent);
        self.record_summary_metrics(outcome.as_ref(), &spent);
        let (input, output, dollars) = (spent.usage.input, spent.usage.output, spent.dollars);
        let Some(prepared) = prepared else {
            tracing::info!(model, input, output, dollars, "no summary was written, or none that can be trusted");
            return false;
        };
        tracing::info!(model, messages = prepared.until(), input, output, dollars, "older rounds were summarised");
        if let (Some(journal), Ok(payload)) = (&due.archive, serde_json::to_vec(&spent)) {
            // The journal is for reading; nothing depends on it.
            let _ = journal.append_event("summarised", &payload);
        }
        due.facts.add_summary(&due.prefixes, prepared);
        true
    }

    fn record_summary_metrics(&self, outcome: Option<&SummaryOutcome>, spent: &ModelSpend) {
        let kind = match outcome {
            Some(SummaryOutcome::Converged) => "written",
            Some(SummaryOutcome::Exhausted(_)) => "exhausted",
            Some(SummaryOutcome::Failed(_)) => "failed",
            Some(_) => "aborted",
            None => "nothing_to_tell",
        };
        self.metrics.summaries.get_or_create(&metrics::KindLabels { kind }).inc();
        for (of, tokens) in [("input", spent.usage.input), ("output", spent.usage.output)] {
            self.metrics.summary_tokens.get_or_create(&metrics::TokenLabels { direction: of }).inc_by(tokens);
        }
        self.metrics.summary_cost_usd.inc_by(spent.dollars);
    }
}

impl SummaryJob {
    fn model_name(&self) -> &str {
        self.conversation.model.as_deref().unwrap_or_default()
    }
}

/// What the client showed its provider, for as long as a summary is written.
fn forwarded_credentials(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let shown = |name: &HeaderName| {
        let mut value = headers.get(name)?.clone();
        value.set_sensitive(true);
        Some((name.clone(), value))
    };
    FORWARDED_HEADERS.iter().filter_map(shown).collect()
}

fn model_traits(model: &UpstreamModel, name: String) -> ModelInfo {
    let window = model.budget(Some(0)).min(SUMMARY_WINDOW_TOKENS);
    ModelInfo { name, window, meter: model.meter.clone(), prices: model.prices, tool_style: ToolStyle::Calls }
}

/// What summaries of a conversation have cost, as an answer's header says it.
pub(crate) fn summary_header(spent: &ModelSpend) -> Option<String> {
    let tokens = spent.usage.input.saturating_add(spent.usage.output);
    (tokens > 0).then(|| format!("{tokens},{:.6}", spent.dollars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_requests_carry_only_credentials() {
        let given = [("authorization", "Bearer k"), ("idempotency-key", "7"), ("cookie", "c"), ("x-api-key", "k")];
        let headers = given.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
        let sent = forwarded_credentials(&headers.collect());
        let names: Vec<&str> = sent.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["authorization", "x-api-key"]);
        assert!(!format!("{sent:?}").contains("Bearer k"), "nor does it stand in what is printed");
    }
}
