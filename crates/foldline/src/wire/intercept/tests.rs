//! Every form in which a hidden call may arrive, in all three formats, read by strict clients.

mod bodies;
mod gemini_forms;
pub(crate) mod properties;

use crate::wire::Format::{Anthropic, Converse, Gemini, Ollama, OpenAiChat, OpenAiResponses};
use crate::wire::event_stream::write_exception;
use crate::wire::intercept::testing::{
    ClientAnswer, ScriptedOutput, ScriptedResponse, ScriptedStop, TOOL_NAME, read_as_client, scripted_stream,
};
use crate::wire::intercept::{
    FinishedAnswer, InterceptedCalls, InterruptedRound, ReportedId, RoundOutcome, StreamSplicer,
};
use crate::wire::sse::SseFramer;
use crate::wire::{ApiError, Format};

fn script(
    id: &'static str,
    outputs: &[ScriptedOutput],
    stop: ScriptedStop,
    input: u64,
    output: u64,
) -> ScriptedResponse {
    ScriptedResponse { id, outputs: outputs.to_vec(), stop, input, output }
}

/// The result of one answer of several rounds, on both sides.
struct PlayedAnswer {
    bytes: Vec<u8>,
    answer: ClientAnswer,
    intercepted: Vec<InterceptedCalls>,
    finished: FinishedAnswer,
}

fn play(format: Format, rounds: &[ScriptedResponse]) -> PlayedAnswer {
    play_in_chunks(format, rounds, usize::MAX)
}

fn play_in_chunks(format: Format, rounds: &[ScriptedResponse], size: usize) -> PlayedAnswer {
    play_with(StreamSplicer::new(format, TOOL_NAME), format, rounds, size)
}

fn play_with(mut splicer: StreamSplicer, format: Format, rounds: &[ScriptedResponse], size: usize) -> PlayedAnswer {
    let (mut bytes, mut intercepted) = (Vec::new(), Vec::new());
    for (number, round) in rounds.iter().enumerate() {
        for piece in scripted_stream(format, round).chunks(size) {
            splicer.push(piece, &mut bytes);
        }
        match splicer.end_round(&mut bytes) {
            RoundOutcome::Continue(calls) => intercepted.push(calls),
            RoundOutcome::Finished(finished) => {
                assert_eq!(number, rounds.len() - 1, "{format:?} ends too early");
                assert!(
                    !String::from_utf8_lossy(&bytes).contains(TOOL_NAME),
                    "{format:?}: the client can see the tool"
                );
                let answer = read_as_client(format, &bytes);
                return PlayedAnswer { bytes, answer, intercepted, finished: *finished };
            }
            RoundOutcome::Interrupted(interrupted) => panic!("{format:?}: {interrupted:?}"),
        }
    }
    panic!("{format:?}: expected more rounds");
}

/// Returns the stop reason as the format spells it.
fn stop_reason(format: Format, end: ScriptedStop) -> &'static str {
    match (format, end) {
        (Anthropic | Converse, ScriptedStop::Answer) => "end_turn",
        (Anthropic | Converse, ScriptedStop::Calls) => "tool_use",
        (Anthropic | Converse, ScriptedStop::Length) => "max_tokens",
        (OpenAiChat, ScriptedStop::Answer) => "stop",
        (OpenAiChat, ScriptedStop::Calls) => "tool_calls",
        (OpenAiChat, ScriptedStop::Length) => "length",
        (OpenAiResponses, ScriptedStop::Answer | ScriptedStop::Calls) => "completed",
        (OpenAiResponses, ScriptedStop::Length) => "max_output_tokens",
        (Gemini, ScriptedStop::Answer | ScriptedStop::Calls) => "STOP",
        (Gemini, ScriptedStop::Length) => "MAX_TOKENS",
        (Ollama, ScriptedStop::Answer | ScriptedStop::Calls) => "stop",
        (Ollama, ScriptedStop::Length) => "length",
    }
}

