//! Hidden rounds that end late or fail: what the client receives, and what its next request contains.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldline::wire::{Format, Response};
use foldline_archive::Archive;
use foldline_server::proxy::{ProxySettings, Timeouts};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fold::{agent_messages, endpoint, request_body};
use crate::stores::temp_archive;
use crate::support::{ClientResponse, ProxyHarness, ReceivedRequest, StreamPiece, UpstreamReply};
use crate::unfold_tool::{
    FORMATS, ReplyCall, assistant_messages, parse_stream, sent_messages, small_window_settings, streamed_reply,
    streaming_body, was_answered,
};

const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Returns the strings at which clients consider a response complete, and the number of events from there on.
fn terminals(format: Format) -> &'static [(&'static str, usize)] {
    match format {
        Format::OpenAiChat => &[(r#""finish_reason":""#, 2), ("[DONE]", 1)],
        Format::OpenAiResponses => &[("event: response.completed", 1)],
        Format::Anthropic => &[(r#""stop_reason":""#, 2), ("event: message_stop", 1)],
        other => panic!("no script for {other:?}"),
    }
}

/// Reads a stream until `text` has arrived, and returns the data.
async fn read_until(response: &mut Incoming, text: &str) -> String {
    let mut got = String::new();
    let reading = async {
        while !got.contains(text) {
            let frame = response.frame().await.unwrap_or_else(|| panic!("ended before {text}: {got}")).unwrap();
            got.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    };
    let read = tokio::time::timeout(WAIT_LIMIT, reading).await;
    assert!(read.is_ok(), "no {text} while the body is open: {got}");
    got
}

async fn start_request(harness: &ProxyHarness, format: Format, messages: &[Value]) -> Incoming {
    let request = harness.request("POST", endpoint(format)).body(streaming_body(format, messages).into()).unwrap();
    harness.send_head(request).await.into_body()
}

fn result(format: Format, id: &str) -> Value {
    match format {
        Format::OpenAiChat => json!({ "role": "tool", "tool_call_id": id, "content": "ok" }),
        Format::OpenAiResponses => json!({ "type": "function_call_output", "call_id": id, "output": "ok" }),
        Format::Anthropic => {
            json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": "ok" }] })
        }
        other => panic!("no script for {other:?}"),
    }
}

/// The end of the last round's body after its last event.
#[derive(Clone, Copy, Debug)]
enum BodyEnd {
    After(Duration),
    Never,
}

impl BodyEnd {
    const ALL: [BodyEnd; 5] = [
        BodyEnd::After(Duration::ZERO),
        BodyEnd::After(Duration::from_millis(2)),
        BodyEnd::After(Duration::from_millis(20)),
        BodyEnd::After(Duration::from_millis(200)),
        BodyEnd::Never,
    ];

    fn piece(self) -> StreamPiece {
        match self {
            BodyEnd::After(wait) => StreamPiece::Wait(wait),
            BodyEnd::Never => StreamPiece::GateClosed(Arc::new(Semaphore::new(0))),
        }
    }
}

/// A client continues at the terminal event, while the provider's body is still open: its next request contains the
/// hidden call and its result.
#[tokio::test]
async fn request_sent_at_terminal_event_has_hidden_pair() {
    for format in FORMATS {
        for end in BodyEnd::ALL {
            for (terminal, _) in terminals(format) {
                let kept = temp_archive();
                let harness =
                    ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
                        match was_answered(format, received) {
                            false if String::from_utf8_lossy(&received.body).contains("twice") => {
                                streamed_reply(format, "84.", &[])
                            }
                            false => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
                            true => streamed_reply(format, "It is 42.", &[]).with_before_last(0, end.piece()),
                        }
                    })
                    .await;
                let mut messages = agent_messages(format, 40);
                let mut first = start_request(&harness, format, &messages).await;
                let got = read_until(&mut first, terminal).await;
                messages.extend(assistant_messages(format, &parse_stream(format, got.as_bytes())));
                messages.push(json!({ "role": "user", "content": "And twice that?" }));
                harness.post(endpoint(format), streaming_body(format, &messages)).await;
                let received = harness.received();
                assert_eq!(received.len(), 3);
                let (second, third) = (sent_messages(format, &received[1]), sent_messages(format, &received[2]));
                assert!(third.starts_with(&second), "{format:?} {end:?} {terminal}: {:#?}", &third[third.len() - 3..]);
            }
        }
    }
}

/// The same if the hidden call is in the last round, next to a call of the client's tool.
#[tokio::test]
async fn request_sent_at_terminal_event_has_hidden_result_of_mixed_turn() {
    for format in FORMATS {
        for end in [BodyEnd::After(Duration::from_millis(20)), BodyEnd::Never] {
            for (terminal, _) in terminals(format) {
                let kept = temp_archive();
                let harness =
                    ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
                        match String::from_utf8_lossy(&received.body).contains("call_shell") {
                            false => streamed_reply(
                                format,
                                "Both. ",
                                &[ReplyCall::unfold(received), ReplyCall::client_tool()],
                            )
                            .with_before_last(0, end.piece()),
                            true => streamed_reply(format, "Done.", &[]),
                        }
                    })
                    .await;
                let mut messages = agent_messages(format, 40);
                let mut first = start_request(&harness, format, &messages).await;
                let got = read_until(&mut first, terminal).await;
                messages.extend(assistant_messages(format, &parse_stream(format, got.as_bytes())));
                messages.push(result(format, "call_shell"));
                harness.post(endpoint(format), streaming_body(format, &messages)).await;
                let next = sent_messages(format, harness.received().last().unwrap());
                let results: Vec<&str> =
                    next.iter().flat_map(|message| message.results()).map(|result| &*result.call_id).collect();
                assert!(
                    results.ends_with(&["call_hidden", "call_shell"]),
                    "{format:?} {end:?} {terminal}: {results:?}"
                );
            }
        }
    }
}

/// Only the end of the response waits for the record: data after a hidden call is forwarded at once.
#[tokio::test]
async fn output_after_hidden_call_is_not_delayed() {
    for format in FORMATS {
        let kept = temp_archive();
        let (_, last_events) = terminals(format)[0];
        let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
            streamed_reply(format, "Both. ", &[ReplyCall::unfold(received), ReplyCall::client_tool()])
                .with_before_last(last_events, BodyEnd::Never.piece())
        })
        .await;
        let mut first = start_request(&harness, format, &agent_messages(format, 40)).await;
        let got = read_until(&mut first, "call_shell").await;
        assert!(!got.contains("call_hidden"), "{format:?}: {got}");
    }
}

