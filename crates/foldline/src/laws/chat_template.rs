//! Servers that render messages by a chat template, and Mistral: stricter about roles than the
//! providers whose formats they speak.

use crate::conversation::{Conversation, Message, Part, PartId, Role};
use crate::laws::pairing::part_kind_name;
use crate::laws::{Law, RequestLocation, ViolationCollector};
use crate::wire::{Format, JsonValue, Request};

/// Fields of an assistant message that are read as parts of it.
const OPAQUE_MESSAGE_FIELDS: [&str; 3] = ["reasoning_details", "extra_content", "audio"];

pub(crate) fn check(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    if findings.format() != Format::OpenAiChat {
        return;
    }
    let messages = &conversation.messages;
    let first = messages.iter().position(|message| !is_system(message)).unwrap_or(0);
    if let Some(message) = messages.get(first).filter(|message| message.role != Role::User) {
        let detail = format_args!("the first message is of the role {:?}", message.role);
        findings.report(Law::FirstIsUser, RequestLocation::Message(first), detail);
    }
    if findings.has(Law::HasUserText) {
        let text = |part: &Part<'_>| matches!(part, Part::Text { text } if !text.is_blank());
        if !messages.iter().any(|message| message.role == Role::User && message.parts.iter().any(text)) {
            findings.report(Law::HasUserText, RequestLocation::Request, "no user message has text");
        }
    }
    // Who spoke last, calls and results left aside.
    let mut speaker = None;
    for (at, message) in messages.iter().enumerate() {
        let place = RequestLocation::Message(at);
        if at > 0 && is_system(message) {
            findings.report(Law::SystemFirst, place, "a system message that is not first");
        }
        let role = message.role;
        if role == Role::User || role == Role::Assistant && message.calls().next().is_none() {
            if speaker == Some(role) {
                findings.report(Law::Alternation, place, format_args!("{role:?} speaks twice in a row"));
            }
            speaker = Some(role);
        }
        if role == Role::User && at > 0 && messages[at - 1].role == Role::Tool {
            findings.report(Law::NoUserAfterTool, place, "a tool message stands before it");
        }
        if findings.has(Law::PartKind) {
            check_part_kinds(message, at, findings);
        }
    }
    if let [.., before, last] = messages.as_slice()
        && before.is_assistant()
        && last.is_assistant()
    {
        findings.report(
            Law::OneAssistantAtEnd,
            RequestLocation::Message(messages.len() - 1),
            "two assistant messages at the end",
        );
    }
}

pub(crate) fn check_request(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    if !findings.has(Law::LastRole) {
        return;
    }
    let messages = &request.conversation().messages;
    let Some((last, before)) = messages.split_last() else { return };
    let prefix = || request.message_field(before.len(), "prefix").and_then(JsonValue::bool) == Some(true);
    match last.role {
        Role::User | Role::Tool => {}
        Role::Assistant if prefix() => {}
        role => {
            findings.report(Law::LastRole, RequestLocation::Message(before.len()), format_args!("{role:?} speaks last"))
        }
    }
}

fn is_system(message: &Message<'_>) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

fn check_part_kinds(message: &Message<'_>, at: usize, findings: &mut ViolationCollector<'_>) {
    for (part, it) in message.parts.iter().enumerate() {
        let refused = match it {
            Part::File(_) => true,
            Part::Opaque(it) => {
                !matches!(&*it.kind, "input_audio" | "input_video") && !OPAQUE_MESSAGE_FIELDS.contains(&&*it.kind)
            }
            _ => false,
        };
        if refused {
            findings.report_part(
                Law::PartKind,
                PartId::new(at, part),
                format_args!("a part of type {}", part_kind_name(it)),
            );
        }
    }
}
