//! Limits of the hidden tool, and the list of tools, which never changes inside a conversation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldline::laws::{LawProfile, check};
use foldline::wire::{Format, Request, StopReason, StreamReader};
use foldline_server::proxy::{ProxyLimits, ProxySettings};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fold::{agent_messages, endpoint, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, ReceivedRequest, StreamPiece, UpstreamReply, settings};
use crate::unfold_tool::{FORMATS, ReplyCall, small_window_settings, streamed_reply, streaming_body, was_answered};

fn tool_names(format: Format, received: &ReceivedRequest) -> Vec<String> {
    let request = Request::parse(format, &received.body).unwrap();
    request.conversation().tools.iter().map(|tool| tool.name.to_string()).collect()
}

/// A model calls the tool 100 times in one round: 32 calls are served, the others get an error result, and the client gets
/// what the model writes then.
#[tokio::test]
async fn hidden_calls_per_answer_are_bounded() {
    for format in FORMATS {
        let kept = temp_archive();
        let settings = ProxySettings { window: Some(64_000), ..settings() };
        let harness = ProxyHarness::start(settings, Some(kept.archive.clone()), move |received| {
            if was_answered(format, received) {
                return streamed_reply(format, "Done.", &[]);
            }
            let first = ReplyCall::unfold(received);
            let others = (1..100).map(|at| ReplyCall {
                id: format!("call_{at}_hidden").leak(),
                name: "unfold",
                arguments: first.arguments.clone(),
            });
            let calls: Vec<_> =
                others.chain([ReplyCall { id: "call_hidden", ..ReplyCall::unfold(received) }]).collect();
            streamed_reply(format, "Let me see. ", &calls)
        })
        .await;
        let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, 140))).await;
        assert!(got.is_complete && got.text().contains("Done."), "{format:?}: {}", got.text());
        let received = harness.received();
        let last = Request::parse(format, &received.last().unwrap().body).unwrap();
        let messages = &last.conversation().messages;
        let results = messages.iter().flat_map(|message| message.results());
        let texts: Vec<String> = results
            .filter(|result| result.call_id.ends_with("_hidden"))
            .map(|result| result.texts().map(|text| text.to_string()).collect())
            .collect();
        assert_eq!(texts.len(), 100, "{format:?}");
        let refused = texts.iter().filter(|text| text.starts_with("No more can be unfolded")).count();
        assert_eq!(refused, 100 - 32, "{format:?}");
        assert_eq!(harness.metric("foldline_unfolds_total").await, 32.0);
    }
}

/// A model that keeps unfolding is answered that no more is served, and the client gets what it writes then.
#[tokio::test]
async fn persistent_unfolding_ends_with_the_models_text() {
    let format = Format::OpenAiChat;
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        let text = String::from_utf8_lossy(&received.body).into_owned();
        if text.contains("No more can be unfolded") {
            return streamed_reply(format, "Then without it.", &[]);
        }
        let id: &'static str = format!("call_{}", received.body.len()).leak();
        streamed_reply(format, "Again. ", &[ReplyCall { id, ..ReplyCall::unfold(received) }])
    })
    .await;
    let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
    assert!(got.is_complete && got.text().contains("Then without it."), "{}", got.text());
}

/// A model that never stops unfolding gets results that state it; then the response ends like any other, with what the model
/// has written, and the client can continue the conversation.
#[tokio::test]
async fn endless_unfolding_ends_the_answer_without_an_error() {
    for format in FORMATS {
        let kept = temp_archive();
        let (requests, again) = (AtomicUsize::new(0), |number| format!("Again{} ", "!".repeat(number)));
        let text: String = (0..8).map(again).collect();
        let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
            let number = requests.fetch_add(1, Ordering::Relaxed);
            let id: &'static str = format!("call_{number}").leak();
            streamed_reply(format, &again(number), &[ReplyCall { id, ..ReplyCall::unfold(received) }])
        })
        .await;
        let messages = agent_messages(format, 40);
        let got = harness.post(endpoint(format), streaming_body(format, &messages)).await;
        assert!(got.is_complete && got.status == 200, "{format:?}: {}", got.text());
        let mut reader = StreamReader::new(format);
        reader.push(&got.body);
        let response = reader.finish();
        assert_eq!((response.text(), response.calls().count()), (text.clone(), 0), "{format:?}");
        assert_eq!(response.stop.as_ref().unwrap().reason, StopReason::EndTurn, "{format:?}");
        assert!(response.error.is_none());
        let received = harness.received();
        assert_eq!(received.len(), 8, "{format:?}");
        let refused = String::from_utf8_lossy(&received[7].body).matches("No more can be unfolded").count();
        assert_eq!(refused, 3, "{format:?}: four rounds are served");
        for later in &received[1..] {
            assert_eq!(tool_names(format, &received[0]), tool_names(format, later));
        }
        // The client's next request has the calls and their results again.
        let mut messages = messages;
        messages
            .extend([json!({ "role": "assistant", "content": text }), json!({ "role": "user", "content": "Go on." })]);
        if format == Format::OpenAiChat {
            harness.post(endpoint(format), streaming_body(format, &messages)).await;
            let next = harness.received()[8].clone();
            let refused = String::from_utf8_lossy(&next.body).matches("No more can be unfolded").count();
            assert_eq!(refused, 4, "the last call has a result, too");
            let request = Request::parse(format, &next.body).unwrap();
            let profile = LawProfile::for_request(&request);
            assert_eq!(check(&request, &profile), []);
        }
    }
}