/// An error of the provider in a hidden round.
const OVERLOADED: &str = r#"{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded", "code": "busy"}, "request_id": "req_7"}"#;

/// Requests for a hidden round after output was shown to the client.
const ATTEMPTS: usize = 11;

fn overloaded(headers: &[(&'static str, &'static str)]) -> UpstreamReply {
    UpstreamReply::Headed(529, [&[("request-id", "req_7")], headers].concat(), OVERLOADED.into())
}

/// The form in which a response is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Stream,
    Body,
}

impl Delivery {
    fn request(self, format: Format) -> String {
        match self {
            Delivery::Stream => streaming_body(format, &agent_messages(format, 40)),
            Delivery::Body => request_body(format, &agent_messages(format, 40)),
        }
    }

    /// Returns one round of a response.
    fn reply(self, format: Format, text: &str, calls: &[ReplyCall]) -> UpstreamReply {
        match self {
            Delivery::Stream => streamed_reply(format, text, calls),
            Delivery::Body => buffered_reply(format, text, calls),
        }
    }

    fn read(self, format: Format, got: &ClientResponse) -> Response<'static> {
        match self {
            Delivery::Stream => parse_stream(format, &got.body),
            Delivery::Body => Response::parse(format, &got.body).unwrap().into_owned(),
        }
    }
}

