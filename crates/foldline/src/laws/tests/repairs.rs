//! Repair of pairs: one test for each known case.

use super::super::{RepairCounts, repair, repair_as};
use crate::conversation::{Conversation, Message, Part, Role};
use crate::wire::Format;

/// Parses messages written as words: `u:text`, `a:text`, `a>id` (a call), `t<id` (a result in a separate
/// message), `u<id` (a result in a user message), parts joined by `+`.
fn parse_words(words: &str) -> Conversation<'_> {
    let message = |word| {
        let mut role = Role::User;
        let parts = str::split(word, '+').map(|part| {
            let (who, what) = part.split_at(1);
            role = match who {
                "a" => Role::Assistant,
                "t" => Role::Tool,
                "s" => Role::System,
                _ => Role::User,
            };
            match what.split_at(1) {
                (">", id) => Part::call(id, "sh", "{}"),
                ("<", id) => match id.split_once('=') {
                    Some((id, text)) => Part::result(id, text),
                    None => Part::result(id, "ok"),
                },
                (_, text) => Part::text(text),
            }
        });
        let parts = parts.collect();
        Message::new(role, parts)
    };
    Conversation { messages: words.split_whitespace().map(message).collect(), ..Conversation::default() }
}

fn to_words(conversation: &Conversation<'_>) -> String {
    let message = |message: &Message<'_>| {
        let who = match message.role {
            Role::Assistant => "a",
            Role::Tool => "t",
            Role::System => "s",
            _ => "u",
        };
        let part = |part: &Part<'_>| match part {
            Part::ToolCall(call) => format!("{who}>{}", call.id),
            Part::ToolResult(result) => match result.only_text() {
                Some("ok") => format!("{who}<{}", result.call_id),
                Some(text) if text.starts_with("[no result was recorded") => format!("{who}<{}?", result.call_id),
                other => format!("{who}<{}={}", result.call_id, other.unwrap_or_default()),
            },
            other => match other.as_text() {
                Some(text) if text.starts_with("[a tool result without its call") => format!("{who}:!"),
                other => format!("{who}:{}", other.unwrap_or_default()),
            },
        };
        message.parts.iter().map(part).collect::<Vec<_>>().join("+")
    };
    conversation.messages.iter().map(message).collect::<Vec<_>>().join(" ")
}

fn repaired(words: &str) -> String {
    to_words(&repair(parse_words(words)).0)
}

fn repaired_as(format: Format, words: &str) -> String {
    to_words(&repair_as(parse_words(words), format).0)
}

#[test]
fn valid_conversation_is_unchanged() {
    for words in
        ["s:x u:go a>1+a>2 t<2 t<1 a:done u:more a>3 t<3", "u:go a>1 u<1+u:and a>2 u<2", "u:go a>1 a>2 t<1 t<2 u:x"]
    {
        let (same, repairs) = repair(parse_words(words));
        assert_eq!((same, repairs), (parse_words(words), RepairCounts::default()), "{words}");
    }
}

#[test]
fn orphan_is_removed_and_its_neighbors_stay() {
    assert_eq!(repaired("u:go t<gone a>1 t<1"), "u:go a>1 t<1");
    assert_eq!(repaired("u:go a>1 u<1+u<gone+u:hello"), "u:go a>1 u<1+u:hello");
}

/// A tool message can contain results of known and unknown calls.
#[test]
fn mixed_tool_message_loses_only_the_orphan() {
    assert_eq!(repaired("u:go a>1+a>2 t<1+t<gone+t<2 a:done"), "u:go a>1+a>2 t<1+t<2 a:done");
}

/// The placeholder states that no result was recorded; it does not claim that something was omitted.
#[test]
fn unanswered_call_gets_a_placeholder_result() {
    assert_eq!(repaired("u:go a>1+a>2 t<1 u:stop"), "u:go a>1+a>2 t<1 t<2? u:stop");
    assert_eq!(repaired("u:go a>0 u<0 a>1 u:stop a:ok"), "u:go a>0 u<0 a>1 u<1? u:stop a:ok");
    let (fixed, repairs) = repair(parse_words("a>1 u:stop"));
    assert_eq!(repairs.unanswered, 1);
    let text = fixed.messages[1].results().next().and_then(|result| result.only_text()).unwrap().to_owned();
    assert_eq!(text, "[no result was recorded for this call]");
}

