//! Facts about Responses that its laws depend on.

use crate::conversation::{Part, PartId, Role};
use crate::wire::dialect::openai::{MAX_BODY_BYTES, MAX_IMAGES};
use crate::wire::json::scan::JsonValue;
use crate::wire::request::Request;
use crate::wire::rules::{AssistantContent, CallIdScope, DialectRules, EmptyResult, OldReasoning, ResultPlacement};

pub(crate) const RULES: DialectRules = DialectRules {
    result_placement: ResultPlacement::AnywhereAfter,
    roles: &[Role::User, Role::Assistant, Role::System, Role::Developer, Role::Tool],
    instructions_are_messages: false,
    arguments_are_editable: true,
    media_is_editable: true,
    call_id_scope: CallIdScope::Request,
    max_call_id_chars: Some(64),
    max_tool_name_chars: 64,
    max_text_chars: 10_485_760,
    max_body_bytes: MAX_BODY_BYTES,
    max_images: |_| MAX_IMAGES,
    allows_in_result: |part| match part {
        Part::Text { .. } | Part::Image(_) | Part::File(_) => true,
        // Output of a tool search.
        Part::Opaque(block) => block.kind == "tools",
        _ => false,
    },
    empty_result: EmptyResult::WithoutText,
    assistant_content: AssistantContent::AnyPart,
    old_reasoning: OldReasoning::Required,
    arguments_fault,
};

/// Returns the fault of a call whose arguments are not a string. Calls of built-in tools have an action instead.
fn arguments_fault(request: &Request<'_>, at: PartId) -> Option<String> {
    if request.has_string_arguments(at) {
        return None;
    }
    let key = match request.message_field(at.message, "type").and_then(JsonValue::string).as_deref() {
        Some("function_call") => "arguments",
        Some("custom_tool_call") => "input",
        _ => return None,
    };
    let is_string = request.message_field(at.message, key).is_some_and(JsonValue::is_string);
    (!is_string).then(|| format!("`{key}` is not a string"))
}
