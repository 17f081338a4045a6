//! The API below `/foldline/api/v1/`: JSON for the dashboard, the terminal and other programs.
//!
//! Every answer covers the tenant of the caller alone. The contract is docs/reference/api.md; the answers are written
//! in `answers`, from the summary of the tenant's journal.

pub(crate) mod answers;
pub(crate) mod changes;
mod respond;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::activity::{ActivitySummary, now_millis};
use crate::proxy::admin::api::answers::{ProxyFacts, TableKey, TableQuery};
use crate::proxy::admin::api::respond::{ApiFailure, ApiResult, TenantView, json_response, json_text_response};
use crate::proxy::fold::session_pins::read_pins;
use crate::proxy::state::AppState;

/// Maximum rows of a response.
const MAX_LIMIT: usize = 10_000;
/// Longest wait of an answer for the count of an archive.
const MAX_COUNT_WAIT: Duration = Duration::from_millis(50);
/// Bytes of an original that are shown.
const MAX_SHOWN_BYTES: usize = 1 << 20;

type SharedState = State<Arc<AppState>>;

/// Returns the routes of the API.
pub(crate) fn routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/foldline/api/v1/overview", get(overview))
        .route("/foldline/api/v1/mode", put(changes::set_mode))
        .route("/foldline/api/v1/sessions", get(sessions))
        .route("/foldline/api/v1/sessions/{id}", get(session).delete(changes::delete_session))
        .route("/foldline/api/v1/sessions/{id}/pins", put(changes::set_pins))
        .route("/foldline/api/v1/cache", get(cache))
        .route("/foldline/api/v1/quality", get(quality))
        .route("/foldline/api/v1/inventory", get(inventory))
        .route("/foldline/api/v1/groups", get(groups))
        .route("/foldline/api/v1/table", get(table))
        .route("/foldline/api/v1/policies", get(policies).post(changes::compare_policies))
        .route("/foldline/api/v1/health", get(health))
        .route("/foldline/api/v1/originals/{handle}", get(original))
        .route("/foldline/api/v1/events", get(stream::events))
        .route("/foldline/api/v1/logout", post(changes::logout))
}

/// Answers from the summary of the caller's journal.
async fn answer(
    state: &AppState,
    parts: &Parts,
    show: impl FnOnce(&ActivitySummary) -> Value + Send + 'static,
) -> ApiResult {
    let view = TenantView::identify(state, parts).await?;
    let text = view.answer(state, parts, move |summary, _| Ok(show(summary).to_string())).await?;
    Ok(json_text_response(text))
}

async fn overview(State(state): SharedState, parts: Parts) -> ApiResult {
    let view = TenantView::identify(&state, &parts).await?;
    let facts = ProxyFacts::new(&state, &view.tenant);
    let show = move |summary: &ActivitySummary, progress| Ok(answers::overview(summary, &facts, progress).to_string());
    Ok(json_text_response(view.answer(&state, &parts, show).await?))
}

/// The period and number of rows of a list.
#[derive(Deserialize)]
struct ListQuery {
    since: Option<String>,
    limit: Option<usize>,
    live: Option<String>,
}

impl ListQuery {
    fn limit(&self, default: usize) -> usize {
        self.limit.unwrap_or(default).min(MAX_LIMIT)
    }
}

/// Parses the begin of a period.
fn parse_since(text: Option<&str>) -> Result<i64, ApiFailure> {
    let invalid = || {
        ApiFailure::new(
            StatusCode::BAD_REQUEST,
            "since must be days (7d), hours (24h), \"all\" or milliseconds since 1970",
        )
    };
    answers::period_start(text.unwrap_or("all"), now_millis()).ok_or_else(invalid)
}

async fn sessions(State(state): SharedState, Query(query): Query<ListQuery>, parts: Parts) -> ApiResult {
    let (since, limit) = (parse_since(query.since.as_deref())?, query.limit(100));
    let live_only = query.live.is_some_and(|live| live == "1");
    answer(&state, &parts, move |summary| answers::sessions(summary, since, limit, live_only)).await
}

async fn groups(State(state): SharedState, Query(query): Query<ListQuery>, parts: Parts) -> ApiResult {
    let (since, share) = (parse_since(query.since.as_deref())?, state.settings.observe_share);
    answer(&state, &parts, move |summary| answers::groups(summary, since, share)).await
}

async fn session(State(state): SharedState, Path(id): Path<String>, parts: Parts) -> ApiResult {
    let view = TenantView::identify(&state, &parts).await?;
    let (tenant, shared) = (view.tenant.clone(), state.clone());
    let show = move |summary: &ActivitySummary, _| {
        let archive = tenant.archive.as_ref().map(|archive| archive.in_session(id.clone()));
        let pins = || shared.pins.get(tenant.key, &id, || read_pins(archive.as_ref()));
        let unknown = || ApiFailure::new(StatusCode::NOT_FOUND, "no session has this id");
        answers::session(summary, &id, pins).map(|session| session.to_string()).ok_or_else(unknown)
    };
    Ok(json_text_response(view.answer(&state, &parts, show).await?))
}

