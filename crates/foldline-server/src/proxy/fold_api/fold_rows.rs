//! `POST /v1/compress`: folds the rows of a host, which puts them back in their places.
//!
//! The answer has the same number and order of rows. A conversation that grows gets the same bytes for the same rows,
//! except at a crease.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use foldline::models::model_name;
use foldline::tokens::Tokens;
use foldline::wire::{EndpointPurpose, MessageRows};
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::proxy::fold::job::{FoldJob, HistoryView, RequestedFold, RowForm};
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::fold_api::error::FoldApiError;
use crate::proxy::fold_api::respond::{self, FoldWorker};
use crate::proxy::named_upstream::UpstreamChoice;
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;

/// Label of these requests in the metrics.
const LABEL: &str = "compress";

/// The fields of a request besides its messages.
struct RowOptions {
    token_budget: Option<Tokens>,
    session: Option<String>,
    frozen: usize,
}

/// Optional fields that change what may be folded.
#[derive(Default, Deserialize)]
struct RowConfig {
    frozen_message_count: Option<usize>,
}

/// The caller of an endpoint.
struct Caller {
    tenant: Tenant,
    mode: ProxyMode,
    session: Option<String>,
    user_agent: String,
}

/// Folds the rows of a request.
pub(super) async fn compress(state: &Arc<AppState>, parts: &Parts, body: Bytes) -> Result<Response, FoldApiError> {
    let tenant = state.tenants.require_tenant(parts).await?;
    let caller = Caller {
        mode: state.modes.get(&tenant),
        tenant,
        session: respond::session(parts, None),
        user_agent: respond::user_agent(parts),
    };
    respond::run_blocking(state, move |worker| compress_blocking(worker, caller, &body)).await
}

fn compress_blocking(worker: &FoldWorker, caller: Caller, body: &[u8]) -> Result<Bytes, FoldApiError> {
    let rows = MessageRows::parse(body)?;
    let options = RowOptions::parse(&rows)?;
    let rows = rows.with_frozen(options.frozen);
    let conversation = rows.request().conversation();
    let upstream = UpstreamChoice::from(rows.request().format().dialect().family);
    let upstream = upstream.or_of_tenant(&caller.tenant.settings.upstreams);
    let model_name = model_name(conversation.model.as_deref().unwrap_or_default());
    let meter = worker.state.models.get(caller.tenant.key, &upstream, model_name).meter.clone();
    let withheld: Tokens = rows.withheld().map(|message| meter.message(message)).sum();
    let answer = if rows.is_nothing_foldable() || caller.mode == ProxyMode::Off {
        let tokens = meter.conversation(conversation);
        fits(tokens, options.token_budget)?;
        RowAnswer::unchanged(&rows, tokens)
    } else {
        let job = FoldJob {
            format: rows.request().format(),
            purpose: EndpointPurpose::CountTokens,
            path: String::new(),
            upstream,
            tenant: caller.tenant,
            mode: caller.mode,
            session: options.session.or(caller.session),
            user_agent: caller.user_agent,
            trace_parent: None,
            body: worker.counted(&rows.foldable_body())?,
            history: HistoryView::Client,
            group: None,
            requested: Some(RequestedFold {
                budget: options.token_budget,
                withheld,
                rows: Some(if rows.is_results_only() { RowForm::Results } else { RowForm::Whole }),
            }),
        };
        match worker.fold(job, LABEL) {
            Ok(prepared) => RowAnswer::folded(&rows, &prepared, withheld)?,
            // Without a budget of its own the caller expects rows, and sends them whatever they are.
            Err(FoldApiError::CannotFit { message, .. }) if options.token_budget.is_none() => {
                worker.state.metrics.count_internal_error("cannot_fit");
                tracing::warn!(message, "cannot fold rows to the window of the model; returned unchanged");
                RowAnswer::unchanged(&rows, meter.conversation(conversation))
            }
            Err(FoldApiError::CannotFit { floor, message, .. }) => {
                let budget = options.token_budget.unwrap_or_default();
                return Err(FoldApiError::CannotFit { floor: floor + withheld, budget, message });
            }
            Err(error) => return Err(error),
        }
    };
    let text = answer.into_json();
    drop(rows);
    Ok(worker.counted(text.as_bytes())?)
}

/// Checks rows that cannot be folded against the budget of the caller.
fn fits(tokens: Tokens, budget: Option<Tokens>) -> Result<(), FoldApiError> {
    match budget {
        Some(budget) if tokens > budget => {
            let message =
                format!("cannot fit: the rows have {tokens} tokens, the budget is {budget}, and no row is a result");
            Err(FoldApiError::CannotFit { floor: tokens, budget, message })
        }
        _ => Ok(()),
    }
}

impl RowOptions {
    fn parse(rows: &MessageRows<'_>) -> Result<Self, FoldApiError> {
        fn field<T: for<'d> Deserialize<'d>>(rows: &MessageRows<'_>, key: &str) -> Result<Option<T>, FoldApiError> {
            let invalid = |error| FoldApiError::invalid(format!("field \"{key}\" is not valid: {error}"));
            rows.request()
                .field(key)
                .map(serde_json::from_str::<Option<T>>)
                .transpose()
                .map_err(invalid)
                .map(Option::flatten)
        }
        let config: Option<RowConfig> = field(rows, "config")?;
        let session: Option<String> = field(rows, "session_id")?;
        Ok(Self {
            token_budget: field(rows, "token_budget")?,
            session: session.map(|name| crate::proxy::fold::job::session_text(&name)),
            frozen: config.and_then(|config| config.frozen_message_count).unwrap_or(0),
        })
    }
}

/// The rows to return, and what was done to them.
struct RowAnswer {
    /// JSON list.
    messages: String,
    before: Tokens,
    after: Tokens,
    transforms: Vec<&'static str>,
    hashes: Vec<String>,
}

impl RowAnswer {
    fn unchanged(rows: &MessageRows<'_>, tokens: Tokens) -> Self {
        Self { messages: rows.unchanged(), before: tokens, after: tokens, transforms: Vec::new(), hashes: Vec::new() }
    }

    fn folded(rows: &MessageRows<'_>, prepared: &PreparedRequest, withheld: Tokens) -> Result<Self, FoldApiError> {
        let before = prepared.received_tokens + withheld;
        let Some(body) = prepared.body.as_ref().filter(|_| prepared.job.is_folding()) else {
            return Ok(Self::unchanged(rows, before));
        };
        let messages = rows.join(body).map_err(|error| {
            tracing::error!(%error, "a fold changed the number of rows");
            FoldApiError::Internal
        })?;
        let handles = respond::folded_handles(&messages, prepared);
        Ok(Self {
            before,
            after: prepared.sent_tokens + withheld,
            transforms: prepared.pass_names.iter().copied().collect(),
            hashes: handles.iter().map(foldline::Handle::to_hex).collect(),
            messages,
        })
    }

    fn into_json(self) -> String {
        let Self { messages, before, after, transforms, hashes } = self;
        let stats: Value = json!({
            "tokens_before": before,
            "tokens_after": after,
            "tokens_saved": before.saturating_sub(after),
            "compression_ratio": if before == 0 { 1.0 } else { after as f64 / before as f64 },
            "transforms_applied": transforms,
            "ccr_hashes": hashes,
        });
        format!(r#"{{"messages":{messages},{}"#, &stats.to_string()[1..])
    }
}
