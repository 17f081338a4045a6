//! Requests that change something: login, logout, deletion. They are accepted from the dashboard itself and from
//! programs, not from pages of other origins.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::json;

use crate::proxy::admin::api::respond::{ApiFailure, ApiResult, TenantView, json_response};
use crate::proxy::admin::login;
use crate::proxy::state::AppState;

/// Largest body of a request that changes something.
const MAX_CHANGE_BYTES: usize = 16_384;

/// Rejects a change that a page of another origin caused.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiFailure> {
    let reason = "changes need the header x-foldline-request: 1 and may not come from another origin";
    if login::is_own_change(headers) { Ok(()) } else { Err(ApiFailure::new(StatusCode::FORBIDDEN, reason)) }
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
        let bad = |_| ApiFailure::new(StatusCode::BAD_REQUEST, "the body must be {\"token\":\"..\"}");
        let body = Limited::new(body, MAX_CHANGE_BYTES).collect().await;
        let body = body.map_err(|_| ApiFailure::new(StatusCode::BAD_REQUEST, "the body could not be read"))?.to_bytes();
        let token = serde_json::from_slice::<LoginBody>(&body).map_err(bad)?.token;
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
    if let Some(cookie) = login::set_cookie(token, is_tls) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Deletes a session: its records, its facts, and the originals that it stored first.
pub(super) async fn delete_session(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
    parts: Parts,
) -> ApiResult {
    check_origin(&parts.headers)?;
    let TenantView { tenant, log } = TenantView::identify(&state, &parts)?;
    let no_archive = || ApiFailure::new(StatusCode::NOT_FOUND, "the proxy runs without an archive");
    let archive = tenant.archive.ok_or_else(no_archive)?;
    let deleted = tokio::task::spawn_blocking(move || {
        let report = archive.delete_session(&id)?;
        log.read_again();
        Ok::<_, foldline_archive::Error>(report)
    });
    let failed = |_| ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "the archive could not be written");
    let report = deleted.await.map_err(failed)??;
    Ok(json_response(&json!({ "originals": report.originals, "bytes": report.bytes })))
}