async fn cache(State(state): SharedState, Query(query): Query<ListQuery>, parts: Parts) -> ApiResult {
    let limit = query.limit(120);
    answer(&state, &parts, move |summary| answers::cache(summary, limit)).await
}

async fn quality(State(state): SharedState, parts: Parts) -> ApiResult {
    answer(&state, &parts, answers::quality).await
}

async fn inventory(State(state): SharedState, parts: Parts) -> ApiResult {
    answer(&state, &parts, answers::inventory).await
}

/// The rows, period and format of a table.
#[derive(Deserialize)]
struct TableParams {
    by: Option<String>,
    since: Option<String>,
    format: Option<String>,
    limit: Option<usize>,
    download: Option<String>,
}

async fn table(State(state): SharedState, Query(params): Query<TableParams>, parts: Parts) -> ApiResult {
    let by = params.by.as_deref().unwrap_or("session");
    let unknown = || ApiFailure::new(StatusCode::BAD_REQUEST, "by must be session, model, client or day");
    let key = TableKey::parse(by).ok_or_else(unknown)?;
    let query = TableQuery { key, since: parse_since(params.since.as_deref())? };
    let is_csv = params.format.as_deref() == Some("csv");
    let is_download = params.download.is_some();
    let limit = params.limit.unwrap_or(if is_csv || is_download { usize::MAX } else { 1_000 });
    let show = move |summary: &ActivitySummary, _| match is_csv {
        true => Ok(answers::table_csv(summary, query, limit)),
        false => Ok(answers::table(summary, query, limit).to_string()),
    };
    let text = TenantView::identify(&state, &parts).await?.answer(&state, &parts, show).await?;
    let (kind, ending) = if is_csv { ("text/csv; charset=utf-8", "csv") } else { ("application/json", "json") };
    let mut response = ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")], text).into_response();
    let file = format!("attachment; filename=\"foldline-{by}.{ending}\"");
    if let (true, Ok(file)) = (is_csv || is_download, file.parse()) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, file);
    }
    Ok(response)
}

async fn policies(State(state): SharedState, parts: Parts) -> ApiResult {
    TenantView::identify(&state, &parts).await?;
    Ok(json_response(&state.comparison.answer()))
}

async fn health(State(state): SharedState, parts: Parts) -> ApiResult {
    let view = TenantView::identify(&state, &parts).await?;
    let facts = ProxyFacts::new(&state, &view.tenant);
    let windows = answers::learned_windows(&state, &view.tenant);
    let archive = archive_facts(&state, &view).await;
    let show = move |summary: &ActivitySummary, _| Ok(answers::health(summary, &facts, archive, windows).to_string());
    Ok(json_text_response(view.answer(&state, &parts, show).await?))
}

/// Returns the facts about the tenant's part of the archive; null if there is none. Counting a large archive takes long: it
/// is done in the background, and meanwhile the last facts are returned, or that there are none yet.
async fn archive_facts(state: &Arc<AppState>, view: &TenantView) -> Value {
    let Some(archive) = view.tenant.archive.clone() else { return Value::Null };
    let key = (view.tenant.key, "archive facts".to_owned());
    let known = state.answers.reuse_slow(&key);
    let parse = |text: &[u8]| serde_json::from_slice(text).unwrap_or(Value::Null);
    if let Some((text, true)) = &known {
        return parse(text);
    }
    let mut counted = None;
    if state.answers.begin_slow(&key) {
        let (shared, begin) = (state.clone(), Instant::now());
        let counting = tokio::task::spawn_blocking(move || {
            let facts = answers::archive_facts(&archive);
            shared.answers.store(key.clone(), facts.to_string().into(), begin.elapsed());
            shared.answers.end_slow(&key);
            facts
        });
        counted = tokio::time::timeout(MAX_COUNT_WAIT, counting).await.ok().and_then(Result::ok);
    }
    let uncounted = || known.map_or_else(|| json!({ "is_counted": false }), |(text, _)| parse(&text));
    counted.unwrap_or_else(uncounted)
}

async fn original(State(state): SharedState, Path(handle): Path<String>, parts: Parts) -> ApiResult {
    let view = TenantView::identify(&state, &parts).await?;
    let no_archive = || ApiFailure::new(StatusCode::NOT_FOUND, "the proxy runs without an archive");
    let archive = view.tenant.archive.ok_or_else(no_archive)?;
    let read = tokio::task::spawn_blocking(move || archive.unfold(&handle));
    let failed = |_| ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "the archive could not be read");
    let unfolded = read.await.map_err(failed)??;
    let text = unfolded.readable();
    let shown = &text[..text.len().min(MAX_SHOWN_BYTES)];
    let is_text = std::str::from_utf8(&text).is_ok();
    Ok(json_response(&json!({
        "handle": unfolded.info.handle.as_str(),
        "tool": unfolded.info.tool,
        "arguments": unfolded.info.arguments,
        "tokens": unfolded.info.tokens,
        "bytes": unfolded.bytes.len(),
        "is_text": is_text,
        "text": if is_text { String::from_utf8_lossy(shown) } else { "".into() },
    })))
}
