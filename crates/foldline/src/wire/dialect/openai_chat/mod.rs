//! The OpenAI Chat Completions dialect.

mod call_tracker;
mod compose;
pub(crate) mod intercept;
mod messages;
pub(crate) mod request;
mod response;
mod rules;
mod usage;

use crate::wire::dialect::openai::{ERRORS, FAMILY};
use crate::wire::dialect::row::{Dialect, DialectMarks};
use crate::wire::endpoint::{ConversationEndpoint, EndpointPurpose};
use crate::wire::format::Format;
use crate::wire::json::scan::JsonObject;

pub(crate) static DIALECT: Dialect = Dialect {
    format: Format::OpenAiChat,
    name: "openai-chat",
    title: "Chat",
    family: &FAMILY,
    error_ends_stream: false,
    keeps_failed_items: false,
    endpoint,
    documented_paths: &[
        ("/v1/chat/completions", EndpointPurpose::Turn),
        ("/openai/deployments/MODEL/chat/completions", EndpointPurpose::Turn),
    ],
    marks: DialectMarks {
        in_body: |_| false,
        in_message: is_marked_message,
        block_types: &["image_url", "input_audio", "file"],
        in_tool: |_| false,
        in_recording: |object| {
            let roles = ["system", "developer", "user", "assistant", "tool"];
            object.has("messages") || roles.contains(&object.text("role"))
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

/// Returns the facts in `..chat/completions`. A path of Azure names its deployment, which clients name like its model.
fn endpoint(path: &str) -> Option<ConversationEndpoint<'_>> {
    let before = path.strip_suffix("/chat/completions")?;
    let deployment = before.rsplit_once("/deployments/").map(|(_, name)| name).filter(|name| !name.contains('/'));
    Some(ConversationEndpoint { model: deployment, ..ConversationEndpoint::new(EndpointPurpose::Turn) })
}

fn is_marked_message(message: &JsonObject<'_>) -> bool {
    let (kind, role) = (message.string("type"), message.string("role"));
    let is_item = kind.is_some() && role.is_none() || kind.as_deref() == Some("message");
    let has_chat_role = matches!(role.as_deref(), Some("tool" | "developer" | "function"));
    !is_item && (has_chat_role || message.get("tool_calls").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_azure_names_the_deployment() {
        let model = |path| endpoint(path).map(|found| found.model);
        assert_eq!(model("/openai/deployments/gpt-4o/chat/completions"), Some(Some("gpt-4o")));
        assert_eq!(model("/openai/v1/chat/completions"), Some(None));
        assert_eq!(model("/chat/completions"), Some(None));
        assert_eq!(model("/v1/completions"), None);
    }
}
