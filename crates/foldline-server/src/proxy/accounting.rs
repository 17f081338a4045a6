//! Records what requests cost: metrics, the journal, and the comparison of reported counts with ours.

use std::time::Duration;

use foldline::tokens::Tokens;
use foldline_archive::RequestRecord;

use crate::proxy::admin::metrics::{TokenLabels, TokenStage};
use crate::proxy::downstream::headers::BodyForm;
use crate::proxy::fold::prepare::PreparedRequest;
use crate::proxy::recorder::{ResponseFacts, record_activity};
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;
use crate::proxy::upstream::client::UpstreamError;
use crate::proxy::upstream::learned_window::CountVerdict;
use crate::proxy::upstream::relay::{MaybeUsage, RoundCount};
use crate::proxy::upstream::response_head::ResponseHead;

/// Records a turn that is sent now: its overhead, and its tokens as received and as sent.
pub(crate) fn record_turn(
    state: &AppState,
    format: &'static str,
    form: BodyForm,
    prepared: Option<&PreparedRequest>,
    overhead: Duration,
) {
    let metrics = &state.metrics;
    metrics.record_request(format, if form == BodyForm::Unmodified { "unmodified" } else { "folded" }, overhead);
    let Some(prepared) = prepared else { return };
    if let Some(reason) = prepared.passthrough.filter(|_| state.settings.mode == ProxyMode::Fold) {
        metrics.count_passthrough(reason);
    }
    let PreparedRequest { received_tokens, sent_tokens, model, .. } = prepared;
    // Folded tokens would otherwise have been read from the provider's cache.
    let saved = model.prices.read * received_tokens.saturating_sub(*sent_tokens) as f64;
    let saved_usd = model.dollars(saved, state.settings.upstreams.get(model.family));
    metrics.prompt_tokens(TokenStage::Received).inc_by(*received_tokens);
    if form == BodyForm::Unmodified {
        metrics.prompt_tokens(TokenStage::Sent).inc_by(*received_tokens);
        if state.settings.mode == ProxyMode::Observe {
            metrics.prompt_tokens(TokenStage::WouldSend).inc_by(*sent_tokens);
            metrics.would_save_usd.inc_by(saved_usd);
        }
        return;
    }
    metrics.prompt_tokens(TokenStage::Sent).inc_by(*sent_tokens);
}

/// Counts and logs a conversation that the upstream did not answer with success.
pub(crate) fn record_upstream_error(state: &AppState, sent: &Result<ResponseHead, UpstreamError>) {
    match sent {
        Ok(head) if head.parts.status.is_success() => {}
        Ok(head) => {
            state.metrics.count_upstream_error(Some(head.parts.status));
            tracing::warn!(status = head.parts.status.as_u16(), "the upstream answered with an error");
        }
        Err(error) => {
            state.metrics.count_upstream_error(None);
            tracing::warn!(%error, "no response from the upstream");
        }
    }
}

/// Records the token usage that a response reported.
pub(crate) fn record_usage(
    state: &AppState,
    prepared: &PreparedRequest,
    response: ResponseFacts,
    reported: MaybeUsage,
) {
    let usage = reported.as_ref().and_then(|reported| reported.usage);
    let unfolded = reported.as_ref().map_or(&[][..], |reported| &reported.unfolded);
    let unfolded_count = unfolded.len() as u64;
    record_activity(state, prepared, response, usage, unfolded);
    let Some((usage, rounds)) = reported.and_then(|reported| Some((reported.usage?, reported.rounds))) else {
        return;
    };
    for (direction, tokens) in [
        ("input", usage.input),
        ("output", usage.output),
        ("cache_read", usage.cache_read.unwrap_or(0)),
        ("cache_write", usage.cache_write.unwrap_or(0)),
    ] {
        state.metrics.reported_tokens.get_or_create(&TokenLabels { direction }).inc_by(tokens);
    }
    let earlier_rounds = usage.input.saturating_sub(usage.context_tokens());
    if rounds == RoundCount::Several {
        state.metrics.unfold_tokens.inc_by(earlier_rounds);
        prepared.hidden_rounds.facts.add_unfolds(unfolded_count, earlier_rounds);
    }
    if rounds == RoundCount::One {
        compare_counts(state, prepared, usage.context_tokens());
    }
    if let Some(archive) = &prepared.archive {
        let record = RequestRecord {
            model: prepared.model_name.clone(),
            raw_tokens: prepared.received_tokens,
            sent_tokens: prepared.sent_tokens,
            folds: prepared.fold_count,
            payload: serde_json::to_vec(&usage).unwrap_or_default(),
            ..Default::default()
        };
        // The journal is informational; nothing depends on it.
        let _ = archive.append_request(&record);
    }
}

/// Compares the reported token count of a prompt with ours, and logs the consequence.
fn compare_counts(state: &AppState, prepared: &PreparedRequest, reported: Tokens) {
    let (model, sent) = (&prepared.model_name, prepared.prompt_tokens(state.settings.mode));
    match prepared.model.observe_usage(sent, reported) {
        CountVerdict::Accepted | CountVerdict::Implausible { first: false } => {}
        CountVerdict::Implausible { first: true } => tracing::warn!(
            model,
            sent,
            reported,
            "reported prompt tokens are implausible and ignored; set --window if the table's window is wrong"
        ),
        CountVerdict::Truncated(window) => {
            state.metrics.count_internal_error("truncated_by_server");
            tracing::warn!(
                model,
                sent,
                reported,
                window,
                "the server truncates prompts: its count stays constant while they grow; folding to this window"
            );
        }
    }
}
