//! Windows that are learned from answers: from which evidence, for which tenant, and for how long.

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
fn shared() -> ProxySettings {
    ProxySettings {
        listen: ([0, 0, 0, 0], 0).into(),
        tokens: AccessToken::parse_list(TOKEN).unwrap(),
        ..settings_without_unfold()
    }
}

fn counted(received: &ReceivedRequest) -> u64 {
    tokens(Format::OpenAiChat, received)
}

/// The request body of an agent after so many turns, for a model that the table does not list.
fn prompt(turns: usize) -> String {
    request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, turns)).replace("gpt-4o", "local")
}

async fn ask(stand: &ProxyHarness, key: &str, path: &str, body: String) -> ClientResponse {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let key = format!("Bearer sk-proj-{key}-0123456789abcdef");
    let request = stand.request(method, path).header("x-foldline-token", TOKEN).header("authorization", key);
    stand.send(request.body(Full::new(body.into())).unwrap()).await
}

/// An answer that reports so many tokens of prompt.
fn answer(prompt_tokens: u64) -> UpstreamReply {
    let message = json!({ "role": "assistant", "content": "yes" });
    let usage = json!({ "prompt_tokens": prompt_tokens, "completion_tokens": 1, "total_tokens": prompt_tokens + 1 });
    let choices = json!([{ "index": 0, "message": message, "finish_reason": "stop" }]);
    UpstreamReply::json(json!({ "choices": choices, "usage": usage }).to_string())
}

/// Starts a proxy in front of a server that reports `report` of the tokens that it receives.
async fn reporting(settings: ProxySettings, report: impl Fn(u64) -> u64 + Send + Sync + 'static) -> ProxyHarness {
    ProxyHarness::start(settings, None, move |received| answer(report(counted(received)))).await
}

async fn learned_windows(stand: &ProxyHarness) -> Value {
    let health: Value = serde_json::from_slice(&stand.get("/foldline/healthz").await.body).unwrap();
    health["learned_windows"].clone()
}

/// Sends one agent's growing session and asserts that every request reached the upstream unchanged.
async fn assert_nothing_is_folded(stand: &ProxyHarness, turns: &[usize]) {
    for &turns in turns {
        stand.post(CHAT, prompt(turns)).await;
        let received = stand.received().pop().unwrap();
        assert!(received.body == prompt(turns), "{} tokens were sent", counted(&received));
    }
    assert_eq!(learned_windows(stand).await, json!([]));
    assert!(!stand.get("/foldline/metrics").await.text().contains("truncated_by_server"));
}

const TYPED: &str = r#"{"error":{"code":"context_length_exceeded","message":"This model's maximum context length is 10000 tokens. However, your messages resulted in SENT tokens."}}"#;

/// A server with a window of 10,000 tokens that refuses with a typed error.
fn refusing_above_10000(received: &ReceivedRequest) -> UpstreamReply {
    match counted(received) {
        sent @ 10_001.. => UpstreamReply::error(400, TYPED.replace("SENT", &sent.to_string())),
        sent => answer(sent),
    }
}

/// One tenant puts an overflow text into `tool_choice`, and the upstream repeats it in its error.
#[tokio::test]
async fn echoed_overflow_text_teaches_nothing() {
    let echo = "This model's maximum context length is 8192 tokens. However, your messages resulted in 40000 tokens.";
    let refusal = json!({ "error": { "type": "invalid_request_error", "param": "tool_choice", "code": "invalid_value",
        "message": format!("Invalid value: '{echo}'. Supported values are: 'none', 'auto', and 'required'.") } });
    let stand = ProxyHarness::start(shared(), None, move |received| {
        match received.body.windows(11).any(|it| it == b"tool_choice") {
            true => UpstreamReply::error(400, refusal.to_string()),
            false => answer(counted(received)),
        }
    })
    .await;
    let choice = json!({ "tool_choice": echo }).to_string();
    let echoing = prompt(40).replacen('{', &choice.replace('}', ","), 1);
    let got = ask(&stand, "first", CHAT, echoing).await;
    assert_eq!(got.status, 400);
    assert_eq!(stand.received().len(), 2, "one tighter retry");
    for key in ["other", "first"] {
        ask(&stand, key, CHAT, prompt(40)).await;
        assert!(stand.received().pop().unwrap().body == prompt(40), "{key}");
    }
}