/// Returns one round of a response as a body.
fn buffered_reply(format: Format, text: &str, calls: &[ReplyCall]) -> UpstreamReply {
    let body = match format {
        Format::OpenAiChat => {
            let calls: Vec<Value> = calls.iter().map(|call| json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })).collect();
            let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
            json!({ "id": "c", "choices": [{ "index": 0, "message": { "role": "assistant", "content": text, "tool_calls": calls }, "finish_reason": finish }],
                "usage": { "prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14 } })
        }
        Format::OpenAiResponses => {
            let mut items = vec![
                json!({ "type": "message", "id": "msg", "role": "assistant", "content": [{ "type": "output_text", "text": text }] }),
            ];
            items.extend(calls.iter().map(|call| json!({ "type": "function_call", "id": "fc", "call_id": call.id, "name": call.name, "arguments": call.arguments })));
            json!({ "id": "r", "object": "response", "status": "completed", "output": items,
                "usage": { "input_tokens": 9, "output_tokens": 5, "total_tokens": 14 } })
        }
        Format::Anthropic => {
            let mut blocks = vec![json!({ "type": "text", "text": text })];
            let input = |call: &ReplyCall| serde_json::from_str::<Value>(&call.arguments).unwrap();
            blocks.extend(
                calls
                    .iter()
                    .map(|call| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input(call) })),
            );
            let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
            json!({ "id": "m", "role": "assistant", "content": blocks, "stop_reason": stop, "usage": { "input_tokens": 9, "output_tokens": 5 } })
        }
        other => panic!("no script for {other:?}"),
    };
    UpstreamReply::json(body.to_string())
}

/// Starts an upstream whose first round is `text` and a hidden call, and whose second round fails with `failure` the
/// given number of times before it succeeds.
async fn start_failing(
    format: Format,
    delivery: Delivery,
    archive: &Archive,
    text: &'static str,
    (failures, failure): (usize, UpstreamReply),
) -> ProxyHarness {
    let failed = AtomicUsize::new(0);
    ProxyHarness::start(small_window_settings(), Some(archive.clone()), move |received: &ReceivedRequest| {
        match (was_answered(format, received), &failure) {
            (false, _) => delivery.reply(format, text, &[ReplyCall::unfold(received)]),
            (true, failure) if failed.fetch_add(1, Ordering::SeqCst) < failures => failure.clone(),
            (true, _) => delivery.reply(format, "It is 42.", &[]),
        }
    })
    .await
}

/// Asserts that a failure in the second round is retried with the same bytes, and that the client does not see it.
async fn assert_retried(format: Format, delivery: Delivery, failures: usize, failure: UpstreamReply) {
    let kept = temp_archive();
    let case = format!("{format:?} {delivery:?} {failure:?}");
    let harness = start_failing(format, delivery, &kept.archive, "Let me see. ", (failures, failure)).await;
    let got = harness.post(endpoint(format), delivery.request(format)).await;
    assert_eq!((got.status.as_u16(), got.is_complete), (200, true), "{case}: {}", got.text());
    assert_eq!(delivery.read(format, &got).text(), "Let me see. It is 42.", "{case}: {}", got.text());
    let received = harness.received();
    assert_eq!(received.len(), 2 + failures, "{case}");
    assert!(received[2..].iter().all(|request| request.body == received[1].body), "{case}");
}