#[test]
fn calls_in_flight_are_unchanged() {
    assert_eq!(repaired("u:go a>1 t<1 a>2+a>3"), "u:go a>1 t<1 a>2+a>3");
    assert_eq!(repaired("u:go a>2+a>3 t<3"), "u:go a>2+a>3 t<3");
    assert_eq!(repaired("u:go a>0 u<0 a>2+a>3 u<3"), "u:go a>0 u<0 a>2+a>3 u<3");
}

/// A user message sent while a call was running stays in order.
#[test]
fn unanswered_call_keeps_the_next_user_message() {
    assert_eq!(repaired("u:go a>1 u:stop u:really"), "u:go a>1 t<1? u:stop u:really");
}

#[test]
fn last_of_two_results_is_kept() {
    assert_eq!(repaired("a>1 t<1=running t<1=done a:fine"), "a>1 t<1=done a:fine");
    assert_eq!(repaired("a>1 t<1=running u:wait t<1=done a:fine"), "a>1 t<1=done u:wait a:fine");
}

#[test]
fn misplaced_result_moves_after_its_call() {
    assert_eq!(repaired("a>1 u:wait t<1 a:fine"), "a>1 t<1 u:wait a:fine");
    assert_eq!(repaired_as(Format::Anthropic, "u:go a>1 u:wait a:hm u<1"), "u:go a>1 u<1 u:wait a:hm");
    // Responses allows a result anywhere after its call.
    assert_eq!(repaired_as(Format::OpenAiResponses, "a>1 u:wait t<1 a:fine"), "a>1 u:wait t<1 a:fine");
}

#[test]
fn results_come_before_user_text() {
    assert_eq!(repaired("u:go a>1+a>2 u<1+u:and+u<2"), "u:go a>1+a>2 u<2 u<1+u:and");
}

#[test]
fn early_result_moves_only_if_unambiguous() {
    assert_eq!(repaired("t<1 a>1 u:x"), "a>1 t<1 u:x");
    // The first result may belong to a lost call.
    assert_eq!(repaired("t<c0=old a>c0 t<c0=new u:x"), "a>c0 t<c0=new u:x");
    assert_eq!(repaired("t<c0=old a>c0 u:x a>c0 t<c0=new u:y"), "a>c0 t<c0? u:x a>c0 t<c0=new u:y");
}

/// Some servers restart their call ids in every turn.
#[test]
fn reused_ids_are_paired_turn_by_turn() {
    let whole = "u:go a>c0 t<c0=1 a>c0 t<c0=2 a>c0 t<c0=3";
    assert_eq!(repaired(whole), whole);
    assert_eq!(repaired("u:go a>c0 a>c0 t<c0=2 a>c0 t<c0=3"), "u:go a>c0 t<c0? a>c0 t<c0=2 a>c0 t<c0=3");
}

#[test]
fn removed_orphan_leaves_assistant_messages_separated() {
    assert_eq!(repaired_as(Format::Anthropic, "u:go a:hm u<gone a:so u:x"), "u:go a:hm u:! a:so u:x");
    assert_eq!(repaired_as(Format::Anthropic, "u<gone a:so u:x"), "u:! a:so u:x");
    assert_eq!(repaired_as(Format::Anthropic, "u:go a:hm u<gone u:x"), "u:go a:hm u:x");
}

/// A result in an assistant message moves, and nothing is inserted between the messages of the turn.
#[test]
fn result_inside_an_assistant_turn_moves_after_it() {
    assert_eq!(repaired_as(Format::Anthropic, "u:go a>1 a<1 a:so u:x"), "u:go a>1 a:so u<1 u:x");
    assert_eq!(repaired_as(Format::Anthropic, "u:go a:hm u<gone a<2 a:so u:x"), "u:go a:hm u:! a:so u:x");
}

/// Removing an orphan joins two assistant turns, whose calls may share an id.
#[test]
fn merged_turns_may_share_an_id() {
    let words = "a>1 u<gone a<1 a>1 u:x";
    assert_eq!(repaired_as(Format::OpenAiResponses, words), "a>1 a<1 a>1 t<1? u:x");
}

#[test]
fn system_message_is_not_between_call_and_result() {
    assert_eq!(repaired_as(Format::Anthropic, "u:go a>1 s:note u<1 a:ok u:x"), "u:go a>1 u<1 s:note a:ok u:x");
}
