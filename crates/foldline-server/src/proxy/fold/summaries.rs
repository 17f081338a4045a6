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

use std::sync::{Arc, Once};
use std::time::Duration;

use foldline::tokens::Tokens;
use foldline::wire::{Dialect, Format, encode_path_segment};
use foldline_summarize::{
    EnforceOptions, HttpModel, ModelEndpoint, ModelInfo, ModelSpend, PrepareResult, Summarizer, SummaryLimits,
    SummaryOutcome, ToolStyle, prepare_summary,
};
use hyper::HeaderMap;

use crate::proxy::admin::metrics;
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::fold::session_facts::SummaryGuard;
use crate::proxy::fold::summary_job::SummaryJob;
use crate::proxy::settings::SummaryMode;
use crate::proxy::state::AppState;
use crate::proxy::upstream::credentials::forwarded_credentials;
use crate::proxy::upstream::model_transport::OutboundTransport;
use crate::proxy::upstream::models::UpstreamModel;

/// Maximum window used for a summary, whatever the model's window: a summary that costs more than a few agent requests
/// does not pay.
const SUMMARY_WINDOW_TOKENS: Tokens = 16_384;
/// Maximum tokens and dollars of one summary.
const MAX_SUMMARY_TOKENS: Tokens = 300_000;
const MAX_SUMMARY_USD: f64 = 0.5;
/// Timeout of a summary in the background.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(180);

/// Ensures that a path without summaries is logged once.
static UNSUPPORTED_PATH: Once = Once::new();

/// Starts a summary if one is due, and waits for it if the settings ask for that. Returns true if the request must be
/// folded again with it.
pub(crate) async fn summarize_if_due(
    state: &Arc<AppState>,
    prepared: Option<&mut PreparedRequest>,
    headers: &HeaderMap,
) -> bool {
    let Some(prepared) = prepared else { return false };
    let (job, Some(due)) = (prepared.job.clone(), prepared.summary_job.take()) else { return false };
    let Ok(permit) = state.summary_permits.clone().try_acquire_owned() else { return false };
    let summary_model = state.settings.summary_model.as_deref();
    let Some(path) = summary_path(job.format, &job.path, summary_model) else {
        let path = job.path.split('?').next();
        UNSUPPORTED_PATH.call_once(|| tracing::warn!(path, "no summaries are written for this API (reported once)"));
        return false;
    };
    let Ok(url) = job.upstream.url(&state.settings.upstreams).conversation_uri(&path) else { return false };
    let Some(guard) = due.facts.start_summary(due.prefixes.len()) else { return false };
    let model_name = summary_model.unwrap_or(due.model_name()).to_owned();
    let endpoint = ModelEndpoint {
        format: job.format,
        base_url: job.upstream.url(&state.settings.upstreams).to_string(),
        model: model_name.clone(),
        api_key: None,
        headers: forwarded_credentials(headers),
    };
    let info = model_info(&state.models.get(job.tenant.key, &job.upstream, &model_name), model_name);
    let signer = job.upstream.auth(&state.settings.bedrock_auth).signer().cloned();
    let transport = Arc::new(OutboundTransport::for_client(state.client.clone(), signer));
    let Ok(model) = HttpModel::with_transport(endpoint, info, transport) else { return false };
    let (time, waits) = match state.settings.summary_mode {
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
    let summarizer =
        Summarizer::new(Arc::new(model.with_url(url))).with_limits(limits).with_abort(state.stop.child_token());
    let (shared, runtime) = (state.clone(), tokio::runtime::Handle::current());
    // Parsing a long conversation takes a while; requests must not wait for it.
    let written = tokio::task::spawn_blocking(move || {
        let written = runtime.block_on(write_summary(&shared, &due, guard, &summarizer));
        drop(permit);
        written
    });
    waits && written.await.unwrap_or(false)
}

/// Returns the path and query for summaries at the API of the client's path. A path that names the model may also state that
/// the response is a stream; a summary is requested for its own model and as one body. Returns none if bodies at the path
/// have another form than the dialect's own.
fn summary_path(format: Format, path: &str, model: Option<&str>) -> Option<String> {
    let (_, endpoint) = Dialect::for_path(path)?;
    let Some(named) = endpoint.model else {
        return endpoint.streaming.is_none().then(|| path.to_owned());
    };
    let turn = format.dialect().turn_path("MODEL");
    let method = &turn[turn.rfind(['/', ':'])?..];
    turn.strip_suffix(method).filter(|stem| stem.ends_with("MODEL"))?;
    let (plain, query) = path.split_once('?').unwrap_or((path, ""));
    let before = plain[..plain.rfind(&method[..1])?].strip_suffix(named)?;
    // A key may be in the query; `alt` states the form of a stream.
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("alt=")).collect();
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    let model = model.map_or_else(|| named.to_owned(), encode_path_segment);
    Some(format!("{before}{model}{method}{query}"))
}

