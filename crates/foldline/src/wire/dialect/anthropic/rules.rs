//! Facts about Anthropic Messages that its laws depend on.

use crate::conversation::{Part, Role};
use crate::wire::rules::{AssistantContent, CallIdScope, DialectRules, EmptyResult, OldReasoning, ResultPlacement};

pub(crate) const RULES: DialectRules = DialectRules {
    result_placement: ResultPlacement::NextUserTurn,
    roles: &[Role::User, Role::Assistant, Role::System],
    instructions_are_messages: false,
    arguments_are_editable: true,
    media_is_editable: true,
    call_id_scope: CallIdScope::Request,
    max_call_id_chars: None,
    max_tool_name_chars: 128,
    max_text_chars: usize::MAX,
    max_body_bytes: 32 * 1024 * 1024,
    max_images: |window| if window <= 200_000 { 100 } else { 600 },
    allows_in_result: |part| match part {
        Part::Text { .. } | Part::Image(_) | Part::File(_) => true,
        Part::Opaque(block) => matches!(&*block.kind, "search_result" | "tool_reference" | "browser_state"),
        _ => false,
    },
    empty_result: EmptyResult::Accepted,
    assistant_content: AssistantContent::AnyPart,
    old_reasoning: OldReasoning::RequiredInOpenTurn,
    arguments_fault: |_, _| None,
};