#[tokio::test]
async fn rate_limit_in_hidden_round_is_retried_after_retry_after() {
    let limited =
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"Slow down","code":"rate_limit_exceeded"}}"#;
    for format in FORMATS {
        let reply = UpstreamReply::Headed(429, vec![("retry-after-ms", "300")], limited.into());
        for delivery in [Delivery::Stream, Delivery::Body] {
            let started_at = Instant::now();
            assert_retried(format, delivery, 2, reply.clone()).await;
            assert!(started_at.elapsed() >= Duration::from_millis(600), "{format:?}");
        }
    }
    let started_at = Instant::now();
    let reply = UpstreamReply::Headed(429, vec![("retry-after", "1")], limited.into());
    assert_retried(Format::Anthropic, Delivery::Stream, 1, reply).await;
    assert!(started_at.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn overload_in_hidden_round_is_retried() {
    for (status, body) in
        [(529, OVERLOADED), (500, "{}"), (502, "<html>"), (503, ""), (504, "{}"), (408, "{}"), (409, "{}")]
    {
        let reply = UpstreamReply::Headed(status, vec![("retry-after-ms", "10")], body.into());
        assert_retried(Format::Anthropic, Delivery::Stream, 1, reply).await;
    }
}

#[tokio::test]
async fn reset_connection_in_hidden_round_is_retried() {
    for format in FORMATS {
        for delivery in [Delivery::Stream, Delivery::Body] {
            // The connection pool itself sends a request again at once when a connection breaks early.
            assert_retried(format, delivery, 3, UpstreamReply::Disconnect).await;
        }
        assert_retried(format, Delivery::Stream, 1, UpstreamReply::Stream(vec![StreamPiece::Break])).await;
        assert_retried(format, Delivery::Body, 1, UpstreamReply::Truncated { length: 99, body: r#"{"id":"#.into() })
            .await;
    }
}

/// The provider fails inside a stream that started with 200, before the model's first output.
#[tokio::test]
async fn overload_inside_hidden_stream_is_retried() {
    for format in FORMATS {
        assert_retried(format, Delivery::Stream, 2, overloaded_stream(format)).await;
    }
}

fn overloaded_stream(format: Format) -> UpstreamReply {
    UpstreamReply::stream([match format {
        Format::Anthropic => format!("event: error\ndata: {OVERLOADED}\n\n"),
        Format::OpenAiChat => "data: {\"error\":{\"message\":\"Overloaded\",\"code\":503}}\n\n".into(),
        Format::OpenAiResponses => "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":0,\"response\":{\"id\":\"r\",\"status\":\"failed\",\"output\":[],\"error\":{\"code\":\"server_error\",\"message\":\"Overloaded\"}}}\n\n".into(),
        other => panic!("no script for {other:?}"),
    }])
}

/// Nothing was sent to the client: it gets the provider's status, headers and bytes, and the usage is recorded.
#[tokio::test]
async fn persistent_overload_before_output_is_forwarded_unchanged() {
    for format in FORMATS {
        for (delivery, text) in [(Delivery::Stream, ""), (Delivery::Body, "Let me see. ")] {
            let kept = temp_archive();
            let failure = overloaded(&[("retry-after-ms", "10"), ("retry-after", "0")]);
            let harness = start_failing(format, delivery, &kept.archive, text, (usize::MAX, failure)).await;
            let got = harness.post(endpoint(format), delivery.request(format)).await;
            assert_eq!((got.status.as_u16(), got.text()), (529, OVERLOADED), "{format:?} {delivery:?}");
            assert_eq!((got.header("retry-after"), got.header("request-id")), (Some("0"), Some("req_7")));
            assert_eq!(got.header("content-type"), Some("application/json"));
            assert_eq!(harness.received().len(), 4, "{format:?} {delivery:?}: three attempts");
            if delivery == Delivery::Body || format == Format::Anthropic {
                assert_eq!(harness.metric("foldline_reported_tokens_total").await, 14.0, "{format:?} {delivery:?}");
            }
        }
    }
}

/// A wait beyond the proxy's limit is left to the client.
#[tokio::test]
async fn long_retry_after_is_forwarded_at_once() {
    for format in FORMATS {
        let kept = temp_archive();
        let failure = overloaded(&[("retry-after", "3600")]);
        let harness = start_failing(format, Delivery::Stream, &kept.archive, "", (usize::MAX, failure)).await;
        let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
        assert_eq!((got.status.as_u16(), got.text()), (529, OVERLOADED), "{format:?}");
        assert_eq!(got.header("retry-after"), Some("3600"));
        assert_eq!(harness.received().len(), 2, "{format:?}");
    }
}

#[tokio::test]
async fn refusal_in_hidden_round_is_forwarded_without_retry() {
    let refusal = r#"{"error": {"type": "invalid_request_error", "message": "no such beta"}}"#;
    for format in FORMATS {
        for status in [400, 401, 403] {
            let kept = temp_archive();
            let failure = (usize::MAX, UpstreamReply::error(status, refusal));
            let harness = start_failing(format, Delivery::Stream, &kept.archive, "", failure).await;
            let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
            assert_eq!((got.status.as_u16(), got.text()), (status, refusal), "{format:?}");
            assert_eq!(harness.received().len(), 2, "{format:?}");
        }
    }
}

/// The client has received text already: its stream ends with the provider's error, in the form that clients retry on.
#[tokio::test]
async fn persistent_overload_after_text_ends_stream_with_providers_error() {
    for format in FORMATS {
        let kept = temp_archive();
        let failure = overloaded(&[("retry-after-ms", "10")]);
        let harness =
            start_failing(format, Delivery::Stream, &kept.archive, "Let me see. ", (usize::MAX, failure)).await;
        let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
        assert_eq!(got.status, 200);
        let last = got.text().trim_end().rsplit("\n\n").next().unwrap();
        let (name, data) = last.rsplit_once("data: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        match format {
            Format::Anthropic => {
                assert_eq!(name, "event: error\n");
                assert_eq!(
                    data,
                    json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } })
                );
            }
            Format::OpenAiChat => {
                let error =
                    json!({ "message": "Overloaded", "type": "overloaded_error", "param": null, "code": "busy" });
                assert_eq!(data, json!({ "error": error }));
                assert!(!got.is_complete, "a stream without its end must not look complete");
            }
            Format::OpenAiResponses => {
                assert_eq!(name, "event: response.failed\n");
                assert_eq!(data["response"]["error"], json!({ "code": "busy", "message": "Overloaded" }));
            }
            other => panic!("no script for {other:?}"),
        }
        assert!(got.text().contains("Let me see. ") && !got.text().contains("[DONE]"), "{}", got.text());
        // Claude Code ends its turn at an error after output, so the proxy makes as many attempts as it would.
        assert_eq!(harness.received().len(), 1 + ATTEMPTS);
    }
}

