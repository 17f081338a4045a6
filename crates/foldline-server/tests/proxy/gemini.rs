//! Gemini's own API: the path states the model and whether the response is a stream, which may be one JSON array.

use foldline::wire::{Format, Response};
use serde_json::{Value, json};

use crate::fold::{agent_messages, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, StreamPiece, UpstreamReply, settings};
use crate::unfold_tool::{ReplyCall, parse_stream, small_window_settings, streamed_reply, was_answered};

const FORMAT: Format = Format::Gemini;
/// Without `alt=sse` the stream is one JSON array.
const ARRAY_STREAM: &str = "/v1beta/models/gemini-2.5-pro:streamGenerateContent";

/// Returns the same reply as one JSON array that arrives element by element, as Google sends it.
fn as_array(reply: UpstreamReply) -> UpstreamReply {
    let UpstreamReply::Stream(pieces) = reply else { panic!("not a stream") };
    let mut separator = "[";
    let mut elements: Vec<StreamPiece> = Vec::new();
    for piece in pieces {
        let StreamPiece::Bytes(event) = piece else { continue };
        let json = event.strip_prefix("data: ").unwrap().trim_end();
        elements.push(StreamPiece::Bytes(format!("{separator}{json}\r\n")));
        separator = ",\r\n";
    }
    elements.push(StreamPiece::Bytes("]".into()));
    UpstreamReply::TypedStream("application/json; charset=UTF-8", elements)
}

/// The stream is an array of the content type of any JSON: the hidden call is answered all the same, and the client gets
/// one valid array without it.
#[tokio::test]
async fn hidden_call_in_an_array_does_not_reach_the_client() {
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), |received| {
        as_array(match was_answered(FORMAT, received) {
            false => streamed_reply(FORMAT, "Let me see. ", &[ReplyCall::unfold(received)]),
            true => streamed_reply(FORMAT, "It is 42.", &[]),
        })
    })
    .await;
    let got = harness.post(ARRAY_STREAM, request_body(FORMAT, &agent_messages(FORMAT, 60))).await;
    assert!(got.is_complete && !got.text().contains("unfold"), "{}", got.text());
    let elements: Vec<Value> = serde_json::from_str(got.text()).expect("one array");
    let text: String = elements
        .iter()
        .filter_map(|element| element["candidates"][0]["content"]["parts"][0]["text"].as_str())
        .collect();
    assert_eq!(text, "Let me see. It is 42.");
    assert_eq!(elements.last().unwrap()["candidates"][0]["finishReason"], "STOP");
    assert_eq!(harness.received().len(), 2);
}

/// An array of which nothing is hidden reaches the client byte for byte, and its usage is recorded.
#[tokio::test]
async fn array_without_hidden_calls_is_forwarded_unchanged() {
    let reply = || as_array(streamed_reply(FORMAT, "Fine.", &[ReplyCall::client_tool()]));
    let UpstreamReply::TypedStream(_, pieces) = reply() else { unreachable!() };
    let whole: String = pieces
        .iter()
        .map(|piece| match piece {
            StreamPiece::Bytes(text) => text.as_str(),
            _ => "",
        })
        .collect();
    let in_one_piece = UpstreamReply::Body(200, "application/json; charset=UTF-8", whole.clone());
    for reply in [reply(), in_one_piece] {
        let kept = temp_archive();
        let harness =
            ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |_| reply.clone()).await;
        for turns in [2, 40] {
            let got = harness.post(ARRAY_STREAM, request_body(FORMAT, &agent_messages(FORMAT, turns))).await;
            assert_eq!(got.text(), whole);
            assert_eq!(parse_stream(FORMAT, &got.body).calls().count(), 1);
        }
        assert!(harness.metric("foldline_reported_tokens_total").await > 0.0);
    }
}

/// A gateway that answers a request for a stream with one body: the call in it is hidden as well.
#[tokio::test]
async fn hidden_call_in_a_body_instead_of_a_stream_does_not_reach_the_client() {
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), |received| {
        let part = match was_answered(FORMAT, received) {
            false => {
                let call = ReplyCall::unfold(received);
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                json!({ "functionCall": { "id": call.id, "name": call.name, "args": arguments } })
            }
            true => json!({ "text": "It is 42." }),
        };
        let content = json!({ "role": "model", "parts": [part] });
        UpstreamReply::json(json!({ "candidates": [{ "content": content, "finishReason": "STOP" }] }).to_string())
    })
    .await;
    let got = harness.post(ARRAY_STREAM, request_body(FORMAT, &agent_messages(FORMAT, 60))).await;
    assert!(got.is_complete && !got.text().contains("unfold"), "{}", got.text());
    assert_eq!(Response::parse(FORMAT, &got.body).unwrap().text(), "It is 42.");
    assert_eq!(harness.received().len(), 2);
}

/// A request that is refused in the array's form is folded again.
#[tokio::test]
async fn overflow_in_an_array_is_folded_again() {
    let refusal = json!([{ "error": { "code": 400, "status": "INVALID_ARGUMENT", "message":
        "The input token count (21000) exceeds the maximum number of tokens allowed (20000)." } }]);
    let harness = ProxyHarness::start(settings(), None, move |received| match received.body.len() > 60_000 {
        true => UpstreamReply::error(400, refusal.to_string()),
        false => as_array(streamed_reply(FORMAT, "Fine.", &[])),
    })
    .await;
    let got = harness.post(ARRAY_STREAM, request_body(FORMAT, &agent_messages(FORMAT, 60))).await;
    assert_eq!((got.status.as_u16(), parse_stream(FORMAT, &got.body).text().as_str()), (200, "Fine."));
    assert_eq!(harness.received().len(), 2);
}

/// The model is in the path only: its window and its name apply.
#[tokio::test]
async fn model_is_taken_from_the_path() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let body = request_body(FORMAT, &agent_messages(FORMAT, 2));
    for path in [
        "/v1beta/models/gemini-2.5-pro:generateContent",
        "/v1/projects/p/locations/global/publishers/google/models/gemini-2.5-pro:generateContent",
    ] {
        harness.post(path, body.clone()).await;
        assert_eq!(harness.received().pop().unwrap().path, path);
    }
    let sessions: Value = serde_json::from_slice(&harness.get("/foldline/api/v1/sessions").await.body).unwrap();
    let models: Vec<&str> =
        sessions["sessions"].as_array().unwrap().iter().map(|it| it["model"].as_str().unwrap()).collect();
    assert_eq!(models, ["gemini-2.5-pro"], "{sessions}");
}
