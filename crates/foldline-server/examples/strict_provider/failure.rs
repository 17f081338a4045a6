//! Failures of hidden rounds: the provider refuses a round that the client does not see, as an overloaded one does.

use std::collections::HashMap;

use axum::response::{IntoResponse, Response};
use foldline::wire::Format;
use hyper::StatusCode;
use serde_json::json;

use crate::json_response;

/// The failure of hidden rounds, and how often each one failed.
#[derive(Default)]
pub(crate) struct HiddenFailures {
    /// Status code, or 0 if the connection is closed without a response.
    status: u16,
    /// Attempts of each round that fail.
    limit: usize,
    attempts: HashMap<String, usize>,
}

impl HiddenFailures {
    /// Parses `STATUS` or `reset`, optionally followed by `:ATTEMPTS` (1 if absent).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (status, limit) = text.split_once(':').unwrap_or((text, "1"));
        let status = if status == "reset" { 0 } else { status.parse().ok()? };
        Some(Self { status, limit: limit.parse().ok()?, attempts: HashMap::new() })
    }

    /// Counts an attempt of a round, and returns the status if it fails.
    pub(crate) fn next_failure(&mut self, round: String) -> Option<u16> {
        let attempts = self.attempts.entry(round).or_default();
        *attempts += 1;
        (*attempts <= self.limit).then_some(self.status)
    }
}

/// Marks a response in whose place the connection is closed.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionReset;

/// Returns the response of a provider that is overloaded or broken.
pub(crate) fn response(format: Format, status: u16) -> Response {
    let Ok(code) = StatusCode::from_u16(status) else {
        let mut response = StatusCode::BAD_GATEWAY.into_response();
        response.extensions_mut().insert(ConnectionReset);
        return response;
    };
    let (kind, message) = match status {
        429 => ("rate_limit_error", "Number of requests has exceeded your rate limit."),
        529 => ("overloaded_error", "Overloaded"),
        _ => ("api_error", "Internal server error"),
    };
    let body = match format {
        Format::Anthropic => {
            json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": "req_1" })
        }
        Format::Gemini => json!({ "error": { "code": status, "message": message, "status": gemini_status(status) } }),
        _ => json!({ "error": { "message": message, "type": kind, "param": null, "code": null } }),
    };
    let mut response = json_response(code, &body);
    if status == 429 {
        response.headers_mut().insert("retry-after", hyper::header::HeaderValue::from_static("1"));
    }
    response
}

fn gemini_status(status: u16) -> &'static str {
    match status {
        429 => "RESOURCE_EXHAUSTED",
        500 => "INTERNAL",
        _ => "UNAVAILABLE",
    }
}