/// Codex keeps the items of a failed response and continues after them: the hidden round is sent again.
#[tokio::test]
async fn shown_items_of_failed_response_are_continued_with_hidden_pair() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    let failure = overloaded(&[("retry-after-ms", "10")]);
    let harness = start_failing(format, Delivery::Stream, &kept.archive, "Let me see. ", (ATTEMPTS, failure)).await;
    let asked = agent_messages(format, 40);
    let got = harness.post(endpoint(format), streaming_body(format, &asked)).await;
    let done = got.text().split("\n\n").filter_map(|event| event.rsplit_once("data: "));
    let done = done.map(|(_, data)| serde_json::from_str::<Value>(data).unwrap());
    let shown: Vec<Value> =
        done.filter(|event| event["type"] == "response.output_item.done").map(|event| event["item"].clone()).collect();
    assert!(!shown.is_empty(), "{}", got.text());
    let continued = harness.post(endpoint(format), streaming_body(format, &[asked.clone(), shown].concat())).await;
    assert_eq!(parse_stream(format, &continued.body).text(), "It is 42.", "{}", continued.text());
    let received = harness.received();
    assert_eq!(received.len(), 2 + ATTEMPTS);
    assert_eq!(sent_messages(format, &received[1 + ATTEMPTS]), sent_messages(format, &received[1]));
}

