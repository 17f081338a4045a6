//! Every way in which a hidden call may come, in all three formats, read by strict clients.

mod any_answer;
mod bodies;

use super::testing::{End, Got, Say, Script, TOOL, client, stream};
use super::{ApiError, Asked, Broken, Finished, Next, ReportedId, Splicer};
use crate::wire::Format::{self, Anthropic, OpenAiChat, OpenAiResponses};

const FORMATS: [Format; 3] = [Anthropic, OpenAiChat, OpenAiResponses];

fn script(id: &'static str, says: &[Say], end: End, input: u64, output: u64) -> Script {
    Script { id, says: says.to_vec(), end, input, output }
}

/// What one answer of several rounds leaves on both sides.
struct Played {
    bytes: Vec<u8>,
    got: Got,
    asked: Vec<Asked>,
    finished: Finished,
}

fn play(format: Format, rounds: &[Script]) -> Played {
    play_in_pieces(format, rounds, usize::MAX)
}

fn play_in_pieces(format: Format, rounds: &[Script], size: usize) -> Played {
    let mut splicer = Splicer::new(format, TOOL);
    let (mut bytes, mut asked) = (Vec::new(), Vec::new());
    for (number, round) in rounds.iter().enumerate() {
        for piece in stream(format, round).chunks(size) {
            splicer.push(piece, &mut bytes);
        }
        match splicer.end_round(&mut bytes) {
            Next::Continue(it) => asked.push(it),
            Next::Finished(finished) => {
                assert_eq!(number, rounds.len() - 1, "{format:?} ends too early");
                assert!(!String::from_utf8_lossy(&bytes).contains(TOOL), "{format:?}: the client hears of the tool");
                let got = client(format, &bytes);
                return Played { bytes, got, asked, finished: *finished };
            }
            Next::Broken(broken) => panic!("{format:?}: {broken:?}"),
        }
    }
    panic!("{format:?}: asks for more");
}

/// The reason to stop in the words of the format.
fn reason(format: Format, end: End) -> &'static str {
    match (format, end) {
        (Anthropic, End::Answer) => "end_turn",
        (Anthropic, End::Calls) => "tool_use",
        (Anthropic, End::Length) => "max_tokens",
        (OpenAiChat, End::Answer) => "stop",
        (OpenAiChat, End::Calls) => "tool_calls",
        (OpenAiChat, End::Length) => "length",
        (OpenAiResponses, End::Answer | End::Calls) => "completed",
        (OpenAiResponses, End::Length) => "max_output_tokens",
    }
}

fn texts(json: &[String]) -> String {
    json.join("\n")
}

