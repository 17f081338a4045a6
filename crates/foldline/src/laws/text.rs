//! Texts that must not be empty, blank or too long, and messages that must not be empty.

use crate::conversation::text::LazyText;
use crate::conversation::{Conversation, Message, Part, PartId};
use crate::laws::law::Law;
use crate::laws::pairing::exceeds_chars;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::wire::rules::{AssistantContent, EmptyResult};
use crate::wire::{JsonValue, Request};

/// Maximum number of calls in one message (Chat).
const MAX_CALLS_PER_MESSAGE: usize = 128;

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let conversation = request.conversation();
    // An empty result is wrong only as a list: `"content": ""` means that the tool had no output.
    let accepts_empty = findings.rules().empty_result == EmptyResult::Accepted;
    check_parts(conversation, |at| !accepts_empty || !request.is_string_result(at), findings);
    if request.top_level().get("system").is_some_and(JsonValue::is_array) {
        for (at, part) in conversation.system.iter().enumerate() {
            if matches!(part, Part::Text { text } if text.is_blank()) {
                findings.report(Law::TextNotBlank, RequestLocation::Instruction(at), "a blank text");
            }
        }
    }
    if findings.rules().assistant_content == AssistantContent::VisiblePart {
        for (at, message) in conversation.messages.iter().enumerate().filter(|(_, message)| message.is_assistant()) {
            check_chat_calls(request, message, at, findings);
        }
    }
}

pub(crate) fn check_conversation(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    check_parts(conversation, |_| false, findings);
    if findings.rules().assistant_content == AssistantContent::VisiblePart {
        for (at, message) in conversation.messages.iter().enumerate() {
            if message.is_assistant() && !has_visible_content(message) {
                findings.report(Law::HasContent, RequestLocation::Message(at), "neither content nor calls");
            }
        }
    }
}

fn check_parts(
    conversation: &Conversation<'_>,
    checks_result: impl Fn(PartId) -> bool,
    findings: &mut ViolationCollector<'_>,
) {
    let checks_blank = findings.has(Law::TextNotBlank);
    let rules = findings.rules();
    let limit = if findings.has(Law::TextLength) { rules.max_text_chars } else { usize::MAX };
    let messages = &conversation.messages;
    for (at, message) in messages.iter().enumerate() {
        let final_assistant = message.is_assistant() && at + 1 == messages.len();
        // Where calls count as content, assistant messages are checked together with them.
        let is_checked_elsewhere =
            final_assistant || message.is_assistant() && rules.assistant_content == AssistantContent::VisiblePart;
        if message.parts.is_empty() && !is_checked_elsewhere {
            findings.report(Law::HasContent, RequestLocation::Message(at), "the message has no content");
        }
        for (index, part) in message.parts.iter().enumerate() {
            let place = PartId::new(at, index);
            match part {
                Part::Text { text } => {
                    // An empty prefill counts as no prefill.
                    if checks_blank && text.is_blank() && !(final_assistant && text.is_empty()) {
                        findings.report_part(Law::TextNotBlank, place, blank_text_detail(text));
                    }
                    check_length(text, limit, place, findings);
                }
                Part::ToolResult(result) => {
                    for (inner, piece) in result.content.iter().enumerate() {
                        let Part::Text { text } = piece else { continue };
                        if checks_blank && text.is_blank() && checks_result(place) {
                            findings.report_part(Law::TextNotBlank, place.inner(inner), blank_text_detail(text));
                        }
                        check_length(text, limit, place.inner(inner), findings);
                    }
                }
                _ => {}
            }
        }
    }
}

fn check_length(text: &LazyText<'_>, limit: usize, place: PartId, findings: &mut ViolationCollector<'_>) {
    if text.len_upper_bound() > limit && exceeds_chars(text, limit) {
        findings.report_part(Law::TextLength, place, format_args!("the text has {} bytes", text.len()));
    }
}

fn blank_text_detail(text: &LazyText<'_>) -> &'static str {
    if text.is_empty() { "an empty text" } else { "a text of whitespace" }
}

fn has_visible_content(message: &Message<'_>) -> bool {
    message.parts.iter().any(|part| !matches!(part, Part::Reasoning(_)))
}

fn check_chat_calls(request: &Request<'_>, message: &Message<'_>, at: usize, findings: &mut ViolationCollector<'_>) {
    let place = RequestLocation::Message(at);
    let calls = message.calls().count();
    if calls > MAX_CALLS_PER_MESSAGE {
        findings.report(Law::CallsPerMessage, place, format_args!("{calls} calls"));
    }
    if calls > 0 {
        return;
    }
    if request.message_field(at, "tool_calls").is_some_and(JsonValue::is_empty_array) {
        findings.report(Law::CallsNotEmpty, place, "`tool_calls` is an empty list");
    }
    let refused = || request.message_field(at, "refusal").is_some_and(JsonValue::is_string);
    if !has_visible_content(message) && !refused() {
        findings.report(Law::HasContent, place, "neither content nor calls");
    }
}
