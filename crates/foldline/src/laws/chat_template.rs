//! Rules of servers that render messages with a chat template, and of Mistral, which are stricter about
//! roles than the providers whose formats they use.

use crate::conversation::{Conversation, Message, Part, PartId, Role};
use crate::laws::law::Law;
use crate::laws::pairing::part_kind_name;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::wire::{JsonValue, Request};

/// Fields of an assistant message that are read as parts of it.
const OPAQUE_MESSAGE_FIELDS: [&str; 3] = ["reasoning_details", "extra_content", "audio"];

pub(crate) fn check(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    if !findings.rules().instructions_are_messages {
        return;
    }
    let messages = &conversation.messages;
    let first = messages.iter().position(|message| !is_system(message)).unwrap_or(0);
    if let Some(message) = messages.get(first).filter(|message| message.role != Role::User) {
        let detail = format_args!("the first message has the role {:?}", message.role);
        findings.report(Law::FirstIsUser, RequestLocation::Message(first), detail);
    }
    if findings.has(Law::HasUserText) {
        let is_text = |part: &Part<'_>| matches!(part, Part::Text { text } if !text.is_blank());
        if !messages.iter().any(|message| message.role == Role::User && message.parts.iter().any(is_text)) {
            findings.report(Law::HasUserText, RequestLocation::Request, "no user message has text");
        }
    }
    // Role of the last message, ignoring calls and results.
    let mut last_role = None;
    for (at, message) in messages.iter().enumerate() {
        let place = RequestLocation::Message(at);
        if at > 0 && is_system(message) {
            findings.report(Law::SystemFirst, place, "a system message that is not first");
        }
        let role = message.role;
        if role == Role::User || role == Role::Assistant && message.calls().next().is_none() {
            if last_role == Some(role) {
                findings.report(
                    Law::Alternation,
                    place,
                    format_args!("two consecutive messages with the role {role:?}"),
                );
            }
            last_role = Some(role);
        }
        if role == Role::User && at > 0 && messages[at - 1].role == Role::Tool {
            findings.report(Law::NoUserAfterTool, place, "it follows a tool message");
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
    let is_prefix = || request.message_field(before.len(), "prefix").and_then(JsonValue::bool) == Some(true);
    match last.role {
        Role::User | Role::Tool => {}
        Role::Assistant if is_prefix() => {}
        role => findings.report(
            Law::LastRole,
            RequestLocation::Message(before.len()),
            format_args!("the last message has the role {role:?}"),
        ),
    }
}

fn is_system(message: &Message<'_>) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

fn check_part_kinds(message: &Message<'_>, at: usize, findings: &mut ViolationCollector<'_>) {
    for (index, part) in message.parts.iter().enumerate() {
        let refused = match part {
            Part::File(_) => true,
            Part::Opaque(block) => {
                !matches!(&*block.kind, "input_audio" | "input_video") && !OPAQUE_MESSAGE_FIELDS.contains(&&*block.kind)
            }
            _ => false,
        };
        if refused {
            findings.report_part(
                Law::PartKind,
                PartId::new(at, index),
                format_args!("a part of type {}", part_kind_name(part)),
            );
        }
    }
}