/// Writes a summary. Returns true if one was accepted.
async fn write_summary(state: &AppState, due: &SummaryJob, guard: SummaryGuard, summarizer: &Summarizer) -> bool {
    let (messages, model) = (due.conversation.messages.len(), summarizer.root_model().info().name.clone());
    let earlier = due.facts.latest_summary(&due.prefixes);
    let enforce = EnforceOptions {
        budget: due.budget,
        target_ratio: due.target_ratio,
        profile: due.profile.clone(),
        // As many of the newest messages as fit below the mark without folds.
        keep_last: (1..16).rev().map(|part| messages * part / 16).chain([16, 12, 8, 6]).collect(),
        summarizer: Some(summarizer.clone()),
        ..EnforceOptions::new(due.budget, due.meter.clone())
    };
    let PrepareResult { prepared, outcome, spent, .. } =
        prepare_summary(&due.conversation, &enforce, earlier.as_deref(), &|_| ()).await;
    record_summary_metrics(state, outcome.as_ref(), &spent);
    let (input, output, dollars) = (spent.usage.input, spent.usage.output, spent.dollars);
    match &prepared {
        None => tracing::info!(model, input, output, dollars, "no usable summary was written"),
        Some(summary) => {
            tracing::info!(model, messages = summary.until(), input, output, dollars, "summarized older rounds");
            if let (Some(archive), Ok(payload)) = (&due.archive, serde_json::to_vec(&spent)) {
                // The journal is informational; nothing depends on it.
                let _ = archive.append_event("summarized", &payload);
            }
        }
    }
    let is_written = prepared.is_some();
    guard.finish_summary(&due.prefixes, spent, prepared);
    is_written
}

fn record_summary_metrics(state: &AppState, outcome: Option<&SummaryOutcome>, spent: &ModelSpend) {
    let kind = match outcome {
        Some(SummaryOutcome::Converged) => "written",
        Some(SummaryOutcome::Exhausted(_)) => "exhausted",
        Some(SummaryOutcome::Failed(_)) => "failed",
        Some(_) => "aborted",
        None => "nothing_to_summarize",
    };
    state.metrics.summaries.get_or_create(&metrics::KindLabels { kind }).inc();
    for (direction, tokens) in [("input", spent.usage.input), ("output", spent.usage.output)] {
        state.metrics.summary_tokens.get_or_create(&metrics::TokenLabels { direction }).inc_by(tokens);
    }
    state.metrics.summary_cost_usd.inc_by(spent.dollars);
}

fn model_info(model: &UpstreamModel, name: String) -> ModelInfo {
    let window = model.budget(Some(0)).min(SUMMARY_WINDOW_TOKENS);
    ModelInfo { name, window, meter: model.meter.clone(), prices: model.prices, tool_style: ToolStyle::Calls }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_requested_for_its_model_and_as_one_body() {
        let own = |format, path: &str| summary_path(format, path, None);
        let other = |format, path: &str| summary_path(format, path, Some("small"));
        let same = |path: &str| Some(path.to_owned());
        assert_eq!(other(Format::Anthropic, "/v1/messages?beta=true"), same("/v1/messages?beta=true"));
        assert_eq!(
            own(Format::Gemini, "/v1beta/models/m:streamGenerateContent?alt=sse&key=k"),
            same("/v1beta/models/m:generateContent?key=k")
        );
        assert_eq!(
            other(Format::Gemini, "/v1beta/models/m:streamGenerateContent?alt=sse"),
            same("/v1beta/models/small:generateContent")
        );
        let vertex = "/v1/projects/p/locations/l/publishers/google/models";
        assert_eq!(
            other(Format::Gemini, &format!("{vertex}/m:generateContent")),
            Some(format!("{vertex}/small:generateContent"))
        );
        assert_eq!(own(Format::Converse, "/model/m%3A0/converse-stream"), same("/model/m%3A0/converse"));
        assert_eq!(other(Format::Converse, "/model/m/converse"), same("/model/small/converse"));
        let profile = "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.small-v1:0";
        assert_eq!(
            summary_path(Format::Converse, "/model/m%3A0/converse-stream", Some(profile)),
            same("/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Ainference-profile%2Feu.small-v1%3A0/converse")
        );
    }

    /// Their bodies name a version or a project, and not the model.
    #[test]
    fn paths_with_other_bodies_have_no_summaries() {
        for (format, path) in [
            (Format::Anthropic, "/model/anthropic.claude-m/invoke-with-response-stream"),
            (Format::Anthropic, "/v1/projects/p/locations/l/publishers/anthropic/models/m:streamRawPredict"),
            (Format::Gemini, "/v1internal:streamGenerateContent?alt=sse"),
        ] {
            assert_eq!(summary_path(format, path, None), None, "{path}");
        }
    }
}
