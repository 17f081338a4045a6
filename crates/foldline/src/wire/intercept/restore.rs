//! Restores hidden calls in the client's next request, whose copy of an answer lacks them.
//!
//! A provider that generated reasoning before a call requires both again, and its cache contains the conversation with
//! them. So every answer with hidden calls is recorded, and the client's copy of it is split at the positions of the
//! calls. A copy that does not match the recorded answer is left unchanged.

use serde::{Deserialize, Serialize};

use crate::wire::intercept::calls::InterceptedCalls;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::splice::RequestEdit;
use crate::wire::request::Request;

/// One round of hidden calls with their results, which the client's copy of an answer lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenRound {
    /// Position in the client's copy; see [`InterceptedCalls::position`].
    pub(crate) position: u64,
    /// The model's verbatim output of this round.
    pub(crate) turn_json: Vec<String>,
    /// The results of the hidden calls, as elements of the list of messages.
    pub(crate) results: Vec<String>,
    /// The ids of the hidden calls.
    pub(crate) call_ids: Vec<String>,
    pub(crate) other_calls: OtherCalls,
    /// True if the answer failed after this round.
    #[serde(default)]
    pub(crate) is_interrupted: bool,
}

impl HiddenRound {
    /// Marks the round as one after which the answer failed. The client may keep what it was shown or repeat its
    /// request, so the round is restored only if the shown items have the ids that the provider gave them.
    #[must_use]
    pub fn interrupted(self) -> Self {
        Self { is_interrupted: true, ..self }
    }
}

/// The other calls in a round with hidden calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OtherCalls {
    /// No client calls: the answer continued in the next round.
    Absent,
    /// The answer ended with this turn: the results belong before the client's next message, with those of its own calls
    /// if there are any.
    FromClient,
}

impl InterceptedCalls {
    /// Returns the round to restore if these calls, with these answers, are followed by another round.
    pub fn hidden_round(&self, answers: &[&str]) -> HiddenRound {
        self.hidden_round_with(answers, OtherCalls::Absent)
    }

    /// Returns the round to restore if these calls, with these answers, are in the last turn of the answer, usually next
    /// to client calls.
    pub fn mixed_hidden_round(&self, answers: &[&str]) -> HiddenRound {
        self.hidden_round_with(answers, OtherCalls::FromClient)
    }

    fn hidden_round_with(&self, answers: &[&str], other_calls: OtherCalls) -> HiddenRound {
        let mut turn_json = self.continuation(answers);
        let results = turn_json.split_off(self.turn_json.len());
        let call_ids = self.calls.iter().map(|call| call.id.clone()).collect();
        HiddenRound { position: self.position, turn_json, results, call_ids, other_calls, is_interrupted: false }
    }
}

impl Request<'_> {
    /// Returns the edits that restore hidden calls in the answer that begins with this message, or `None` if the
    /// message is not a copy of that answer.
    pub fn restore_hidden_calls(&self, answer: usize, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
        (self.format().dialect().intercept.restore)(self, answer, gaps)
    }

    /// Returns the edits that add the results of hidden calls to a request which continues a stored response: the
    /// provider has the calls, and rejects a request without their results. Returns `None` if none are missing.
    pub fn restore_hidden_results(&self, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
        let last = gaps.last().filter(|gap| gap.other_calls == OtherCalls::FromClient)?;
        Some(last.results.iter().map(|json| RequestEdit::InsertJson { before: 0, json: json.clone() }).collect())
    }
}

