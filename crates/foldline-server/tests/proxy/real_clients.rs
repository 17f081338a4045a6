//! What real clients send besides plain conversations: references, threads, compaction requests; and what they can read
//! of dropped rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldline::Handle;
use foldline::engine::marker;
use foldline::wire::{Format, Request};
use foldline_server::proxy::{ProxySettings, ThreadMode};
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};
use crate::unfold_tool::{ReplyCall, small_window_settings, streamed_reply, streaming_body, was_answered};

fn body_text(received: &ReceivedRequest) -> String {
    String::from_utf8(received.body.to_vec()).unwrap()
}

/// Returns a conversation of the Vercel AI SDK: the provider stores the calls, and the client sends references to them.
fn referring_messages(turns: usize) -> Vec<Value> {
    let mut messages = agent_messages(Format::OpenAiResponses, turns);
    for (turn, call) in messages.iter_mut().skip(1).step_by(2).enumerate() {
        *call = json!({ "type": "item_reference", "id": format!("fc_{turn}") });
    }
    messages
}

#[tokio::test]
async fn references_stay_and_results_are_folded() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    let reply = |_: &ReceivedRequest| UpstreamReply::json("{}");
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), reply).await;
    let tools = |body: &[u8]| Request::parse(format, body).unwrap().field("tools").unwrap().to_owned();
    let mut sent_tools: Vec<String> = Vec::new();
    for turns in [0, 1, 20, 40, 41] {
        let request = request_body(format, &referring_messages(turns)).replace(r#""store":false"#, r#""store":true"#);
        let got = harness.post(endpoint(format), request).await;
        let tokens = got.header("x-foldline-tokens").unwrap().split_once(',').unwrap();
        let sent: u64 = tokens.1.parse().unwrap();
        assert!(sent <= 16_000, "{turns} turns: {tokens:?}");
        let received = harness.received().pop().unwrap();
        let text = body_text(&received);
        let references: Vec<String> = (0..turns).map(|turn| format!(r#""id":"fc_{turn}""#)).collect();
        let mut rest = text.as_str();
        for reference in &references {
            let at = rest.find(reference).unwrap_or_else(|| panic!("{turns} turns: no {reference}"));
            rest = &rest[at..];
        }
        assert_eq!(text.matches("function_call_output").count(), turns);
        sent_tools.push(tools(&received.body));
    }
    assert!(sent_tools[0].contains(r#""unfold""#), "{}", sent_tools[0]);
    assert!(sent_tools.iter().all(|tools| *tools == sent_tools[0]), "the tools of a conversation never change");
    assert!(body_text(harness.received().last().unwrap()).contains("[folded: "));
}

#[tokio::test]
async fn history_that_the_provider_stores_is_counted() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let request = json!({ "model": "gpt-4o", "previous_response_id": "r", "input": "go on" }).to_string();
    harness.post("/v1/responses", request.clone()).await;
    assert_eq!(harness.only_request().body, request);
    let metrics = harness.get("/foldline/metrics").await;
    assert!(metrics.text().contains(r#"foldline_passthrough_total{reason="previous_response_id"} 1"#));
}

fn thread_request() -> String {
    json!({ "model": "claude-opus-4-6", "max_tokens": 500,
        "thread": { "type": "continue", "previous_message_id": "msg_1" },
        "messages": [{ "role": "user", "content": "go on" }] })
    .to_string()
}

/// The official SDK then sends the whole history as a new thread, and after a second refusal without threads.
#[tokio::test]
async fn continued_thread_is_refused_so_that_history_is_sent() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let got = harness.post("/v1/messages", thread_request()).await;
    let body: Value = serde_json::from_str(got.text()).unwrap();
    assert_eq!((got.status.as_u16(), &body["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(body["error"]["details"]["error_code"], "thread_not_found");
    assert_eq!(harness.received().len(), 0);
    let created = thread_request().replace("continue", "create");
    assert_eq!(harness.post("/v1/messages", created).await.status, 200);
}

#[tokio::test]
async fn continued_thread_passes_if_allowed() {
    let settings = ProxySettings { threads: ThreadMode::Pass, ..settings() };
    let harness = ProxyHarness::start(settings, None, |_| UpstreamReply::json("{}")).await;
    assert_eq!(harness.post("/v1/messages", thread_request()).await.status, 200);
    assert_eq!(harness.only_request().body, thread_request());
    let metrics = harness.get("/foldline/metrics").await;
    assert!(metrics.text().contains(r#"foldline_passthrough_total{reason="thread"} 1"#));
}

/// The provider keeps the tools of the request that creates a thread: an injected one would be called in later requests,
/// which do not declare it, and the client does not know it.
#[tokio::test]
async fn created_thread_gets_no_tool_if_threads_pass() {
    let format = Format::Anthropic;
    let kept = temp_archive();
    let settings = ProxySettings { threads: ThreadMode::Pass, ..small_window_settings() };
    let overflow = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 20000 tokens > 16000 maximum"}}"#;
    let reply = move |_: &ReceivedRequest| UpstreamReply::error(400, overflow);
    let harness = ProxyHarness::start(settings, Some(kept.archive.clone()), reply).await;
    let mut body: Value = serde_json::from_str(&request_body(format, &agent_messages(format, 60))).unwrap();
    body["thread"] = json!({ "type": "create" });
    let got = harness.post(endpoint(format), body.to_string()).await;
    assert_eq!((got.status.as_u16(), got.text()), (400, overflow));
    assert_eq!(harness.only_request().body, body.to_string(), "neither folded, nor with a tool, nor folded again");
}

/// `/compact`: the summary that replaces the conversation is written from all of it.
#[tokio::test]
async fn compaction_request_is_sent_whole_if_it_fits() {
    let format = Format::Anthropic;
    let kept = temp_archive();
    let reply = |_: &ReceivedRequest| UpstreamReply::json("{}");
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), reply).await;
    let folds = |got: &str| got.parse::<u64>().unwrap();
    for turns in 4..60 {
        let mut messages = agent_messages(format, turns);
        let got = harness.post(endpoint(format), request_body(format, &messages)).await;
        if folds(got.header("x-foldline-folds").unwrap()) == 0 {
            continue;
        }
        let prompt =
            "CRITICAL: Respond with TEXT ONLY.\n\nYour task is to create a detailed summary of the conversation.";
        messages
            .extend([json!({ "role": "assistant", "content": "Done." }), json!({ "role": "user", "content": prompt })]);
        let got = harness.post(endpoint(format), request_body(format, &messages)).await;
        assert_eq!(folds(got.header("x-foldline-folds").unwrap()), 0);
        let sent = body_text(harness.received().last().unwrap());
        assert!((0..turns).all(|turn| sent.contains(&format!("value_{turn}_39"))), "{sent}");
        return;
    }
    panic!("nothing was folded");
}

/// Returns the handle of dropped rounds in a request.
fn rounds_handle(text: &str) -> Option<Handle> {
    let at = text.find(" rounds")?;
    marker::handles(&text[text[..at].rfind("[folded: ")?..]).next()
}

#[tokio::test]
async fn dropped_rounds_are_readable_by_http_and_by_the_tool() {
    let format = Format::Anthropic;
    let kept = temp_archive();
    let unfolds = Arc::new(AtomicBool::new(false));
    let is_unfolding = unfolds.clone();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        if !is_unfolding.load(Ordering::SeqCst) || was_answered(format, received) {
            return streamed_reply(format, "It is 42.", &[]);
        }
        let handle = rounds_handle(&body_text(received)).unwrap();
        let arguments = json!({ "handle": handle, "grep": "file_0.rs|value_0_39 " }).to_string();
        streamed_reply(format, "", &[ReplyCall { id: "call_hidden", name: "unfold", arguments }])
    })
    .await;
    let mut handle = None;
    let mut turns = 20;
    while handle.is_none() {
        assert!(turns < 200, "no rounds were dropped");
        harness.post(endpoint(format), streaming_body(format, &agent_messages(format, turns))).await;
        handle = rounds_handle(&body_text(harness.received().last().unwrap()));
        turns += 1;
    }
    let path = format!("/foldline/unfold/{}", handle.unwrap());
    let view = harness.get(&path).await;
    let start = "== assistant\nReading file 0.\n-- call of read_file src/file_0.rs\n== user\n\
        -- result of read_file src/file_0.rs, ok\n    let value_0_0 = compute_0(input_0, 0);\n";
    assert!(view.text().starts_with(start), "{}", &view.text()[..400]);
    assert_eq!(
        harness.get(&format!("{path}?lines=3..4")).await.text(),
        "-- call of read_file src/file_0.rs\n== user\n"
    );
    let found = harness.get(&format!("{path}?grep=value_0_39")).await;
    assert!(found.text().ends_with("let value_0_39 = compute_39(input_0, 39);\n"), "{}", found.text());
    assert!(harness.get(&format!("{path}?raw=1")).await.text().starts_with(r#"[{"role":"assistant","parts":[{"#));

    unfolds.store(true, Ordering::SeqCst);
    let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, turns))).await;
    assert_eq!(got.header("x-foldline-unfolds"), None, "nothing was unfolded before");
    let answered = harness.received().pop().unwrap();
    let request = Request::parse(format, &answered.body).unwrap();
    let last = request.conversation().messages.last().unwrap();
    let text: String = last.results().flat_map(|result| result.texts()).collect();
    let expected = "3:-- call of read_file src/file_0.rs\n5:-- result of read_file src/file_0.rs, ok\n";
    assert!(text.starts_with(expected) && text.contains("value_0_39 = "), "{text}");

    unfolds.store(false, Ordering::SeqCst);
    let got = harness.post(endpoint(format), streaming_body(format, &agent_messages(format, turns + 1))).await;
    assert_eq!(got.header("x-foldline-unfolds"), Some("1,9"), "one original, in a round of nine tokens");
}
