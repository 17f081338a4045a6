//! Failures of earlier proxies, by the numbers under which they were collected: each is a scenario that users
//! encountered, checked on the side of the upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldline::wire::{Format, Request};
use foldline::{Meter, ModelTable};
use foldline_archive::Archive;
use foldline_server::proxy::ProxySettings;
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};
use crate::unfold_tool::{FORMATS, ReplyCall, streamed_reply, streaming_body};

fn small_window_settings() -> ProxySettings {
    ProxySettings { window: Some(16_000), ..settings() }
}

fn tokens(format: Format, received: &ReceivedRequest) -> u64 {
    let request = Request::parse(format, &received.body).unwrap();
    let model = request.conversation().model.clone();
    Meter::for_model(ModelTable::builtin(), model.as_deref()).conversation(request.conversation())
}

/// 8: a message that is queued while the conversation is being compacted is lost. Here ten concurrent requests of one
/// session, each with its own message, arrive when the session must crease.
#[tokio::test]
async fn failure_8_concurrent_messages_survive_a_crease() {
    for format in FORMATS {
        let harness = Arc::new(ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json("{}")).await);
        let whole = agent_messages(format, 40);
        let tasks: Vec<_> = (0..10)
            .map(|number| {
                let harness = harness.clone();
                let mut messages = whole.clone();
                messages.push(json!({ "role": "user", "content": format!("queued message {number}") }));
                tokio::spawn(
                    async move { harness.post(endpoint(format), request_body(format, &messages)).await.status },
                )
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 200);
        }
        let received = harness.received();
        assert_eq!(received.len(), 10);
        for number in 0..10 {
            let text = format!("queued message {number}");
            let count =
                received.iter().filter(|request| String::from_utf8_lossy(&request.body).contains(&text)).count();
            assert_eq!(count, 1, "{format:?}: {text}");
        }
        assert!(received.iter().all(|request| tokens(format, request) < 16_000), "{format:?}");
    }
}

/// 10: a local server silently truncates the start of a long prompt. The count in its first response is suspicious;
/// queried again, now that the model is loaded, it reports its window, and later prompts fit.
#[tokio::test]
async fn failure_10_truncating_server_is_detected_once() {
    let format = Format::OpenAiChat;
    let settings = ProxySettings { offer_unfold_tool: false, ..settings() };
    let loaded = AtomicBool::new(false);
    let harness = ProxyHarness::start_answering_probes(settings, None, move |received| {
        match received.path.as_str() {
            "/v1/chat/completions" => loaded.store(true, Ordering::SeqCst),
            "/api/ps" if loaded.load(Ordering::SeqCst) => {
                let model = json!({ "name": "some-local-model:latest", "context_length": 4_096 });
                return UpstreamReply::json(json!({ "models": [model] }).to_string());
            }
            _ => return UpstreamReply::error(404, "{}"),
        }
        let sent = tokens(format, received);
        let seen = if sent <= 4_096 { sent } else { 2_050 };
        UpstreamReply::json(json!({ "choices": [{ "index": 0, "message": { "role": "assistant", "content": "yes" }, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": seen, "completion_tokens": 1, "total_tokens": seen + 1 } }).to_string())
    })
    .await;
    for turns in 20..30 {
        let request = request_body(format, &agent_messages(format, turns)).replace("gpt-4o", "some-local-model");
        assert_eq!(harness.post(endpoint(format), request).await.status, 200);
    }
    let sent: Vec<u64> = harness.received().iter().map(|request| tokens(format, request)).collect();
    assert!(sent[0] > 4_096 && sent[1..].iter().all(|&sent| sent <= 4_096), "{sent:?}");
}

/// 13: when the model unfolds, the client gets an empty 200, or everything at once at the end; and two tools in one turn
/// are lost. Here the first text arrives before the hidden call is answered.
#[tokio::test]
async fn failure_13_unfold_keeps_stream_and_both_tools() {
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let slow = Duration::from_millis(600);
        let harness = ProxyHarness::start(small_window_settings(), Some(archive), move |received| {
            let text = String::from_utf8_lossy(&received.body).into_owned();
            match (text.contains("call_hidden"), text.contains("call_shell")) {
                (false, _) => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
                // The second round is slow, and ends with two calls: ours and the client's.
                (true, false) => {
                    let calls = [ReplyCall { id: "call_two", ..ReplyCall::unfold(received) }, ReplyCall::client_tool()];
                    streamed_reply(format, "Both. ", &calls).delayed(slow)
                }
                (true, true) => streamed_reply(format, "Done.", &[]),
            }
        })
        .await;
        let request = harness.request("POST", endpoint(format));
        let request = request.body(streaming_body(format, &agent_messages(format, 40)).into()).unwrap();
        let started_at = std::time::Instant::now();
        let mut response = harness.send_head(request).await.into_body();
        let mut got = String::new();
        let mut first_text_at = None;
        while let Some(frame) = http_body_util::BodyExt::frame(&mut response).await {
            got.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
            if first_text_at.is_none() && got.contains("Let me see. ") {
                first_text_at = Some(started_at.elapsed());
            }
        }
        assert!(started_at.elapsed() >= slow, "{format:?}");
        assert!(first_text_at.unwrap() < started_at.elapsed() - slow / 2, "{format:?}: everything arrived at the end");
        assert!(got.contains("Both. ") && got.contains("call_shell"), "{format:?}: {got}");
        assert!(!got.contains("unfold") && !got.contains("call_two"), "{format:?}: {got}");
    }
}

/// 15: a proxy reports savings but changes nothing. The report is compared with the bytes that the upstream received.
#[tokio::test]
async fn failure_15_reported_tokens_match_what_upstream_received() {
    for format in FORMATS {
        let harness =
            ProxyHarness::start(ProxySettings { offer_unfold_tool: false, ..small_window_settings() }, None, |_| {
                UpstreamReply::json("{}")
            })
            .await;
        let request = request_body(format, &agent_messages(format, 40));
        let got = harness.post(endpoint(format), request.clone()).await;
        let (received_tokens, sent) = got.header("x-foldline-tokens").unwrap().split_once(',').unwrap();
        let (received_tokens, sent): (u64, u64) = (received_tokens.parse().unwrap(), sent.parse().unwrap());
        let received = harness.only_request();
        assert!(received.body.len() < request.len() / 2, "{format:?}");
        assert!(sent < 16_000 && received_tokens > 16_000, "{format:?}: {received_tokens} {sent}");
        let counted = tokens(format, &received);
        assert!(counted.abs_diff(sent) <= sent / 50, "{format:?}: reported {sent}, received {counted}");
        assert_eq!(harness.prompt_tokens("sent").await, sent);
        assert_eq!(harness.prompt_tokens("received").await, received_tokens);
        let markers = foldline::engine::marker::handles(std::str::from_utf8(&received.body).unwrap()).count();
        let folds: Value = got.header("x-foldline-folds").unwrap().parse::<u64>().unwrap().into();
        assert_ne!(folds, json!(0));
        assert_eq!(markers, 0, "without an archive no marker offers to unfold");
    }
}
