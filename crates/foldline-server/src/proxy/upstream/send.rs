//! Sending a prepared request: the only loop that resends one.
//!
//! A prompt that does not fit is folded again and resent. A hidden round is also resent after a temporary failure,
//! because the client cannot do that itself. Nothing of a response reaches the client before this loop is left.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::tokens::Tokens;
use foldline::wire::{ApiError, ContextOverflow, EndpointPurpose, Format, request_cache_diagnostics};
use hyper::header::CONTENT_ENCODING;
use hyper::{HeaderMap, StatusCode};

use crate::proxy::fold::prepare::{Refold, prepare};
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::state::AppState;
use crate::proxy::upstream::backoff::RetryBudget;
use crate::proxy::upstream::client::{UpstreamError, UpstreamRequest};
use crate::proxy::upstream::diagnosis::{CacheDiagnosis, VerdictSlot};
use crate::proxy::upstream::response_head::{RemainingBody, ResponseHead, ResponseKind};

/// Maximum number of times a prompt that does not fit is folded again and resent.
const MAX_REFOLDS: u32 = 2;

/// The failures after which a request is resent.
pub(crate) enum Retries<'r> {
    /// The prompt does not fit.
    Overflow,
    /// The prompt does not fit, or the failure is temporary and the budget allows another attempt.
    Temporary(&'r mut RetryBudget),
}

/// Sends a request and reads the start of its response. After a refusal for its size, `request` and `prepared` are
/// replaced by a smaller version and resent. The originals in the sent request are on disk when this returns.
pub(crate) async fn send(
    state: &Arc<AppState>,
    format: Format,
    request: &mut UpstreamRequest,
    mut prepared: Option<&mut PreparedRequest>,
    mut retries: Retries<'_>,
) -> Result<ResponseHead, UpstreamError> {
    let may_refold = prepared.as_ref().is_some_and(|prepared| prepared.job.is_folding());
    let (mut refolds, idle) = (0, state.settings.timeouts.idle);
    let kind = if request.requests_stream() { ResponseKind::Stream } else { ResponseKind::Typed };
    let mut is_diagnosis_refused = false;
    if let (Retries::Overflow, Some(prepared)) = (&retries, prepared.as_deref_mut()) {
        request_diagnosis(state, request, prepared);
    }
    let result = loop {
        let verdict = prepared.as_ref().and_then(|it| it.diagnosis.as_ref()).map(|asked| asked.verdict.clone());
        let result = match state.client.send(request).await {
            Ok(response) => {
                let budget = &state.body_budget;
                Ok(ResponseHead::read(response, format, kind, may_refold, idle, budget, verdict).await)
            }
            Err(error) => Err(error),
        };
        let overflow = result.as_ref().ok().and_then(|head| head.overflow);
        if let (Some(overflow), Some(prepared)) = (overflow, prepared.as_deref_mut())
            && may_refold
            && refolds < max_refolds(overflow)
        {
            refolds += 1;
            if let Some((body, tighter)) = refold_after_overflow(state, prepared, overflow).await {
                request.headers.remove(CONTENT_ENCODING);
                request.body = body;
                *prepared = tighter;
                continue;
            }
        }
        if let (Ok(head), Some(prepared)) = (&result, prepared.as_deref_mut())
            && let Some(plain_body) = refused_diagnosis(prepared, head)
        {
            request.body = plain_body;
            is_diagnosis_refused = true;
            continue;
        }
        match retries.next_wait(&result) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => break result,
        }
    };
    if let Retries::Overflow = retries {
        record_upstream_error(state, &result);
    }
    if let (true, Ok(head), Some(prepared)) = (is_diagnosis_refused, &result, prepared.as_deref())
        && head.parts.status.is_success()
    {
        state.diagnostics_refusals.add(prepared.job.upstream.name());
    }
    if let (Ok(head), Some(prepared)) = (&result, prepared) {
        accept(prepared, head).await;
        wait_for_sync(state, prepared).await;
    }
    result
}

