//! The request path: one request and its response, end to end.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use foldline::wire::EndpointPurpose;
use hyper::header::{HeaderName, USER_AGENT};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};

use crate::proxy::accounting::{record_turn, record_upstream_error};
use crate::proxy::admin::{assets, routes};
use crate::proxy::downstream::error_response::{ErrorCause, RequestError};
use crate::proxy::downstream::headers;
use crate::proxy::downstream::headers::BodyForm;
use crate::proxy::downstream::open_request::OpenRequest;
use crate::proxy::downstream::request_body::RequestBody;
use crate::proxy::downstream::route::{RequestKind, RequestRoute};
use crate::proxy::fold::job::{FoldJob, HistoryView, session_text};
use crate::proxy::fold::prepare::{Refold, prepare};
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::fold::summaries::summarize_if_due;
use crate::proxy::fold_api::FoldEndpoint;
use crate::proxy::named_upstream::UpstreamAuth;
use crate::proxy::reply::reply;
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;
use crate::proxy::upstream::client::UpstreamRequest;
use crate::proxy::upstream::credentials::{ForeignKey, is_signed_by_header, is_signed_by_query};
use crate::proxy::upstream::diagnosis_request::request_diagnosis;
use crate::proxy::upstream::pass_through::pass_through;
use crate::proxy::upstream::send::{Retries, send};
use crate::proxy::upstream::window_probe::probe_window;

/// Handles any request of a client.
pub(crate) async fn handle_request(State(state): State<Arc<AppState>>, request: Request) -> Response {
    handle(state, request).await.unwrap_or_else(RequestError::into_response)
}

/// Handles a request: authenticate, route, read the body, identify the session, fold, send (fold again on overflow),
/// reply.
async fn handle(state: Arc<AppState>, request: Request) -> Result<Response, RequestError> {
    let (mut parts, body) = request.into_parts();
    state.checks.check_head(&parts).map_err(ErrorCause::Refused)?;
    if let Some(answer) = answer_public(&state, &parts).await {
        return Ok(answer);
    }
    if routes::is_login(&parts) {
        return Ok(routes::login(&state, &parts, body).await);
    }
    let admission = state.auth.admit(&mut parts, is_own_endpoint).ok_or(ErrorCause::Unauthorized)?;
    parts.extensions.insert(admission);
    if is_own_endpoint(parts.uri.path(), &parts.method) {
        return answer_own(state, parts, body).await;
    }
    let open = OpenRequest::admit(&state, &parts).await?;

    let route = RequestRoute::for_request(&parts, &state.settings.named_upstreams);
    let route = route.for_tenant(&state.tenants.settings(&parts).upstreams);
    let uri = route.uri(&state.settings.upstreams).map_err(|_| ErrorCause::InvalidPath)?;
    let auth = route.upstream.auth(&state.settings.bedrock_auth);
    check_credentials(&parts, &route, &uri, auth)?;
    let (format, purpose) = match route.kind {
        RequestKind::Conversation(format, purpose) => (format, purpose),
        RequestKind::WebSocket => return Err(ErrorCause::WebSocket.into()),
        RequestKind::Other => {
            auth.authenticate(route.upstream.family, &mut parts.headers);
            return Ok(open.track(pass_through(&state, parts, uri, body, auth.signer()).await?));
        }
    };
    state.checks.check_content_type(&parts.headers).map_err(|fault| ErrorCause::Refused(fault).in_format(format))?;

    let read = RequestBody::read(&state, &parts.headers, body).await;
    let body = read.map_err(|error| ErrorCause::Body(error).in_format(format))?;
    let received_at = Instant::now();

    let job = identify(&state, &parts, &route, &body);
    // The client's own key is its identity until here.
    auth.authenticate(route.upstream.family, &mut parts.headers);
    let mut prepared = match job {
        Some(job) => fold(&state, &job, &parts.headers, &uri).await?,
        None => None,
    };

    let (body, form) = outgoing_body(prepared.as_ref(), body);
    headers::prepare_buffered_for_upstream(&mut parts.headers, form);
    let mut request =
        UpstreamRequest { method: parts.method, uri, headers: parts.headers, body, signer: auth.signer().cloned() };
    if let Some(prepared) = &mut prepared {
        request_diagnosis(&state, &mut request, prepared);
    }
    let overhead = received_at.elapsed();
    if purpose == EndpointPurpose::Turn {
        record_turn(&state, format.name(), form, prepared.as_ref(), overhead);
    }
    let sent = send(&state, format, &mut request, prepared.as_mut(), Retries::Overflow).await;
    record_upstream_error(&state, &sent);
    let head = sent.map_err(|error| ErrorCause::Upstream(error).in_format(format))?;
    Ok(open.track(reply(state, format, request, prepared, head, (received_at, overhead)).await))
}

