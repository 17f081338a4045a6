//! Servers that render messages by a chat template, and Mistral: stricter about roles than the
//! providers whose formats they speak.

use super::pairing::kind_of;
use super::{Findings, Law, Place};
use crate::conversation::{Conversation, Message, Part, PartId, Role};
use crate::wire::{Format, Request, Value};

/// Fields of an assistant message that are read as parts of it.
const FIELDS: [&str; 3] = ["reasoning_details", "extra_content", "audio"];

pub(super) fn check(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    if findings.format() != Format::OpenAiChat {
        return;
    }
    let messages = &conversation.messages;
    let first = messages.iter().position(|message| !is_system(message)).unwrap_or(0);
    if let Some(message) = messages.get(first).filter(|message| message.role != Role::User) {
        let detail = format_args!("the first message is of the role {:?}", message.role);
        findings.broken(Law::FirstIsUser, Place::Message(first), detail);
    }
    if findings.has(Law::SomeUserText) {
        let text = |part: &Part<'_>| matches!(part, Part::Text { text } if !text.is_blank());
        if !messages.iter().any(|message| message.role == Role::User && message.parts.iter().any(text)) {
            findings.broken(Law::SomeUserText, Place::Request, "no user message has text");
        }
    }
    // Who spoke last, calls and results left aside.
    let mut speaker = None;
    for (at, message) in messages.iter().enumerate() {
        let place = Place::Message(at);
        if at > 0 && is_system(message) {
            findings.broken(Law::SystemFirst, place, "a system message that is not first");
        }
        let role = message.role;
        if role == Role::User || role == Role::Assistant && message.calls().next().is_none() {
            if speaker == Some(role) {
                findings.broken(Law::Alternation, place, format_args!("{role:?} speaks twice in a row"));
            }
            speaker = Some(role);
        }
        if role == Role::User && at > 0 && messages[at - 1].role == Role::Tool {
            findings.broken(Law::NoUserAfterTool, place, "a tool message stands before it");
        }
        if findings.has(Law::PartKind) {
            part_kinds(message, at, findings);
        }
    }
    if let [.., before, last] = messages.as_slice()
        && before.is_assistant()
        && last.is_assistant()
    {
        findings.broken(
            Law::OneAssistantAtEnd,
            Place::Message(messages.len() - 1),
            "two assistant messages at the end",
        );
    }
}

pub(super) fn check_wire(request: &Request<'_>, findings: &mut Findings<'_>) {
    if !findings.has(Law::LastRole) {
        return;
    }
    let messages = &request.conversation().messages;
    let Some((last, before)) = messages.split_last() else { return };
    let prefix = || request.message_field(before.len(), "prefix").and_then(Value::bool) == Some(true);
    match last.role {
        Role::User | Role::Tool => {}
        Role::Assistant if prefix() => {}
        role => findings.broken(Law::LastRole, Place::Message(before.len()), format_args!("{role:?} speaks last")),
    }
}

fn is_system(message: &Message<'_>) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

fn part_kinds(message: &Message<'_>, at: usize, findings: &mut Findings<'_>) {
    for (part, it) in message.parts.iter().enumerate() {
        let refused = match it {
            Part::File(_) => true,
            Part::Opaque(it) => !matches!(&*it.kind, "input_audio" | "input_video") && !FIELDS.contains(&&*it.kind),
            _ => false,
        };
        if refused {
            findings.broken_part(Law::PartKind, PartId::new(at, part), format_args!("a part of type {}", kind_of(it)));
        }
    }
}
