//! `GET /v1/retrieve/HASH` and `POST /v1/usage`: the original of a hash, and the usage that a caller reports.

use std::sync::Arc;

use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use foldline::Handle;
use foldline_archive::ExcerptQuery;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::json;

use crate::proxy::admin::metrics::TokenLabels;
use crate::proxy::fold_api::error::FoldApiError;
use crate::proxy::fold_api::respond;
use crate::proxy::state::AppState;

/// Path of an original, before its hash.
pub(super) const PATH_PREFIX: &str = "/v1/retrieve/";
/// Lines around a match of a query.
const QUERY_CONTEXT_LINES: usize = 3;
/// Maximum words of a query; the others are ignored.
const MAX_QUERY_WORDS: usize = 16;
/// Most tokens that one report of usage counts.
const MAX_REPORTED_TOKENS: u64 = 1 << 24;

/// The query of a retrieval.
#[derive(Default, Deserialize)]
struct RetrieveQuery {
    query: Option<String>,
}

/// Returns the original of a hash, or the lines of it that match a query.
pub(super) async fn retrieve(state: &Arc<AppState>, parts: &Parts) -> Result<Response, FoldApiError> {
    let hash = parts.uri.path().strip_prefix(PATH_PREFIX).unwrap_or_default();
    let unknown = || FoldApiError::NotFound("no original of yours has this hash".to_owned());
    let handle = Handle::from_hex(hash).or_else(|_| hash.parse::<Handle>()).map_err(|_| unknown())?;
    let query = Query::<RetrieveQuery>::try_from_uri(&parts.uri).ok();
    let query = query.and_then(|Query(query)| query.query).filter(|words| !words.trim().is_empty());
    let archive = state.tenants.require_tenant(parts).await?.archive;
    let archive = archive.ok_or_else(|| FoldApiError::NotFound("the proxy runs without an archive".to_owned()))?;
    let hash = handle.to_hex();
    respond::run_blocking(state, move |worker| {
        let unfolded = archive.unfold(handle.as_str())?;
        let original = unfolded.readable();
        let text = String::from_utf8_lossy(&original);
        let matches = query.and_then(|words| matching_lines(&original, &words));
        let content = matches.as_deref().unwrap_or(&text);
        let answer = json!({
            "hash": hash,
            "original_content": content,
            "tool_name": unfolded.info.tool,
            "is_excerpt": matches.is_some(),
        });
        Ok(worker.counted(answer.to_string().as_bytes())?)
    })
    .await
}

/// Returns the lines that contain a word of the query, with their neighbors; `None` if no line does.
fn matching_lines(original: &[u8], words: &str) -> Option<String> {
    let words: Vec<String> = words.split_whitespace().take(MAX_QUERY_WORDS).map(regex_escaped).collect();
    let grep = Some(format!("(?i){}", words.join("|")));
    let query = ExcerptQuery { grep, context: QUERY_CONTEXT_LINES, ..ExcerptQuery::default() };
    let part = foldline_archive::excerpt(original, &query).ok()?;
    let text = String::from_utf8_lossy(&part.bytes).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// Escapes a word, so that a regular expression matches it literally.
fn regex_escaped(word: &str) -> String {
    let escaped = word.chars().map(|character| match character.is_ascii_punctuation() {
        true => format!("\\x{{{:x}}}", u32::from(character)),
        false => character.to_string(),
    });
    escaped.collect()
}

/// Usage that a provider reported to the caller.
#[derive(Deserialize)]
struct UsageReport {
    #[serde(default)]
    usage: ReportedUsage,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReportedUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
}

/// Counts the usage that a caller reports.
pub(super) fn record_usage(state: &AppState, body: &[u8]) -> Result<Response, FoldApiError> {
    let invalid = |error| FoldApiError::invalid(format!("the body must be {{\"usage\":{{..}}}}: {error}"));
    let UsageReport { usage } = serde_json::from_slice(body).map_err(invalid)?;
    for (direction, tokens) in [
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
        ("cache_read", usage.cache_read_input_tokens),
        ("cache_write", usage.cache_creation_input_tokens),
    ] {
        state.metrics.reported_tokens.get_or_create(&TokenLabels { direction }).inc_by(tokens.min(MAX_REPORTED_TOKENS));
    }
    Ok(([(CONTENT_TYPE, "application/json")], r#"{"status":"ok"}"#).into_response())
}
