//! Requests that carry no conversation: forwarded unmodified while they arrive, and so is the response.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::Uri;
use hyper::http::request::Parts;

use crate::proxy::admin::metrics::RequestLabels;
use crate::proxy::downstream::error_response::ErrorCause;
use crate::proxy::downstream::headers;
use crate::proxy::state::AppState;

/// Forwards a request to this URI, and returns the response for the client.
pub(crate) async fn pass_through(
    state: &AppState,
    mut parts: Parts,
    uri: Uri,
    body: Body,
) -> Result<Response, ErrorCause> {
    state.metrics.requests.get_or_create(&RequestLabels { format: "other", sent: "passthrough" }).inc();
    headers::prepare_for_upstream(&mut parts.headers);
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = uri;
    *request.headers_mut() = parts.headers;
    let response = state.client.send_once(request).await.map_err(ErrorCause::Upstream)?;
    let (head, body) = response.into_parts();
    Ok(Response::from_parts(headers::client_head(head), Body::new(body)))
}
