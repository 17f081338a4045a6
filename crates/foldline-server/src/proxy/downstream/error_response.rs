//! What the proxy says in its own words: refusals and faults, in the shape that the client's library
//! reads.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use foldline::wire::Format;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::json;

use crate::proxy::downstream::request_body::BodyError;
use crate::proxy::upstream::client::UpstreamError;

/// Seconds after which a client that found no room should come again. Answers take longer than that, but there are many
/// of them.
const RETRY_AFTER_SECS: &str = "3";

/// An error of the proxy's own.
pub(crate) fn json_error(format: Option<Format>, status: StatusCode, message: &str) -> Response {
    let kind = match status {
        // What is Anthropic's own word is none of OpenAI's.
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

/// The body of a request could not be read.
pub(crate) fn body_error(format: Option<Format>, why: BodyError, limit: usize) -> Response {
    match why {
        BodyError::TooLarge => {
            let message = format!("the request is larger than {limit} bytes; raise the limit or send less");
            json_error(format, StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
        BodyError::BudgetExhausted => {
            let message = "the requests that are being answered leave no room for this one; come again in a moment, or \
                raise max-bodies";
            let mut response = json_error(format, StatusCode::SERVICE_UNAVAILABLE, message);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
            response
        }
        BodyError::TimedOut => json_error(format, StatusCode::REQUEST_TIMEOUT, "the request stopped coming"),
        BodyError::Disconnected => json_error(format, StatusCode::BAD_REQUEST, "the request broke off"),
    }
}

/// The upstream did not answer.
pub(crate) fn upstream_error(format: Option<Format>, why: &UpstreamError) -> Response {
    json_error(format, why.status(), &why.to_string())
}
