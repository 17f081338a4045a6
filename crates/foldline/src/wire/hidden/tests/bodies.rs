//! Answers that are no streams.

use super::*;

/// The body that the same answer would have had without streaming.
fn body(format: Format, script: &Script) -> Vec<u8> {
    use crate::wire::{Response, StreamReader};
    let mut reader = StreamReader::new(format);
    let bytes = stream(format, script);
    reader.push(&bytes);
    let turn = reader.turn();
    let total = script.input + script.output;
    let json = match format {
        Anthropic => {
            let message: serde_json::Value = serde_json::from_str(&turn[0]).unwrap();
            serde_json::json!({"id": script.id, "type": "message", "content": message["content"], "stop_reason": reason(format, script.end), "usage": {"input_tokens": script.input, "output_tokens": script.output}})
        }
        OpenAiChat => {
            let message: serde_json::Value = serde_json::from_str(&turn[0]).unwrap();
            serde_json::json!({"id": script.id, "created": script.input, "choices": [{"index": 0, "message": message, "finish_reason": reason(format, script.end)}], "usage": {"prompt_tokens": script.input, "completion_tokens": script.output, "total_tokens": total}})
        }
        OpenAiResponses => {
            let items: Vec<serde_json::Value> = turn.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
            serde_json::json!({"id": script.id, "created_at": script.input, "status": "completed", "tools": [{"type": "function", "name": TOOL}], "output": items, "usage": {"input_tokens": script.input, "output_tokens": script.output, "total_tokens": total}})
        }
    };
    let bytes = json.to_string().into_bytes();
    Response::parse(format, &bytes).unwrap();
    bytes
}

#[test]
fn bodies_become_one_body_as_streams_become_one_stream() {
    use crate::wire::{BodySplicer, NextBody, Response};
    let rounds = [
        script(
            "r1",
            &[Say::Think("first ", "seal1"), Say::Text("a "), Say::Call("h", TOOL, "{}")],
            End::Calls,
            100,
            20,
        ),
        script(
            "r2",
            &[Say::Think("second", "seal2"), Say::Text("b"), Say::Call("c", "read", "{}"), Say::Call("h", TOOL, "{}")],
            End::Calls,
            160,
            9,
        ),
    ];
    for format in FORMATS {
        let mut splicer = BodySplicer::new(format, TOOL);
        let NextBody::Continue(asked) = splicer.round(&body(format, &rounds[0])).unwrap() else { panic!("{format:?}") };
        assert_eq!(asked.calls[0].id, "h");
        assert_eq!(asked.at, 2, "{format:?}");
        assert_eq!(asked.turn.len(), if format == OpenAiResponses { 3 } else { 1 });
        let NextBody::Finished { body, finished } = splicer.round(&body(format, &rounds[1])).unwrap() else {
            panic!("{format:?}")
        };
        assert!(!String::from_utf8_lossy(&body).contains(TOOL), "{format:?}");
        let response = Response::parse(format, &body).unwrap();
        assert_eq!(response.id.as_deref(), Some("r1"));
        assert_eq!(response.text(), "a b", "{format:?}");
        assert_eq!(response.calls().map(|call| &*call.id).collect::<Vec<_>>(), ["c"]);
        let usage = response.usage.unwrap();
        assert_eq!((usage.input, usage.output), (160, 29));
        assert_eq!(finished.usage.unwrap().input, 260);
        assert_eq!(finished.mixed.unwrap().calls.len(), 1);
        for seal in ["seal1", "seal2"] {
            assert!(String::from_utf8_lossy(&body).contains(seal), "{format:?}");
        }
    }
}

#[test]
fn a_body_without_a_hidden_call_passes_byte_for_byte() {
    use crate::wire::{BodySplicer, NextBody};
    for format in [Anthropic, OpenAiChat] {
        let body = body(format, &script("r1", &[Say::Text("a"), Say::Call("c", "read", "{}")], End::Calls, 100, 20));
        let NextBody::Finished { body: shown, .. } = BodySplicer::new(format, TOOL).round(&body).unwrap() else {
            panic!("{format:?}")
        };
        assert_eq!(shown, body);
    }
    // An error in the place of an answer passes too.
    let error = br#"{"error":{"message":"no"}}"#;
    let NextBody::Finished { body, .. } = BodySplicer::new(OpenAiChat, TOOL).round(error).unwrap() else { panic!() };
    assert_eq!(body, error);
    assert!(BodySplicer::new(OpenAiChat, TOOL).round(b"<html>").is_err());
}