#[tokio::test]
async fn typed_overflow_teaches_its_tenant_only() {
    let stand = ProxyHarness::start(shared(), None, refusing_above_10000).await;
    assert_eq!(ask(&stand, "first", CHAT, prompt(40)).await.status, 200);
    assert_eq!(stand.received().len(), 2);
    let again = prompt(40).replace("Please make", "Kindly make");
    assert_eq!(ask(&stand, "first", CHAT, again).await.status, 200);
    assert_eq!(stand.received().len(), 3, "the limit is known to this tenant");
    assert!(counted(&stand.received()[2]) <= 10_000);

    assert_eq!(ask(&stand, "other", CHAT, prompt(40)).await.status, 200);
    assert!(stand.received()[3].body == prompt(40), "another tenant's first request is not folded");

    for (key, models) in [("first", 1), ("other", 1), ("Bearer third", 0)] {
        let health = ask(&stand, key, "/foldline/healthz", String::new()).await;
        let health: Value = serde_json::from_slice(&health.body).unwrap();
        let learned = health["learned_windows"].as_array().unwrap();
        assert_eq!(learned.len(), models, "{key}: {health}");
        for window in learned {
            assert_eq!((&window["model"], &window["tokens"]), (&json!("local"), &json!(10_000)), "{health}");
            assert_eq!(window["evidence"], "error_code", "{health}");
        }
    }
}

/// A client can make up any number of model names; what was learned of other models remains.
#[tokio::test]
async fn made_up_models_do_not_evict_another_tenants_window() {
    let stand = ProxyHarness::start(shared(), None, refusing_above_10000).await;
    ask(&stand, "first", CHAT, prompt(40)).await;
    for made_up in 0..1_100 {
        let body = json!({ "model": format!("made-up-{made_up}"), "messages": [{ "role": "user", "content": "hi" }] });
        ask(&stand, "other", CHAT, body.to_string()).await;
    }
    let sent = stand.received().len();
    ask(&stand, "first", CHAT, prompt(40).replace("Please make", "Kindly make")).await;
    assert_eq!(stand.received().len(), sent + 1, "the window is still known");
}

/// An overflow in a text of unknown form is retried, and does not have to be refused at every turn.
#[tokio::test]
async fn wrapped_overflow_is_retried_and_held_for_its_conversation() {
    let stand = ProxyHarness::start(settings_without_unfold(), None, |received| match counted(received) {
        sent @ 10_001.. => {
            let why =
                format!("gateway.Error: UpstreamException - prompt is too long: {sent} tokens > 10000 maximum (x)");
            UpstreamReply::error(400, json!({ "error": { "message": why } }).to_string())
        }
        sent => answer(sent),
    })
    .await;
    for (turns, received) in [(40, 2), (41, 3), (42, 4)] {
        assert_eq!(stand.post(CHAT, prompt(turns)).await.status, 200);
        assert_eq!(stand.received().len(), received, "after {turns} turns");
    }
    assert_eq!(learned_windows(&stand).await, json!([]));
    stand.post(CHAT, prompt(40).replace("Please make", "Kindly make")).await;
    assert!(stand.received()[4].body == prompt(40).replace("Please make", "Kindly make"));
}

/// A retry that is refused as well leaves no trace in the conversation.
#[tokio::test]
async fn refused_retry_does_not_fold_the_next_request() {
    let refusals = Arc::new(AtomicU64::new(2));
    let stand = ProxyHarness::start(settings_without_unfold(), None, move |received| {
        match refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => UpstreamReply::error(
                400,
                r#"{"error":{"message":"prompt is too long: 40000 tokens > 8192 maximum, see"}}"#,
            ),
            Err(_) => answer(counted(received)),
        }
    })
    .await;
    assert_eq!(stand.post(CHAT, prompt(40)).await.status, 400);
    for turns in [40, 41] {
        stand.post(CHAT, prompt(turns)).await;
        assert!(stand.received().pop().unwrap().body == prompt(turns));
    }
}

