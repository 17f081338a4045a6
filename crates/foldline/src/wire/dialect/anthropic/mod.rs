//! The Anthropic Messages dialect.

mod compose;
mod intercept;
mod messages;
pub(crate) mod request;
mod response;
mod rules;
mod usage;

use crate::wire::diagnostics::DiagnosticsSyntax;
use crate::wire::dialect::converse::model_method;
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
    documented_paths: &[
        ("/v1/messages", EndpointPurpose::Turn),
        ("/v1/.../publishers/anthropic/models/MODEL:rawPredict", EndpointPurpose::Turn),
        ("/v1/.../publishers/anthropic/models/MODEL:streamRawPredict", EndpointPurpose::Turn),
        ("/model/anthropic.claude-MODEL/invoke", EndpointPurpose::Turn),
        ("/model/anthropic.claude-MODEL/invoke-with-response-stream", EndpointPurpose::Turn),
        ("/v1/messages/count_tokens", EndpointPurpose::CountTokens),
        ("/v1/.../publishers/anthropic/models/count-tokens:rawPredict", EndpointPurpose::CountTokens),
    ],
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
    messages: messages::MESSAGES,
    errors: ERRORS,
    rules: rules::RULES,
    diagnostics: Some(DiagnosticsSyntax {
        path_end: "/messages",
        request_field: "diagnostics",
        id_field: "previous_message_id",
        response_field: "diagnostics",
        event_field: "message",
    }),
};

static FAMILY: ApiFamily = ApiFamily {
    name: "anthropic",
    title: "Anthropic Messages",
    default_url: "https://api.anthropic.com",
    key_header: "x-api-key",
    key_prefix: "",
    required_headers: &[("anthropic-version", "2023-06-01")],
    distinctive_headers: &["anthropic-version", "anthropic-beta", "x-api-key", "x-claude-code-session-id"],
    distinctive_paths: &[],
    key_variable: "ANTHROPIC_API_KEY",
};

/// Returns the error body after which clients send the whole history of a message thread.
pub fn thread_not_found_body(message: &str) -> String {
    let message =
        quoted(&format!("No thread state was found for the requested previous_message_id (foldline: {message})"));
    format!(
        r#"{{"type":"error","error":{{"type":"not_found_error","message":{message},"details":{{"error_code":"thread_not_found"}}}}}}"#
    )
}

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

/// Returns the facts in `..messages`, in Vertex's `..publishers/anthropic/models/MODEL:rawPredict`, and in Bedrock's
/// `/model/MODEL/invoke` for a Claude model: the bodies of other models have other forms.
fn endpoint(path: &str) -> Option<ConversationEndpoint<'_>> {
    if let Some((model, method)) = vertex_model(path) {
        let streaming = match method {
            "rawPredict" => None,
            "streamRawPredict" => Some(true),
            _ => return None,
        };
        return Some(match model {
            "count-tokens" => ConversationEndpoint::new(EndpointPurpose::CountTokens),
            model => {
                let turn = ConversationEndpoint::new(EndpointPurpose::Turn);
                ConversationEndpoint { model: Some(model), streaming, ..turn }
            }
        });
    }
    if let Some((model, method)) = model_method(path).filter(|(model, _)| model.contains("claude")) {
        let streaming = match method {
            "invoke" => Some(false),
            "invoke-with-response-stream" => Some(true),
            _ => return None,
        };
        let turn = ConversationEndpoint::new(EndpointPurpose::Turn);
        return Some(ConversationEndpoint { model: Some(model), streaming, ..turn });
    }
    if has_versioned_end(path, "/messages") {
        return Some(ConversationEndpoint::new(EndpointPurpose::Turn));
    }
    has_versioned_end(path, "/messages/count_tokens").then(|| ConversationEndpoint::new(EndpointPurpose::CountTokens))
}

/// Returns the model and the method of a path of Vertex.
fn vertex_model(path: &str) -> Option<(&str, &str)> {
    path.rsplit_once("/publishers/anthropic/models/")?.1.rsplit_once(':')
}

fn is_marked_body(body: &JsonObject<'_>) -> bool {
    let has = |key: &str| body.get(key).is_some();
    has("system") || has("anthropic_version") || has("stop_sequences") || has("thinking") && has("max_tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_bedrock_state_model_and_streaming() {
        let claude = "us.anthropic.claude-sonnet-4-5-20250929-v1%3A0";
        for (path, expected) in [
            (format!("/model/{claude}/invoke"), Some((Some(claude), Some(false)))),
            (format!("/model/{claude}/invoke-with-response-stream"), Some((Some(claude), Some(true)))),
            (format!("/model/{claude}/count-tokens"), None),
            ("/model/amazon.titan-text-express-v1/invoke".to_owned(), None),
        ] {
            let found = endpoint(&path).map(|found| (found.model, found.streaming));
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn paths_of_vertex_state_model_and_streaming() {
        use EndpointPurpose::{CountTokens, Turn};
        let base = "/v1/projects/p/locations/us-east5/publishers/anthropic/models";
        for (path, expected) in [
            ("/claude-opus-4-6@20260205:rawPredict", Some((Turn, Some("claude-opus-4-6@20260205"), None))),
            ("/claude-opus-4-6:streamRawPredict", Some((Turn, Some("claude-opus-4-6"), Some(true)))),
            ("/count-tokens:rawPredict", Some((CountTokens, None, None))),
            ("/claude-opus-4-6:predict", None),
        ] {
            for base in [base, base.trim_start_matches("/v1")] {
                let path = format!("{base}{path}");
                let found = endpoint(&path).map(|found| (found.purpose, found.model, found.streaming));
                assert_eq!(found, expected, "{path}");
            }
        }
        assert!(endpoint("/v1/publishers/mistralai/models/m:rawPredict").is_none());
    }
}
