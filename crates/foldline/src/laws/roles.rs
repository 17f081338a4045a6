//! Roles of messages and their order: the rules of the providers. Those of chat templates are in
//! `chat_template`.

use crate::conversation::{Conversation, Message, Part, Role};
use crate::laws::law::Law;
use crate::laws::pairing::is_server_result;
use crate::laws::reasoning::thinking_mode;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::wire::{JsonValue, Request};

pub(crate) fn check(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &conversation.messages;
    if messages.is_empty() {
        findings.report(Law::MessagesNotEmpty, RequestLocation::Request, "there is no message");
    }
    let rules = findings.rules();
    for (at, message) in messages.iter().enumerate() {
        if !rules.roles.contains(&message.role) {
            findings.report(
                Law::KnownRole,
                RequestLocation::Message(at),
                format_args!("the role is {:?}", message.role),
            );
        }
    }
    // Where instructions are messages, the first one after them counts; see `chat_template`.
    if !rules.instructions_are_messages
        && let Some(first) = messages.first().filter(|first| first.role != Role::User)
    {
        let detail = format_args!("the first message has the role {:?}", first.role);
        findings.report(Law::FirstIsUser, RequestLocation::Message(0), detail);
    }
    if !rules.instructions_are_messages && findings.has(Law::Alternation) {
        for (at, pair) in messages.windows(2).enumerate().filter(|(_, pair)| pair[0].role == pair[1].role) {
            let detail = format_args!("two consecutive messages with the role {:?}", pair[1].role);
            findings.report(Law::Alternation, RequestLocation::Message(at + 1), detail);
        }
    }
    if findings.has_any(&[Law::NoSystemMessage, Law::SystemMessagePosition]) {
        check_system_messages(messages, findings);
    }
}

/// Checks Anthropic's system messages among the other messages.
fn check_system_messages(messages: &[Message<'_>], findings: &mut ViolationCollector<'_>) {
    let is_system = |message: &Message<'_>| message.role == Role::System;
    for (at, message) in messages.iter().enumerate().filter(|(_, message)| is_system(message)) {
        let place = RequestLocation::Message(at);
        findings.report(Law::NoSystemMessage, place, "the model does not accept system messages among the others");
        // Adjacent system messages form one section.
        let is_allowed_here = match at.checked_sub(1).map(|before| &messages[before]) {
            None => false,
            Some(before) => match before.role {
                Role::User | Role::System => true,
                Role::Assistant => {
                    matches!(before.parts.last(), Some(Part::Opaque(block)) if is_server_result(&block.kind))
                }
                _ => false,
            },
        };
        if !is_allowed_here {
            findings.report(
                Law::SystemMessagePosition,
                place,
                "it follows neither a user turn nor a server tool's result",
            );
        }
        if messages.get(at + 1).is_some_and(|next| !next.is_assistant() && !is_system(next)) {
            findings.report(Law::SystemMessagePosition, place, "the next message is not an assistant message");
        }
        if message.has_results() || message.calls().next().is_some() {
            findings.report(Law::SystemMessagePosition, place, "it contains a call or a result");
        }
    }
}

pub(crate) fn check_request(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    if !findings.has_any(&[Law::FinalTextTrimmed, Law::NoPrefill, Law::NoPrefillWithThinking]) {
        return;
    }
    let messages = &request.conversation().messages;
    let Some(last) = messages.last().filter(|last| last.is_assistant()) else { return };
    let place = RequestLocation::Message(messages.len() - 1);
    if let Some(text) = last.parts.last().and_then(Part::as_text)
        && text.ends_with(char::is_whitespace)
    {
        findings.report(Law::FinalTextTrimmed, place, "the last text ends in whitespace");
    }
    // A turn that the server paused is sent back unchanged.
    let is_paused = |part: &Part<'_>| matches!(part, Part::Opaque(block) if matches!(&*block.kind, "server_tool_use" | "mcp_tool_use"));
    if last.parts.iter().any(is_paused) {
        return;
    }
    if findings.has(Law::NoPrefill) {
        findings.report(Law::NoPrefill, place, "the model does not accept a prefill");
    } else if matches!(thinking_mode(request).as_deref(), Some("enabled" | "adaptive")) {
        findings.report(Law::NoPrefillWithThinking, place, "thinking is on");
    }
}

pub(crate) fn check_no_previous_response(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    if request.top_level().get("previous_response_id").is_some_and(|id| !JsonValue::is_null(id)) {
        findings.report(
            Law::NoPreviousResponse,
            RequestLocation::Field("previous_response_id"),
            "the server does not store history",
        );
    }
}