#[tokio::test]
async fn prompt_tokens_of_ten_teach_no_window() {
    let stand = reporting(settings_without_unfold(), |_| 10).await;
    assert_nothing_is_folded(&stand, &[4, 20, 25, 30, 35, 40]).await;
}

#[tokio::test]
async fn prompt_tokens_of_zero_teach_no_window() {
    let stand = reporting(settings_without_unfold(), |_| 0).await;
    assert_nothing_is_folded(&stand, &[4, 20, 25, 30, 35, 40]).await;
}

#[tokio::test]
async fn proportional_undercount_teaches_no_window() {
    for percent in [57, 45, 20] {
        let stand = reporting(settings_without_unfold(), move |sent| sent * percent / 100).await;
        assert_nothing_is_folded(&stand, &[4, 8, 12, 16, 20, 25, 30, 35, 40, 41, 42, 60]).await;
    }
}

/// A gateway that reports only what its cache does not hold: the whole first prompt, then one turn.
#[tokio::test]
async fn count_without_cached_tokens_teaches_no_window() {
    let before = Arc::new(AtomicU64::new(0));
    let stand = reporting(settings_without_unfold(), move |sent| sent - before.swap(sent, Ordering::SeqCst)).await;
    assert_nothing_is_folded(&stand, &[4, 5, 6, 7, 8, 9, 10, 11, 12]).await;
}

