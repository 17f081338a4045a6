//! Facts about Chat Completions that its laws depend on.

use crate::conversation::{Part, Role};
use crate::wire::dialect::openai::{MAX_BODY_BYTES, MAX_IMAGES};
use crate::wire::rules::{AssistantContent, CallIdScope, DialectRules, EmptyResult, OldReasoning, ResultPlacement};

pub(crate) const RULES: DialectRules = DialectRules {
    result_placement: ResultPlacement::DirectlyAfter,
    roles: &[Role::User, Role::Assistant, Role::System, Role::Developer, Role::Tool],
    instructions_are_messages: true,
    arguments_are_editable: true,
    media_is_editable: true,
    call_id_scope: CallIdScope::Message,
    max_call_id_chars: Some(40),
    max_tool_name_chars: 64,
    max_text_chars: 1_048_576,
    max_body_bytes: MAX_BODY_BYTES,
    max_images: |_| MAX_IMAGES,
    allows_in_result: |part| matches!(part, Part::Text { .. }),
    empty_result: EmptyResult::Rejected,
    assistant_content: AssistantContent::VisiblePart,
    old_reasoning: OldReasoning::Optional,
    arguments_fault: |request, at| {
        (!request.has_string_arguments(at)).then(|| "the arguments are not a string".to_owned())
    },
};
