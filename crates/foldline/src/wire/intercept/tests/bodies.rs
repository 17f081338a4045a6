//! Answers without streaming.

use crate::wire::intercept::tests::*;

/// Returns the body that the same answer would have without streaming.
fn scripted_body(format: Format, script: &ScriptedResponse) -> Vec<u8> {
    use crate::wire::{Response, StreamReader};
    let mut reader = StreamReader::new(format);
    let bytes = scripted_stream(format, script);
    reader.push(&bytes);
    let turn = reader.turn_json();
    let total = script.input + script.output;
    let json = match format {
        Anthropic => {
            let message: serde_json::Value = serde_json::from_str(&turn[0]).unwrap();
            serde_json::json!({"id": script.id, "type": "message", "content": message["content"], "stop_reason": stop_reason(format, script.stop), "usage": {"input_tokens": script.input, "output_tokens": script.output}})
        }
        OpenAiChat => {
            let message: serde_json::Value = serde_json::from_str(&turn[0]).unwrap();
            serde_json::json!({"id": script.id, "created": script.input, "choices": [{"index": 0, "message": message, "finish_reason": stop_reason(format, script.stop)}], "usage": {"prompt_tokens": script.input, "completion_tokens": script.output, "total_tokens": total}})
        }
        OpenAiResponses => {
            let items: Vec<serde_json::Value> = turn.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
            serde_json::json!({"id": script.id, "created_at": script.input, "status": "completed", "tools": [{"type": "function", "name": TOOL_NAME}], "output": items, "usage": {"input_tokens": script.input, "output_tokens": script.output, "total_tokens": total}})
        }
        Gemini => {
            let content: serde_json::Value = serde_json::from_str(&turn[0]).unwrap();
            serde_json::json!({"responseId": script.id, "candidates": [{"index": 0, "content": content, "finishReason": stop_reason(format, script.stop)}], "usageMetadata": {"promptTokenCount": script.input, "candidatesTokenCount": script.output, "totalTokenCount": total}})
        }
        Converse => {
            let message: serde_json::Value = serde_json::from_str(&turn[0]).unwrap();
            serde_json::json!({"output": {"message": message}, "stopReason": stop_reason(format, script.stop), "usage": {"inputTokens": script.input, "outputTokens": script.output, "totalTokens": total}})
        }
        Ollama => {
            let message: serde_json::Value = serde_json::from_str(&turn[0]).unwrap();
            serde_json::json!({"model": script.id, "message": message, "done": true, "done_reason": stop_reason(format, script.stop), "prompt_eval_count": script.input, "eval_count": script.output})
        }
    };
    let bytes = json.to_string().into_bytes();
    Response::parse(format, &bytes).unwrap();
    bytes
}

#[test]
fn rounds_are_merged_into_one_body() {
    use crate::wire::{BodyOutcome, BodySplicer, Response};
    let rounds = [
        script(
            "r1",
            &[
                ScriptedOutput::Reasoning("first ", "seal1"),
                ScriptedOutput::Text("a "),
                ScriptedOutput::Call("h", TOOL_NAME, "{}"),
            ],
            ScriptedStop::Calls,
            100,
            20,
        ),
        script(
            "r2",
            &[
                ScriptedOutput::Reasoning("second", "seal2"),
                ScriptedOutput::Text("b"),
                ScriptedOutput::Call("c", "read", "{}"),
                ScriptedOutput::Call("h", TOOL_NAME, "{}"),
            ],
            ScriptedStop::Calls,
            160,
            9,
        ),
    ];
    for format in Format::all() {
        let mut splicer = BodySplicer::new(format, TOOL_NAME);
        let BodyOutcome::Continue(calls) = splicer.push_round(&scripted_body(format, &rounds[0])).unwrap() else {
            panic!("{format:?}")
        };
        assert_eq!(calls.calls[0].id, "h");
        assert_eq!(calls.position, 2, "{format:?}");
        assert_eq!(calls.turn_json.len(), if format == OpenAiResponses { 3 } else { 1 });
        let BodyOutcome::Finished { body, finished } = splicer.push_round(&scripted_body(format, &rounds[1])).unwrap()
        else {
            panic!("{format:?}")
        };
        assert!(!String::from_utf8_lossy(&body).contains(TOOL_NAME), "{format:?}");
        let response = Response::parse(format, &body).unwrap();
        let identity = if format == Ollama { &response.model } else { &response.id };
        // Converse has no id.
        assert_eq!(identity.as_deref(), (format != Converse).then_some("r1"));
        assert_eq!(response.text(), "a b", "{format:?}");
        assert_eq!(response.calls().map(|call| &*call.id).collect::<Vec<_>>(), ["c"]);
        let usage = response.usage.unwrap();
        assert_eq!((usage.input, usage.output), (160, 29));
        assert_eq!(finished.usage.unwrap().input, 260);
        assert_eq!(finished.mixed_calls.unwrap().calls.len(), 1);
        for seal in ["seal1", "seal2"].into_iter().filter(|_| format != Ollama) {
            assert!(String::from_utf8_lossy(&body).contains(seal), "{format:?}");
        }
    }
}

#[test]
fn body_ends_normally_after_the_last_permitted_round() {
    use crate::wire::{BodyOutcome, BodySplicer, Response, StopReason};
    let outputs = [ScriptedOutput::Text("a"), ScriptedOutput::Call("h", TOOL_NAME, "{}")];
    for (format, rounds) in Format::all().flat_map(|format| [(format, 1), (format, 2)]) {
        let round = scripted_body(format, &script("r1", &outputs, ScriptedStop::Calls, 100, 20));
        let mut splicer = BodySplicer::new(format, TOOL_NAME).with_max_rounds(rounds);
        for _ in 1..rounds {
            assert!(matches!(splicer.push_round(&round).unwrap(), BodyOutcome::Continue(_)), "{format:?}");
        }
        let BodyOutcome::Finished { body, finished } = splicer.push_round(&round).unwrap() else {
            panic!("{format:?}: one more round")
        };
        assert!(!String::from_utf8_lossy(&body).contains(TOOL_NAME), "{format:?}");
        let response = Response::parse(format, &body).unwrap();
        assert_eq!(response.text(), "a".repeat(rounds as usize), "{format:?}");
        assert_eq!(response.calls().count(), 0);
        assert_eq!(response.stop.unwrap().reason, StopReason::EndTurn, "{format:?}");
        assert_eq!(finished.mixed_calls.unwrap().calls.len(), 1);
    }
}

#[test]
fn body_without_a_hidden_call_is_unchanged() {
    use crate::wire::{BodyOutcome, BodySplicer};
    for format in Format::all().filter(|format| *format != OpenAiResponses) {
        let body = scripted_body(
            format,
            &script(
                "r1",
                &[ScriptedOutput::Text("a"), ScriptedOutput::Call("c", "read", "{}")],
                ScriptedStop::Calls,
                100,
                20,
            ),
        );
        let BodyOutcome::Finished { body: shown, .. } = BodySplicer::new(format, TOOL_NAME).push_round(&body).unwrap()
        else {
            panic!("{format:?}")
        };
        assert_eq!(shown, body);
    }
    // An error in place of an answer is also forwarded.
    let error = br#"{"error":{"message":"no"}}"#;
    let BodyOutcome::Finished { body, .. } = BodySplicer::new(OpenAiChat, TOOL_NAME).push_round(error).unwrap() else {
        panic!()
    };
    assert_eq!(body, error);
    assert!(BodySplicer::new(OpenAiChat, TOOL_NAME).push_round(b"<html>").is_err());
}
