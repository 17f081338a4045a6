//! The endpoints that the proxy serves itself: dashboard, probes, API and folds for callers.

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use hyper::http::request::Parts;

use crate::proxy::admin::{assets, routes};
use crate::proxy::downstream::auth::PathOwner;
use crate::proxy::downstream::error_response::{ErrorCause, RequestError};
use crate::proxy::downstream::open_request::OpenRequest;
use crate::proxy::downstream::request_body::UnreadBody;
use crate::proxy::fold_api::FoldEndpoint;
use crate::proxy::state::AppState;

/// Returns true if the proxy serves the path of a request itself.
pub(crate) fn is_own_endpoint(parts: &Parts) -> bool {
    let path = routes::own_path(parts.uri.path());
    path == routes::ADMIN_PREFIX.trim_end_matches('/')
        || path.starts_with(routes::ADMIN_PREFIX)
        || FoldEndpoint::find(&parts.method, path).is_some()
}

/// Answers a request to an endpoint of the proxy. Files of the dashboard, probes and the login need no token.
///
/// # Errors
///
/// The request is refused because of its head or its token, or too many are in progress.
pub(crate) async fn answer_own(
    state: Arc<AppState>,
    admin_routes: Router,
    mut parts: Parts,
    body: &mut UnreadBody,
) -> Result<Response, RequestError> {
    state.checks.check_head(&parts).map_err(ErrorCause::Refused)?;
    if let Some(asset) = assets::find_asset(routes::own_path(parts.uri.path()), &parts.headers) {
        return Ok(asset);
    }
    if let Some(answer) = routes::answer_probe(&state, &parts).await {
        return Ok(answer);
    }
    if routes::is_login(&parts) {
        return Ok(routes::login(&state, &parts, body.take()).await);
    }
    let admission = state.auth.admit(&mut parts, PathOwner::Proxy).ok_or(ErrorCause::Unauthorized)?;
    parts.extensions.insert(admission);
    let Some(endpoint) = FoldEndpoint::find(&parts.method, parts.uri.path()) else {
        return Ok(routes::handle_admin_request(admin_routes, parts, body.take()).await);
    };
    let tenant = state.tenants.find_tenant(&parts).ok();
    let open = OpenRequest::admit(&state, tenant.map(|tenant| tenant.key)).await?;
    Ok(open.track(endpoint.handle(state, parts, body.take()).await?))
}
