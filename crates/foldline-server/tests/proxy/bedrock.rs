//! Amazon Bedrock: Converse and InvokeModel with API keys; signed requests are refused.

use foldline::testing::event_message;
use foldline::wire::{Format, Request};
use foldline_server::proxy::{NamedUpstream, ProxySettings, UpstreamAuth};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, UpstreamReply, settings};
use crate::unfold_tool::{
    ReplyCall, parse_stream, small_window_settings, stream_endpoint, streamed_reply, was_answered,
};

const MODEL: &str = "us.anthropic.claude-sonnet-4-5-20250929-v1%3A0";
const EVENT_STREAM: &str = "application/vnd.amazon.eventstream";

/// Returns the events of an Anthropic stream as InvokeModel sends them: each wrapped in a message.
fn as_chunks(reply: UpstreamReply) -> UpstreamReply {
    let UpstreamReply::Stream(pieces) = reply else { panic!("not a stream") };
    let mut bytes = Vec::new();
    for piece in pieces {
        let crate::support::StreamPiece::Bytes(event) = piece else { continue };
        let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        bytes.extend(event_message("chunk", data));
    }
    UpstreamReply::Binary(EVENT_STREAM, bytes)
}

/// Returns the body of an agent for InvokeModel: without model and stream, with the version in the body.
fn invoke_body(turns: usize) -> String {
    let body = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, turns));
    let mut body: Value = serde_json::from_str(&body).unwrap();
    body.as_object_mut().unwrap().remove("model");
    body["anthropic_version"] = json!("bedrock-2023-05-31");
    body.to_string()
}

/// A Claude model behind InvokeModel: the hidden call inside the wrapped events is answered, and the client gets whole
/// messages with right checksums.
#[tokio::test]
async fn hidden_call_in_wrapped_events_does_not_reach_the_client() {
    let format = Format::Anthropic;
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        as_chunks(match was_answered(format, received) {
            false => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
            true => streamed_reply(format, "It is 42.", &[]),
        })
    })
    .await;
    let path = format!("/model/{MODEL}/invoke-with-response-stream");
    let got = harness.post(&path, invoke_body(60)).await;
    assert_eq!((got.status.as_u16(), got.header("content-type")), (200, Some(EVENT_STREAM)));
    let response = parse_stream(format, &got.body);
    assert_eq!((response.text().as_str(), response.calls().count()), ("Let me see. It is 42.", 0));
    let received = harness.received();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|request| request.path == path), "the path is the client's");
    let sent = Request::parse(format, &received[0].body).unwrap();
    assert_eq!(sent.field("anthropic_version"), Some(r#""bedrock-2023-05-31""#));
    assert!(sent.field("model").is_none() && received[0].body.len() < invoke_body(60).len() / 2);
}

/// A stream of which nothing is hidden reaches the client byte for byte.
#[tokio::test]
async fn stream_without_hidden_calls_is_forwarded_unchanged() {
    for format in [Format::Converse, Format::Anthropic] {
        let reply = move || {
            let reply = streamed_reply(format, "Fine.", &[ReplyCall::client_tool()]);
            if format == Format::Anthropic { as_chunks(reply) } else { reply }
        };
        let UpstreamReply::Binary(_, expected) = reply() else { panic!("not a binary stream") };
        let kept = temp_archive();
        let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |_| reply()).await;
        let (path, body) = match format {
            Format::Converse => (stream_endpoint(format).to_owned(), request_body(format, &agent_messages(format, 40))),
            _ => (format!("/model/{MODEL}/invoke-with-response-stream"), invoke_body(40)),
        };
        let got = harness.post(&path, body).await;
        assert!(got.body == expected, "{format:?}: {} and {} bytes", got.body.len(), expected.len());
    }
}

