//! What the fold endpoints share: running a fold on a blocking thread, the session of a caller, and counted answers.

use std::sync::Arc;
use std::time::Instant;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use foldline::engine::{CancelFlag, marker};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, USER_AGENT, X_CONTENT_TYPE_OPTIONS};
use hyper::http::request::Parts;
use tokio::runtime::Handle as Runtime;

use crate::proxy::accounting::record_turn;
use crate::proxy::downstream::body_budget::{BodyBuffer, BudgetExhausted};
use crate::proxy::downstream::headers;
use crate::proxy::downstream::headers::BodyForm;
use crate::proxy::fold::job::{FoldJob, session_text};
use crate::proxy::fold::prepare::{CancelOnDrop, fold_requested};
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::fold_api::error::FoldApiError;
use crate::proxy::state::AppState;

/// The shared state and the memory budget, on a blocking thread.
pub(super) struct FoldWorker {
    pub(super) state: Arc<AppState>,
    cancel: CancelFlag,
    runtime: Runtime,
    received_at: Instant,
}

/// Runs a fold on a blocking thread. It is cancelled when this future is dropped, because the caller has disconnected.
pub(super) async fn run_blocking(
    state: &Arc<AppState>,
    work: impl FnOnce(&FoldWorker) -> Result<Bytes, FoldApiError> + Send + 'static,
) -> Result<Response, FoldApiError> {
    let guard = CancelOnDrop::default();
    let worker = FoldWorker {
        state: state.clone(),
        cancel: guard.flag(),
        runtime: Runtime::current(),
        received_at: Instant::now(),
    };
    let done = tokio::task::spawn_blocking(move || work(&worker)).await;
    let answer = done.unwrap_or_else(|error| {
        state.metrics.count_internal_error("panic");
        tracing::error!(%error, "a fold panicked");
        Err(FoldApiError::Internal)
    })?;
    let headers =
        [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, answer).into_response())
}

impl FoldWorker {
    /// Folds a job, and waits until its originals are on disk.
    pub(super) fn fold(&self, job: FoldJob, label: &'static str) -> Result<PreparedRequest, FoldApiError> {
        let prepared = fold_requested(&self.state, &Arc::new(job), &self.cancel)?;
        if let Some(Err(error)) = prepared.pending_sync.as_ref().map(|sync| sync.wait()) {
            self.state.metrics.count_internal_error("archive");
            return Err(error.into());
        }
        let is_folded = prepared.job.is_folding() && prepared.body.is_some();
        let form = if is_folded { BodyForm::Decoded } else { BodyForm::Unmodified };
        record_turn(&self.state, label, form, Some(&prepared), self.received_at.elapsed());
        Ok(prepared)
    }

    /// Returns bytes whose memory is counted as that of a response.
    pub(super) fn counted(&self, bytes: &[u8]) -> Result<Bytes, BudgetExhausted> {
        let mut buffer = BodyBuffer::for_response(bytes.len(), &self.state.body_budget);
        let pushed = self.runtime.block_on(buffer.push(bytes));
        pushed.inspect_err(|_| {
            self.state.metrics.rejected_bodies.inc();
        })?;
        Ok(buffer.into_bytes())
    }
}

/// Returns the name of a caller's session: the one in the body, or that of the header.
pub(super) fn session(parts: &Parts, named: Option<&str>) -> Option<String> {
    let header = || parts.headers.get(headers::SESSION).and_then(|value| value.to_str().ok());
    named.or_else(header).map(session_text)
}

/// Returns the `User-Agent` of a caller.
pub(super) fn user_agent(parts: &Parts) -> String {
    parts.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// Returns the handles in the markers of a folded text, in order and without repetition. Only those that the fold itself
/// made are returned, so that a forged marker names none.
pub(super) fn folded_handles(text: &str, prepared: &PreparedRequest) -> Vec<foldline::Handle> {
    let mut seen = std::collections::HashSet::new();
    marker::handles(text).filter(|handle| prepared.stored.contains(*handle) && seen.insert(*handle)).collect()
}