/// Counts and logs a conversation that the upstream did not answer with success.
fn record_upstream_error(state: &AppState, result: &Result<ResponseHead, UpstreamError>) {
    match result {
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

/// Asks for a diagnosis of the provider's cache, if the request is in the sample.
fn request_diagnosis(state: &AppState, request: &mut UpstreamRequest, prepared: &mut PreparedRequest) {
    let interval = state.settings.cache_diagnostics;
    let (job, Some(facts)) = (&prepared.job, &prepared.facts) else { return };
    // The hash of a conversation is a number that is as good as drawn.
    let is_sampled = interval > 0 && facts.prefixes.full() % u128::from(interval) == 0;
    if !is_sampled
        || job.purpose != EndpointPurpose::Turn
        || request.headers.contains_key(CONTENT_ENCODING)
        || state.diagnostics_refusals.contains(job.upstream.name())
    {
        return;
    }
    let log = state.activity.get(job.tenant.key.0, job.tenant.archive.as_ref());
    let Some(previous) = log.previous_response(&facts.session, &prepared.model_name) else { return };
    if let Some(body) = request_cache_diagnostics(job.format, request.uri.path(), &request.body, &previous) {
        let plain_body = std::mem::replace(&mut request.body, body.into());
        prepared.diagnosis = Some(CacheDiagnosis { plain_body, verdict: VerdictSlot::default() });
    }
}

/// Returns the body without the field that asks for a diagnosis, if the provider may have refused the request because of
/// it. The refusal may be about something else, but the client did not send the field.
fn refused_diagnosis(prepared: &mut PreparedRequest, head: &ResponseHead) -> Option<Bytes> {
    let is_refused = [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY].contains(&head.parts.status);
    prepared.diagnosis.take_if(|_| is_refused && head.overflow.is_none()).map(|asked| asked.plain_body)
}

/// Returns how often a refused prompt is folded again and resent: once if the refusal may not be an overflow.
fn max_refolds(overflow: ContextOverflow) -> u32 {
    if overflow.evidence.is_strict() { MAX_REFOLDS } else { 1 }
}

/// Folds a request that did not fit again, to the budget learned from the refusal. Returns the new body and all facts
/// about it; none if it cannot be folded further.
async fn refold_after_overflow(
    state: &Arc<AppState>,
    refused: &PreparedRequest,
    overflow: ContextOverflow,
) -> Option<(Bytes, PreparedRequest)> {
    state.metrics.overflows.inc();
    let learn = |max_output| refused.model.learn_from_overflow(overflow, refused.sent_tokens, max_output);
    let budget = learn(refused.max_output);
    let (limit, evidence) = (overflow.limit_tokens, overflow.evidence);
    tracing::info!(
        model = refused.model_name,
        sent = refused.sent_tokens,
        limit,
        ?evidence,
        budget,
        "prompt exceeds the model's window; folding again"
    );
    if let Some(tighter) = refold_to(state, refused, budget).await {
        return Some(tighter);
    }
    // The client may reserve more for the response than the limit leaves; a smaller reserve is better than giving up.
    let without_reserve = learn(None);
    if without_reserve <= budget || overflow.output_tokens.is_some() {
        return None;
    }
    refold_to(state, refused, without_reserve).await
}

/// Folds a refused request to a budget; none if that makes it no smaller.
async fn refold_to(
    state: &Arc<AppState>,
    refused: &PreparedRequest,
    budget: Tokens,
) -> Option<(Bytes, PreparedRequest)> {
    let tighter = prepare(state, &refused.job, Some(Refold::WithBudget(budget))).await?;
    let body = tighter.body.clone().filter(|_| tighter.sent_tokens < refused.sent_tokens)?;
    Some((body, tighter))
}

/// Records a response that is not a refusal: the budget of a retry becomes a fact of its conversation, and a learned
/// limit below the prompt is dropped.
async fn accept(prepared: &PreparedRequest, head: &ResponseHead) {
    let is_accepted = head.parts.status.is_success() && head.overflow.is_none();
    if !is_accepted || prepared.job.purpose != EndpointPurpose::Turn {
        return;
    }
    prepared.model.accepted(prepared.prompt_tokens());
    if let Some(tight) = prepared.tight.clone() {
        // Writes to the archive.
        let _ = tokio::task::spawn_blocking(move || tight.hold()).await;
    }
}

/// Waits until originals are on disk. The sync runs while the provider reads the prompt, so there is seldom anything
/// left to wait for.
async fn wait_for_sync(state: &AppState, prepared: &PreparedRequest) {
    let Some(pending) = prepared.pending_sync.clone() else { return };
    let synced = tokio::task::spawn_blocking(move || pending.wait()).await;
    if let Ok(Err(error)) = synced {
        state.metrics.count_internal_error("sync_failed");
        tracing::warn!(%error, "archive sync failed; new originals may be lost in a power failure");
    }
}

impl Retries<'_> {
    /// Returns the wait before the request is resent; none if it is not.
    fn next_wait(&mut self, result: &Result<ResponseHead, UpstreamError>) -> Option<Duration> {
        let Retries::Temporary(budget) = self else { return None };
        let wait = match result {
            Ok(ResponseHead { remaining: RemainingBody::Failed(_), .. }) => budget.next_wait(&HeaderMap::new()),
            Ok(head) if head.parts.status.is_success() => return None,
            Ok(head) => {
                let error = ApiError::parse(&head.chunks.concat());
                let is_temporary = error.is_temporary(Some(head.parts.status.as_u16()));
                is_temporary.then(|| budget.next_wait(&head.parts.headers)).flatten()
            }
            Err(error) if error.status() == StatusCode::BAD_GATEWAY => budget.next_wait(&HeaderMap::new()),
            Err(_) => None,
        };
        let reason = failure_reason(result);
        match wait {
            Some(wait) => tracing::info!(reason, ?wait, "hidden round failed; retrying"),
            None => tracing::warn!(reason, "hidden round failed; returning the error to the client"),
        }
        wait
    }
}

/// Returns the reason of a failure, for the log.
fn failure_reason(result: &Result<ResponseHead, UpstreamError>) -> String {
    match result {
        Ok(ResponseHead { remaining: RemainingBody::Failed(reason), .. }) => reason.clone(),
        Ok(head) => format!("status {}: {}", head.parts.status, ApiError::parse(&head.chunks.concat())),
        Err(error) => error.to_string(),
    }
}
