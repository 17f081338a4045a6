//! Facts about Gemini that its laws depend on.

use crate::conversation::{Part, Role};
use crate::wire::rules::{AssistantContent, CallIdScope, DialectRules, EmptyResult, OldReasoning, ResultPlacement};

pub(crate) const RULES: DialectRules = DialectRules {
    result_placement: ResultPlacement::NextUserTurn,
    roles: &[Role::User, Role::Assistant],
    instructions_are_messages: false,
    arguments_are_editable: false,
    media_is_editable: true,
    call_id_scope: CallIdScope::Request,
    max_call_id_chars: None,
    max_tool_name_chars: 64,
    max_text_chars: usize::MAX,
    max_body_bytes: 20 * 1024 * 1024,
    max_images: |_| 3_600,
    allows_in_result: |part| matches!(part, Part::Text { .. } | Part::Image(_) | Part::File(_)),
    empty_result: EmptyResult::Accepted,
    assistant_content: AssistantContent::AnyPart,
    // Signatures of finished turns are sent all or not at all.
    old_reasoning: OldReasoning::Required,
    arguments_fault: |_, _| None,
};
