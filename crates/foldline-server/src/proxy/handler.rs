//! The request path: one request and its response, end to end.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use foldline::wire::EndpointPurpose;
use hyper::HeaderMap;
use hyper::header::{HeaderName, USER_AGENT};
use hyper::http::request::Parts;

use crate::proxy::accounting::record_turn;
use crate::proxy::admin::routes::admin_routes;
use crate::proxy::downstream::auth::PathOwner;
use crate::proxy::downstream::error_response::{ErrorCause, RequestError};
use crate::proxy::downstream::headers;
use crate::proxy::downstream::headers::BodyForm;
use crate::proxy::downstream::open_request::OpenRequest;
use crate::proxy::downstream::request_body::{RequestBody, UnreadBody};
use crate::proxy::downstream::route::{RequestKind, RequestRoute};
use crate::proxy::fold::job::{FoldJob, HistoryView, session_text};
use crate::proxy::fold::prepare::{Refold, prepare};
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::fold::summaries::summarize_if_due;
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::own_endpoints::{answer_own, is_own_endpoint};
use crate::proxy::reply::reply;
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;
use crate::proxy::upstream::client::UpstreamRequest;
use crate::proxy::upstream::pass_through::pass_through;
use crate::proxy::upstream::send::{Retries, send};
use crate::proxy::upstream::window_probe::probe_window;

/// The state of the service: the proxy's, and the routes of its own endpoints.
#[derive(Clone)]
struct ServiceState {
    state: Arc<AppState>,
    admin_routes: Router,
}

/// Returns the service that handles all requests of clients.
pub(crate) fn proxy_service(state: Arc<AppState>) -> Router {
    let admin_routes = admin_routes(state.clone());
    Router::new().fallback(handle_request).with_state(ServiceState { state, admin_routes })
}

async fn handle_request(State(service): State<ServiceState>, request: Request) -> Response {
    let ServiceState { state, admin_routes } = service;
    let (parts, body) = request.into_parts();
    let mut body = UnreadBody::new(&parts.headers, body);
    let answered = match is_own_endpoint(&parts) {
        true => answer_own(state, admin_routes, parts, &mut body).await,
        false => handle(state, parts, &mut body).await,
    };
    match answered {
        Ok(response) => response,
        Err(error) => {
            body.drain().await;
            error.into_response()
        }
    }
}

/// Handles a request to a provider: authenticate, route, read the body, identify the session, fold, send (fold again on
/// overflow), reply.
async fn handle(state: Arc<AppState>, mut parts: Parts, body: &mut UnreadBody) -> Result<Response, RequestError> {
    state.checks.check_head(&parts).map_err(ErrorCause::Refused)?;
    let admission = state.auth.admit(&mut parts, PathOwner::Provider).ok_or(ErrorCause::Unauthorized)?;
    parts.extensions.insert(admission);
    let tenant = state.tenants.find_tenant(&parts).ok();
    let open = OpenRequest::admit(&state, tenant.as_ref().map(|tenant| tenant.key)).await?;
    let tenant = match tenant {
        Some(tenant) => Some(state.tenants.with_settings(tenant).await),
        None => None,
    };

    let route = RequestRoute::for_request(&parts, &state.settings.named_upstreams, tenant.as_ref());
    let uri = route.uri(&state.settings.upstreams).map_err(|_| ErrorCause::InvalidPath)?;
    let auth = route.upstream.auth(&state.settings.bedrock_auth);
    let authenticated = auth.authenticate(route.upstream.family, &mut parts, &uri);
    authenticated.map_err(|fault| ErrorCause::Credential(fault).in_format(route.kind.format()))?;
    let (format, purpose) = match route.kind {
        RequestKind::Conversation(format, purpose) => (format, purpose),
        RequestKind::WebSocket => return Err(ErrorCause::WebSocket.into()),
        RequestKind::Other => {
            return Ok(open.track(pass_through(&state, parts, uri, body.take(), auth.signer()).await?));
        }
    };
    state.checks.check_content_type(&parts.headers).map_err(|fault| ErrorCause::Refused(fault).in_format(format))?;

    let read = RequestBody::read(&state, &parts.headers, body.take()).await;
    let body = read.map_err(|error| ErrorCause::Body(error).in_format(format))?;
    let received_at = Instant::now();

    let mut prepared = match identify(&state, &parts.headers, &route, tenant, &body).await {
        Some(job) => fold(&state, &job, &parts.headers).await?,
        None => None,
    };

    let (body, form) = outgoing_body(prepared.as_ref(), body);
    headers::prepare_buffered_for_upstream(&mut parts.headers, form);
    let mut request =
        UpstreamRequest { method: parts.method, uri, headers: parts.headers, body, signer: auth.signer().cloned() };
    let overhead = received_at.elapsed();
    if purpose == EndpointPurpose::Turn {
        record_turn(&state, format.name(), form, prepared.as_ref(), overhead);
    }
    let sent = send(&state, format, &mut request, prepared.as_mut(), Retries::Overflow).await;
    let head = sent.map_err(|error| ErrorCause::Upstream(error).in_format(format))?;
    Ok(open.track(reply(state, format, request, prepared, head, (received_at, overhead)).await))
}

