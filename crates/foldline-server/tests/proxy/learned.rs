//! Windows learned from responses: from which evidence, for which tenant, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldline::wire::Format;
use foldline_server::proxy::{AccessToken, ProxySettings, Timeouts};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::fold::{agent_messages, request_body};
use crate::overflow::{settings_without_unfold, tokens};
use crate::support::{ClientResponse, ProxyHarness, ReceivedRequest, UpstreamReply};

const CHAT: &str = "/v1/chat/completions";
const TOKEN: &str = "sesame";

/// Settings of a proxy that several tenants use.
fn shared_settings() -> ProxySettings {
    ProxySettings {
        listen: ([0, 0, 0, 0], 0).into(),
        tokens: AccessToken::parse_list(TOKEN).unwrap(),
        ..settings_without_unfold()
    }
}

fn counted(received: &ReceivedRequest) -> u64 {
    tokens(Format::OpenAiChat, received)
}

/// Returns the request body of an agent after this many turns, for a model that the table does not list.
fn prompt(turns: usize) -> String {
    request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, turns)).replace("gpt-4o", "local")
}

async fn send(harness: &ProxyHarness, key: &str, path: &str, body: String) -> ClientResponse {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let key = format!("Bearer sk-proj-{key}-0123456789abcdef");
    let request = harness.request(method, path).header("x-foldline-token", TOKEN).header("authorization", key);
    harness.send(request.body(Full::new(body.into())).unwrap()).await
}

/// Returns a response that reports this many prompt tokens.
fn response(prompt_tokens: u64) -> UpstreamReply {
    let message = json!({ "role": "assistant", "content": "yes" });
    let usage = json!({ "prompt_tokens": prompt_tokens, "completion_tokens": 1, "total_tokens": prompt_tokens + 1 });
    let choices = json!([{ "index": 0, "message": message, "finish_reason": "stop" }]);
    UpstreamReply::json(json!({ "choices": choices, "usage": usage }).to_string())
}

/// Starts a proxy in front of a server that reports `report(tokens)` for each prompt.
async fn start_reporting(settings: ProxySettings, report: impl Fn(u64) -> u64 + Send + Sync + 'static) -> ProxyHarness {
    ProxyHarness::start(settings, None, move |received| response(report(counted(received)))).await
}

async fn learned_windows(harness: &ProxyHarness) -> Value {
    let health: Value = serde_json::from_slice(&harness.get("/foldline/healthz").await.body).unwrap();
    health["learned_windows"].clone()
}

