//! Error responses of the proxy, in the format that the client's library parses.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use foldline::wire::{Format, thread_not_found_body};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};

use crate::proxy::downstream::request_body::BodyError;
use crate::proxy::downstream::request_check::RequestFault;
use crate::proxy::upstream::client::UpstreamError;
use crate::proxy::upstream::credentials::CredentialFault;

/// Seconds after which a rejected client should retry. Single responses take longer, but many are in progress.
pub(crate) const RETRY_AFTER_SECS: &str = "3";

/// A request that gets an error response of the proxy.
#[derive(Debug)]
pub(crate) struct RequestError {
    /// Dialect of the client, if it is known.
    format: Option<Format>,
    cause: ErrorCause,
}

/// The reason for an error response.
#[derive(Debug)]
pub(crate) enum ErrorCause {
    /// The request is refused because of its head.
    Refused(RequestFault),
    /// The request carries no valid token.
    Unauthorized,
    /// The credential of the request cannot be sent to its upstream.
    Credential(CredentialFault),
    /// Too many requests are in progress.
    NoSlot,
    /// Too many requests of the tenant are in progress.
    TenantLimit,
    /// The path cannot be part of the upstream's URL.
    InvalidPath,
    /// The client wants to send its conversation over a WebSocket.
    WebSocket,
    /// The request continues a message thread.
    Thread,
    /// The body could not be read.
    Body(BodyError),
    /// The upstream did not respond.
    Upstream(UpstreamError),
}

impl ErrorCause {
    /// Returns the error in the dialect of the client, if it is known.
    pub(crate) fn in_format(self, format: impl Into<Option<Format>>) -> RequestError {
        RequestError { format: format.into(), cause: self }
    }

    fn status(&self) -> StatusCode {
        match self {
            ErrorCause::Refused(fault) => fault.status(),
            ErrorCause::Unauthorized => StatusCode::UNAUTHORIZED,
            ErrorCause::NoSlot => StatusCode::SERVICE_UNAVAILABLE,
            ErrorCause::TenantLimit => StatusCode::TOO_MANY_REQUESTS,
            ErrorCause::InvalidPath | ErrorCause::Credential(_) => StatusCode::BAD_REQUEST,
            ErrorCause::WebSocket => StatusCode::UPGRADE_REQUIRED,
            ErrorCause::Thread => StatusCode::NOT_FOUND,
            ErrorCause::Body(error) => match error {
                BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                BodyError::BudgetExhausted => StatusCode::SERVICE_UNAVAILABLE,
                BodyError::TimedOut => StatusCode::REQUEST_TIMEOUT,
                BodyError::Disconnected => StatusCode::BAD_REQUEST,
            },
            ErrorCause::Upstream(error) => error.status(),
        }
    }

    fn message(&self) -> String {
        let message = match self {
            ErrorCause::Unauthorized => "missing or wrong token: send it in the header x-foldline-token",
            ErrorCause::Refused(fault) => fault.message(),
            ErrorCause::Credential(fault) => return fault.to_string(),
            ErrorCause::NoSlot => "too many requests are in progress; retry later or raise --max-requests",
            ErrorCause::TenantLimit => {
                "too many requests of this tenant are in progress; retry later or raise --tenant-requests"
            }
            ErrorCause::InvalidPath => "the path is not valid in a URL",
            ErrorCause::WebSocket => "WebSocket is not supported: use HTTP requests that carry the whole conversation",
            ErrorCause::Thread => "message threads are refused, so that the client sends its whole history",
            ErrorCause::Body(error) => match error {
                BodyError::TooLarge { limit } => {
                    return format!("the request is larger than {limit} bytes; raise the limit or send less");
                }
                BodyError::BudgetExhausted => "request-body memory limit reached; retry later or raise --max-bodies",
                BodyError::TimedOut => "the request body was not received in time",
                BodyError::Disconnected => "the request body is incomplete",
            },
            ErrorCause::Upstream(error) => return error.to_string(),
        };
        message.to_owned()
    }
}

impl From<ErrorCause> for RequestError {
    fn from(cause: ErrorCause) -> Self {
        Self { format: None, cause }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let Self { format, cause } = self;
        let mut response = match cause {
            ErrorCause::Thread => json_response(cause.status(), thread_not_found_body(&cause.message())),
            _ => json_error(format, cause.status(), &cause.message()),
        };
        if matches!(cause, ErrorCause::NoSlot | ErrorCause::TenantLimit | ErrorCause::Body(BodyError::BudgetExhausted))
        {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
        }
        response
    }
}

/// Returns an error response of the proxy.
pub(crate) fn json_error(format: Option<Format>, status: StatusCode, message: &str) -> Response {
    let dialect = format.unwrap_or(Format::OpenAiChat).dialect();
    json_response(status, dialect.error_body(status.as_u16(), &format!("foldline: {message}")))
}

fn json_response(status: StatusCode, body: String) -> Response {
    let mut response = (status, Body::from(body)).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
