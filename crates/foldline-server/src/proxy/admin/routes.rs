//! The proxy's own endpoints below `/foldline/`: health, metrics and originals.
//!
//! They require the token, if one is set.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use foldline_archive::{Archive, ErrorKind, ExcerptQuery, excerpt};
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::json;
use tower::ServiceExt;

use crate::proxy::admin::{api, stats};
use crate::proxy::downstream::error_response;
use crate::proxy::fold::tenant::NoTenant;
use crate::proxy::settings::ProxySettings;
use crate::proxy::state::AppState;
use crate::proxy::upstream::models::ModelWindow;

/// Path prefix of the proxy's own endpoints.
pub(crate) const ADMIN_PREFIX: &str = "/foldline/";

/// Returns the path without a token before it.
pub(crate) fn own_path(path: &str) -> &str {
    path.strip_prefix("/token/").and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap_or(path)
}

/// Answers a probe; `None` if the request is none.
///
/// A service manager has no token, so a probe shows a status and nothing else. A proxy without its database answers
/// requests, but does not fold; one that is stopping finishes those that it has.
pub(crate) async fn answer_probe(proxy: &AppState, parts: &Parts) -> Option<Response> {
    let is_ready = match parts.uri.path() {
        _ if !matches!(parts.method, Method::GET | Method::HEAD) => return None,
        "/foldline/livez" => true,
        "/foldline/readyz" => !proxy.stop.is_cancelled() && proxy.readiness.is_reachable(proxy.tenants.archive()).await,
        _ => return None,
    };
    Some(match is_ready {
        true => (StatusCode::OK, "ok\n").into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
    })
}

/// Returns true for the request that exchanges a token for a cookie; it cannot carry one.
pub(crate) fn is_login(parts: &Parts) -> bool {
    parts.method == Method::POST && own_path(parts.uri.path()) == "/foldline/api/v1/login"
}

/// Handles a login.
pub(crate) async fn login(proxy: &AppState, parts: &Parts, body: Body) -> Response {
    api::changes::login(proxy, &parts.headers, body).await
}

/// Returns the routes below [`ADMIN_PREFIX`].
pub(crate) fn admin_routes(proxy: Arc<AppState>) -> Router {
    Router::new()
        .route("/foldline/healthz", get(healthz))
        .route("/foldline/metrics", get(metrics))
        .route("/foldline/unfold/{handle}", get(unfold))
        .merge(api::routes())
        .with_state(proxy)
}

/// Handles a request below [`ADMIN_PREFIX`].
pub(crate) async fn handle_admin_request(routes: Router, parts: Parts, body: Body) -> Response {
    match routes.oneshot(Request::from_parts(parts, body)).await {
        Ok(mut response) => {
            let nosniff = header::HeaderValue::from_static("nosniff");
            response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
            response
        }
        Err(never) => match never {},
    }
}

async fn healthz(State(proxy): State<Arc<AppState>>, parts: Parts) -> Response {
    let ProxySettings { upstreams, timeouts, .. } = &proxy.settings;
    // A monitor without credentials belongs to no tenant, and gets no learned windows.
    let learned =
        proxy.tenants.find_tenant(&parts).map(|tenant| proxy.models.learned_windows(tenant.key)).unwrap_or_default();
    let learned = learned.into_iter().map(|ModelWindow { model, upstream, window }| {
        let age = window.learned_at.elapsed();
        let expires = (!window.evidence.is_stated()).then(|| timeouts.learned.saturating_sub(age));
        json!({
            "model": model,
            "upstream": upstream.url(upstreams).to_string(),
            "tokens": window.tokens,
            "bounds": window.bounds,
            "evidence": window.evidence,
            "age_seconds": age.as_secs(),
            "expires_in_seconds": expires.map(|left| left.as_secs()),
        })
    });
    let errors = stats::upstream_errors(&proxy.metrics);
    let archive = proxy.tenants.archive().map(Archive::health);
    let objects = archive.as_ref().and_then(|archive| archive.objects.as_ref());
    let mut health = json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "upstream_errors": { "4xx": errors.client, "5xx": errors.server, "none": errors.no_response },
        "learned_windows": learned.collect::<Vec<_>>(),
        "archive": archive.as_ref().map(|archive| reachability(archive.outage.as_deref())),
        "objects": objects.map(|objects| reachability(objects.outage.as_deref())),
    });
    let named = proxy.settings.named_upstreams.iter();
    health["named_upstreams"] = named.map(|it| (it.name().to_owned(), json!(it.url().to_string()))).collect();
    for (family, url) in upstreams.iter() {
        health[family.name] = url.to_string().into();
    }
    json_response(StatusCode::OK, &health)
}

/// Returns the state of a part of the archive. The reason of an outage is in the log: it may name hosts.
fn reachability(outage: Option<&str>) -> &'static str {
    if outage.is_none() { "ok" } else { "unreachable" }
}

async fn metrics(State(proxy): State<Arc<AppState>>) -> Response {
    let health = proxy.tenants.archive().map(Archive::health);
    let text = proxy.metrics.encode(proxy.body_budget.reserved_bytes(), health.as_ref());
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

/// The requested part of an original.
#[derive(Deserialize)]
struct UnfoldQuery {
    lines: Option<String>,
    grep: Option<String>,
    page: Option<usize>,
    /// Any value: the exact bytes instead of the readable view.
    raw: Option<String>,
}

async fn unfold(
    State(proxy): State<Arc<AppState>>,
    Path(handle): Path<String>,
    Query(params): Query<UnfoldQuery>,
    parts: Parts,
) -> Response {
    let archive = match proxy.tenants.require_tenant(&parts).await.map(|tenant| tenant.archive) {
        Ok(Some(archive)) => archive,
        Ok(None) => {
            return error_response::json_error(None, StatusCode::NOT_FOUND, "the proxy runs without an archive");
        }
        Err(NoTenant) => {
            let reason =
                "the request belongs to no tenant; use a named token, or add the API key whose originals you want";
            return error_response::json_error(None, StatusCode::FORBIDDEN, reason);
        }
    };
    let read = tokio::task::spawn_blocking(move || {
        let lines = params.lines.as_deref().map(str::parse).transpose()?;
        let query = ExcerptQuery { lines, grep: params.grep, page: params.page, ..ExcerptQuery::default() };
        let unfolded = archive.unfold(&handle)?;
        match params.raw {
            Some(_) => excerpt(&unfolded.bytes, &query),
            None => excerpt(&unfolded.readable(), &query),
        }
    });
    match read.await {
        Ok(Ok(part)) => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], part.bytes).into_response(),
        Ok(Err(error)) => {
            let status = match error.kind() {
                ErrorKind::InvalidInput | ErrorKind::InvalidHandle => StatusCode::BAD_REQUEST,
                ErrorKind::NotFound | ErrorKind::Ambiguous { .. } => StatusCode::NOT_FOUND,
                ErrorKind::Expired { .. } => StatusCode::GONE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            error_response::json_error(None, status, &error.to_string())
        }
        Err(_) => error_response::json_error(None, StatusCode::INTERNAL_SERVER_ERROR, "the archive could not be read"),
    }
}

fn json_response(status: StatusCode, value: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
