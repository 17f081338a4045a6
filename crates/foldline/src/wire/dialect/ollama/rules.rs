//! Facts about Ollama that its laws depend on. The server checks little; the model's template decides the rest.

use crate::conversation::{Part, Role};
use crate::wire::rules::{AssistantContent, CallIdScope, DialectRules, EmptyResult, OldReasoning, ResultPlacement};

pub(crate) const RULES: DialectRules = DialectRules {
    result_placement: ResultPlacement::DirectlyAfter,
    roles: &[Role::User, Role::Assistant, Role::System, Role::Tool],
    instructions_are_messages: true,
    arguments_are_editable: true,
    // An image is not in the content, so that no text can take its place.
    media_is_editable: false,
    call_id_scope: CallIdScope::Message,
    max_call_id_chars: None,
    max_tool_name_chars: usize::MAX,
    max_text_chars: usize::MAX,
    max_body_bytes: usize::MAX,
    max_images: |_| usize::MAX,
    allows_in_result: |part| matches!(part, Part::Text { .. } | Part::Image(_)),
    empty_result: EmptyResult::Accepted,
    assistant_content: AssistantContent::AnyPart,
    // Templates remove the reasoning before the newest user message themselves.
    old_reasoning: OldReasoning::RequiredInOpenTurn,
    arguments_fault: |_, _| None,
};