#[tokio::test]
async fn constant_count_while_the_prompt_grows_is_truncation() {
    // (reported for a prompt above the window, the window)
    for (reported, window) in [(4_098, 8_192), (4_099, 8_192), (4_096, 4_096), (6_000, 6_000)] {
        let stand =
            reporting(settings_without_unfold(), move |sent| if sent <= window { sent } else { reported }).await;
        for turns in [16, 18, 20] {
            stand.post(CHAT, prompt(turns)).await;
        }
        let received = stand.received();
        assert!(received[0].body == prompt(16) && received[1].body == prompt(18));
        let sent = counted(&received[2]);
        assert!(sent < window && sent > window / 4, "{reported}: {sent}");
        let learned = learned_windows(&stand).await;
        assert_eq!(learned[0]["tokens"], window, "{learned}");
        assert_eq!(learned[0]["evidence"], "constant_count", "{learned}");
        assert!(stand.get("/foldline/metrics").await.text().contains(r#"kind="truncated_by_server"} 1"#));
    }
}

/// The user knows better: neither an error nor a count changes what was set.
#[tokio::test]
async fn window_that_the_user_set_is_not_relearned() {
    let set = || ProxySettings { window: Some(32_000), ..settings_without_unfold() };
    for percent in [57, 12, 0] {
        let stand = reporting(set(), move |sent| if percent > 0 { sent * percent / 100 } else { 4_098 }).await;
        for turns in [20, 22, 24, 26, 28, 60] {
            stand.post(CHAT, prompt(turns)).await;
        }
        let received = stand.received();
        assert!(received[..5].iter().zip([20, 22, 24, 26, 28]).all(|(it, turns)| it.body == prompt(turns)));
        assert!((12_000..32_000).contains(&counted(&received[5])), "{percent}: {}", counted(&received[5]));
        assert_eq!(learned_windows(&stand).await, json!([]));
        assert!(!stand.get("/foldline/metrics").await.text().contains("truncated_by_server"));
    }
    let stand = ProxyHarness::start(set(), None, refusing_above_10000).await;
    for words in ["Please make", "Kindly make"] {
        assert_eq!(stand.post(CHAT, prompt(20).replace("Please make", words)).await.status, 200);
        assert_eq!(stand.received().last().map(counted).map(|sent| sent <= 10_000), Some(true));
    }
    assert_eq!(stand.received().len(), 4, "both are refused and folded for the retry");
    assert_eq!(learned_windows(&stand).await, json!([]));
}

/// The system prompt alone is larger than what was learned: the request goes out by the table's window.
#[tokio::test]
async fn request_that_cannot_fit_a_learned_window_goes_by_the_table() {
    let window = Arc::new(AtomicU64::new(10_000));
    let now = window.clone();
    let stand = ProxyHarness::start(settings_without_unfold(), None, move |received| match counted(received) {
        sent if sent > now.load(Ordering::SeqCst) => {
            UpstreamReply::error(400, TYPED.replace("SENT", &sent.to_string()))
        }
        sent => answer(sent),
    })
    .await;
    stand.post(CHAT, prompt(40)).await;
    assert_eq!(learned_windows(&stand).await[0]["tokens"], 10_000);
    window.store(1_000_000, Ordering::SeqCst);
    let rules: String = (0..3_000).map(|rule| format!("Rule {rule}: read all of it. ")).collect();
    let mut messages = agent_messages(Format::OpenAiChat, 3);
    messages.insert(0, json!({ "role": "system", "content": rules }));
    let large = request_body(Format::OpenAiChat, &messages).replace("gpt-4o", "local");
    assert_eq!(stand.post(CHAT, large.clone()).await.status, 200);
    let received = stand.received().pop().unwrap();
    assert!(counted(&received) > 20_000);
    assert!(received.body == large);

    // It succeeded, so that the limit is wrong.
    assert_eq!(learned_windows(&stand).await, json!([]));
    stand.post(CHAT, prompt(41).replace("Please make", "Kindly make")).await;
    assert!(stand.received().pop().unwrap().body == prompt(41).replace("Please make", "Kindly make"));
}

#[tokio::test]
async fn learned_window_expires_without_moving_bytes() {
    let patience = Timeouts { learned: Duration::from_millis(1_500), ..Timeouts::default() };
    let stand = ProxyHarness::start(
        ProxySettings { timeouts: patience, ..settings_without_unfold() },
        None,
        refusing_above_10000,
    )
    .await;
    stand.post(CHAT, prompt(40)).await;
    assert_eq!(learned_windows(&stand).await[0]["tokens"], 10_000);
    let before = stand.received().pop().unwrap();
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    assert_eq!(learned_windows(&stand).await, json!([]));
    stand.post(CHAT, prompt(41)).await;
    let after = stand.received().pop().unwrap();
    let messages =
        |received: &ReceivedRequest| serde_json::from_slice::<Value>(&received.body).unwrap()["messages"].clone();
    let (before, after) = (messages(&before), messages(&after));
    let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
    assert!(after.starts_with(before), "the folds of the past are as they were");
    // Another conversation is sent whole, and teaches the limit again.
    stand.post(CHAT, prompt(40).replace("Please make", "Kindly make")).await;
    assert_eq!(learned_windows(&stand).await[0]["tokens"], 10_000);
}

/// Ollama reports its window once the model is loaded; a suspicious count makes the proxy ask again.
#[tokio::test]
async fn suspicious_count_makes_the_proxy_ask_the_server_again() {
    let loaded = Arc::new(AtomicU64::new(0));
    let stand = ProxyHarness::start_answering_probes(settings_without_unfold(), None, move |received| {
        match received.path.as_str() {
            CHAT => {
                loaded.store(1, Ordering::SeqCst);
                answer(counted(received).min(2_050))
            }
            "/api/ps" if loaded.load(Ordering::SeqCst) == 1 => UpstreamReply::json(
                json!({ "models": [{ "name": "local:latest", "context_length": 4_096 }] }).to_string(),
            ),
            "/api/ps" => UpstreamReply::json(r#"{"models":[]}"#),
            _ => UpstreamReply::error(404, "{}"),
        }
    })
    .await;
    for turns in [40, 41] {
        stand.post(CHAT, prompt(turns)).await;
    }
    let received = stand.received();
    assert!(received[0].body == prompt(40));
    assert!(counted(&received[1]) < 4_096, "{}", counted(&received[1]));
    assert_eq!(learned_windows(&stand).await[0]["evidence"], "server_report");
}
