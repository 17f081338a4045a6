//! The OpenAI Responses dialect.

mod compose;
mod intercept;
mod item_tracker;
mod messages;
pub(crate) mod request;
mod response;
mod rules;
mod usage;

use crate::wire::diagnostics::DiagnosticsSyntax;
use crate::wire::dialect::openai::{ERRORS, FAMILY};
use crate::wire::dialect::row::{Dialect, DialectMarks};
use crate::wire::endpoint::{ConversationEndpoint, EndpointPurpose, has_versioned_end};
use crate::wire::format::Format;
use crate::wire::json::preview::ObjectPreview;

pub(crate) static DIALECT: Dialect = Dialect {
    format: Format::OpenAiResponses,
    name: "openai-responses",
    title: "Responses",
    family: &FAMILY,
    error_ends_stream: true,
    // Codex: without the calls, reasoning would be the last item, which the provider rejects.
    keeps_failed_items: true,
    // Azure has the path below /openai, with its version in the query.
    endpoint: |path| {
        let is_turn = has_versioned_end(path, "/responses") || path.ends_with("/openai/responses");
        is_turn.then(|| ConversationEndpoint::new(EndpointPurpose::Turn))
    },
    documented_paths: &[("/v1/responses", EndpointPurpose::Turn), ("/openai/responses", EndpointPurpose::Turn)],
    marks: DialectMarks {
        in_body: |body| {
            let has = |key: &str| body.get(key).is_some();
            !has("messages") && (has("input") || has("instructions"))
        },
        in_message: |item| match item.string("type").as_deref() {
            Some("message") => true,
            Some(_) => item.string("role").is_none(),
            None => false,
        },
        block_types: &["input_text", "output_text", "input_image"],
        in_tool: |_| false,
        in_recording: is_recorded,
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
        path_end: "/responses",
        request_field: "prompt_cache_options",
        id_field: "comparison_response_id",
        response_field: "prompt_cache_diagnostics",
        event_field: "response",
    }),
};

/// Types of items that have no role.
const ITEM_TYPES: [&str; 5] = ["function_call", "function_call_output", "reasoning", "custom_tool_call", "compaction"];

fn is_recorded(object: &ObjectPreview) -> bool {
    let (role, kind) = (object.text("role"), object.text("type"));
    let is_item = match role {
        "" => ITEM_TYPES.contains(&kind),
        "system" | "developer" | "user" | "assistant" => kind == "message",
        _ => false,
    };
    let has_input = object.has("input") && !["messages", "role", "name"].iter().any(|key| object.has(key));
    let has_instructions = object.has("instructions") && (object.has("messages") || object.has("model"));
    has_input || has_instructions || is_item
}
