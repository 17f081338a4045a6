//! Failures that proxies before this one had, by the numbers under which they were collected: each is a
//! scenario that users met, looked at from the upstream's side.

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

/// 8: a message that is queued while the conversation is being compacted vanishes. Here ten requests of
/// one session come at once, each with a message of its own, at the point where the session must crease.
#[tokio::test]
async fn failure_8_concurrent_messages_survive_a_crease() {
    for format in FORMATS {
        let stand = Arc::new(ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json("{}")).await);
        let whole = agent_messages(format, 40);
        let asked: Vec<_> = (0..10)
            .map(|number| {
                let stand = stand.clone();
                let mut messages = whole.clone();
                messages.push(json!({ "role": "user", "content": format!("queued message {number}") }));
                tokio::spawn(async move { stand.post(endpoint(format), request_body(format, &messages)).await.status })
            })
            .collect();
        for one in asked {
            assert_eq!(one.await.unwrap(), 200);
        }
        let received = stand.received();
        assert_eq!(received.len(), 10);
        for number in 0..10 {
            let said = format!("queued message {number}");
            let with = received.iter().filter(|it| String::from_utf8_lossy(&it.body).contains(&said)).count();
            assert_eq!(with, 1, "{format:?}: {said}");
        }
        assert!(received.iter().all(|it| tokens(format, it) < 16_000), "{format:?}");
    }
}

/// 10: a local server cuts off the head of a prompt that is too long, without a word. The count in its first answer is
/// suspicious; asked again, now that the model is loaded, it reports its window, and from then on nothing is too long for it.
#[tokio::test]
async fn failure_10_truncating_server_is_detected_once() {
    let format = Format::OpenAiChat;
    let quiet = ProxySettings { offer_unfold_tool: false, ..settings() };
    let loaded = AtomicBool::new(false);
    let stand = ProxyHarness::start_answering_probes(quiet, None, move |received| {
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
        assert_eq!(stand.post(endpoint(format), request).await.status, 200);
    }
    let sent: Vec<u64> = stand.received().iter().map(|it| tokens(format, it)).collect();
    assert!(sent[0] > 4_096 && sent[1..].iter().all(|&sent| sent <= 4_096), "{sent:?}");
}

/// 13: on the recall path the client gets an empty 200, or everything at once at the end; and two tools in
/// one turn are lost. Here the first words arrive before the hidden call is answered.
#[tokio::test]
async fn failure_13_unfold_keeps_stream_and_both_tools() {
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let slow = Duration::from_millis(600);
        let stand = ProxyHarness::start(small_window_settings(), Some(archive), move |received| {
            let text = String::from_utf8_lossy(&received.body).into_owned();
            match (text.contains("call_hidden"), text.contains("call_shell")) {
                (false, _) => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
                // The second round takes its time, and ends in two calls at once: ours, and the client's.
                (true, false) => {
                    let two = [ReplyCall { id: "call_two", ..ReplyCall::unfold(received) }, ReplyCall::client_tool()];
                    streamed_reply(format, "Both. ", &two).delayed(slow)
                }
                (true, true) => streamed_reply(format, "Done.", &[]),
            }
        })
        .await;
        let request = stand.request("POST", endpoint(format));
        let request = request.body(streaming_body(format, &agent_messages(format, 40)).into()).unwrap();
        let began = std::time::Instant::now();
        let mut response = stand.send_head(request).await.into_body();
        let mut got = String::new();
        let mut first_words = None;
        while let Some(frame) = http_body_util::BodyExt::frame(&mut response).await {
            got.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
            if first_words.is_none() && got.contains("Let me see. ") {
                first_words = Some(began.elapsed());
            }
        }
        assert!(began.elapsed() >= slow, "{format:?}");
        assert!(first_words.unwrap() < began.elapsed() - slow / 2, "{format:?}: all came at the end");
        assert!(got.contains("Both. ") && got.contains("call_shell"), "{format:?}: {got}");
        assert!(!got.contains("unfold") && !got.contains("call_two"), "{format:?}: {got}");
    }
}

/// 15: a proxy reports savings and changes nothing. What it reports is held against the bytes that the
/// upstream received.
#[tokio::test]
async fn failure_15_reported_tokens_match_what_upstream_received() {
    for format in FORMATS {
        let stand =
            ProxyHarness::start(ProxySettings { offer_unfold_tool: false, ..small_window_settings() }, None, |_| {
                UpstreamReply::json("{}")
            })
            .await;
        let request = request_body(format, &agent_messages(format, 40));
        let got = stand.post(endpoint(format), request.clone()).await;
        let (raw, sent) = got.header("x-foldline-tokens").unwrap().split_once(',').unwrap();
        let (raw, sent): (u64, u64) = (raw.parse().unwrap(), sent.parse().unwrap());
        let received = stand.only_request();
        assert!(received.body.len() < request.len() / 2, "{format:?}");
        assert!(sent < 16_000 && raw > 16_000, "{format:?}: {raw} {sent}");
        let counted = tokens(format, &received);
        assert!(counted.abs_diff(sent) <= sent / 50, "{format:?}: claimed {sent}, received {counted}");
        assert_eq!(stand.metric("foldline_sent_tokens_total").await as u64, sent);
        assert_eq!(stand.metric("foldline_raw_tokens_total").await as u64, raw);
        let markers = foldline::marker::handles(std::str::from_utf8(&received.body).unwrap()).count();
        let folds: Value = got.header("x-foldline-folds").unwrap().parse::<u64>().unwrap().into();
        assert_ne!(folds, json!(0));
        assert_eq!(markers, 0, "without an archive nothing can be unfolded, and no marker says that it can");
    }
}
