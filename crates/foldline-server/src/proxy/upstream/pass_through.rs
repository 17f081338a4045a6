//! Requests that carry no conversation: forwarded unmodified while they arrive, and so is the response.

use std::sync::Once;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::http::request::Parts;
use hyper::{Method, Uri};

use crate::proxy::admin::metrics::RequestLabels;
use crate::proxy::downstream::client_pace::TimedBody;
use crate::proxy::downstream::error_response::ErrorCause;
use crate::proxy::downstream::headers;
use crate::proxy::downstream::request_body::{BodyError, RequestBody};
use crate::proxy::state::AppState;
use crate::proxy::upstream::aws::signer::AwsSigner;
use crate::proxy::upstream::client::UpstreamRequest;

/// Path of Ollama whose requests are a prompt without messages.
const GENERATE_PATH: &str = "/api/generate";
/// Reported once.
static REPORTED_GENERATE: Once = Once::new();

/// Forwards a request to this URI, and returns the response for the client.
pub(crate) async fn pass_through(
    state: &AppState,
    mut parts: Parts,
    uri: Uri,
    body: Body,
    signer: Option<&AwsSigner>,
) -> Result<Response, ErrorCause> {
    state.metrics.requests.get_or_create(&RequestLabels { format: "other", sent: "passthrough" }).inc();
    if uri.path().ends_with(GENERATE_PATH) {
        REPORTED_GENERATE.call_once(|| {
            tracing::info!("requests to {GENERATE_PATH} have no messages and are not folded; use /api/chat");
        });
    }
    let body = state.unknown_paths.observe(&parts, body);
    headers::prepare_for_upstream(&mut parts.headers);
    let response = match signer {
        Some(signer) => forward_signed(state, parts, uri, body, signer).await?,
        None => forward(state, parts, uri, body).await?,
    };
    let (head, body) = response.into_parts();
    let body = TimedBody::for_upstream(body, state.settings.timeouts.idle);
    Ok(Response::from_parts(headers::client_head(head), Body::new(body)))
}

async fn forward(state: &AppState, parts: Parts, uri: Uri, body: Body) -> Result<Response<Incoming>, ErrorCause> {
    let Parts { method, headers, .. } = parts;
    // A request that can be repeated may be resent.
    if body.is_end_stream() && is_idempotent(&method) {
        let request = UpstreamRequest { method, uri, headers, body: Bytes::new(), signer: None };
        return state.client.send(&request).await.map_err(ErrorCause::Upstream);
    }
    let body = TimedBody::for_client(body, state.settings.timeouts.client_read);
    let timed_out = body.timed_out_flag();
    let mut request = Request::new(Body::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    state.client.send_once(request).await.map_err(|error| match timed_out.load(Ordering::Relaxed) {
        true => ErrorCause::Body(BodyError::TimedOut),
        false => ErrorCause::Upstream(error),
    })
}

/// Forwards a request after its whole body has arrived, which the signature covers.
async fn forward_signed(
    state: &AppState,
    mut parts: Parts,
    uri: Uri,
    body: Body,
    signer: &AwsSigner,
) -> Result<Response<Incoming>, ErrorCause> {
    let body = RequestBody::read(state, &parts.headers, body).await.map_err(ErrorCause::Body)?.raw;
    parts.headers.remove(CONTENT_LENGTH);
    let Parts { method, headers, .. } = parts;
    let request = UpstreamRequest { method, uri, headers, body, signer: Some(signer.clone()) };
    state.client.send(&request).await.map_err(ErrorCause::Upstream)
}

/// Returns true if sending a request twice has the same effect as once (RFC 9110, 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE].contains(method)
}