/// The tool stays in the list if a later request of the conversation cannot be folded.
#[tokio::test]
async fn tools_stay_when_a_fold_fails() {
    for format in FORMATS {
        let kept = temp_archive();
        let harness =
            ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), |_| UpstreamReply::json("{}"))
                .await;
        let mut messages = agent_messages(format, 2);
        harness.post(endpoint(format), request_body(format, &messages)).await;
        messages.extend([
            json!({ "role": "assistant", "content": "Done." }),
            json!({ "role": "user", "content": "word ".repeat(40_000) }),
        ]);
        let sent = request_body(format, &messages);
        harness.post(endpoint(format), sent.clone()).await;
        let received = harness.received();
        assert!(received[1].body.len() > sent.len(), "{format:?}: nothing is folded");
        assert_eq!(tool_names(format, &received[0]), tool_names(format, &received[1]), "{format:?}");
        assert_eq!(tool_names(format, &received[1]).last().map(String::as_str), Some("unfold"));
    }
}

/// A conversation that began without the tool never gets it, also after a restart with another setting.
#[tokio::test]
async fn tool_is_never_added_to_a_running_conversation() {
    let format = Format::Anthropic;
    let kept = temp_archive();
    for (offer_unfold_tool, turns) in [(false, 1), (true, 2)] {
        let settings = ProxySettings { offer_unfold_tool, ..small_window_settings() };
        let harness = ProxyHarness::start(settings, Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
        harness.post(endpoint(format), request_body(format, &agent_messages(format, turns))).await;
        assert_eq!(tool_names(format, &harness.received()[0]), ["read_file"]);
        if offer_unfold_tool {
            let other = [json!({ "role": "user", "content": "Another task." })];
            harness.post(endpoint(format), request_body(format, &other)).await;
            assert_eq!(tool_names(format, &harness.received()[1]), ["read_file", "unfold"]);
        }
    }
}

/// A response that is buffered counts against the memory of all bodies until the client has it.
#[tokio::test]
async fn buffered_answers_count_against_the_body_budget() {
    const MB: usize = 1 << 20;
    let limits = ProxyLimits { total_body_bytes: 64 * MB, ..ProxyLimits::default() };
    let harness = ProxyHarness::start(ProxySettings { limits, ..settings() }, None, |_| {
        UpstreamReply::json(json!({ "choices": [], "filler": "x".repeat(24 * MB) }).to_string())
    })
    .await;
    let body = request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, 1));
    let request = || harness.request("POST", endpoint(Format::OpenAiChat)).body(body.clone().into()).unwrap();
    let stalled = harness.send_head(request()).await;
    assert!(harness.metric("foldline_held_body_bytes").await >= 20.0 * MB as f64);
    let got = harness.send(request()).await;
    let parsed: Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(parsed["filler"].as_str().unwrap().len(), 24 * MB, "a second one fits, or is forwarded as it arrives");
    drop(stalled);
    let released = async {
        while harness.metric("foldline_held_body_bytes").await > 0.0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), released).await.expect("released with the client");
}

/// An event whose end never comes, and output that is kept until the answer is complete: both are held in memory.
#[tokio::test]
async fn held_parts_of_streams_count_against_the_body_budget() {
    const MB: usize = 1 << 20;
    let endless_event = format!("data: {{\"choices\":[],\"filler\":\"{}", "x".repeat(24 * MB));
    let delta = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "y".repeat(MB));
    for (sent, kept) in [(endless_event, None), (delta.repeat(24), Some(temp_archive()))] {
        let (length, gate) = (sent.len(), Arc::new(Semaphore::new(0)));
        let pieces = vec![StreamPiece::Bytes(sent), StreamPiece::GateClosed(gate.clone())];
        let limits = ProxyLimits { total_body_bytes: 64 * MB, ..ProxyLimits::default() };
        let archive = kept.as_ref().map(|kept| kept.archive.clone());
        let harness = ProxyHarness::start(ProxySettings { limits, ..settings() }, archive, move |_| {
            UpstreamReply::TypedStream("text/event-stream", pieces.clone())
        })
        .await;
        let body = streaming_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, 1));
        let read_all = || async {
            let request = harness.request("POST", endpoint(Format::OpenAiChat)).body(body.clone().into()).unwrap();
            harness.send(request).await.body.len()
        };
        let held = async {
            let (mut highest, mut end) = (0.0_f64, Instant::now() + Duration::from_secs(15));
            while Instant::now() < end {
                let was_low = highest < 20.0;
                highest = highest.max(harness.metric("foldline_held_body_bytes").await / MB as f64);
                if was_low && highest >= 20.0 {
                    end = Instant::now() + Duration::from_secs(1);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            gate.close();
            highest
        };
        let (first, second, third, held) = tokio::join!(read_all(), read_all(), read_all(), held);
        assert_eq!([first, second, third], [length; 3], "all bytes are forwarded");
        assert!((20.0..=64.0).contains(&held), "{held} MB are counted");
        assert_eq!(harness.metric("foldline_held_body_bytes").await, 0.0, "released at the end");
    }
}
