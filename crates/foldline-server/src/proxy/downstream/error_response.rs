//! Error responses of the proxy, in the format that the client's library parses.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use foldline::wire::Format;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::json;

use crate::proxy::downstream::request_body::BodyError;
use crate::proxy::upstream::client::UpstreamError;

/// Seconds after which a rejected client should retry. Single responses take longer, but many are in progress.
const RETRY_AFTER_SECS: &str = "3";

/// Returns an error response of the proxy.
pub(crate) fn json_error(format: Option<Format>, status: StatusCode, message: &str) -> Response {
    let kind = match status {
        // `overloaded_error` exists only in Anthropic's API.
        StatusCode::SERVICE_UNAVAILABLE if format != Some(Format::Anthropic) => "server_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::UNAUTHORIZED => "authentication_error",
        status if status.is_client_error() => "invalid_request_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        _ => "api_error",
    };
    let message = format!("foldline: {message}");
    let body = match format {
        Some(Format::Anthropic) => json!({ "type": "error", "error": { "type": kind, "message": message } }),
        _ => json!({ "error": { "message": message, "type": kind, "param": null, "code": null } }),
    };
    let mut response = (status, Body::from(body.to_string())).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the response to a request whose body could not be read.
pub(crate) fn body_error(format: Option<Format>, error: BodyError, limit: usize) -> Response {
    match error {
        BodyError::TooLarge => {
            let message = format!("the request is larger than {limit} bytes; raise the limit or send less");
            json_error(format, StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
        BodyError::BudgetExhausted => {
            let message = "request-body memory limit reached; retry later or raise --max-bodies";
            let mut response = json_error(format, StatusCode::SERVICE_UNAVAILABLE, message);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
            response
        }
        BodyError::TimedOut => {
            json_error(format, StatusCode::REQUEST_TIMEOUT, "the request body was not received in time")
        }
        BodyError::Disconnected => json_error(format, StatusCode::BAD_REQUEST, "the request body is incomplete"),
    }
}

/// Returns the response to a request that the upstream did not answer.
pub(crate) fn upstream_error(format: Option<Format>, error: &UpstreamError) -> Response {
    json_error(format, error.status(), &error.to_string())
}
