//! Summaries of old rounds, written by a model outside the request path.
//!
//! When a conversation approaches its high-water mark, a model at the client's own provider, called with the client's
//! own credentials, summarizes its older rounds. A summary that passes the checks of `foldline-summarize` is written to
//! the ledger under the fingerprint of the messages that it covers. The next request that still starts with these
//! messages adopts it, and at the next forced crease it appears next to the list of the dropped rounds. No request waits
//! for a summary unless the settings ask for it, and then only up to a limit.
//!
//! Must not happen here: credentials are kept longer than a summary is being written; text of a model's response is
//! logged, since a provider may repeat credentials in an error.

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

/// Maximum number of summaries written concurrently.
const MAX_CONCURRENT_SUMMARIES: usize = 4;
/// Messages by which a conversation must grow before the next attempt.
const MIN_NEW_MESSAGES: usize = 16;
/// Maximum window used for a summary, whatever the model's window: a summary that costs more than a few agent requests
/// does not pay.
const SUMMARY_WINDOW_TOKENS: Tokens = 16_384;
/// Maximum tokens and dollars of one summary.
const MAX_SUMMARY_TOKENS: Tokens = 300_000;
const MAX_SUMMARY_USD: f64 = 0.5;
/// Timeout of a summary in the background.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(180);

/// Headers that identify the client to its provider.
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

/// Limits concurrent summaries, and cancels them when the proxy stops.
pub(crate) struct SummaryTasks {
    permits: Arc<Semaphore>,
    stop: CancellationToken,
}

impl SummaryTasks {
    /// Returns the tasks, and a guard that cancels them when it is dropped.
    pub(crate) fn new() -> (Self, DropGuard) {
        let stop = CancellationToken::new();
        (Self { permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SUMMARIES)), stop: stop.clone() }, stop.drop_guard())
    }
}

/// A conversation for which a summary is due.
pub(crate) struct SummaryJob {
    pub(crate) conversation: Conversation<'static>,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) profile: LawProfile,
    pub(crate) meter: Meter,
    pub(crate) budget: Tokens,
    /// Share of the budget below which the newest rounds are left unchanged.
    pub(crate) target_ratio: f64,
    pub(crate) archive: Option<TenantArchive>,
}

/// Returns true if a conversation should be summarized now, given its creases and its size in tokens.
pub(crate) fn is_summary_due(
    proxy: &AppState,
    facts: &SessionFacts,
    prefixes: &PrefixHashes,
    creases: &[Crease],
    sent: Tokens,
    budget: Tokens,
) -> bool {
    let settings = &proxy.settings;
    if settings.mode != ProxyMode::Fold || settings.policy.max_stage < Stage::Rounds {
        return false;
    }
    let len = prefixes.len();
    let mut forced =
        creases.iter().rev().filter(|crease| crease.trigger == Trigger::OverBudget).map(|crease| crease.request_point);
    let newest = forced.clone().next();
    let is_time = match settings.summary_mode {
        SummaryMode::Off => false,
        SummaryMode::Prepared => sent as f64 >= budget as f64 * settings.policy.trigger_ratio * PREPARE_THRESHOLD,
        SummaryMode::Inline(_) => newest == Some(len),
    };
    // One unused summary is enough.
    is_time
        && !facts.has_unused_summary(prefixes, forced.find(|&at| at < len).unwrap_or(0))
        && facts.may_start_summary(len, MIN_NEW_MESSAGES)
}

