//! Restores hidden calls in the client's next request, whose copy of an answer lacks them.
//!
//! A provider that generated reasoning before a call requires both again, and its cache contains the conversation with
//! them. So every answer with hidden calls is recorded, and the client's copy of it is split at the positions of the
//! calls. A copy that does not match the recorded answer is left unchanged.

use serde::{Deserialize, Serialize};

use crate::wire::intercept::InterceptedCalls;
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::splice::RequestEdit;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::{Format, Request};

/// One round of hidden calls with their results, which the client's copy of an answer lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenRound {
    /// Position in the client's copy; see [`InterceptedCalls::position`].
    position: u64,
    /// The model's verbatim output of this round.
    turn_json: Vec<String>,
    /// The results of the hidden calls, as elements of the list of messages.
    results: Vec<String>,
    /// The ids of the hidden calls.
    call_ids: Vec<String>,
    other_calls: OtherCalls,
}

/// The other calls in a round with hidden calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum OtherCalls {
    /// No client calls: the answer continued in the next round.
    Absent,
    /// Client calls, which end the answer: the client sends their results in its next message.
    FromClient,
}

impl InterceptedCalls {
    /// Returns the round to restore if these calls, with these answers, are followed by another round.
    pub fn hidden_round(&self, answers: &[&str]) -> HiddenRound {
        self.hidden_round_with(answers, OtherCalls::Absent)
    }

    /// Returns the round to restore if these calls, with these answers, are in one turn with client calls.
    pub fn mixed_hidden_round(&self, answers: &[&str]) -> HiddenRound {
        self.hidden_round_with(answers, OtherCalls::FromClient)
    }

    fn hidden_round_with(&self, answers: &[&str], other_calls: OtherCalls) -> HiddenRound {
        let mut turn_json = self.continuation(answers);
        let results = turn_json.split_off(self.turn_json.len());
        let call_ids = self.calls.iter().map(|call| call.id.clone()).collect();
        HiddenRound { position: self.position, turn_json, results, call_ids, other_calls }
    }
}

impl Request<'_> {
    /// Returns the edits that restore hidden calls in the answer that begins with this message, or `None` if the
    /// message is not a copy of that answer.
    pub fn restore_hidden_calls(&self, answer: usize, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
        match self.format() {
            Format::OpenAiResponses => self.restore_in_items(answer, gaps),
            Format::OpenAiChat | Format::Anthropic => self.restore_in_message(answer, gaps),
        }
    }

    /// Returns the edits that add the results of hidden calls to a request which continues a stored response: the
    /// provider has the calls, and rejects a request without their results. Returns `None` if none are missing.
    pub fn restore_hidden_results(&self, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
        let last = gaps.last().filter(|gap| gap.other_calls == OtherCalls::FromClient)?;
        Some(last.results.iter().map(|json| RequestEdit::InsertJson { before: 0, json: json.clone() }).collect())
    }

    /// Inserts the hidden items between the client's, each at its position. Reasoning that the client omitted stays
    /// omitted; a call then loses the id through which the provider would require it (R3.1).
    fn restore_in_items(&self, answer: usize, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
        let (mut at, mut reasoning_omitted, mut edits) = (answer, false, Vec::new());
        for gap in gaps {
            for json in &gap.turn_json {
                let recorded = scan::parse_document(json).ok()?.object();
                let id = recorded.string("call_id");
                if id.is_some_and(|id| gap.call_ids.iter().any(|call| *call == *id)) {
                    let json = if reasoning_omitted {
                        with_changed_fields(&recorded, &[("id", FieldChange::Remove)])
                    } else {
                        json.clone()
                    };
                    edits.push(RequestEdit::InsertJson { before: at, json });
                } else if self.message_value(at).is_some_and(|copied| is_same_item(&recorded, &copied.object())) {
                    at += 1;
                } else if item_type(&recorded) == "reasoning" {
                    reasoning_omitted = true;
                } else {
                    return None;
                }
            }
            edits.extend(gap.results.iter().map(|json| RequestEdit::InsertJson { before: at, json: json.clone() }));
        }
        Some(edits)
    }

    /// Replaces the client's one message by the rounds that it was merged from.
    fn restore_in_message(&self, answer: usize, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
        let copy = self.message_value(answer).filter(|_| self.conversation().messages[answer].is_assistant())?.object();
        let stripped = (!has_thinking(&copy)).then(|| without_thinking(gaps));
        let gaps = stripped.as_deref().unwrap_or(gaps);
        let mut elements = Vec::new();
        let mut start = 0;
        for gap in gaps {
            if !matches_round(self.format(), &copy, start, gap) {
                return None;
            }
            elements.extend(gap.turn_json.iter().cloned());
            if gap.other_calls == OtherCalls::FromClient {
                return self.restore_mixed_round(answer, elements, gap);
            }
            elements.extend(gap.results.iter().cloned());
            start = gap.position;
        }
        elements.extend(final_round_json(self.format(), &copy, start));
        let insert = |json| RequestEdit::InsertJson { before: answer, json };
        Some(std::iter::once(RequestEdit::DropMessage(answer)).chain(elements.into_iter().map(insert)).collect())
    }

    /// Restores a final round with calls of both kinds; their results go into one message.
    fn restore_mixed_round(&self, answer: usize, elements: Vec<String>, gap: &HiddenRound) -> Option<Vec<RequestEdit>> {
        let insert = |before, json| RequestEdit::InsertJson { before, json };
        let mut edits = vec![RequestEdit::DropMessage(answer)];
        edits.extend(elements.into_iter().map(|json| insert(answer, json)));
        match self.format() {
            Format::Anthropic => {
                let next = self.message_value(answer + 1)?.object();
                let hidden = gap.results.iter().filter_map(|message| scan::parse_document(message).ok());
                let hidden: Vec<_> =
                    hidden.flat_map(|message| message.object().elements("content").into_owned()).collect();
                let visible = content_blocks(&next)?;
                let content =
                    json_array(hidden.iter().map(|block| block.value.raw()).chain(visible.iter().map(String::as_str)));
                edits.push(RequestEdit::DropMessage(answer + 1));
                edits.push(insert(answer + 1, with_changed_fields(&next, &[("content", FieldChange::Set(content))])));
            }
            _ => edits.extend(gap.results.iter().map(|json| insert(answer + 1, json.clone()))),
        }
        Some(edits)
    }
}

