//! Thinking, reasoning items and the parameters that control them.

use std::borrow::Cow;

use memchr::memmem;

use crate::conversation::{Conversation, Message, Part, PartId, Role};
use crate::laws::law::Law;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::wire::{JsonValue, Request};

/// Largest encrypted content of a compaction item, in bytes.
const MAX_COMPACTION_BYTES: usize = 20 * 1024 * 1024;

/// Laws on thinking blocks and the fields that control them.
const THINKING_LAWS: &[Law] = &[
    Law::ThinkingSigned,
    Law::ThinkingFirst,
    Law::NoManualThinking,
    Law::NoAdaptiveThinking,
    Law::NoDisabledThinking,
    Law::BindingNeedsThinking,
    Law::ClearThinkingFirst,
];
/// Laws on reasoning and compaction items.
const REASONING_ITEM_LAWS: &[Law] = &[
    Law::ReasoningFollowed,
    Law::ReasoningEncrypted,
    Law::ReasoningSummary,
    Law::ReasoningWithoutContent,
    Law::ReasoningWithContent,
    Law::CompactionEncrypted,
];

/// Returns the value of `thinking.type`.
pub(crate) fn thinking_mode<'a>(request: &Request<'a>) -> Option<Cow<'a, str>> {
    request.top_level().object("thinking")?.string("type")
}

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    if findings.has_any(THINKING_LAWS) {
        check_thinking(request, findings);
    }
    if findings.has_any(&[Law::ReasoningReturned, Law::ThoughtSignature]) {
        check_returned_reasoning(request, findings);
    }
    if findings.has_any(REASONING_ITEM_LAWS) {
        check_reasoning_items(request, findings);
    }
}

fn check_thinking(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &request.conversation().messages;
    for (at, message) in messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            if let Part::Reasoning(reasoning) = part
                && reasoning.seal.as_ref().is_none_or(|seal| seal.is_empty())
            {
                findings.report_part(Law::ThinkingSigned, PartId::new(at, index), "the block has no signature");
            }
        }
    }
    let mode = thinking_mode(request);
    let field = RequestLocation::Field("thinking");
    match mode.as_deref() {
        Some("enabled") => {
            findings.report(Law::NoManualThinking, field, "`thinking.type` is `enabled`");
            check_thinking_first(request.conversation(), findings);
        }
        Some("adaptive") => findings.report(Law::NoAdaptiveThinking, field, "`thinking.type` is `adaptive`"),
        Some("disabled") => findings.report(Law::NoDisabledThinking, field, "`thinking.type` is `disabled`"),
        _ => {}
    }
    if !matches!(mode.as_deref(), Some("enabled" | "adaptive"))
        && request.top_level().object("thinking").is_some_and(|thinking| thinking.get("block_binding").is_some())
    {
        findings.report(Law::BindingNeedsThinking, field, "`block_binding` without thinking");
    }
    if let Some(management) = request.top_level().object("context_management") {
        let clears = |kind: Option<Cow<'_, str>>| kind.is_some_and(|kind| kind.starts_with("clear_thinking"));
        if management.elements("edits").iter().skip(1).any(|edit| clears(edit.string("type"))) {
            let detail = "`clear_thinking` is not the first edit";
            findings.report(Law::ClearThinkingFirst, RequestLocation::Field("context_management"), detail);
        }
    }
}

/// Checks that in manual mode a turn in the middle of its tool calls begins with thinking.
fn check_thinking_first(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &conversation.messages;
    let open = messages.iter().rev().find(|message| message.is_assistant());
    if open.is_none_or(|message| message.calls().next().is_none()) {
        return;
    }
    // User text next to results does not end the turn.
    let is_prompt = |message: &Message<'_>| message.role == Role::User && !message.has_results();
    let turn = messages.iter().rposition(is_prompt).map_or(0, |user| user + 1);
    let first = messages.iter().enumerate().skip(turn).find(|(_, message)| message.is_assistant());
    if let Some((at, message)) = first
        && !matches!(message.parts.first(), Some(Part::Reasoning(_)))
    {
        findings.report(
            Law::ThinkingFirst,
            RequestLocation::Message(at),
            "the unfinished turn does not begin with thinking",
        );
    }
}

fn check_returned_reasoning(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &request.conversation().messages;
    let has_calls = |message: &Message<'_>| message.is_assistant() && message.calls().next().is_some();
    let has_reasoning = |message: &Message<'_>| message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)));
    if findings.has(Law::ReasoningReturned)
        && messages.iter().any(|message| has_calls(message) && has_reasoning(message))
    {
        for (at, message) in messages.iter().enumerate() {
            if has_calls(message) && !has_reasoning(message) {
                findings.report(Law::ReasoningReturned, RequestLocation::Message(at), "calls without their reasoning");
            }
        }
    }
    if findings.has(Law::ThoughtSignature) {
        let is_prompt = |message: &Message<'_>| message.role == Role::User && !message.has_results();
        let turn = messages.iter().rposition(is_prompt).map_or(0, |user| user + 1);
        for (at, message) in messages.iter().enumerate().skip(turn) {
            let mentions = |raw: &str, key: &str| memmem::find(raw.as_bytes(), key.as_bytes()).is_some();
            let is_signed = |raw: &str| mentions(raw, "\"thought_signature\"") || mentions(raw, "\"thoughtSignature\"");
            if has_calls(message) && !request.raw_message(at).is_some_and(is_signed) {
                findings.report(
                    Law::ThoughtSignature,
                    RequestLocation::Message(at),
                    "calls without their thought signature",
                );
            }
        }
    }
}

fn check_reasoning_items(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &request.conversation().messages;
    let stored = request.is_stored();
    for (at, message) in messages.iter().enumerate() {
        let place = RequestLocation::Message(at);
        let field = |key| request.message_field(at, key);
        match message.parts.as_slice() {
            [Part::Opaque(block)] if block.kind == "compaction" => {
                let encrypted = field("encrypted_content").filter(|value| value.is_string());
                if encrypted.is_none_or(|value| value.raw().len() > MAX_COMPACTION_BYTES) {
                    findings.report(Law::CompactionEncrypted, place, "no encrypted content of at most 20 MB");
                }
            }
            [Part::Reasoning(reasoning)] => {
                let has_id = field("id").is_some_and(JsonValue::is_string);
                let lacks_content = reasoning.seal.as_ref().is_none_or(|seal| seal.is_empty());
                if has_id && !stored && lacks_content {
                    findings.report(
                        Law::ReasoningEncrypted,
                        place,
                        "it has only an id, and the server does not store it",
                    );
                }
                // Of several consecutive reasoning items only the last is checked.
                if has_id && !messages.get(at + 1).is_some_and(Message::is_assistant) {
                    findings.report(Law::ReasoningFollowed, place, "no item of the same response follows");
                }
                if field("summary").is_none() {
                    findings.report(Law::ReasoningSummary, place, "there is no `summary`");
                }
                let content = field("content").filter(|value| value.is_array() && !value.is_empty_array());
                match content {
                    Some(_) => findings.report(Law::ReasoningWithoutContent, place, "`content` is not empty"),
                    None => findings.report(Law::ReasoningWithContent, place, "`content` is empty"),
                }
            }
            _ => {}
        }
    }
}