/// Returns true if a stream begins with a frame that only announces the response.
fn announces_response(format: Format) -> bool {
    !matches!(format, Gemini | Ollama)
}

/// Returns true if the calls of a stream arrive whole.
fn has_whole_calls(format: Format) -> bool {
    matches!(format, Gemini | Ollama)
}

/// Returns the length of the first frame of a stream.
fn first_frame_length(stream: &[u8]) -> usize {
    let mut framer = SseFramer::new().with_any_kind();
    framer.next(&mut &*stream).map_or(0, |frame| frame.raw.len())
}

fn joined_json(json: &[String]) -> String {
    json.join("\n")
}

#[test]
fn without_a_hidden_call_every_byte_is_forwarded() {
    let outputs = [
        ScriptedOutput::Reasoning("hm", "sig"),
        ScriptedOutput::Text("a"),
        ScriptedOutput::Unknown,
        ScriptedOutput::Call("c", "read", "{}"),
    ];
    for format in Format::all().filter(|format| *format != OpenAiResponses) {
        let round = script("r1", &outputs, ScriptedStop::Calls, 50, 7);
        let played = play(format, std::slice::from_ref(&round));
        assert_eq!(played.bytes, scripted_stream(format, &round));
        assert_eq!(played.finished.usage.unwrap().input, 50);
        assert!(played.finished.mixed_calls.is_none());
    }
    // Responses repeats the request's tools, so the hidden one is removed and nothing else changes.
    let round = script("r1", &outputs, ScriptedStop::Calls, 50, 7);
    let played = play(OpenAiResponses, std::slice::from_ref(&round));
    let without = String::from_utf8(scripted_stream(OpenAiResponses, &round))
        .unwrap()
        .replace(r#",{"name":"unfold","type":"function"}"#, "");
    assert_eq!(String::from_utf8(played.bytes).unwrap(), without);
}

#[test]
fn text_before_and_after_the_call_becomes_one_answer() {
    for format in Format::all() {
        let played = play(
            format,
            &[
                script(
                    "r1",
                    &[ScriptedOutput::Text("Let me see. "), ScriptedOutput::Call("h", TOOL_NAME, r#"{"handle":"x"}"#)],
                    ScriptedStop::Calls,
                    100,
                    20,
                ),
                script("r2", &[ScriptedOutput::Text("It is 42.")], ScriptedStop::Answer, 160, 9),
            ],
        );
        assert_eq!(played.answer.text, "Let me see. It is 42.", "{format:?}");
        assert_eq!(played.answer.stop, stop_reason(format, ScriptedStop::Answer));
        assert_eq!(
            (played.answer.input, played.answer.output),
            (160, 29),
            "the prompt of the last round, the output of all"
        );
        let usage = played.finished.usage.unwrap();
        assert_eq!((usage.input, usage.output, usage.context_tokens()), (260, 29, 160), "usage covers both rounds");
        assert_eq!(played.intercepted[0].calls[0].id, "h");
        assert_eq!(played.intercepted[0].calls[0].arguments, r#"{"handle":"x"}"#);
        let counts_bytes = matches!(format, OpenAiChat | Gemini | Ollama);
        assert_eq!(played.intercepted[0].position, if counts_bytes { 12 } else { 1 });
    }
}

#[test]
fn lone_hidden_call_is_invisible_to_the_client() {
    for format in Format::all() {
        let played = play(
            format,
            &[
                script("r1", &[ScriptedOutput::Call("h", TOOL_NAME, "{}")], ScriptedStop::Calls, 100, 20),
                script("r2", &[ScriptedOutput::Text("So.")], ScriptedStop::Answer, 160, 9),
            ],
        );
        let id = if format == OpenAiResponses { "r1..r1" } else { "r1" };
        let expected = ClientAnswer {
            id: id.into(),
            text: "So.".into(),
            stop: stop_reason(format, ScriptedStop::Answer).into(),
            input: 160,
            output: 29,
            ..ClientAnswer::default()
        };
        assert_eq!(played.answer, expected, "{format:?}");
    }
}

#[test]
fn two_hidden_calls_in_a_round_are_answered_together() {
    for format in Format::all() {
        let played = play(
            format,
            &[
                script(
                    "r1",
                    &[
                        ScriptedOutput::Call("h1", TOOL_NAME, "{}"),
                        ScriptedOutput::Text("and"),
                        ScriptedOutput::Call("h2", TOOL_NAME, "{}"),
                    ],
                    ScriptedStop::Calls,
                    100,
                    20,
                ),
                script("r2", &[ScriptedOutput::Text(" so")], ScriptedStop::Answer, 160, 9),
            ],
        );
        assert_eq!(played.answer.text, "and so", "{format:?}");
        let ids: Vec<&str> = played.intercepted[0].calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["h1", "h2"]);
        let continuation = played.intercepted[0].continuation(&["one", "two"]);
        let expected = match format {
            Anthropic | Gemini | Converse => 2,
            OpenAiChat | Ollama => 3,
            OpenAiResponses => 5,
        };
        assert_eq!(continuation.len(), expected, "{continuation:?}");
        for element in &continuation {
            serde_json::from_str::<serde_json::Value>(element).unwrap();
        }
        assert!(joined_json(&continuation).contains("\"one\"") && joined_json(&continuation).contains("\"h2\""));
    }
}

#[test]
fn several_rounds_become_one_answer() {
    for format in Format::all() {
        let ask = |id, text| {
            script(
                id,
                &[ScriptedOutput::Text(text), ScriptedOutput::Call("h", TOOL_NAME, "{}")],
                ScriptedStop::Calls,
                100,
                10,
            )
        };
        let last = script(
            "r3",
            &[
                ScriptedOutput::Text("c"),
                ScriptedOutput::Call("c1", "read", "{}"),
                ScriptedOutput::Call("c2", "read", "{}"),
            ],
            ScriptedStop::Calls,
            300,
            10,
        );
        let played = play(format, &[ask("r1", "a"), ask("r2", "b"), last]);
        assert_eq!(played.answer.text, "abc", "{format:?}");
        assert_eq!(played.answer.calls, [r#""c1" "read" "{}""#, r#""c2" "read" "{}""#]);
        assert_eq!((played.answer.input, played.answer.output), (300, 30));
        assert_eq!(played.answer.stop, stop_reason(format, ScriptedStop::Calls));
    }
}

/// A model that never stops calling the hidden tool.
#[test]
fn answer_ends_normally_after_the_last_permitted_round() {
    for format in Format::all() {
        let ask = |id, text| {
            let outputs = [ScriptedOutput::Text(text), ScriptedOutput::Call("h", TOOL_NAME, "{}")];
            script(id, &outputs, ScriptedStop::Calls, 100, 10)
        };
        for (rounds, text) in [(&[ask("r1", "a")][..], "a"), (&[ask("r1", "a"), ask("r2", "b")], "ab")] {
            let splicer = StreamSplicer::new(format, TOOL_NAME).with_max_rounds(rounds.len() as u32);
            let played = play_with(splicer, format, rounds, 7);
            assert_eq!((&played.answer.text[..], played.answer.calls.len()), (text, 0), "{format:?}");
            assert_eq!(played.answer.stop, stop_reason(format, ScriptedStop::Answer), "{format:?}");
            assert_eq!(played.answer.output, 10 * rounds.len() as u64);
            assert_eq!(played.finished.mixed_calls.expect("the call is recorded").calls[0].id, "h");
        }
    }
}

#[test]
fn mixed_turn_shows_only_client_calls() {
    for format in Format::all() {
        let outputs = [
            ScriptedOutput::Text("a"),
            ScriptedOutput::Call("c1", "read", "{}"),
            ScriptedOutput::Call("h", TOOL_NAME, "{}"),
            ScriptedOutput::Call("c2", "list", r#"{"x":1}"#),
        ];
        let played = play(format, &[script("r1", &outputs, ScriptedStop::Calls, 100, 20)]);
        assert_eq!(played.answer.calls, [r#""c1" "read" "{}""#, r#""c2" "list" "{\"x\":1}""#], "{format:?}");
        assert_eq!(played.answer.stop, stop_reason(format, ScriptedStop::Calls));
        let mixed = played.finished.mixed_calls.expect("the hidden call must be recorded");
        assert_eq!(mixed.calls[0].id, "h");
        assert!(joined_json(&mixed.turn_json).contains("\"c1\"") && joined_json(&mixed.turn_json).contains("\"h\""));
    }
}

#[test]
fn leading_hidden_call_leaves_no_index_gap() {
    for format in Format::all() {
        let outputs = [
            ScriptedOutput::Call("h", TOOL_NAME, "{}"),
            ScriptedOutput::Unknown,
            ScriptedOutput::Call("c", "read", "{}"),
        ];
        let played = play(format, &[script("r1", &outputs, ScriptedStop::Calls, 100, 20)]);
        assert_eq!(played.answer.calls, [r#""c" "read" "{}""#], "{format:?}");
    }
}

#[test]
fn truncated_hidden_call_is_ignored() {
    for format in Format::all().filter(|format| !has_whole_calls(*format)) {
        let outputs = [ScriptedOutput::Text("a"), ScriptedOutput::Call("h", TOOL_NAME, r#"{"handle":"#)];
        let played = play(format, &[script("r1", &outputs, ScriptedStop::Length, 100, 20)]);
        assert_eq!(played.answer.text, "a", "{format:?}");
        assert_eq!(played.answer.calls.len(), 0);
        assert_eq!(played.answer.stop, stop_reason(format, ScriptedStop::Length));
        assert!(played.finished.mixed_calls.is_none());
    }
}

#[test]
fn second_round_may_stop_for_length() {
    for format in Format::all() {
        let played = play(
            format,
            &[
                script("r1", &[ScriptedOutput::Call("h", TOOL_NAME, "{}")], ScriptedStop::Calls, 100, 20),
                script("r2", &[ScriptedOutput::Text("half")], ScriptedStop::Length, 160, 9),
            ],
        );
        assert_eq!(played.answer.stop, stop_reason(format, ScriptedStop::Length), "{format:?}");
    }
}

#[test]
fn reasoning_keeps_signatures_and_is_returned_verbatim() {
    for format in Format::all() {
        let played = play(
            format,
            &[
                script(
                    "r1",
                    &[
                        ScriptedOutput::Reasoning("first ", "seal1"),
                        ScriptedOutput::Call("h", TOOL_NAME, r#"{"a": 1}"#),
                    ],
                    ScriptedStop::Calls,
                    100,
                    20,
                ),
                script(
                    "r2",
                    &[ScriptedOutput::Reasoning("second", "seal2"), ScriptedOutput::Text("so")],
                    ScriptedStop::Answer,
                    160,
                    9,
                ),
            ],
        );
        assert_eq!(played.answer.reasoning, "first second", "{format:?}");
        let signatures: &[&str] = if format == Ollama { &[] } else { &["seal1", "seal2"] };
        assert_eq!(played.answer.signatures, signatures, "{format:?}");
        let turn = joined_json(&played.intercepted[0].turn_json);
        let expected = match format {
            Anthropic => {
                r#"{"role":"assistant","content":[{"signature":"seal1","thinking":"first ","type":"thinking"},{"id":"h","input":{"a": 1},"name":"unfold","type":"tool_use"}]}"#
            }
            OpenAiChat => {
                r#"{"role":"assistant","content":null,"reasoning":"first ","reasoning_details":[{"index":0,"text":"fir","type":"reasoning.text"},{"index":0,"text":"st ","type":"reasoning.text"},{"index":0,"signature":"seal1","type":"reasoning.text"}],"tool_calls":[{"id":"h","type":"function","function":{"name":"unfold","arguments":"{\"a\": 1}"}}]}"#
            }
            OpenAiResponses => {
                "{\"encrypted_content\":\"seal1\",\"id\":\"r1_0\",\"summary\":[{\"text\":\"first \",\"type\":\"summary_text\"}],\"type\":\"reasoning\"}\n{\"arguments\":\"{\\\"a\\\": 1}\",\"call_id\":\"h\",\"id\":\"r1_1\",\"name\":\"unfold\",\"type\":\"function_call\"}"
            }
            Gemini => {
                r#"{"role":"model","parts":[{"text":"first ","thought":true},{"text":"","thought":true,"thoughtSignature":"seal1"},{"functionCall":{"args":{"a":1},"id":"h","name":"unfold"}}]}"#
            }
            Converse => {
                r#"{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"first ","signature":"seal1"}}},{"toolUse":{"toolUseId":"h","name":"unfold","input":{"a": 1}}}]}"#
            }
            Ollama => {
                r#"{"role":"assistant","content":"","thinking":"first ","tool_calls":[{"function":{"arguments":{"a":1},"index":0,"name":"unfold"},"id":"h"}]}"#
            }
        };
        assert_eq!(turn, expected);
    }
}

#[test]
fn last_id_is_reported_for_stored_responses() {
    let mut splicer = StreamSplicer::new(OpenAiResponses, TOOL_NAME).with_reported_id(ReportedId::Last);
    let mut bytes = Vec::new();
    splicer.push(
        &scripted_stream(
            OpenAiResponses,
            &script("r1", &[ScriptedOutput::Call("h", TOOL_NAME, "{}")], ScriptedStop::Calls, 100, 20),
        ),
        &mut bytes,
    );
    splicer.end_round(&mut bytes);
    splicer.push(
        &scripted_stream(OpenAiResponses, &script("r2", &[ScriptedOutput::Text("x")], ScriptedStop::Answer, 100, 20)),
        &mut bytes,
    );
    splicer.end_round(&mut bytes);
    assert_eq!(read_as_client(OpenAiResponses, &bytes).id, "r1..r2");
}

#[test]
fn interrupted_round_is_reported_as_a_stream_error() {
    for format in Format::all() {
        let round = scripted_stream(
            format,
            &script(
                "r1",
                &[ScriptedOutput::Text("half"), ScriptedOutput::Call("h", TOOL_NAME, "{}")],
                ScriptedStop::Calls,
                100,
                20,
            ),
        );
        let mut splicer = StreamSplicer::new(format, TOOL_NAME);
        let mut bytes = Vec::new();
        splicer.push(&round[..round.len() * 2 / 3], &mut bytes);
        let RoundOutcome::Interrupted(interrupted) = splicer.end_round(&mut bytes) else { panic!("{format:?}") };
        assert_eq!(interrupted, InterruptedRound { shown_to_client: true, error: None, error_bytes: Vec::new() });
        let before = bytes.len();
        let error = ApiError { message: "the \"upstream\" went away".into(), ..ApiError::default() };
        splicer.write_error(502, &error, &mut bytes);
        let mut framer = SseFramer::new().with_any_kind();
        let mut error_bytes = &bytes[before..];
        let error_text = String::from_utf8_lossy(&framer.next(&mut error_bytes).unwrap().data().unwrap()).into_owned();
        let data: serde_json::Value = serde_json::from_str(&error_text).unwrap();
        let message = match format {
            OpenAiResponses => &data["response"]["error"]["message"],
            Ollama => &data["error"],
            _ => &data["error"]["message"],
        };
        assert_eq!(message, "the \"upstream\" went away");
        if format == OpenAiResponses {
            assert_eq!(data["response"]["status"], "failed");
            assert_eq!(data["response"]["output"][0]["content"][0]["text"], "half");
            assert!(!error_text.contains(TOOL_NAME));
        }
    }
}

fn error_frame(format: Format) -> Vec<u8> {
    if format == Converse {
        let mut frame = Vec::new();
        write_exception("serviceUnavailableException", "busy", &mut frame);
        return frame;
    }
    let text = match format {
        Anthropic => {
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n"
        }
        OpenAiChat => "data: {\"error\":{\"message\":\"busy\"}}\n\n",
        OpenAiResponses => "event: error\ndata: {\"type\":\"error\",\"message\":\"busy\"}\n\n",
        Gemini => "data: {\"error\":{\"code\":503,\"message\":\"busy\",\"status\":\"UNAVAILABLE\"}}\n\n",
        Ollama => "{\"error\":\"busy\"}\n",
        Converse => "",
    };
    text.as_bytes().to_vec()
}

#[test]
fn error_in_first_round_is_forwarded_and_ends_answer() {
    for format in Format::all() {
        let mut splicer = StreamSplicer::new(format, TOOL_NAME);
        let mut bytes = Vec::new();
        splicer.push(&error_frame(format), &mut bytes);
        assert_eq!(bytes, error_frame(format));
        let RoundOutcome::Finished(finished) = splicer.end_round(&mut bytes) else { panic!("{format:?}") };
        assert_eq!(finished.response.error.unwrap().message, "busy");
    }
}

#[test]
fn later_round_failing_before_output_can_be_retried() {
    let ask = script(
        "r1",
        &[ScriptedOutput::Text("a "), ScriptedOutput::Call("h", TOOL_NAME, "{}")],
        ScriptedStop::Calls,
        100,
        20,
    );
    let answer =
        script("r2", &[ScriptedOutput::Reasoning("hm", "s"), ScriptedOutput::Text("b")], ScriptedStop::Answer, 160, 9);
    for format in Format::all() {
        let mut splicer = StreamSplicer::new(format, TOOL_NAME);
        let mut bytes = Vec::new();
        splicer.push(&scripted_stream(format, &ask), &mut bytes);
        assert!(matches!(splicer.end_round(&mut bytes), RoundOutcome::Continue(_)));

        // First the provider fails, then the stream breaks off after its start, then it succeeds.
        splicer.push(&error_frame(format), &mut bytes);
        let RoundOutcome::Interrupted(interrupted) = splicer.end_round(&mut bytes) else { panic!("{format:?}") };
        assert!(!interrupted.shown_to_client);
        assert_eq!(interrupted.error.unwrap().message, "busy");
        assert_eq!(interrupted.error_bytes, error_frame(format));

        let stream = scripted_stream(format, &answer);
        let opening = if announces_response(format) { first_frame_length(&stream) } else { 0 };
        splicer.push(&stream[..opening], &mut bytes);
        if stream.starts_with(b"data") || stream.starts_with(b"event") {
            splicer.push(b": keep-alive\n\n", &mut Vec::new());
        }
        assert_eq!(splicer.end_round(&mut bytes).expect_interrupted(), InterruptedRound::default(), "{format:?}");

        splicer.push(&stream, &mut bytes);
        assert!(matches!(splicer.end_round(&mut bytes), RoundOutcome::Finished(_)), "{format:?}");
        let shown = read_as_client(format, &bytes);
        assert_eq!((shown.text.as_str(), shown.reasoning.as_str(), shown.output), ("a b", "hm", 29), "{format:?}");
    }
}

#[test]
fn later_round_failing_after_output_was_shown() {
    for format in Format::all() {
        let mut splicer = StreamSplicer::new(format, TOOL_NAME);
        let mut bytes = Vec::new();
        splicer.push(
            &scripted_stream(
                format,
                &script("r1", &[ScriptedOutput::Call("h", TOOL_NAME, "{}")], ScriptedStop::Calls, 100, 20),
            ),
            &mut bytes,
        );
        splicer.end_round(&mut bytes);
        let answer =
            scripted_stream(format, &script("r2", &[ScriptedOutput::Text("half of it")], ScriptedStop::Answer, 160, 9));
        splicer.push(&answer[..answer.len() * 2 / 3], &mut bytes);
        splicer.push(&error_frame(format), &mut bytes);
        assert!(splicer.end_round(&mut bytes).expect_interrupted().shown_to_client, "{format:?}");
    }
}

impl RoundOutcome {
    fn expect_interrupted(self) -> InterruptedRound {
        match self {
            RoundOutcome::Interrupted(broken) => broken,
            next => panic!("{next:?}"),
        }
    }
}

#[test]
fn output_is_shown_once_the_model_generates_it() {
    for format in Format::all() {
        let mut splicer = StreamSplicer::new(format, TOOL_NAME);
        let mut bytes = Vec::new();
        let round = scripted_stream(format, &script("r1", &[ScriptedOutput::Text("abcd")], ScriptedStop::Answer, 9, 9));
        let (opening, rest) = round.split_at(first_frame_length(&round));
        splicer.push(opening, &mut bytes);
        assert_eq!(splicer.shows_output(), !announces_response(format), "{format:?}");
        splicer.push(rest, &mut bytes);
        assert!(splicer.shows_output());
    }
}

#[test]
fn hidden_call_shows_no_output() {
    for format in Format::all() {
        let mut splicer = StreamSplicer::new(format, TOOL_NAME);
        let mut bytes = Vec::new();
        splicer.push(
            &scripted_stream(
                format,
                &script("r1", &[ScriptedOutput::Call("h", TOOL_NAME, "{}")], ScriptedStop::Calls, 100, 20),
            ),
            &mut bytes,
        );
        assert!(matches!(splicer.end_round(&mut bytes), RoundOutcome::Continue(_)));
        assert!(!splicer.shows_output() && bytes.is_empty() != announces_response(format), "{format:?}");
        assert_eq!(splicer.usage().unwrap().output, 20, "{format:?}");
        splicer.push(
            &scripted_stream(format, &script("r2", &[ScriptedOutput::Text("x")], ScriptedStop::Answer, 100, 20)),
            &mut bytes,
        );
        assert!(splicer.shows_output(), "{format:?}");
    }
}

/// No bytes that a client takes for the end of an answer are written before the hidden calls can be recorded.
#[test]
fn end_of_answer_with_hidden_calls_is_held_until_taken() {
    let outputs = [
        ScriptedOutput::Text("b"),
        ScriptedOutput::Call("h", TOOL_NAME, "{}"),
        ScriptedOutput::Call("c", "read", "{}"),
    ];
    for format in Format::all() {
        for hidden_in_last in [false, true] {
            let last = &outputs[..if hidden_in_last { 3 } else { 1 }];
            let end = if hidden_in_last { ScriptedStop::Calls } else { ScriptedStop::Answer };
            let end_marker = match format {
                Anthropic => "\"stop_reason\":\"",
                OpenAiChat => "\"finish_reason\":\"",
                OpenAiResponses => "response.completed",
                Gemini => "\"finishReason\":\"",
                Converse => "\"stopReason\":\"",
                Ollama => "\"done\":true",
            };
            let first = scripted_stream(
                format,
                &script(
                    "r1",
                    &[ScriptedOutput::Text("a "), ScriptedOutput::Call("h", TOOL_NAME, "{}")],
                    ScriptedStop::Calls,
                    100,
                    20,
                ),
            );
            let last = scripted_stream(format, &script("r2", last, end, 160, 9));
            let mut reference = StreamSplicer::new(format, TOOL_NAME);
            let mut expected = Vec::new();
            for round in [&first, &last] {
                reference.push(round, &mut expected);
                reference.end_round(&mut expected);
            }
            let mut splicer = StreamSplicer::new(format, TOOL_NAME);
            let mut bytes = Vec::new();
            splicer.push(&first, &mut bytes);
            assert!(splicer.take_end().is_none(), "{format:?}: the answer continues");
            splicer.end_round(&mut bytes);
            let mut taken = 0;
            for piece in last.chunks(1) {
                splicer.push(piece, &mut bytes);
                if let Some(end) = splicer.take_end() {
                    taken += 1;
                    let before = String::from_utf8_lossy(&bytes);
                    assert!(!before.contains(end_marker), "{format:?}: {before}");
                    assert_eq!(end.mixed.is_some(), hidden_in_last, "{format:?}");
                    let id = (!matches!(format, Ollama | Converse)).then(|| "r2".to_owned());
                    assert_eq!(end.mixed.map(|mixed| mixed.response_id), hidden_in_last.then_some(id));
                    bytes.extend(end.bytes);
                }
            }
            splicer.end_round(&mut bytes);
            assert_eq!((taken, &bytes), (1, &expected), "{format:?}");
        }
    }
}

#[test]
fn items_without_an_index_are_hidden_too() {
    let round = script(
        "r1",
        &[
            ScriptedOutput::Text("a"),
            ScriptedOutput::Call("c1", "read", "{}"),
            ScriptedOutput::Call("h", TOOL_NAME, "{}"),
        ],
        ScriptedStop::Calls,
        100,
        20,
    );
    let numbered = String::from_utf8(scripted_stream(OpenAiResponses, &round)).unwrap();
    let bare = |stream: &str| {
        let mut bare = String::new();
        for line in stream.lines() {
            let data = line.strip_prefix("data: ").map(|data| serde_json::from_str::<serde_json::Value>(data).unwrap());
            match data {
                Some(mut data) => {
                    let fields = data.as_object_mut().unwrap();
                    fields.remove("output_index");
                    fields.remove("sequence_number");
                    bare += &format!("data: {data}\n");
                }
                None => bare += &format!("{line}\n"),
            }
        }
        bare
    };
    let mut splicer = StreamSplicer::new(OpenAiResponses, TOOL_NAME);
    let mut bytes = Vec::new();
    splicer.push(bare(&numbered).as_bytes(), &mut bytes);
    let RoundOutcome::Finished(finished) = splicer.end_round(&mut bytes) else { panic!("expected client calls") };
    assert_eq!(finished.mixed_calls.unwrap().calls[0].id, "h");
    let shown = play(OpenAiResponses, &[round]).bytes;
    let bytes = String::from_utf8(bytes).unwrap();
    assert!(!bytes.contains(TOOL_NAME));
    assert_eq!(bare(&bytes), bare(&String::from_utf8(shown).unwrap()), "must equal the output with an index");
}

#[test]
fn chat_variants_of_other_servers_are_spliced() {
    let splice = |rounds: &[&str]| {
        let mut splicer = StreamSplicer::new(OpenAiChat, TOOL_NAME);
        let mut bytes = Vec::new();
        for round in rounds {
            splicer.push(round.as_bytes(), &mut bytes);
            splicer.end_round(&mut bytes);
        }
        String::from_utf8(bytes).unwrap()
    };
    let answer = "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"so\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}}\n\ndata: [DONE]\n\n";
    // Everything in one chunk: the text stays, the call and the end are removed.
    let single = r#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"see ","tool_calls":[{"id":"h","type":"function","function":{"name":"unfold","arguments":"{}"}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}

data: [DONE]

"#;
    assert_eq!(
        splice(&[single, answer]),
        r#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"see "},"finish_reason":null}],"usage":null}

data: {"id":"a","choices":[{"index":0,"delta":{"content":"so"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}}

data: [DONE]

"#
    );
    // Index zero for all: the call with the other id is the client's.
    let zeros = r#"data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"h","function":{"name":"unfold","arguments":"{}"}},{"index":0,"id":"c","function":{"name":"read","arguments":"{}"}}]}}]}

data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

"#;
    assert_eq!(
        splice(&[zeros]),
        r#"data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"read","arguments":"{}"}}]}}]}

data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

"#
    );
    // A late name: the held arguments are sent with it.
    let late = r#"data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"arguments":"{\"p\""}}]}}]}

data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"read","arguments":":1}"}}]}}]}

data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

"#;
    assert_eq!(
        splice(&[late]),
        r#"data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"read","arguments":"{\"p\":1}"},"id":"c"}]}}]}

data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

"#
    );
}