/// Answers what needs no credential: files of the dashboard, and probes.
async fn answer_public(state: &Arc<AppState>, parts: &Parts) -> Option<Response> {
    match assets::find_asset(routes::own_path(parts.uri.path()), &parts.headers) {
        Some(asset) => Some(asset),
        None => routes::answer_probe(state, parts).await,
    }
}

/// Returns true for the endpoints that the proxy serves itself.
fn is_own_endpoint(path: &str, method: &Method) -> bool {
    path.starts_with(routes::ADMIN_PREFIX) || FoldEndpoint::find(method, path).is_some()
}

/// Answers a request to an endpoint of the proxy.
async fn answer_own(state: Arc<AppState>, parts: Parts, body: Body) -> Result<Response, RequestError> {
    let Some(endpoint) = FoldEndpoint::find(&parts.method, parts.uri.path()) else {
        return Ok(routes::handle_admin_request(state, parts, body).await);
    };
    let open = OpenRequest::admit(&state, &parts).await?;
    Ok(open.track(endpoint.handle(state, parts, body).await?))
}

/// Refuses keys of another provider, and signatures that a changed body would invalidate.
fn check_credentials(parts: &Parts, route: &RequestRoute, uri: &Uri, auth: &UpstreamAuth) -> Result<(), RequestError> {
    if let Some(key) = ForeignKey::find(&parts.headers, uri).filter(|_| !auth.is_own()) {
        return Err(ErrorCause::ForeignKey(key).into());
    }
    if is_signed_by_query(&parts.uri) || is_signed_by_header(&parts.headers) && auth.signer().is_none() {
        return Err(match route.kind {
            RequestKind::Conversation(format, _) => ErrorCause::Signed.in_format(format),
            RequestKind::WebSocket | RequestKind::Other => ErrorCause::Signed.into(),
        });
    }
    Ok(())
}

/// Folds a request, and again if its server reports a window, or if a summary was written. Returns none if it is to be
/// sent as it is.
async fn fold(
    state: &Arc<AppState>,
    job: &Arc<FoldJob>,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<Option<PreparedRequest>, RequestError> {
    let mut prepared = prepare(state, job, None).await;
    if prepared.as_ref().is_some_and(|prepared| prepared.is_refused_thread) {
        state.metrics.count_refused_thread();
        return Err(ErrorCause::Thread.in_format(job.format));
    }
    if probe_window(state, prepared.as_ref(), headers).await {
        prepared = prepare(state, job, None).await;
    }
    if job.purpose == EndpointPurpose::Turn && summarize_if_due(state, prepared.as_mut(), headers, uri).await {
        prepared = prepare(state, job, Some(Refold::WithSummary)).await;
    }
    Ok(prepared)
}

/// Identifies the tenant and the session of a request. Returns none if it is bypassed, cannot be decoded, or belongs to no
/// tenant; then it is forwarded unmodified.
fn identify(state: &AppState, parts: &Parts, route: &RequestRoute, body: &RequestBody) -> Option<Arc<FoldJob>> {
    let RequestKind::Conversation(format, purpose) = route.kind else { return None };
    let headers = &parts.headers;
    let bypassed = headers.get(headers::BYPASS).is_some_and(|value| value == "1" || value == "true");
    if bypassed {
        return None;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let session = text(headers::SESSION).map(session_text);
    let body = body.decoded.clone()?;
    let tenant = state.tenants.identify(parts).ok()?;
    let mode = state.modes.get(&tenant);
    if mode == ProxyMode::Off {
        return None;
    }
    let history = HistoryView::Client;
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
