//! Facts about Converse that its laws depend on.

use crate::conversation::{Part, Role};
use crate::wire::rules::{AssistantContent, CallIdScope, DialectRules, EmptyResult, OldReasoning, ResultPlacement};

pub(crate) const RULES: DialectRules = DialectRules {
    result_placement: ResultPlacement::NextUserTurn,
    roles: &[Role::User, Role::Assistant, Role::System],
    instructions_are_messages: false,
    arguments_are_editable: true,
    media_is_editable: true,
    call_id_scope: CallIdScope::Request,
    max_call_id_chars: Some(64),
    max_tool_name_chars: 64,
    max_text_chars: usize::MAX,
    max_body_bytes: 25_000_000,
    max_images: |_| usize::MAX,
    allows_in_result: |part| match part {
        Part::Text { .. } | Part::Image(_) | Part::File(_) => true,
        Part::Opaque(block) => matches!(&*block.kind, "video" | "searchResult"),
        _ => false,
    },
    empty_result: EmptyResult::WithoutText,
    assistant_content: AssistantContent::AnyPart,
    old_reasoning: OldReasoning::RequiredInOpenTurn,
    arguments_fault: |_, _| None,
};
