//! `POST /foldline/api/v1/fold`: folds a request body of any dialect and returns it, with numbers.

use std::borrow::Cow;
use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use foldline::tokens::Tokens;
use foldline::wire::{Dialect, EndpointPurpose, Format};
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::proxy::fold::job::{FoldJob, HistoryView, RequestedFold};
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::fold_api::error::FoldApiError;
use crate::proxy::fold_api::respond::{self, FoldWorker};
use crate::proxy::named_upstream::UpstreamChoice;
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;

/// Label of these requests in the metrics.
const LABEL: &str = "fold";

/// A request body, and what the path and the headers of a provider's request would state.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FoldCall<'b> {
    /// The body for the provider.
    #[serde(borrow)]
    body: &'b RawValue,
    /// Path at the provider, which selects the dialect and may name the model.
    path: Option<Cow<'b, str>>,
    /// Maximum tokens of the folded body.
    token_budget: Option<Tokens>,
    session_id: Option<Cow<'b, str>>,
}

/// Folds the body of a request.
pub(super) async fn fold(state: &Arc<AppState>, parts: &Parts, body: Bytes) -> Result<Response, FoldApiError> {
    let tenant = state.tenants.require_tenant(parts).await?;
    let mode = state.modes.get(&tenant);
    let (named, user_agent) = (respond::session(parts, None), respond::user_agent(parts));
    respond::run_blocking(state, move |worker| fold_blocking(worker, tenant, mode, named, user_agent, &body)).await
}

fn fold_blocking(
    worker: &FoldWorker,
    tenant: Tenant,
    mode: ProxyMode,
    named: Option<String>,
    user_agent: String,
    received: &Bytes,
) -> Result<Bytes, FoldApiError> {
    let invalid =
        |error| FoldApiError::invalid(format!("the body must be {{\"body\":{{..}},\"path\":\"..\"}}: {error}"));
    let call: FoldCall<'_> = serde_json::from_slice(received).map_err(invalid)?;
    let path = call.path.as_deref().unwrap_or_default();
    let body = received.slice_ref(call.body.get().as_bytes());
    let known = Dialect::for_path(path).map(|(dialect, _)| dialect.format);
    let format = match known {
        Some(format) => format,
        None if path.is_empty() => {
            Format::detect(&body).ok_or_else(|| FoldApiError::invalid("field \"body\" is not a request"))?
        }
        None => return Err(FoldApiError::invalid("field \"path\" is not the path of a conversation")),
    };
    let job = FoldJob {
        format,
        purpose: EndpointPurpose::CountTokens,
        path: path.to_owned(),
        upstream: UpstreamChoice::from(format.dialect().family).or_of_tenant(&tenant.settings.upstreams),
        tenant,
        mode,
        session: call.session_id.as_deref().map(crate::proxy::fold::job::session_text).or(named),
        user_agent,
        trace_parent: None,
        body: body.clone(),
        history: HistoryView::Client,
        group: None,
        requested: Some(RequestedFold { budget: call.token_budget, withheld: 0, rows: None }),
    };
    let is_off = mode == ProxyMode::Off;
    let prepared = worker.fold(job, LABEL)?;
    let folded = prepared.body.as_ref().filter(|_| prepared.job.is_folding() && !is_off);
    let text = std::str::from_utf8(folded.unwrap_or(&body)).map_err(|_| FoldApiError::Internal)?;
    let sent = if folded.is_some() { prepared.sent_tokens } else { prepared.received_tokens };
    let handles = folded.map_or_else(Vec::new, |_| respond::folded_handles(text, &prepared));
    let stats = json!({
        "format": format.name(),
        "is_folded": folded.is_some(),
        "tokens_before": prepared.received_tokens,
        "tokens_after": sent,
        "budget": prepared.budget,
        "folds": if folded.is_some() { prepared.fold_count } else { 0 },
        "passes": prepared.pass_names.iter().filter(|_| folded.is_some()).collect::<Vec<_>>(),
        "handles": handles,
    });
    let answer = format!(r#"{{"body":{text},{}"#, &stats.to_string()[1..]);
    Ok(worker.counted(answer.as_bytes())?)
}