/// Returns the blocks of a message's content as JSON; a plain string is one text block.
fn content_blocks(message: &JsonObject<'_>) -> Option<Vec<String>> {
    if let Some(text) = message.string("content") {
        return Some(vec![format!(r#"{{"type":"text","text":{}}}"#, quoted(&text))]);
    }
    let content = message.get("content").filter(|value| value.is_array())?;
    Some(content.elements().iter().map(|block| block.value.raw().to_owned()).collect())
}

/// Types of blocks with reasoning.
const THINKING_BLOCK_TYPES: [&str; 2] = ["thinking", "redacted_thinking"];

fn is_thinking(block: &JsonObject<'_>) -> bool {
    block.string("type").is_some_and(|kind| THINKING_BLOCK_TYPES.contains(&&*kind))
}

fn has_thinking(message: &JsonObject<'_>) -> bool {
    message.elements("content").iter().any(is_thinking)
}

/// Removes the reasoning from recorded rounds, for a client's copy without reasoning, as Claude Code sends some. What
/// the client removed stays removed, since reasoning must be one unbroken run (A3.8).
fn without_thinking(gaps: &[HiddenRound]) -> Vec<HiddenRound> {
    let mut removed = 0;
    let strip = |gap: &HiddenRound| {
        let mut gap = gap.clone();
        for element in &mut gap.turn_json {
            let Ok(turn) = scan::parse_document(element).map(|document| document.object()) else { continue };
            let blocks = turn.elements("content");
            let kept: Vec<&JsonObject<'_>> = blocks.iter().filter(|block| !is_thinking(block)).collect();
            if kept.len() < blocks.len() {
                removed += (blocks.len() - kept.len()) as u64;
                let content = json_array(kept.iter().map(|block| block.value.raw()));
                *element = with_changed_fields(&turn, &[("content", FieldChange::Set(content))]);
            }
        }
        gap.position = gap.position.saturating_sub(removed);
        gap
    };
    gaps.iter().map(strip).collect()
}

/// Returns the type of an item; a message may omit it.
fn item_type(item: &JsonObject<'_>) -> String {
    item.string("type").map_or_else(|| "message".to_owned(), |kind| kind.into_owned())
}

/// Returns true if two items have the same type, and the same call id if they are calls.
fn is_same_item(recorded: &JsonObject<'_>, copied: &JsonObject<'_>) -> bool {
    item_type(recorded) == item_type(copied) && recorded.string("call_id") == copied.string("call_id")
}

/// Returns true if the client's copy, from position `start`, contains the visible output of this round.
fn matches_round(format: Format, copy: &JsonObject<'_>, start: u64, gap: &HiddenRound) -> bool {
    let Some(turn) = gap.turn_json.first().and_then(|turn| scan::parse_document(turn).ok()) else { return false };
    let turn = turn.object();
    match format {
        Format::OpenAiChat => {
            let recorded = turn.string("content").unwrap_or_default();
            let copied = copy.string("content").unwrap_or_default();
            usize::try_from(start)
                .is_ok_and(|start| copied.get(start..).is_some_and(|text| text.starts_with(&*recorded)))
        }
        _ => {
            let Some(copied) = content_blocks(copy) else { return false };
            let is_hidden = |block: &&JsonObject<'_>| {
                block.string("id").is_some_and(|id| gap.call_ids.iter().any(|call_id| *call_id == *id))
            };
            let recorded = turn.elements("content");
            let mut recorded = recorded.iter().filter(|block| !is_hidden(block));
            let mut copied = copied.iter().skip(usize::try_from(start).unwrap_or(usize::MAX));
            recorded.all(|recorded| {
                let copied =
                    copied.next().and_then(|block| scan::parse_document(block).ok()).map(|block| block.object());
                copied.is_some_and(|copied| is_same_block(recorded, &copied))
            })
        }
    }
}

/// Returns true if two blocks have the same type and the same text, id and signature.
fn is_same_block(recorded: &JsonObject<'_>, copied: &JsonObject<'_>) -> bool {
    ["type", "text", "id", "signature"].iter().all(|key| recorded.string(key) == copied.string(key))
}

/// Returns the part of the client's copy that the last round generated.
fn final_round_json(format: Format, copy: &JsonObject<'_>, start: u64) -> Option<String> {
    let start = usize::try_from(start).ok()?;
    match format {
        Format::OpenAiChat => {
            let text = copy.string("content").unwrap_or_default();
            let text = text.get(start..)?;
            let calls = copy.get("tool_calls").is_some_and(|value| !value.is_null());
            let content = match (text, calls) {
                ("", true) => "null".to_owned(),
                ("", false) => return None,
                (text, _) => quoted(text),
            };
            Some(with_changed_fields(copy, &[("content", FieldChange::Set(content))]))
        }
        _ => {
            let blocks = content_blocks(copy)?;
            let rest = blocks.get(start..).filter(|rest| !rest.is_empty())?;
            Some(with_changed_fields(
                copy,
                &[("content", FieldChange::Set(json_array(rest.iter().map(String::as_str))))],
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{BodyOutcome, BodySplicer};

    /// Returns the upstream request restored from two rounds of an answer and the client's next request.
    fn restored(format: Format, rounds: [&str; 2], request: &str, answer: usize) -> Option<String> {
        let mut splicer = BodySplicer::new(format, "unfold");
        let BodyOutcome::Continue(calls) = splicer.push_round(rounds[0].as_bytes()).unwrap() else {
            panic!("expected a hidden call")
        };
        let gaps = [calls.hidden_round(&["the original"])];
        assert!(matches!(splicer.push_round(rounds[1].as_bytes()).unwrap(), BodyOutcome::Finished { .. }));
        let request = Request::parse(format, request.as_bytes()).unwrap();
        let body = request.splice(&request.restore_hidden_calls(answer, &gaps)?).unwrap();
        Some(String::from_utf8(body.into_owned()).unwrap())
    }

    const ANTHROPIC: [&str; 2] = [
        r#"{"content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"Let me see."},{"type":"tool_use","id":"h","name":"unfold","input":{}}],"stop_reason":"tool_use"}"#,
        r#"{"content":[{"type":"text","text":"42."}],"stop_reason":"end_turn"}"#,
    ];

    #[test]
    fn anthropic_answer_is_split_at_the_hidden_call() {
        let request = r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"Let me see."},{"type":"text","text":"42.","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":"more"}]}"#;
        assert_eq!(
            restored(Format::Anthropic, ANTHROPIC, request, 1).unwrap(),
            r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"Let me see."},{"type":"tool_use","id":"h","name":"unfold","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"h","content":"the original"}]},{"role":"assistant","content":[{"type":"text","text":"42.","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":"more"}]}"#
        );
    }

    #[test]
    fn non_matching_message_is_left_unchanged() {
        for copy in [
            r#"{"role":"assistant","content":"42."}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"Let us see."},{"type":"text","text":"42."}]}"#,
            r#"{"role":"user","content":"Let me see.42."}"#,
        ] {
            let request = format!(r#"{{"messages":[{{"role":"user","content":"?"}},{copy}]}}"#);
            assert_eq!(restored(Format::Anthropic, ANTHROPIC, &request, 1), None, "{copy}");
        }
    }

    /// Claude Code sends some answers back without reasoning: the call is restored, the reasoning is not.
    #[test]
    fn copy_without_thinking_is_restored_without_thinking() {
        let request = r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"text","text":"Let me see."},{"type":"text","text":"42."}]}]}"#;
        assert_eq!(
            restored(Format::Anthropic, ANTHROPIC, request, 1).unwrap(),
            r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"text","text":"Let me see."},{"type":"tool_use","id":"h","name":"unfold","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"h","content":"the original"}]},{"role":"assistant","content":[{"type":"text","text":"42."}]}]}"#
        );
    }

    /// Two rounds with reasoning, the second of which ends in a client call.
    #[test]
    fn positions_exclude_removed_thinking_of_all_rounds() {
        let rounds = [
            r#"{"content":[{"type":"redacted_thinking","data":"d"},{"type":"tool_use","id":"h","name":"unfold","input":{}}],"stop_reason":"tool_use"}"#,
            r#"{"content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"So."},{"type":"tool_use","id":"i","name":"unfold","input":{}},{"type":"tool_use","id":"c","name":"sh","input":{}}],"stop_reason":"tool_use"}"#,
        ];
        let mut splicer = BodySplicer::new(Format::Anthropic, "unfold");
        let BodyOutcome::Continue(calls) = splicer.push_round(rounds[0].as_bytes()).unwrap() else {
            panic!("expected a hidden call")
        };
        let BodyOutcome::Finished { finished, .. } = splicer.push_round(rounds[1].as_bytes()).unwrap() else {
            panic!("mixed")
        };
        let gaps = [calls.hidden_round(&["one"]), finished.mixed_calls.unwrap().mixed_hidden_round(&["two"])];
        let restored_with = |thought: &str, thought_again: &str| {
            let request = format!(
                r#"{{"messages":[{{"role":"user","content":"?"}},{{"role":"assistant","content":[{thought}{thought_again}{{"type":"text","text":"So."}},{{"type":"tool_use","id":"c","name":"sh","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c","content":"ok"}}]}}]}}"#
            );
            let request = Request::parse(Format::Anthropic, request.as_bytes()).unwrap();
            String::from_utf8(request.splice(&request.restore_hidden_calls(1, &gaps).unwrap()).unwrap().into_owned())
                .unwrap()
        };
        let (redacted, thought) =
            (r#"{"type":"redacted_thinking","data":"d"},"#, r#"{"type":"thinking","thinking":"hm","signature":"s"},"#);
        let complete = restored_with(redacted, thought);
        assert!(
            complete.contains(r#""signature":"s"},{"type":"text","text":"So."},{"type":"tool_use","id":"i""#),
            "{complete}"
        );
        assert_eq!(restored_with("", ""), complete.replace(redacted, "").replace(thought, ""));
    }

    #[test]
    fn chat_answer_is_split_inside_its_text() {
        let rounds = [
            r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Let me see. ","tool_calls":[{"id":"h","type":"function","function":{"name":"unfold","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"42."},"finish_reason":"stop"}]}"#,
        ];
        let request = r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":"Let me see. 42."},{"role":"user","content":"more"}]}"#;
        assert_eq!(
            restored(Format::OpenAiChat, rounds, request, 1).unwrap(),
            r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":"Let me see. ","tool_calls":[{"id":"h","type":"function","function":{"name":"unfold","arguments":"{}"}}]},{"role":"tool","tool_call_id":"h","content":"the original"},{"role":"assistant","content":"42."},{"role":"user","content":"more"}]}"#
        );
    }

    #[test]
    fn hidden_items_are_inserted_between_client_items() {
        let rounds = [
            r#"{"output":[{"type":"reasoning","id":"rs","summary":[]},{"type":"function_call","id":"fc","call_id":"h","name":"unfold","arguments":"{}"}],"status":"completed"}"#,
            r#"{"output":[{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"42."}]}],"status":"completed"}"#,
        ];
        let request = r#"{"input":[{"role":"user","content":"?"},{"type":"reasoning","id":"rs","summary":[]},{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"42."}]}]}"#;
        assert_eq!(
            restored(Format::OpenAiResponses, rounds, request, 1).unwrap(),
            r#"{"input":[{"role":"user","content":"?"},{"type":"reasoning","id":"rs","summary":[]},{"type":"function_call","id":"fc","call_id":"h","name":"unfold","arguments":"{}"},{"type":"function_call_output","call_id":"h","output":"the original"},{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"42."}]}]}"#
        );
    }

    /// The hidden call is restored at its position, without the id that requires the reasoning which the client
    /// omitted.
    #[test]
    fn hidden_item_is_restored_at_its_position() {
        let round = r#"{"output":[{"type":"reasoning","id":"rs","summary":[]},{"type":"function_call","id":"fc","call_id":"h","name":"unfold","arguments":"{}"},{"type":"function_call","id":"fd","call_id":"c","name":"sh","arguments":"{}"}],"status":"completed"}"#;
        let mut splicer = BodySplicer::new(Format::OpenAiResponses, "unfold");
        let BodyOutcome::Finished { finished, .. } = splicer.push_round(round.as_bytes()).unwrap() else {
            panic!("mixed")
        };
        let gaps = [finished.mixed_calls.unwrap().mixed_hidden_round(&["the original"])];
        let restored_with = |items: &str| {
            let request = format!(
                r#"{{"input":[{items}{{"type":"function_call","call_id":"c","name":"sh","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"c","output":"ok"}}]}}"#
            );
            let request = Request::parse(Format::OpenAiResponses, request.as_bytes()).unwrap();
            Some(
                String::from_utf8(request.splice(&request.restore_hidden_calls(0, &gaps)?).unwrap().into_owned())
                    .unwrap(),
            )
        };
        let reasoning = r#"{"type":"reasoning","id":"rs","summary":[]},"#;
        let with = restored_with(reasoning).unwrap();
        assert_eq!(
            with,
            r#"{"input":[{"type":"reasoning","id":"rs","summary":[]},{"type":"function_call","id":"fc","call_id":"h","name":"unfold","arguments":"{}"},{"type":"function_call","call_id":"c","name":"sh","arguments":"{}"},{"type":"function_call_output","call_id":"h","output":"the original"},{"type":"function_call_output","call_id":"c","output":"ok"}]}"#
        );
        assert_eq!(restored_with("").unwrap(), with.replace(reasoning, "").replace(r#""id":"fc","#, ""));
        assert_eq!(restored_with(r#"{"role":"user","content":"something else"},"#), None);
        let next =
            r#"{"previous_response_id":"r","input":[{"type":"function_call_output","call_id":"c","output":"ok"}]}"#;
        let next = Request::parse(Format::OpenAiResponses, next.as_bytes()).unwrap();
        let next = next.splice(&next.restore_hidden_results(&gaps).unwrap()).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&next),
            r#"{"previous_response_id":"r","input":[{"type":"function_call_output","call_id":"h","output":"the original"},{"type":"function_call_output","call_id":"c","output":"ok"}]}"#
        );
    }

    /// The model called the client's tool and the hidden one in one turn.
    #[test]
    fn hidden_and_client_results_share_one_message() {
        let round = r#"{"content":[{"type":"tool_use","id":"h","name":"unfold","input":{}},{"type":"tool_use","id":"c","name":"sh","input":{}}],"stop_reason":"tool_use"}"#;
        let mut splicer = BodySplicer::new(Format::Anthropic, "unfold");
        let BodyOutcome::Finished { finished, .. } = splicer.push_round(round.as_bytes()).unwrap() else {
            panic!("mixed")
        };
        let gaps = [finished.mixed_calls.unwrap().mixed_hidden_round(&["the original"])];
        let request = r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"sh","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"ok"}]}]}"#;
        let request = Request::parse(Format::Anthropic, request.as_bytes()).unwrap();
        let body =
            String::from_utf8(request.splice(&request.restore_hidden_calls(1, &gaps).unwrap()).unwrap().into_owned())
                .unwrap();
        assert_eq!(
            body,
            r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"tool_use","id":"h","name":"unfold","input":{}},{"type":"tool_use","id":"c","name":"sh","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"h","content":"the original"},{"type":"tool_result","tool_use_id":"c","content":"ok"}]}]}"#
        );
    }
}