/// Sends one agent's growing session and asserts that every request reached the upstream unchanged.
async fn assert_nothing_is_folded(harness: &ProxyHarness, turns: &[usize]) {
    for &turns in turns {
        harness.post(CHAT, prompt(turns)).await;
        let received = harness.received().pop().unwrap();
        assert!(received.body == prompt(turns), "{} tokens were sent", counted(&received));
    }
    assert_eq!(learned_windows(harness).await, json!([]));
    assert!(harness.get("/foldline/metrics").await.text().contains(r#"kind="truncated_by_server"} 0"#));
}

const TYPED: &str = r#"{"error":{"code":"context_length_exceeded","message":"This model's maximum context length is 10000 tokens. However, your messages resulted in SENT tokens."}}"#;

/// A server with a window of 10,000 tokens that refuses with a typed error.
fn refusing_above_10000(received: &ReceivedRequest) -> UpstreamReply {
    match counted(received) {
        sent @ 10_001.. => UpstreamReply::error(400, TYPED.replace("SENT", &sent.to_string())),
        sent => response(sent),
    }
}

/// One tenant puts an overflow text into `tool_choice`, and the upstream repeats it in its error.
#[tokio::test]
async fn echoed_overflow_text_is_not_learned() {
    let echo = "This model's maximum context length is 8192 tokens. However, your messages resulted in 40000 tokens.";
    let refusal = json!({ "error": { "type": "invalid_request_error", "param": "tool_choice", "code": "invalid_value",
        "message": format!("Invalid value: '{echo}'. Supported values are: 'none', 'auto', and 'required'.") } });
    let harness = ProxyHarness::start(shared_settings(), None, move |received| {
        match received.body.windows(11).any(|bytes| bytes == b"tool_choice") {
            true => UpstreamReply::error(400, refusal.to_string()),
            false => response(counted(received)),
        }
    })
    .await;
    let choice = json!({ "tool_choice": echo }).to_string();
    let echoing = prompt(40).replacen('{', &choice.replace('}', ","), 1);
    let got = send(&harness, "first", CHAT, echoing).await;
    assert_eq!(got.status, 400);
    assert_eq!(harness.received().len(), 2, "one tighter retry");
    for key in ["other", "first"] {
        send(&harness, key, CHAT, prompt(40)).await;
        assert!(harness.received().pop().unwrap().body == prompt(40), "{key}");
    }
}

#[tokio::test]
async fn typed_overflow_is_learned_for_its_tenant_only() {
    let harness = ProxyHarness::start(shared_settings(), None, refusing_above_10000).await;
    assert_eq!(send(&harness, "first", CHAT, prompt(40)).await.status, 200);
    assert_eq!(harness.received().len(), 2);
    let again = prompt(40).replace("Please make", "Kindly make");
    assert_eq!(send(&harness, "first", CHAT, again).await.status, 200);
    assert_eq!(harness.received().len(), 3, "the limit is known to this tenant");
    assert!(counted(&harness.received()[2]) <= 10_000);

    assert_eq!(send(&harness, "other", CHAT, prompt(40)).await.status, 200);
    assert!(harness.received()[3].body == prompt(40), "another tenant's first request is not folded");

    for (key, models) in [("first", 1), ("other", 1), ("Bearer third", 0)] {
        let health = send(&harness, key, "/foldline/healthz", String::new()).await;
        let health: Value = serde_json::from_slice(&health.body).unwrap();
        let learned = health["learned_windows"].as_array().unwrap();
        assert_eq!(learned.len(), models, "{key}: {health}");
        for window in learned {
            assert_eq!((&window["model"], &window["tokens"]), (&json!("local"), &json!(10_000)), "{health}");
            assert_eq!(window["evidence"], "error_code", "{health}");
        }
    }
}

/// A client can invent any number of model names; windows learned for other tenants remain.
#[tokio::test]
async fn invented_models_do_not_evict_windows_of_other_tenants() {
    let harness = ProxyHarness::start(shared_settings(), None, refusing_above_10000).await;
    send(&harness, "first", CHAT, prompt(40)).await;
    for invented in 0..1_100 {
        let body = json!({ "model": format!("made-up-{invented}"), "messages": [{ "role": "user", "content": "hi" }] });
        send(&harness, "other", CHAT, body.to_string()).await;
    }
    let sent = harness.received().len();
    send(&harness, "first", CHAT, prompt(40).replace("Please make", "Kindly make")).await;
    assert_eq!(harness.received().len(), sent + 1, "the window is still known");
}

/// An overflow in a message of unknown form is retried, and the budget is kept for the conversation.
#[tokio::test]
async fn wrapped_overflow_is_retried_and_held_for_its_conversation() {
    let harness = ProxyHarness::start(settings_without_unfold(), None, |received| match counted(received) {
        sent @ 10_001.. => {
            let message =
                format!("gateway.Error: UpstreamException - prompt is too long: {sent} tokens > 10000 maximum (x)");
            UpstreamReply::error(400, json!({ "error": { "message": message } }).to_string())
        }
        sent => response(sent),
    })
    .await;
    for (turns, received) in [(40, 2), (41, 3), (42, 4)] {
        assert_eq!(harness.post(CHAT, prompt(turns)).await.status, 200);
        assert_eq!(harness.received().len(), received, "after {turns} turns");
    }
    assert_eq!(learned_windows(&harness).await, json!([]));
    harness.post(CHAT, prompt(40).replace("Please make", "Kindly make")).await;
    assert!(harness.received()[4].body == prompt(40).replace("Please make", "Kindly make"));
}

/// A retry that is refused as well has no effect on the conversation.
#[tokio::test]
async fn refused_retry_does_not_fold_the_next_request() {
    let refusals = Arc::new(AtomicU64::new(2));
    let harness = ProxyHarness::start(settings_without_unfold(), None, move |received| {
        match refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => UpstreamReply::error(
                400,
                r#"{"error":{"message":"prompt is too long: 40000 tokens > 8192 maximum, see"}}"#,
            ),
            Err(_) => response(counted(received)),
        }
    })
    .await;
    assert_eq!(harness.post(CHAT, prompt(40)).await.status, 400);
    for turns in [40, 41] {
        harness.post(CHAT, prompt(turns)).await;
        assert!(harness.received().pop().unwrap().body == prompt(turns));
    }
}

#[tokio::test]
async fn constant_count_of_ten_is_not_learned() {
    let harness = start_reporting(settings_without_unfold(), |_| 10).await;
    assert_nothing_is_folded(&harness, &[4, 20, 25, 30, 35, 40]).await;
}

#[tokio::test]
async fn constant_count_of_zero_is_not_learned() {
    let harness = start_reporting(settings_without_unfold(), |_| 0).await;
    assert_nothing_is_folded(&harness, &[4, 20, 25, 30, 35, 40]).await;
}

#[tokio::test]
async fn proportional_undercount_is_not_learned() {
    for percent in [57, 45, 20] {
        let harness = start_reporting(settings_without_unfold(), move |sent| sent * percent / 100).await;
        assert_nothing_is_folded(&harness, &[4, 8, 12, 16, 20, 25, 30, 35, 40, 41, 42, 60]).await;
    }
}

/// A gateway that reports only uncached tokens: the whole first prompt, then one turn.
#[tokio::test]
async fn count_without_cached_tokens_is_not_learned() {
    let before = Arc::new(AtomicU64::new(0));
    let harness =
        start_reporting(settings_without_unfold(), move |sent| sent - before.swap(sent, Ordering::SeqCst)).await;
    assert_nothing_is_folded(&harness, &[4, 5, 6, 7, 8, 9, 10, 11, 12]).await;
}

#[tokio::test]
async fn constant_count_while_the_prompt_grows_is_truncation() {
    // (reported for a prompt above the window, the window)
    for (reported, window) in [(4_098, 8_192), (4_099, 8_192), (4_096, 4_096), (6_000, 6_000)] {
        let harness =
            start_reporting(settings_without_unfold(), move |sent| if sent <= window { sent } else { reported }).await;
        for turns in [16, 18, 20] {
            harness.post(CHAT, prompt(turns)).await;
        }
        let received = harness.received();
        assert!(received[0].body == prompt(16) && received[1].body == prompt(18));
        let sent = counted(&received[2]);
        assert!(sent < window && sent > window / 4, "{reported}: {sent}");
        let learned = learned_windows(&harness).await;
        assert_eq!(learned[0]["tokens"], window, "{learned}");
        assert_eq!(learned[0]["evidence"], "constant_count", "{learned}");
        assert!(harness.get("/foldline/metrics").await.text().contains(r#"kind="truncated_by_server"} 1"#));
    }
}

/// Neither an error nor a count changes a window that the user set.
#[tokio::test]
async fn window_set_by_user_is_not_relearned() {
    let set = || ProxySettings { window: Some(32_000), ..settings_without_unfold() };
    for percent in [57, 12, 0] {
        let harness = start_reporting(set(), move |sent| if percent > 0 { sent * percent / 100 } else { 4_098 }).await;
        for turns in [20, 22, 24, 26, 28, 60] {
            harness.post(CHAT, prompt(turns)).await;
        }
        let received = harness.received();
        assert!(received[..5].iter().zip([20, 22, 24, 26, 28]).all(|(request, turns)| request.body == prompt(turns)));
        assert!((12_000..32_000).contains(&counted(&received[5])), "{percent}: {}", counted(&received[5]));
        assert_eq!(learned_windows(&harness).await, json!([]));
        assert!(harness.get("/foldline/metrics").await.text().contains(r#"kind="truncated_by_server"} 0"#));
    }
    let harness = ProxyHarness::start(set(), None, refusing_above_10000).await;
    for words in ["Please make", "Kindly make"] {
        assert_eq!(harness.post(CHAT, prompt(20).replace("Please make", words)).await.status, 200);
        assert_eq!(harness.received().last().map(counted).map(|sent| sent <= 10_000), Some(true));
    }
    assert_eq!(harness.received().len(), 4, "both are refused and folded for the retry");
    assert_eq!(learned_windows(&harness).await, json!([]));
}

/// The system prompt alone exceeds the learned window: the request is sent within the table's window.
#[tokio::test]
async fn request_too_large_for_learned_window_uses_the_table() {
    let window = Arc::new(AtomicU64::new(10_000));
    let current = window.clone();
    let harness = ProxyHarness::start(settings_without_unfold(), None, move |received| match counted(received) {
        sent if sent > current.load(Ordering::SeqCst) => {
            UpstreamReply::error(400, TYPED.replace("SENT", &sent.to_string()))
        }
        sent => response(sent),
    })
    .await;
    harness.post(CHAT, prompt(40)).await;
    assert_eq!(learned_windows(&harness).await[0]["tokens"], 10_000);
    window.store(1_000_000, Ordering::SeqCst);
    let rules: String = (0..3_000).map(|rule| format!("Rule {rule}: read all of it. ")).collect();
    let mut messages = agent_messages(Format::OpenAiChat, 3);
    messages.insert(0, json!({ "role": "system", "content": rules }));
    let large = request_body(Format::OpenAiChat, &messages).replace("gpt-4o", "local");
    assert_eq!(harness.post(CHAT, large.clone()).await.status, 200);
    let received = harness.received().pop().unwrap();
    assert!(counted(&received) > 20_000);
    assert!(received.body == large);

    // It succeeded, so the learned limit was wrong.
    assert_eq!(learned_windows(&harness).await, json!([]));
    harness.post(CHAT, prompt(41).replace("Please make", "Kindly make")).await;
    assert!(harness.received().pop().unwrap().body == prompt(41).replace("Please make", "Kindly make"));
}

#[tokio::test]
async fn learned_window_expires_without_changing_sent_bytes() {
    let timeouts = Timeouts { learned: Duration::from_millis(1_500), ..Timeouts::default() };
    let harness =
        ProxyHarness::start(ProxySettings { timeouts, ..settings_without_unfold() }, None, refusing_above_10000).await;
    harness.post(CHAT, prompt(40)).await;
    assert_eq!(learned_windows(&harness).await[0]["tokens"], 10_000);
    let before = harness.received().pop().unwrap();
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    assert_eq!(learned_windows(&harness).await, json!([]));
    harness.post(CHAT, prompt(41)).await;
    let after = harness.received().pop().unwrap();
    let messages =
        |received: &ReceivedRequest| serde_json::from_slice::<Value>(&received.body).unwrap()["messages"].clone();
    let (before, after) = (messages(&before), messages(&after));
    let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
    assert!(after.starts_with(before), "earlier folds are unchanged");
    // Another conversation is sent unfolded, and the limit is learned again.
    harness.post(CHAT, prompt(40).replace("Please make", "Kindly make")).await;
    assert_eq!(learned_windows(&harness).await[0]["tokens"], 10_000);
}

/// Ollama reports its window once the model is loaded; a suspicious count triggers another query.
#[tokio::test]
async fn suspicious_count_triggers_another_window_query() {
    let loaded = Arc::new(AtomicU64::new(0));
    let harness = ProxyHarness::start_answering_probes(settings_without_unfold(), None, move |received| match received
        .path
        .as_str()
    {
        CHAT => {
            loaded.store(1, Ordering::SeqCst);
            response(counted(received).min(2_050))
        }
        "/api/ps" if loaded.load(Ordering::SeqCst) == 1 => {
            UpstreamReply::json(json!({ "models": [{ "name": "local:latest", "context_length": 4_096 }] }).to_string())
        }
        "/api/ps" => UpstreamReply::json(r#"{"models":[]}"#),
        _ => UpstreamReply::error(404, "{}"),
    })
    .await;
    for turns in [40, 41] {
        harness.post(CHAT, prompt(turns)).await;
    }
    let received = harness.received();
    assert!(received[0].body == prompt(40));
    assert!(counted(&received[1]) < 4_096, "{}", counted(&received[1]));
    assert_eq!(learned_windows(&harness).await[0]["evidence"], "server_report");
}