/// The form of an answer that is one message, as the client copies it.
pub(crate) struct CopiedMessage {
    /// Returns true if the copy, from a position, contains the visible output of a round.
    pub(crate) matches_round: fn(&JsonObject<'_>, u64, &HiddenRound) -> bool,
    /// Returns the part of the copy, from a position, that the last round generated.
    pub(crate) final_round: fn(&JsonObject<'_>, u64) -> Option<String>,
    /// Returns the edits that add the results of a last round with calls of both kinds to the client's results.
    pub(crate) mixed_results: fn(&Request<'_>, usize, &HiddenRound) -> Option<Vec<RequestEdit>>,
}

impl CopiedMessage {
    /// Replaces the client's one message by the rounds that it was merged from.
    pub(crate) fn restore(
        &self,
        request: &Request<'_>,
        answer: usize,
        gaps: &[HiddenRound],
    ) -> Option<Vec<RequestEdit>> {
        self.restore_copy(request, answer, &assistant_copy(request, answer)?, gaps)
    }

    /// Does the same with another form of the client's message.
    pub(crate) fn restore_copy(
        &self,
        request: &Request<'_>,
        answer: usize,
        copy: &JsonObject<'_>,
        gaps: &[HiddenRound],
    ) -> Option<Vec<RequestEdit>> {
        let mut elements = Vec::new();
        let mut start = 0;
        let mut results = Vec::new();
        for gap in gaps {
            if !(self.matches_round)(copy, start, gap) {
                return None;
            }
            elements.extend(gap.turn_json.iter().cloned());
            if gap.other_calls == OtherCalls::FromClient {
                results = (self.mixed_results)(request, answer, gap)?;
                break;
            }
            elements.extend(gap.results.iter().cloned());
            start = gap.position;
        }
        if gaps.iter().all(|gap| gap.other_calls == OtherCalls::Absent) {
            elements.extend((self.final_round)(copy, start));
        }
        let insert = |json| RequestEdit::InsertJson { before: answer, json };
        let replaced = std::iter::once(RequestEdit::DropMessage(answer)).chain(elements.into_iter().map(insert));
        Some(replaced.chain(results).collect())
    }
}

/// Returns the client's copy of an answer, if the message is one.
pub(crate) fn assistant_copy<'a>(request: &Request<'a>, answer: usize) -> Option<JsonObject<'a>> {
    let is_answer = request.conversation().messages.get(answer)?.is_assistant();
    request.message_value(answer).filter(|_| is_answer).map(|value| value.object())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{BodyOutcome, BodySplicer, Format};

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

    /// Clients join the texts of chunks and drop thoughts; signed parts keep their signatures.
    #[test]
    fn gemini_answer_is_split_at_the_hidden_call() {
        let rounds = [
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hm","thought":true},{"text":"Let me see. "},{"functionCall":{"id":"h","name":"unfold","args":{}},"thoughtSignature":"s"}]},"finishReason":"STOP"}]}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"42."}]},"finishReason":"STOP"}]}"#,
        ];
        let request = |answer: &str| {
            format!(
                r#"{{"contents":[{{"parts":[{{"text":"?"}}]}},{{"role":"model","parts":[{answer}]}},{{"role":"user","parts":[{{"text":"more"}}]}}]}}"#
            )
        };
        let expected = r#"{"contents":[{"parts":[{"text":"?"}]},{"role":"model","parts":[{"text":"hm","thought":true},{"text":"Let me see. "},{"functionCall":{"id":"h","name":"unfold","args":{}},"thoughtSignature":"s"}]},{"role":"user","parts":[{"functionResponse":{"id":"h","name":"unfold","response":{"output":"the original"}}}]},{"role":"model","parts":[{"text":"42."}]},{"role":"user","parts":[{"text":"more"}]}]}"#;
        for answer in [r#"{"text":"Let me see. 42."}"#, r#"{"text":"Let me see. "},{"text":"42."}"#] {
            assert_eq!(restored(Format::Gemini, rounds, &request(answer), 1).as_deref(), Some(expected), "{answer}");
        }
        for answer in [r#"{"text":"Another answer"}"#, r#"{"text":"Let me see. 42.","thoughtSignature":"t"}"#] {
            assert_eq!(restored(Format::Gemini, rounds, &request(answer), 1), None, "{answer}");
        }
    }

    /// litellm sends all reasoning first, and the texts of all rounds as one.
    #[test]
    fn joined_copy_is_split_at_the_hidden_call() {
        let second = r#"{"content":[{"type":"thinking","thinking":"so","signature":"t"},{"type":"text","text":"42."},{"type":"tool_use","id":"c","name":"sh","input":{}}],"stop_reason":"tool_use"}"#;
        let request = |text: &str| {
            format!(
                r#"{{"messages":[{{"role":"user","content":"?"}},{{"role":"assistant","content":[{{"type":"thinking","thinking":"hm","signature":"s"}},{{"type":"thinking","thinking":"so","signature":"t"}},{{"type":"text","text":"{text}"}},{{"type":"tool_use","id":"c","name":"sh","input":{{}}}}]}}]}}"#
            )
        };
        let rounds = [ANTHROPIC[0], second];
        assert_eq!(
            restored(Format::Anthropic, rounds, &request("Let me see.42."), 1).unwrap(),
            r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"Let me see."},{"type":"tool_use","id":"h","name":"unfold","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"h","content":"the original"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"so","signature":"t"},{"type":"text","text":"42."},{"type":"tool_use","id":"c","name":"sh","input":{}}]}]}"#
        );
        assert_eq!(restored(Format::Anthropic, rounds, &request("Another."), 1), None);
    }

    #[test]
    fn joined_copy_without_thinking_is_split() {
        let request = r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":"Let me see.42."}]}"#;
        assert_eq!(
            restored(Format::Anthropic, ANTHROPIC, request, 1).unwrap(),
            r#"{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"text","text":"Let me see."},{"type":"tool_use","id":"h","name":"unfold","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"h","content":"the original"}]},{"role":"assistant","content":[{"type":"text","text":"42."}]}]}"#
        );
    }

    /// The Vercel AI SDK sends references in place of the items that the provider stores.
    #[test]
    fn hidden_call_is_restored_between_references() {
        let rounds = [
            r#"{"id":"r1","output":[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"function_call","id":"fc_h","call_id":"h","name":"unfold","arguments":"{}"}]}"#,
            r#"{"id":"r2","output":[{"type":"reasoning","id":"rs_2","summary":[]},{"type":"function_call","id":"fc_2","call_id":"c","name":"sh","arguments":"{}"}]}"#,
        ];
        let request = |first: &str| {
            format!(
                r#"{{"input":[{{"role":"user","content":"?"}},{{"type":"item_reference","id":"{first}"}},{{"type":"item_reference","id":"rs_2"}},{{"type":"item_reference","id":"fc_2"}},{{"type":"function_call_output","call_id":"c","output":"ok"}}]}}"#
            )
        };
        let restored_body = restored(Format::OpenAiResponses, rounds, &request("rs_1"), 1).unwrap();
        let expected = r#"{"type":"item_reference","id":"rs_1"},{"type":"function_call","id":"fc_h","call_id":"h","name":"unfold","arguments":"{}"},{"type":"function_call_output","call_id":"h","output":"the original"},{"type":"item_reference","id":"rs_2"}"#;
        assert!(restored_body.contains(expected), "{restored_body}");
    }

    #[test]
    fn non_matching_message_is_left_unchanged() {
        for copy in [
            r#"{"role":"assistant","content":"42."}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"Let us see."},{"type":"text","text":"42."}]}"#,
            r#"{"role":"assistant","content":"Let us see.42."}"#,
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
