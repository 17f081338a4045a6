//! The other forms of a Gemini stream: one JSON array, and responses in the envelope of Code Assist.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::wire::Response;
use crate::wire::intercept::BodySplicer;
use crate::wire::intercept::body::BodyOutcome;
use crate::wire::intercept::testing::stream_chunks;
use crate::wire::intercept::tests::properties::answers;
use crate::wire::intercept::tests::*;

/// A form of the same stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamForm {
    Array,
    Enveloped,
}

impl StreamForm {
    fn write(self, script: &ScriptedResponse) -> Vec<u8> {
        let chunks = stream_chunks(Gemini, &scripted_stream(Gemini, script));
        let written: Vec<String> = chunks.iter().map(Value::to_string).collect();
        match self {
            StreamForm::Array => format!("[{}\n]\n", written.join("\n,\r\n")).into_bytes(),
            StreamForm::Enveloped => written
                .iter()
                .map(|chunk| format!("data: {{\"response\":{chunk},\"traceId\":\"t\"}}\n\n"))
                .collect::<String>()
                .into_bytes(),
        }
    }

    /// Returns the stream that a client received as events.
    fn as_events(self, bytes: &[u8]) -> Vec<u8> {
        let chunks: Vec<Value> = match self {
            StreamForm::Array => serde_json::from_slice(bytes).unwrap(),
            StreamForm::Enveloped => {
                let chunks = stream_chunks(Gemini, bytes).into_iter();
                chunks
                    .inspect(|chunk| assert_eq!(chunk["traceId"], "t"))
                    .map(|mut chunk| chunk["response"].take())
                    .collect()
            }
        };
        chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect::<String>().into_bytes()
    }

    fn play(self, rounds: &[ScriptedResponse], size: usize) -> (Vec<u8>, Vec<InterceptedCalls>) {
        let mut splicer = StreamSplicer::new(Gemini, TOOL_NAME);
        let (mut bytes, mut calls) = (Vec::new(), Vec::new());
        for round in rounds {
            self.write(round).chunks(size).for_each(|piece| splicer.push(piece, &mut bytes));
            match splicer.end_round(&mut bytes) {
                RoundOutcome::Continue(hidden) => calls.push(hidden),
                RoundOutcome::Finished(_) => break,
                RoundOutcome::Interrupted(interrupted) => panic!("{self:?}: {interrupted:?}"),
            }
        }
        (bytes, calls)
    }
}

proptest! {
    #[test]
    fn all_forms_give_the_client_the_same_answer(
        rounds in answers(),
        form in prop::sample::select(vec![StreamForm::Array, StreamForm::Enveloped]),
        size in 1..80usize,
    ) {
        let expected = play(Gemini, &rounds);
        let (bytes, calls) = form.play(&rounds, usize::MAX);
        prop_assert_eq!(&bytes, &form.play(&rounds, size).0);
        prop_assert!(!String::from_utf8_lossy(&bytes).contains(TOOL_NAME));
        prop_assert_eq!(read_as_client(Gemini, &form.as_events(&bytes)), expected.answer);
        let turns = |calls: &[InterceptedCalls]| calls.iter().map(|it| it.turn_json.clone()).collect::<Vec<_>>();
        prop_assert_eq!(turns(&calls), turns(&expected.intercepted));
    }

    #[test]
    fn without_hidden_calls_all_forms_are_forwarded_unchanged(
        rounds in answers(),
        form in prop::sample::select(vec![StreamForm::Array, StreamForm::Enveloped]),
        size in 1..80usize,
    ) {
        let mut last = rounds.last().unwrap().clone();
        last.outputs.retain(|output| !matches!(output, ScriptedOutput::Call(_, TOOL_NAME, _)));
        prop_assert_eq!(form.play(&[last.clone()], size).0, form.write(&last));
    }
}

#[test]
fn failed_round_ends_an_array_as_valid_json() {
    let ask = script(
        "r1",
        &[ScriptedOutput::Text("a "), ScriptedOutput::Call("h", TOOL_NAME, "{}")],
        ScriptedStop::Calls,
        9,
        2,
    );
    let mut splicer = StreamSplicer::new(Gemini, TOOL_NAME);
    let mut bytes = Vec::new();
    splicer.push(&StreamForm::Array.write(&ask), &mut bytes);
    assert!(matches!(splicer.end_round(&mut bytes), RoundOutcome::Continue(_)));
    bytes.extend_from_slice(splicer.keep_alive_bytes());
    // The error of a later round is kept apart, as an element of the client's array.
    splicer.push(br#"[{"error":{"code":503,"message":"busy","status":"UNAVAILABLE"}}]"#, &mut bytes);
    let RoundOutcome::Interrupted(interrupted) = splicer.end_round(&mut bytes) else { panic!("expected an error") };
    let with_error = [bytes.clone(), interrupted.error_bytes].concat();
    let array: Vec<Value> = serde_json::from_slice(&with_error).unwrap();
    assert_eq!(array.last().unwrap()["error"]["code"], 503);
    splicer.write_error(502, &ApiError::parse(b"gone"), &mut bytes);
    let array: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(array.last().unwrap()["error"]["message"], "gone");
}

#[test]
fn enveloped_bodies_are_merged_in_their_envelope() {
    let body = |id: &str, parts: Value| {
        json!({ "response": { "candidates": [{ "content": { "role": "model", "parts": parts }, "finishReason": "STOP" }], "usageMetadata": { "promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11 }, "responseId": id }, "traceId": id }).to_string()
    };
    let mut splicer = BodySplicer::new(Gemini, TOOL_NAME);
    let first = body("r1", json!([{ "text": "a " }, { "functionCall": { "name": TOOL_NAME, "args": {} } }]));
    let Ok(BodyOutcome::Continue(calls)) = splicer.push_round(first.as_bytes()) else { panic!("expected a call") };
    assert!(calls.turn_json[0].starts_with(r#"{"parts":"#), "{:?}", calls.turn_json);
    let last = body("r2", json!([{ "text": "b" }]));
    let Ok(BodyOutcome::Finished { body, .. }) = splicer.push_round(last.as_bytes()) else { panic!("expected an end") };
    let merged: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(merged["response"]["candidates"][0]["content"]["parts"], json!([{ "text": "a " }, { "text": "b" }]));
    assert_eq!((&merged["response"]["responseId"], &merged["traceId"]), (&json!("r1"), &json!("r2")));
    assert_eq!(merged["response"]["usageMetadata"]["candidatesTokenCount"], 4);
    assert_eq!(Response::parse(Gemini, &body).unwrap().text(), "a b");
}