impl AppState {
    /// Starts a summary if one is due. If the request waits for it, `folded` is replaced by the request folded again.
    pub(crate) async fn summarize_if_due(
        self: &Arc<Self>,
        job: Option<&Arc<FoldJob>>,
        folded: &mut Option<PreparedRequest>,
        headers: &HeaderMap,
        uri: &Uri,
    ) {
        let (Some(job), Some(due)) = (job, folded.as_mut().and_then(|folded| folded.summary_job.take())) else {
            return;
        };
        let Ok(permit) = self.summary_tasks.permits.clone().try_acquire_owned() else { return };
        let Some(guard) = due.facts.start_summary(due.prefixes.len()) else { return };
        let model_name = self.settings.summary_model.clone().unwrap_or_else(|| due.model_name().to_owned());
        let endpoint = ModelEndpoint {
            format: job.format,
            base_url: self.upstream(job.upstream).to_string(),
            model: model_name.clone(),
            api_key: None,
            headers: forwarded_credentials(headers),
        };
        let info = model_info(&self.models.get(job.tenant, job.upstream, &model_name), model_name);
        let Ok(model) = HttpModel::with_info(endpoint, info) else { return };
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
        let summarizer = Summarizer::new(Arc::new(model.with_url(uri.clone())))
            .with_limits(limits)
            .with_abort(self.summary_tasks.stop.child_token());
        let (proxy, runtime) = (self.clone(), tokio::runtime::Handle::current());
        // Parsing a long conversation takes a while; requests must not wait for it.
        let written = tokio::task::spawn_blocking(move || {
            let written = runtime.block_on(proxy.write_summary(&due, &summarizer));
            drop((guard, permit));
            written
        });
        if waits && written.await.unwrap_or(false) {
            *folded = crate::proxy::handler::fold_blocking(self, Some(job), Some(Refold::WithSummary)).await;
        }
    }

    /// Writes a summary. Returns true if one was accepted.
    async fn write_summary(&self, due: &SummaryJob, summarizer: &Summarizer) -> bool {
        let (messages, model) = (due.conversation.messages.len(), summarizer.root_model().info().name.clone());
        let earlier = due.facts.latest_summary(&due.prefixes);
        let enforce = EnforceOptions {
            budget: due.budget,
            target_ratio: due.target_ratio,
            profile: due.profile.clone(),
            // As many of the newest messages as fit below the mark without folds.
            keep_last: (1..16).rev().map(|part| messages * part / 16).chain([16, 12, 8, 6]).collect(),
            summarizer: Some(summarizer),
            ..EnforceOptions::new(due.budget, due.meter.clone())
        };
        let PrepareResult { prepared, outcome, spent, .. } =
            prepare_summary(&due.conversation, &enforce, earlier.as_deref(), &|_| ()).await;
        due.facts.add_summary_cost(spent);
        self.record_summary_metrics(outcome.as_ref(), &spent);
        let (input, output, dollars) = (spent.usage.input, spent.usage.output, spent.dollars);
        let Some(prepared) = prepared else {
            tracing::info!(model, input, output, dollars, "no usable summary was written");
            return false;
        };
        tracing::info!(model, messages = prepared.until(), input, output, dollars, "summarized older rounds");
        if let (Some(archive), Ok(payload)) = (&due.archive, serde_json::to_vec(&spent)) {
            // The journal is informational; nothing depends on it.
            let _ = archive.append_event("summarized", &payload);
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
            None => "nothing_to_summarize",
        };
        self.metrics.summaries.get_or_create(&metrics::KindLabels { kind }).inc();
        for (direction, tokens) in [("input", spent.usage.input), ("output", spent.usage.output)] {
            self.metrics.summary_tokens.get_or_create(&metrics::TokenLabels { direction }).inc_by(tokens);
        }
        self.metrics.summary_cost_usd.inc_by(spent.dollars);
    }
}

impl SummaryJob {
    fn model_name(&self) -> &str {
        self.conversation.model.as_deref().unwrap_or_default()
    }
}

/// Returns the client's credential headers, marked as sensitive.
fn forwarded_credentials(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let credential = |name: &HeaderName| {
        let mut value = headers.get(name)?.clone();
        value.set_sensitive(true);
        Some((name.clone(), value))
    };
    FORWARDED_HEADERS.iter().filter_map(credential).collect()
}

fn model_info(model: &UpstreamModel, name: String) -> ModelInfo {
    let window = model.budget(Some(0)).min(SUMMARY_WINDOW_TOKENS);
    ModelInfo { name, window, meter: model.meter.clone(), prices: model.prices, tool_style: ToolStyle::Calls }
}

/// Formats the cost of a conversation's summaries as a response header: tokens and dollars.
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
        assert!(!format!("{sent:?}").contains("Bearer k"), "Debug output must not contain the key");
    }
}