/// Folds a request, and again if its server reports a window, or if a summary was written. Returns none if it is to be
/// sent as it is.
async fn fold(
    state: &Arc<AppState>,
    job: &Arc<FoldJob>,
    headers: &HeaderMap,
) -> Result<Option<PreparedRequest>, RequestError> {
    let mut prepared = prepare(state, job, None).await;
    if prepared.as_ref().is_some_and(|prepared| prepared.is_refused_thread) {
        state.metrics.count_refused_thread();
        return Err(ErrorCause::Thread.in_format(job.format));
    }
    if probe_window(state, prepared.as_ref(), headers).await {
        prepared = prepare(state, job, None).await;
    }
    if job.purpose == EndpointPurpose::Turn && summarize_if_due(state, prepared.as_mut(), headers).await {
        prepared = prepare(state, job, Some(Refold::WithSummary)).await;
    }
    Ok(prepared)
}

/// Identifies the conversation of a request. Returns none if it is bypassed, cannot be decoded, or belongs to no tenant; then
/// it is forwarded unmodified.
async fn identify(
    state: &AppState,
    headers: &HeaderMap,
    route: &RequestRoute,
    tenant: Option<Tenant>,
    body: &RequestBody,
) -> Option<Arc<FoldJob>> {
    let RequestKind::Conversation(format, purpose) = route.kind else { return None };
    let bypassed = headers.get(headers::BYPASS).is_some_and(|value| value == "1" || value == "true");
    if bypassed {
        return None;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let session = text(headers::SESSION).map(session_text);
    let body = body.decoded.clone()?;
    let Some(tenant) = tenant else {
        state.tenants.count_no_tenant();
        return None;
    };
    let mode = state.modes.get(&tenant);
    if mode == ProxyMode::Off {
        return None;
    }
    let (tenant, history) = (state.tenants.with_archive(tenant).await, HistoryView::Client);
    Some(Arc::new(FoldJob {
        format,
        purpose,
        path: route.path.clone(),
        upstream: route.upstream.clone(),
        tenant,
        mode,
        session,
        user_agent: text(USER_AGENT).unwrap_or_default().to_owned(),
        trace_parent: state.traces.is_on().then(|| text(headers::TRACE_PARENT)).flatten().map(str::to_owned),
        body,
        history,
        group: None,
        requested: None,
    }))
}

/// Returns the bytes to send, and their form.
fn outgoing_body(prepared: Option<&PreparedRequest>, received: RequestBody) -> (Bytes, BodyForm) {
    match prepared.filter(|prepared| prepared.job.is_folding()).and_then(|prepared| prepared.body.clone()) {
        Some(body) => (body, BodyForm::Decoded),
        _ => (received.raw, BodyForm::Unmodified),
    }
}
