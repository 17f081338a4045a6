//! Texts that may not be empty, blank or too long, and messages that may not be empty.

use super::pairing::longer_than;
use super::{Findings, Law, Place};
use crate::conversation::{Conversation, Message, Part, PartId};
use crate::text::Text;
use crate::wire::{Format, Request, Value};

/// Most characters of one text (Chat).
const LONGEST_TEXT: usize = 1_048_576;
/// Most characters of an output (Responses).
const LONGEST_OUTPUT: usize = 10_485_760;
/// Most calls of one message (Chat).
const MOST_CALLS: usize = 128;

pub(super) fn check(request: &Request<'_>, findings: &mut Findings<'_>) {
    let conversation = request.conversation();
    // Of an empty result only a list is wrong: `"content": ""` says that the tool said nothing.
    walk(conversation, |at| request.format() != Format::Anthropic || !request.is_plain_result(at), findings);
    if findings.format() == Format::Anthropic && request.top().get("system").is_some_and(Value::is_array) {
        for (at, part) in conversation.system.iter().enumerate() {
            if matches!(part, Part::Text { text } if text.is_blank()) {
                findings.broken(Law::TextNotBlank, Place::Instruction(at), "a blank text");
            }
        }
    }
    if findings.format() == Format::OpenAiChat {
        for (at, message) in conversation.messages.iter().enumerate().filter(|(_, message)| message.is_assistant()) {
            chat_calls(request, message, at, findings);
        }
    }
}

pub(super) fn check_conversation(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    walk(conversation, |_| false, findings);
    if findings.format() == Format::OpenAiChat {
        for (at, message) in conversation.messages.iter().enumerate() {
            if message.is_assistant() && !says_something(message) {
                findings.broken(Law::HasContent, Place::Message(at), "neither content nor calls");
            }
        }
    }
}

fn walk(conversation: &Conversation<'_>, result_counts: impl Fn(PartId) -> bool, findings: &mut Findings<'_>) {
    let blank_counts = findings.has(Law::TextNotBlank);
    let limit = match findings.format() {
        _ if !findings.has(Law::TextLength) => usize::MAX,
        Format::OpenAiResponses => LONGEST_OUTPUT,
        _ => LONGEST_TEXT,
    };
    let messages = &conversation.messages;
    for (at, message) in messages.iter().enumerate() {
        let final_assistant = message.is_assistant() && at + 1 == messages.len();
        // Chat judges an assistant message by its calls too.
        let judged_apart =
            message.is_assistant() && (at + 1 == messages.len() || findings.format() == Format::OpenAiChat);
        if message.parts.is_empty() && !judged_apart {
            findings.broken(Law::HasContent, Place::Message(at), "the message has no content");
        }
        for (part, it) in message.parts.iter().enumerate() {
            let place = PartId::new(at, part);
            match it {
                Part::Text { text } => {
                    // An empty prefill is none.
                    if blank_counts && text.is_blank() && !(final_assistant && text.is_empty()) {
                        findings.broken_part(Law::TextNotBlank, place, blank(text));
                    }
                    too_long(text, limit, place, findings);
                }
                Part::ToolResult(result) => {
                    for (inner, piece) in result.content.iter().enumerate() {
                        let Part::Text { text } = piece else { continue };
                        if blank_counts && text.is_blank() && result_counts(place) {
                            findings.broken_part(Law::TextNotBlank, place.inner(inner), blank(text));
                        }
                        too_long(text, limit, place.inner(inner), findings);
                    }
                }
                _ => {}
            }
        }
    }
}

fn too_long(text: &Text<'_>, limit: usize, place: PartId, findings: &mut Findings<'_>) {
    if text.len_at_most() > limit && longer_than(text, limit) {
        findings.broken_part(Law::TextLength, place, format_args!("the text has {} bytes", text.len()));
    }
}

fn blank(text: &Text<'_>) -> &'static str {
    if text.is_empty() { "an empty text" } else { "a text of white space" }
}

fn says_something(message: &Message<'_>) -> bool {
    message.parts.iter().any(|part| !matches!(part, Part::Reasoning(_)))
}

fn chat_calls(request: &Request<'_>, message: &Message<'_>, at: usize, findings: &mut Findings<'_>) {
    let place = Place::Message(at);
    let calls = message.calls().count();
    if calls > MOST_CALLS {
        findings.broken(Law::CallsPerMessage, place, format_args!("{calls} calls"));
    }
    if calls > 0 {
        return;
    }
    if request.message_field(at, "tool_calls").is_some_and(Value::is_empty_array) {
        findings.broken(Law::CallsNotEmpty, place, "`tool_calls` is an empty list");
    }
    let refused = || request.message_field(at, "refusal").is_some_and(Value::is_string);
    if !says_something(message) && !refused() {
        findings.broken(Law::HasContent, place, "neither content nor calls");
    }
}