/// A bearer key is forwarded; a signature would be wrong and is refused with a message that names the alternative.
#[tokio::test]
async fn api_key_is_forwarded_and_signature_is_refused() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let body = request_body(Format::Converse, &agent_messages(Format::Converse, 2));
    for (authorization, status) in [
        ("Bearer bedrock-api-key-x", 200),
        (
            "AWS4-HMAC-SHA256 Credential=AKIA/20261118/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0",
            400,
        ),
    ] {
        for path in [endpoint(Format::Converse).to_owned(), format!("/model/{MODEL}/count-tokens")] {
            let request = harness.request("POST", &path).header("authorization", authorization);
            let got = harness.send(request.body(Full::new(body.clone().into())).unwrap()).await;
            assert_eq!(got.status, status, "{path}: {}", got.text());
            if status == 400 {
                assert!(got.text().contains("AWS_BEARER_TOKEN_BEDROCK"), "{}", got.text());
            }
        }
    }
    let received = harness.received();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|request| request.headers["authorization"] == "Bearer bedrock-api-key-x"));
}

/// Tokens are counted for the request that would be sent; the form of InvokeModel is forwarded as it is.
#[tokio::test]
async fn count_tokens_counts_the_folded_request() {
    let format = Format::Converse;
    let harness =
        ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json(r#"{"inputTokens":7}"#)).await;
    let body = request_body(format, &agent_messages(format, 40));
    harness.post(&format!("/model/{MODEL}/converse"), body.clone()).await;
    let path = format!("/model/{MODEL}/count-tokens");
    let got = harness.post(&path, format!(r#"{{"input":{{"converse":{body}}}}}"#)).await;
    assert_eq!(got.text(), r#"{"inputTokens":7}"#);
    let received = harness.received();
    assert!(received[0].body.len() < body.len() / 2 && received[1].path == path);
    let folded = String::from_utf8_lossy(&received[0].body);
    assert_eq!(String::from_utf8_lossy(&received[1].body), format!(r#"{{"input":{{"converse":{folded}}}}}"#));
    let invoke = r#"{"input":{"invokeModel":{"body":"e30="}}}"#;
    assert_eq!(harness.post(&path, invoke).await.text(), r#"{"inputTokens":7}"#);
    assert_eq!(harness.received()[2].body, invoke);
}

/// Mantle has the paths of Anthropic and of OpenAI below one host: each takes its dialect, and the bearer key is forwarded.
#[tokio::test]
async fn mantle_is_a_named_upstream_with_two_dialects() {
    let mantle = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let url = format!("http://{}", mantle.upstream).parse().unwrap();
    let named = NamedUpstream::new("mantle", url, Format::Converse, UpstreamAuth::Client).unwrap();
    let settings = ProxySettings { named_upstreams: vec![named.into()], ..small_window_settings() };
    let harness = ProxyHarness::start(settings, None, |_| UpstreamReply::json("{}")).await;
    let key = ("authorization", "Bearer bedrock-api-key-x");
    for (format, path) in [
        (Format::Anthropic, "/anthropic/v1/messages"),
        (Format::Anthropic, "/anthropic/v1/messages/count_tokens"),
        (Format::OpenAiChat, "/v1/chat/completions"),
        (Format::OpenAiResponses, "/v1/responses"),
        (Format::OpenAiResponses, "/openai/v1/responses"),
    ] {
        let body = request_body(format, &agent_messages(format, 40));
        harness.send_with("POST", &format!("/mantle{path}"), &[key], body.clone()).await;
        let sent = mantle.received().pop().unwrap();
        assert_eq!((sent.path.as_str(), sent.headers[key.0].to_str().unwrap()), (path, key.1));
        assert!(sent.body.len() < body.len() / 2, "{path}: {} bytes", sent.body.len());
    }
    assert!(harness.received().is_empty());
}

/// The provider refuses a prompt before or inside the stream: it is folded again.
#[tokio::test]
async fn refused_prompt_is_folded_again() {
    let format = Format::Converse;
    let refusals = [
        UpstreamReply::error(400, r#"{"message":"prompt is too long: 21000 tokens > 20000 maximum"}"#),
        UpstreamReply::error(400, r#"{"message":"Input is too long for requested model."}"#),
    ];
    for refusal in refusals {
        let harness = ProxyHarness::start(settings(), None, move |received| match received.body.len() > 60_000 {
            true => refusal.clone(),
            false => streamed_reply(format, "Fine.", &[]),
        })
        .await;
        let got = harness.post(stream_endpoint(format), request_body(format, &agent_messages(format, 60))).await;
        assert_eq!((got.status.as_u16(), parse_stream(format, &got.body).text().as_str()), (200, "Fine."));
        assert!(harness.received().len() >= 2);
    }
}
