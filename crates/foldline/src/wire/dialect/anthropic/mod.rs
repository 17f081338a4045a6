//! The Anthropic Messages dialect.

mod compose;
mod intercept;
pub(crate) mod request;
mod response;
mod rules;
mod usage;

use crate::wire::dialect::row::{Dialect, DialectMarks, ErrorSyntax};
use crate::wire::endpoint::{ApiFamily, ConversationEndpoint, EndpointPurpose, has_versioned_end};
use crate::wire::format::Format;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::quoted;

pub(crate) static DIALECT: Dialect = Dialect {
    format: Format::Anthropic,
    name: "anthropic",
    title: "Anthropic",
    family: &FAMILY,
    error_ends_stream: true,
    keeps_failed_items: false,
    endpoint,
    marks: DialectMarks {
        in_body: is_marked_body,
        in_message: |_| false,
        block_types: &["tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"],
        in_tool: |tool| tool.get("input_schema").is_some(),
        in_recording: |object| !object.has("input") && (object.has("system") || object.has("anthropic_version")),
    },
    request: request::REQUEST,
    edits: request::EDITS,
    results: request::RESULTS,
    response: response::RESPONSE,
    intercept: intercept::INTERCEPT,
    compose: compose::COMPOSE,
    errors: ERRORS,
    rules: rules::RULES,
};

static FAMILY: ApiFamily = ApiFamily {
    name: "anthropic",
    default_url: "https://api.anthropic.com",
    key_header: "x-api-key",
    key_prefix: "",
    required_headers: &[("anthropic-version", "2023-06-01")],
    distinctive_headers: &["anthropic-version", "anthropic-beta", "x-api-key", "x-claude-code-session-id"],
    key_variable: "ANTHROPIC_API_KEY",
};

const ERRORS: ErrorSyntax = ErrorSyntax {
    kind: |status| match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    },
    body: |kind, message| {
        let (kind, message) = (quoted(kind), quoted(message));
        format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#)
    },
};

fn endpoint(path: &str) -> Option<ConversationEndpoint<'_>> {
    if has_versioned_end(path, "/messages") {
        return Some(ConversationEndpoint::new(EndpointPurpose::Turn));
    }
    has_versioned_end(path, "/messages/count_tokens").then(|| ConversationEndpoint::new(EndpointPurpose::CountTokens))
}

fn is_marked_body(body: &JsonObject<'_>) -> bool {
    let has = |key: &str| body.get(key).is_some();
    has("system") || has("anthropic_version") || has("stop_sequences") || has("thinking") && has("max_tokens")
}
