//! What the proxy says in its own words: refusals and faults, in the shape that the client's library
//! reads.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use foldline::wire::Format;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::json;

use super::inbound::Unread;
use super::upstream::Unanswered;

/// Seconds after which a client that found no room should come again. Answers take longer than that, but there are many
/// of them.
const COME_AGAIN: &str = "3";

/// An error of the proxy's own.
pub(crate) fn fault(format: Option<Format>, status: StatusCode, message: &str) -> Response {
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
pub(crate) fn unread(format: Option<Format>, why: Unread, limit: usize) -> Response {
    match why {
        Unread::TooLarge => {
            let message = format!("the request is larger than {limit} bytes; raise the limit or send less");
            fault(format, StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
        Unread::Full => {
            let message = "the requests that are being answered leave no room for this one; come again in a moment, or \
                raise max-bodies";
            let mut response = fault(format, StatusCode::SERVICE_UNAVAILABLE, message);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(COME_AGAIN));
            response
        }
        Unread::Stalled => fault(format, StatusCode::REQUEST_TIMEOUT, "the request stopped coming"),
        Unread::Gone => fault(format, StatusCode::BAD_REQUEST, "the request broke off"),
    }
}

/// The upstream did not answer.
pub(crate) fn unanswered(format: Option<Format>, why: &Unanswered) -> Response {
    fault(format, why.status(), &why.to_string())
}