#[test]
fn without_a_hidden_call_every_byte_passes() {
    let says = [Say::Think("hm", "sig"), Say::Text("a"), Say::Unknown, Say::Call("c", "read", "{}")];
    for format in [Anthropic, OpenAiChat] {
        let round = script("r1", &says, End::Calls, 50, 7);
        let played = play(format, std::slice::from_ref(&round));
        assert_eq!(played.bytes, stream(format, &round));
        assert_eq!(played.finished.usage.unwrap().input, 50);
        assert!(played.finished.mixed.is_none());
    }
    // Responses repeats the request's tools, so ours is taken out of them and nothing else changes.
    let round = script("r1", &says, End::Calls, 50, 7);
    let played = play(OpenAiResponses, std::slice::from_ref(&round));
    let without = String::from_utf8(stream(OpenAiResponses, &round))
        .unwrap()
        .replace(r#",{"name":"unfold","type":"function"}"#, "");
    assert_eq!(String::from_utf8(played.bytes).unwrap(), without);
}

#[test]
fn text_before_the_call_and_text_after_it_become_one_answer() {
    for format in FORMATS {
        let played = play(
            format,
            &[
                script(
                    "r1",
                    &[Say::Text("Let me see. "), Say::Call("h", TOOL, r#"{"handle":"x"}"#)],
                    End::Calls,
                    100,
                    20,
                ),
                script("r2", &[Say::Text("It is 42.")], End::Answer, 160, 9),
            ],
        );
        assert_eq!(played.got.text, "Let me see. It is 42.", "{format:?}");
        assert_eq!(played.got.end, reason(format, End::Answer));
        assert_eq!((played.got.input, played.got.output), (160, 29), "the last prompt, and all answers");
        let usage = played.finished.usage.unwrap();
        assert_eq!((usage.input, usage.output, usage.context()), (260, 29, 160), "the bill is for both rounds");
        assert_eq!(played.asked[0].calls[0].id, "h");
        assert_eq!(played.asked[0].calls[0].arguments, r#"{"handle":"x"}"#);
        assert_eq!(played.asked[0].at, if format == OpenAiChat { 12 } else { 1 });
    }
}

#[test]
fn a_hidden_call_alone_leaves_no_trace() {
    for format in FORMATS {
        let played = play(
            format,
            &[
                script("r1", &[Say::Call("h", TOOL, "{}")], End::Calls, 100, 20),
                script("r2", &[Say::Text("So.")], End::Answer, 160, 9),
            ],
        );
        let id = if format == OpenAiResponses { "r1..r1" } else { "r1" };
        let expected = Got {
            id: id.into(),
            text: "So.".into(),
            end: reason(format, End::Answer).into(),
            input: 160,
            output: 29,
            ..Got::default()
        };
        assert_eq!(played.got, expected, "{format:?}");
    }
}

#[test]
fn two_hidden_calls_in_a_round_are_answered_together() {
    for format in FORMATS {
        let played = play(
            format,
            &[
                script(
                    "r1",
                    &[Say::Call("h1", TOOL, "{}"), Say::Text("and"), Say::Call("h2", TOOL, "{}")],
                    End::Calls,
                    100,
                    20,
                ),
                script("r2", &[Say::Text(" so")], End::Answer, 160, 9),
            ],
        );
        assert_eq!(played.got.text, "and so", "{format:?}");
        let ids: Vec<&str> = played.asked[0].calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["h1", "h2"]);
        let continuation = played.asked[0].continuation(&["one", "two"]);
        let expected = match format {
            Anthropic => 2,
            OpenAiChat => 3,
            OpenAiResponses => 5,
        };
        assert_eq!(continuation.len(), expected, "{continuation:?}");
        for element in &continuation {
            serde_json::from_str::<serde_json::Value>(element).unwrap();
        }
        assert!(texts(&continuation).contains("\"one\"") && texts(&continuation).contains("\"h2\""));
    }
}

#[test]
fn several_rounds_follow_each_other() {
    for format in FORMATS {
        let ask = |id, text| script(id, &[Say::Text(text), Say::Call("h", TOOL, "{}")], End::Calls, 100, 10);
        let last = script(
            "r3",
            &[Say::Text("c"), Say::Call("c1", "read", "{}"), Say::Call("c2", "read", "{}")],
            End::Calls,
            300,
            10,
        );
        let played = play(format, &[ask("r1", "a"), ask("r2", "b"), last]);
        assert_eq!(played.got.text, "abc", "{format:?}");
        assert_eq!(played.got.calls, [r#""c1" "read" "{}""#, r#""c2" "read" "{}""#]);
        assert_eq!((played.got.input, played.got.output), (300, 30));
        assert_eq!(played.got.end, reason(format, End::Calls));
    }
}

#[test]
fn a_turn_mixed_with_the_clients_own_calls_shows_only_those() {
    for format in FORMATS {
        let says = [
            Say::Text("a"),
            Say::Call("c1", "read", "{}"),
            Say::Call("h", TOOL, "{}"),
            Say::Call("c2", "list", r#"{"x":1}"#),
        ];
        let played = play(format, &[script("r1", &says, End::Calls, 100, 20)]);
        assert_eq!(played.got.calls, [r#""c1" "read" "{}""#, r#""c2" "list" "{\"x\":1}""#], "{format:?}");
        assert_eq!(played.got.end, reason(format, End::Calls));
        let mixed = played.finished.mixed.expect("the hidden call is to be remembered");
        assert_eq!(mixed.calls[0].id, "h");
        assert!(texts(&mixed.turn).contains("\"c1\"") && texts(&mixed.turn).contains("\"h\""));
    }
}

#[test]
fn a_hidden_call_that_comes_first_leaves_no_gap_before_the_clients() {
    for format in FORMATS {
        let says = [Say::Call("h", TOOL, "{}"), Say::Unknown, Say::Call("c", "read", "{}")];
        let played = play(format, &[script("r1", &says, End::Calls, 100, 20)]);
        assert_eq!(played.got.calls, [r#""c" "read" "{}""#], "{format:?}");
    }
}

#[test]
fn a_hidden_call_cut_by_its_length_is_no_call() {
    for format in FORMATS {
        let says = [Say::Text("a"), Say::Call("h", TOOL, r#"{"handle":"#)];
        let played = play(format, &[script("r1", &says, End::Length, 100, 20)]);
        assert_eq!(played.got.text, "a", "{format:?}");
        assert_eq!(played.got.calls.len(), 0);
        assert_eq!(played.got.end, reason(format, End::Length));
        assert!(played.finished.mixed.is_none());
    }
}

#[test]
fn the_second_round_may_stop_for_length() {
    for format in FORMATS {
        let played = play(
            format,
            &[
                script("r1", &[Say::Call("h", TOOL, "{}")], End::Calls, 100, 20),
                script("r2", &[Say::Text("half")], End::Length, 160, 9),
            ],
        );
        assert_eq!(played.got.end, reason(format, End::Length), "{format:?}");
    }
}

#[test]
fn thoughts_keep_their_seals_and_go_back_word_for_word() {
    for format in FORMATS {
        let played = play(
            format,
            &[
                script(
                    "r1",
                    &[Say::Think("first ", "seal1"), Say::Call("h", TOOL, r#"{"a": 1}"#)],
                    End::Calls,
                    100,
                    20,
                ),
                script("r2", &[Say::Think("second", "seal2"), Say::Text("so")], End::Answer, 160, 9),
            ],
        );
        assert_eq!(played.got.thoughts, "first second", "{format:?}");
        assert_eq!(played.got.seals, ["seal1", "seal2"]);
        let turn = texts(&played.asked[0].turn);
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
        };
        assert_eq!(turn, expected);
    }
}

#[test]
fn where_responses_are_stored_the_last_id_is_reported() {
    let mut splicer = Splicer::new(OpenAiResponses, TOOL).reporting(ReportedId::Last);
    let mut bytes = Vec::new();
    splicer
        .push(&stream(OpenAiResponses, &script("r1", &[Say::Call("h", TOOL, "{}")], End::Calls, 100, 20)), &mut bytes);
    splicer.end_round(&mut bytes);
    splicer.push(&stream(OpenAiResponses, &script("r2", &[Say::Text("x")], End::Answer, 100, 20)), &mut bytes);
    splicer.end_round(&mut bytes);
    assert_eq!(client(OpenAiResponses, &bytes).id, "r1..r2");
}

#[test]
fn a_round_that_breaks_off_is_broken_and_a_failure_is_told_in_the_stream() {
    for format in FORMATS {
        let round =
            stream(format, &script("r1", &[Say::Text("half"), Say::Call("h", TOOL, "{}")], End::Calls, 100, 20));
        let mut splicer = Splicer::new(format, TOOL);
        let mut bytes = Vec::new();
        splicer.push(&round[..round.len() * 2 / 3], &mut bytes);
        let Next::Broken(broken) = splicer.end_round(&mut bytes) else { panic!("{format:?}") };
        assert_eq!(broken, Broken { shown: true, error: None, told: Vec::new() });
        let before = bytes.len();
        let error = ApiError { message: "the \"upstream\" went away".into(), ..ApiError::default() };
        splicer.fail(502, &error, &mut bytes);
        let told = String::from_utf8(bytes[before..].to_vec()).unwrap();
        let data: serde_json::Value = serde_json::from_str(told.split("data: ").nth(1).unwrap().trim()).unwrap();
        let error = if format == OpenAiResponses { &data["response"]["error"] } else { &data["error"] };
        assert_eq!(error["message"], "the \"upstream\" went away");
        if format == OpenAiResponses {
            assert_eq!(data["response"]["status"], "failed");
            assert_eq!(data["response"]["output"][0]["content"][0]["text"], "half");
            assert!(!told.contains(TOOL));
        }
    }
}

fn error(format: Format) -> &'static str {
    match format {
        Anthropic => {
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n"
        }
        OpenAiChat => "data: {\"error\":{\"message\":\"busy\"}}\n\n",
        OpenAiResponses => "event: error\ndata: {\"type\":\"error\",\"message\":\"busy\"}\n\n",
    }
}

#[test]
fn an_error_in_the_first_round_passes_as_it_is_and_ends_the_answer() {
    for format in FORMATS {
        let mut splicer = Splicer::new(format, TOOL);
        let mut bytes = Vec::new();
        splicer.push(error(format).as_bytes(), &mut bytes);
        assert_eq!(bytes, error(format).as_bytes());
        let Next::Finished(finished) = splicer.end_round(&mut bytes) else { panic!("{format:?}") };
        assert_eq!(finished.response.error.unwrap().message, "busy");
    }
}

#[test]
fn a_later_round_that_fails_before_it_speaks_can_be_tried_again() {
    let ask = script("r1", &[Say::Text("a "), Say::Call("h", TOOL, "{}")], End::Calls, 100, 20);
    let answer = script("r2", &[Say::Think("hm", "s"), Say::Text("b")], End::Answer, 160, 9);
    for format in FORMATS {
        let mut splicer = Splicer::new(format, TOOL);
        let mut bytes = Vec::new();
        splicer.push(&stream(format, &ask), &mut bytes);
        assert!(matches!(splicer.end_round(&mut bytes), Next::Continue(_)));

        // It gives up, then it breaks off behind its opening, then it answers.
        splicer.push(error(format).as_bytes(), &mut bytes);
        let Next::Broken(broken) = splicer.end_round(&mut bytes) else { panic!("{format:?}") };
        assert!(!broken.shown);
        assert_eq!(broken.error.unwrap().message, "busy");
        assert_eq!(broken.told, error(format).as_bytes());

        let whole = stream(format, &answer);
        let opening = whole.windows(2).position(|it| it == b"\n\n").unwrap() + 2;
        splicer.push(&whole[..opening], &mut bytes);
        splicer.push(b": keep-alive\n\n", &mut Vec::new());
        assert_eq!(splicer.end_round(&mut bytes).broken(), Broken::default(), "{format:?}");

        splicer.push(&whole, &mut bytes);
        assert!(matches!(splicer.end_round(&mut bytes), Next::Finished(_)), "{format:?}");
        let got = client(format, &bytes);
        assert_eq!((got.text.as_str(), got.thoughts.as_str(), got.output), ("a b", "hm", 29), "{format:?}");
    }
}

#[test]
fn a_later_round_that_fails_while_it_speaks_was_shown() {
    for format in FORMATS {
        let mut splicer = Splicer::new(format, TOOL);
        let mut bytes = Vec::new();
        splicer.push(&stream(format, &script("r1", &[Say::Call("h", TOOL, "{}")], End::Calls, 100, 20)), &mut bytes);
        splicer.end_round(&mut bytes);
        let answer = stream(format, &script("r2", &[Say::Text("half of it")], End::Answer, 160, 9));
        splicer.push(&answer[..answer.len() * 2 / 3], &mut bytes);
        splicer.push(error(format).as_bytes(), &mut bytes);
        assert!(splicer.end_round(&mut bytes).broken().shown, "{format:?}");
    }
}

impl Next {
    fn broken(self) -> Broken {
        match self {
            Next::Broken(broken) => broken,
            next => panic!("{next:?}"),
        }
    }
}

#[test]
fn output_is_shown_once_the_model_speaks() {
    for format in FORMATS {
        let mut splicer = Splicer::new(format, TOOL);
        let mut bytes = Vec::new();
        let round = String::from_utf8(stream(format, &script("r1", &[Say::Text("abcd")], End::Answer, 9, 9))).unwrap();
        let (opening, rest) = round.split_at(round.find("\n\n").unwrap() + 2);
        splicer.push(opening.as_bytes(), &mut bytes);
        assert!(!splicer.shows_output(), "{format:?}");
        splicer.push(rest.as_bytes(), &mut bytes);
        assert!(splicer.shows_output());
    }
}

#[test]
fn hidden_call_shows_no_output() {
    for format in FORMATS {
        let mut splicer = Splicer::new(format, TOOL);
        let mut bytes = Vec::new();
        splicer.push(&stream(format, &script("r1", &[Say::Call("h", TOOL, "{}")], End::Calls, 100, 20)), &mut bytes);
        assert!(matches!(splicer.end_round(&mut bytes), Next::Continue(_)));
        assert!(!splicer.shows_output() && !bytes.is_empty(), "{format:?}");
        assert_eq!(splicer.usage().unwrap().output, 20, "{format:?}");
        splicer.push(&stream(format, &script("r2", &[Say::Text("x")], End::Answer, 100, 20)), &mut bytes);
        assert!(splicer.shows_output(), "{format:?}");
    }
}

/// Whatever a client takes for the end of an answer is not written before the hidden calls can be recorded.
#[test]
fn end_of_answer_with_hidden_calls_is_held_until_taken() {
    let says = [Say::Text("b"), Say::Call("h", TOOL, "{}"), Say::Call("c", "read", "{}")];
    for format in FORMATS {
        for hidden_in_last in [false, true] {
            let last = &says[..if hidden_in_last { 3 } else { 1 }];
            let end = if hidden_in_last { End::Calls } else { End::Answer };
            let end_marker = match format {
                Anthropic => "\"stop_reason\":\"",
                OpenAiChat => "\"finish_reason\":\"",
                OpenAiResponses => "response.completed",
            };
            let first =
                stream(format, &script("r1", &[Say::Text("a "), Say::Call("h", TOOL, "{}")], End::Calls, 100, 20));
            let last = stream(format, &script("r2", last, end, 160, 9));
            let mut whole = Splicer::new(format, TOOL);
            let mut expected = Vec::new();
            for round in [&first, &last] {
                whole.push(round, &mut expected);
                whole.end_round(&mut expected);
            }
            let mut splicer = Splicer::new(format, TOOL);
            let mut bytes = Vec::new();
            splicer.push(&first, &mut bytes);
            assert!(splicer.take_end().is_none(), "{format:?}: the answer goes on");
            splicer.end_round(&mut bytes);
            let mut taken = 0;
            for piece in last.chunks(1) {
                splicer.push(piece, &mut bytes);
                if let Some(end) = splicer.take_end() {
                    taken += 1;
                    let before = String::from_utf8_lossy(&bytes);
                    assert!(!before.contains(end_marker), "{format:?}: {before}");
                    assert_eq!(end.mixed.is_some(), hidden_in_last, "{format:?}");
                    assert_eq!(end.mixed.map(|it| it.response_id), hidden_in_last.then(|| Some("r2".to_owned())));
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
    let round =
        script("r1", &[Say::Text("a"), Say::Call("c1", "read", "{}"), Say::Call("h", TOOL, "{}")], End::Calls, 100, 20);
    let numbered = String::from_utf8(stream(OpenAiResponses, &round)).unwrap();
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
    let mut splicer = Splicer::new(OpenAiResponses, TOOL);
    let mut bytes = Vec::new();
    splicer.push(bare(&numbered).as_bytes(), &mut bytes);
    let Next::Finished(finished) = splicer.end_round(&mut bytes) else { panic!("it has calls of the client's") };
    assert_eq!(finished.mixed.unwrap().calls[0].id, "h");
    let shown = play(OpenAiResponses, &[round]).bytes;
    let bytes = String::from_utf8(bytes).unwrap();
    assert!(!bytes.contains(TOOL));
    assert_eq!(bare(&bytes), bare(&String::from_utf8(shown).unwrap()), "as with an index, but for the index");
}

#[test]
fn chat_dialects_are_spliced_too() {
    let splice = |rounds: &[&str]| {
        let mut splicer = Splicer::new(OpenAiChat, TOOL);
        let mut bytes = Vec::new();
        for round in rounds {
            splicer.push(round.as_bytes(), &mut bytes);
            splicer.end_round(&mut bytes);
        }
        String::from_utf8(bytes).unwrap()
    };
    let answer = "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"so\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}}\n\ndata: [DONE]\n\n";
    // Everything in one chunk: the text stays, the call and the end go.
    let whole = r#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"see ","tool_calls":[{"id":"h","type":"function","function":{"name":"unfold","arguments":"{}"}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}

data: [DONE]

"#;
    assert_eq!(
        splice(&[whole, answer]),
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
    // A name that comes late: what was held comes with it.
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