/// Another client discards the items of a failed response and repeats its request: the hidden round is not restored.
#[tokio::test]
async fn discarded_items_of_failed_response_are_not_restored() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    let failure = overloaded(&[("retry-after-ms", "10")]);
    let harness = start_failing(format, Delivery::Stream, &kept.archive, "Let me see. ", (ATTEMPTS, failure)).await;
    let asked = agent_messages(format, 40);
    harness.post(endpoint(format), streaming_body(format, &asked)).await;
    let other = json!({ "type": "message", "id": "msg_other", "role": "assistant", "content": [{ "type": "output_text", "text": "No." }] });
    let next = [asked.clone(), vec![other, json!({ "role": "user", "content": "Why?" })]].concat();
    for messages in [next, asked] {
        let before = harness.received().len();
        harness.post(endpoint(format), streaming_body(format, &messages)).await;
        let sent = String::from_utf8_lossy(&harness.received()[before].body).into_owned();
        assert!(!sent.contains("call_hidden"), "{sent}");
    }
}

/// A body without an error type: the type follows from the status.
#[tokio::test]
async fn untyped_error_after_text_gets_type_of_its_status() {
    for (format, status, name) in [
        (Format::Anthropic, 529, "overloaded_error"),
        (Format::Anthropic, 429, "rate_limit_error"),
        (Format::Anthropic, 500, "api_error"),
        (Format::OpenAiChat, 429, "rate_limit_exceeded"),
        (Format::OpenAiResponses, 429, "rate_limit_exceeded"),
        (Format::OpenAiResponses, 502, "server_error"),
    ] {
        let kept = temp_archive();
        let failure = UpstreamReply::Headed(status, vec![("retry-after-ms", "10")], "<html>busy</html>".into());
        let harness =
            start_failing(format, Delivery::Stream, &kept.archive, "Let me see. ", (usize::MAX, failure)).await;
        let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
        assert!(got.text().contains(&format!("{name:?}")), "{format:?} {status}: {}", got.text());
        assert!(got.text().contains("<html>busy</html>"), "{format:?} {status}: {}", got.text());
    }
}

/// A client that disconnects during the wait ends the retries, and its request is no longer counted as open.
#[tokio::test]
async fn client_disconnect_ends_retries() {
    for (format, text) in [(Format::Anthropic, ""), (Format::OpenAiChat, "Let me see. ")] {
        let kept = temp_archive();
        let failure = overloaded(&[("retry-after-ms", "700")]);
        let harness = start_failing(format, Delivery::Stream, &kept.archive, text, (usize::MAX, failure)).await;
        let request = streaming_body(format, &agent_messages(format, 40));
        let disconnect = async {
            while harness.received().len() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        tokio::select! {
            got = harness.post(endpoint(format), request) => panic!("{format:?}: answered before the wait ended: {got:?}"),
            () = disconnect => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(harness.received().len(), 2, "{format:?}");
        assert_eq!(harness.metric("foldline_open_requests").await, 0.0, "{format:?}");
    }
}

/// Before the first output the response head is held back, but not longer than the keep-alive interval.
#[tokio::test]
async fn response_head_is_sent_before_first_output_of_slow_model() {
    for format in FORMATS {
        let kept = temp_archive();
        let timeouts = Timeouts { keep_alive: Duration::from_millis(100), ..Timeouts::default() };
        let harness = ProxyHarness::start(
            ProxySettings { timeouts, ..small_window_settings() },
            Some(kept.archive.clone()),
            move |received| match was_answered(format, received) {
                false => streamed_reply(format, "", &[ReplyCall::unfold(received)]),
                true => UpstreamReply::Stream(vec![BodyEnd::Never.piece()]),
            },
        )
        .await;
        let response =
            tokio::time::timeout(WAIT_LIMIT, start_request(&harness, format, &agent_messages(format, 40))).await;
        let first_event = match format {
            Format::OpenAiChat => r#""role":"assistant""#,
            Format::OpenAiResponses => "response.created",
            Format::Anthropic => "message_start",
            other => panic!("no script for {other:?}"),
        };
        read_until(&mut response.unwrap(), first_event).await;
    }
}
