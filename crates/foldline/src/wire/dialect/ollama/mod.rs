//! The Ollama dialect: `/api/chat` of Ollama's own API.

mod compose;
mod intercept;
mod messages;
pub(crate) mod request;
mod response;
mod rules;
mod usage;

use crate::wire::dialect::row::{Dialect, DialectMarks, ErrorSyntax};
use crate::wire::endpoint::{ApiFamily, ConversationEndpoint, EndpointPurpose};
use crate::wire::format::Format;
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::write::quoted;

pub(crate) static DIALECT: Dialect = Dialect {
    format: Format::Ollama,
    name: "ollama",
    title: "Ollama",
    family: &FAMILY,
    error_ends_stream: true,
    keeps_failed_items: false,
    endpoint,
    documented_paths: &[("/api/chat", EndpointPurpose::Turn)],
    marks: DialectMarks {
        in_body: |body| {
            let options = body.object("options");
            let has_option = |key: &&str| options.as_ref().is_some_and(|options| options.get(key).is_some());
            let is_marked = body.get("keep_alive").is_some() || OPTION_NAMES.iter().any(has_option);
            is_marked && body.get("messages").is_some()
        },
        in_message: is_marked_message,
        block_types: &[],
        in_tool: |_| false,
        in_recording: |object| {
            object.has("messages") && (object.has("keep_alive") || object.has("options"))
                || object.has("role") && object.has("tool_name")
        },
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
    diagnostics: None,
};

static FAMILY: ApiFamily = ApiFamily {
    name: "ollama",
    title: "Ollama's own API",
    default_url: "http://127.0.0.1:11434",
    key_header: "authorization",
    key_prefix: "Bearer ",
    required_headers: &[],
    distinctive_headers: &[],
    distinctive_paths: &[
        "/api/chat",
        "/api/generate",
        "/api/tags",
        "/api/show",
        "/api/ps",
        "/api/version",
        "/api/embed",
        "/api/pull",
        "/api/push",
        "/api/create",
        "/api/copy",
        "/api/delete",
        "/api/blobs/",
    ],
    key_variable: "OLLAMA_API_KEY",
};

/// Options that only this API has.
const OPTION_NAMES: [&str; 4] = ["num_ctx", "num_predict", "num_keep", "num_gpu"];

const ERRORS: ErrorSyntax =
    ErrorSyntax { kind: |_| "", body: |_, message| format!(r#"{{"error":{}}}"#, quoted(message)) };

fn endpoint(path: &str) -> Option<ConversationEndpoint<'_>> {
    path.ends_with("/api/chat").then(|| ConversationEndpoint::new(EndpointPurpose::Turn))
}

/// Returns true for a result with the name of its tool, an image outside the content, or a call whose arguments are not
/// a string.
fn is_marked_message(message: &JsonObject<'_>) -> bool {
    let has_object_arguments = |call: &JsonObject<'_>| {
        let arguments = call.object("function").and_then(|function| function.get("arguments"));
        call.get("type").is_none() && arguments.is_some_and(JsonValue::is_object)
    };
    message.get("tool_name").is_some()
        || message.get("images").is_some_and(JsonValue::is_array)
        || message.elements("tool_calls").iter().any(has_object_arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_chat_path_carries_a_conversation() {
        assert!(endpoint("/api/chat").is_some() && endpoint("/ollama/api/chat").is_some());
        for path in ["/api/generate", "/api/chats", "/api/chat/completions", "/v1/chat/completions"] {
            assert_eq!(endpoint(path), None, "{path}");
        }
    }
}
