//! Requests that change something: login, logout, mode, pins, comparisons, deletion. They are accepted from the dashboard
//! itself and from programs, not from pages of other origins.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use foldline::engine::PinPatterns;
use http_body_util::{BodyExt, Limited};
use hyper::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::proxy::admin::api::respond::{ApiFailure, ApiResult, TenantView, json_response};
use crate::proxy::admin::own_change;
use crate::proxy::downstream::auth;
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;

/// Largest body of a request that changes something.
const MAX_CHANGE_BYTES: usize = 16_384;

/// Rejects a change that a page of another origin caused.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiFailure> {
    let reason = "changes need the header x-foldline-request: 1 and may not come from another origin";
    if own_change::is_own_change(headers) { Ok(()) } else { Err(ApiFailure::new(StatusCode::FORBIDDEN, reason)) }
}

/// Maximum patterns that can be pinned in a session, and maximum bytes of each.
const MAX_PINS: usize = 100;
const MAX_PIN_BYTES: usize = 512;

/// Reads the JSON body of a change. `expected` describes it for the error message.
async fn read_change<T: DeserializeOwned>(body: Body, expected: &str, timeout: Duration) -> Result<T, ApiFailure> {
    let slow = |_| ApiFailure::new(StatusCode::REQUEST_TIMEOUT, "the body was not received in time");
    let body = tokio::time::timeout(timeout, Limited::new(body, MAX_CHANGE_BYTES).collect()).await.map_err(slow)?;
    let body = body.map_err(|_| ApiFailure::new(StatusCode::BAD_REQUEST, "the body could not be read"))?.to_bytes();
    let invalid = |_| ApiFailure::new(StatusCode::BAD_REQUEST, format!("the body must be {expected}"));
    serde_json::from_slice(&body).map_err(invalid)
}

/// A token that a browser sends once.
#[derive(Deserialize)]
struct LoginBody {
    token: String,
}

/// Sets the cookie if the token is valid. Needs no token itself.
pub(crate) async fn login(state: &AppState, headers: &HeaderMap, body: Body) -> Response {
    let result = async {
        check_origin(headers)?;
        let token =
            read_change::<LoginBody>(body, r#"{"token":".."}"#, state.settings.timeouts.client_read).await?.token;
        if !state.auth.accepts(token.as_bytes()) {
            return Err(ApiFailure::new(StatusCode::UNAUTHORIZED, "wrong token"));
        }
        Ok(cookie_response(&token, state.settings.tls.is_some()))
    };
    result.await.unwrap_or_else(ApiFailure::into_response)
}

/// Clears the cookie.
pub(super) async fn logout(State(state): State<Arc<AppState>>, parts: Parts) -> ApiResult {
    check_origin(&parts.headers)?;
    Ok(cookie_response("", state.settings.tls.is_some()))
}

fn cookie_response(token: &str, is_tls: bool) -> Response {
    let mut response = json_response(&json!({}));
    if let Some(cookie) = auth::set_cookie(token, is_tls) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// A mode by its name.
#[derive(Deserialize)]
struct ModeBody {
    mode: String,
}

/// Sets the mode of the caller's tenant, from its next request on and as long as the proxy runs.
pub(super) async fn set_mode(State(state): State<Arc<AppState>>, parts: Parts, body: Body) -> ApiResult {
    check_origin(&parts.headers)?;
    let TenantView { tenant, .. } = TenantView::identify(&state, &parts).await?;
    let body: ModeBody = read_change(body, r#"{"mode":".."}"#, state.settings.timeouts.client_read).await?;
    let mode: ProxyMode = body.mode.parse().map_err(|error| ApiFailure::new(StatusCode::BAD_REQUEST, error))?;
    if mode == ProxyMode::Fold && tenant.archive.is_none() {
        let reason = "the proxy runs without an archive, so nothing can be folded; start it with --mode fold";
        return Err(ApiFailure::new(StatusCode::CONFLICT, reason));
    }
    state.modes.set(&tenant, mode);
    state.answers.forget(tenant.key);
    tracing::info!(mode = mode.name(), "the mode was changed by the API");
    Ok(json_response(&json!({ "mode": mode.name() })))
}

/// Sets what is never folded in a session, from its next crease on.
pub(super) async fn set_pins(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
    parts: Parts,
    body: Body,
) -> ApiResult {
    check_origin(&parts.headers)?;
    let TenantView { tenant, log } = TenantView::identify(&state, &parts).await?;
    let pins: PinPatterns =
        read_change(body, r#"{"tools":[".."],"targets":[".."]}"#, state.settings.timeouts.client_read).await?;
    check_pins(&pins)?;
    let answer = json_response(&json!({ "pins": pins }));
    log.catch_up().await?;
    let (key, answers) = (tenant.key, state.clone());
    let written = tokio::task::spawn_blocking(move || {
        if !log.show(|summary, _| summary.session(&id).is_some()).map_err(ApiFailure::loading)? {
            return Err(ApiFailure::new(StatusCode::NOT_FOUND, "no session has this id"));
        }
        let archive = tenant.archive.as_ref().map(|archive| archive.in_session(id.clone()));
        Ok(state.pins.set(tenant.key, &id, archive.as_ref(), pins)?)
    });
    let failed = |_| ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "the archive could not be written");
    written.await.map_err(failed)??;
    answers.answers.forget(key);
    Ok(answer)
}

/// Rejects pins that would match everything, or that are too many or too long.
fn check_pins(pins: &PinPatterns) -> Result<(), ApiFailure> {
    let refused = |reason: String| Err(ApiFailure::new(StatusCode::BAD_REQUEST, reason));
    if pins.tools.len() + pins.targets.len() > MAX_PINS {
        return refused(format!("a session can have at most {MAX_PINS} pins"));
    }
    if pins.tools.iter().chain(&pins.targets).any(|pin| pin.trim().is_empty() || pin.len() > MAX_PIN_BYTES) {
        return refused(format!("a pin is a text of 1 to {MAX_PIN_BYTES} bytes"));
    }
    Ok(())
}

/// Starts a comparison of policies, if none is running.
pub(super) async fn compare_policies(State(state): State<Arc<AppState>>, parts: Parts) -> ApiResult {
    check_origin(&parts.headers)?;
    TenantView::identify(&state, &parts).await?;
    state.comparison.start();
    Ok(json_response(&state.comparison.answer()))
}

/// Deletes a session: its records, its facts, and the originals that it stored first.
pub(super) async fn delete_session(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
    parts: Parts,
) -> ApiResult {
    check_origin(&parts.headers)?;
    let TenantView { tenant, log } = TenantView::identify(&state, &parts).await?;
    let no_archive = || ApiFailure::new(StatusCode::NOT_FOUND, "the proxy runs without an archive");
    let key = tenant.key;
    let archive = tenant.archive.ok_or_else(no_archive)?;
    let quotas = state.quotas.clone();
    let deleted = tokio::task::spawn_blocking(move || {
        let report = archive.delete_session(&id)?;
        quotas.forget_usage(key);
        log.forget_session(&id);
        Ok::<_, foldline_archive::Error>(report)
    });
    let failed = |_| ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "the archive could not be written");
    let report = deleted.await.map_err(failed)??;
    state.answers.forget(key);
    state.sessions.forget_client_sessions();
    Ok(json_response(&json!({ "originals": report.originals, "bytes": report.bytes })))
}
