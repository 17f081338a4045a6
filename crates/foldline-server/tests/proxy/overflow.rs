//! Prompts that do not fit, and servers whose window differs from the expected one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldline::wire::{Format, Request};
use foldline::{Meter, ModelTable};
use foldline_server::proxy::ProxySettings;
use serde_json::json;

use crate::fold::{agent_messages, endpoint, request_body};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};

/// Returns our own count of a body, used as the server's count.
pub(crate) fn tokens(format: Format, received: &ReceivedRequest) -> u64 {
    let request = Request::parse(format, &received.body).unwrap();
    let model = request.conversation().model.clone();
    Meter::for_model(ModelTable::builtin(), model.as_deref()).conversation(request.conversation())
}

pub(crate) fn settings_without_unfold() -> ProxySettings {
    ProxySettings { offer_unfold_tool: false, ..settings() }
}

/// The table lists 128,000 tokens; the server accepts 10,000 and reports it. The client sees no refusal.
#[tokio::test]
async fn refused_prompt_is_refolded_to_the_real_window() {
    for (format, refusal) in [
        (
            Format::OpenAiChat,
            "This model's maximum context length is 10000 tokens. However, your messages resulted in {} tokens. Please reduce the length of the messages.",
        ),
        (
            Format::OpenAiResponses,
            "This model's maximum context length is 10000 tokens. However, your messages resulted in {} tokens.",
        ),
        (Format::Anthropic, "prompt is too long: {} tokens > 10000 maximum"),
    ] {
        let harness =
            ProxyHarness::start(settings_without_unfold(), None, move |received| match tokens(format, received) {
                sent @ 10_001.. => UpstreamReply::error(
                    400,
                    json!({ "error": { "message": refusal.replace("{}", &sent.to_string()) } }).to_string(),
                ),
                _ => UpstreamReply::json(r#"{"ok":true}"#),
            })
            .await;
        let whole = agent_messages(format, 40);
        let got = harness.post(endpoint(format), request_body(format, &whole)).await;
        assert_eq!((got.status.as_u16(), got.text()), (200, r#"{"ok":true}"#), "{format:?}");
        assert_eq!(harness.received().len(), 2, "{format:?}");
        // The limit is known for the next session with this model.
        let other = request_body(format, &whole[..whole.len() - 2]).replace("Please make", "Kindly make");
        assert_eq!(harness.post(endpoint(format), other).await.status, 200);
        assert_eq!(harness.received().len(), 3, "{format:?}");
    }
}

/// Claude Code reserves 32,000 tokens for its response. A limit of 60,000 leaves less for the prompt than its instructions
/// need, so the reserve is lowered.
#[tokio::test]
async fn large_reserve_is_lowered_before_giving_up() {
    let format = Format::Anthropic;
    let harness = ProxyHarness::start(settings_without_unfold(), None, move |received| {
        match tokens(format, received) {
            sent if sent > 60_000 => UpstreamReply::error(
                400,
                format!(r#"{{"type":"error","error":{{"type":"invalid_request_error","message":"prompt is too long: {sent} tokens > 60000 maximum"}}}}"#),
            ),
            _ => UpstreamReply::json(r#"{"ok":true}"#),
        }
    })
    .await;
    let mut request: serde_json::Value =
        serde_json::from_str(&request_body(format, &agent_messages(format, 60))).unwrap();
    request["max_tokens"] = 32_000.into();
    request["system"] = "instruct ".repeat(22_000).into();
    for _ in 0..2 {
        let got = harness.post(endpoint(format), request.to_string()).await;
        assert_eq!((got.status.as_u16(), got.text()), (200, r#"{"ok":true}"#));
    }
    assert_eq!(harness.received().len(), 3, "the limit is known at the second request");
}

/// Codex gets a 200 and a stream; the refusal arrives inside it.
#[tokio::test]
async fn overflow_inside_a_stream_is_retried() {
    let harness = ProxyHarness::start(settings_without_unfold(), None, |received| {
        let created = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r1\",\"status\":\"in_progress\",\"output\":[]}}\n\n";
        if tokens(Format::OpenAiResponses, received) > 12_000 {
            let refused = "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"id\":\"r1\",\"status\":\"failed\",\"error\":{\"code\":\"context_length_exceeded\",\"message\":\"Your input exceeds the context window of this model.\"}}}\n\n";
            return UpstreamReply::stream([created, refused]);
        }
        let done = "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":1,\"response\":{\"id\":\"r1\",\"status\":\"completed\",\"output\":[]}}\n\n";
        UpstreamReply::stream([created, done])
    })
    .await;
    let request = request_body(Format::OpenAiResponses, &agent_messages(Format::OpenAiResponses, 16)).replacen(
        '{',
        r#"{"stream":true,"#,
        1,
    );
    let got = harness.post("/v1/responses", request).await;
    assert!(got.text().contains("response.completed") && !got.text().contains("failed"), "{}", got.text());
    assert_eq!(got.text().matches("event: response.created").count(), 1);
    assert!((2..=3).contains(&harness.received().len()));
}

/// The error of a server that refuses everything is forwarded.
#[tokio::test]
async fn overflow_error_is_returned_after_two_retries() {
    let refusal = r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#;
    let harness =
        ProxyHarness::start(settings_without_unfold(), None, move |_| UpstreamReply::error(400, refusal)).await;
    let got = harness
        .post("/v1/chat/completions", request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, 40)))
        .await;
    assert_eq!((got.status.as_u16(), got.text()), (400, refusal));
    assert_eq!(harness.received().len(), 3);
}

/// A limit on tokens per minute resembles an overflow.
#[tokio::test]
async fn rate_limit_is_not_learned_as_a_window() {
    let limited = r#"{"error":{"message":"Request too large for model x on tokens per minute (TPM): Limit 6000, Requested 23000","type":"tokens","code":"rate_limit_exceeded"}}"#;
    let harness =
        ProxyHarness::start(settings_without_unfold(), None, move |_| UpstreamReply::error(413, limited)).await;
    let request = request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, 40));
    let got = harness.post("/v1/chat/completions", request.clone()).await;
    assert_eq!((got.status.as_u16(), got.text()), (413, limited));
    assert_eq!(harness.only_request().body, request);
}

/// A local server reports its window, and the first request already fits it.
#[tokio::test]
async fn reported_window_is_used_from_the_first_request() {
    for (endpoint, report) in [
        ("/props", json!({ "default_generation_settings": { "n_ctx": 8_192 } })),
        ("/v1/models", json!({ "data": [{ "id": "local", "max_model_len": 8_192 }] })),
        ("/api/ps", json!({ "models": [{ "name": "local:latest", "context_length": 8_192 }] })),
    ] {
        let query_count = Arc::new(AtomicUsize::new(0));
        let count = query_count.clone();
        let report = report.to_string();
        let harness = ProxyHarness::start_answering_probes(settings_without_unfold(), None, move |received| {
            match received.path.as_str() {
                "/v1/chat/completions" => UpstreamReply::json("{}"),
                path if path == endpoint => {
                    assert_eq!(received.headers["authorization"], "Bearer mine");
                    count.fetch_add(1, Ordering::Relaxed);
                    UpstreamReply::json(report.clone())
                }
                _ => UpstreamReply::error(404, "{}"),
            }
        })
        .await;
        for turns in [30, 31] {
            let sent =
                request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, turns)).replace("gpt-4o", "local");
            let request = harness.request("POST", "/v1/chat/completions").header("authorization", "Bearer mine");
            harness.send(request.body(http_body_util::Full::new(sent.into())).unwrap()).await;
        }
        for received in harness.received() {
            assert!(tokens(Format::OpenAiChat, &received) < 8_192, "{endpoint}");
        }
        assert_eq!(query_count.load(Ordering::Relaxed), 1, "{endpoint} is queried once");
    }
}

/// Ollama silently truncates long prompts, and only reports the same count for longer and longer prompts.
#[tokio::test]
async fn silent_truncation_lowers_the_window() {
    let harness = ProxyHarness::start(settings_without_unfold(), None, |received| {
        let seen = match tokens(Format::OpenAiChat, received) {
            sent @ ..=8_192 => sent,
            _ => 4_098,
        };
        UpstreamReply::json(json!({ "choices": [{ "index": 0, "message": { "role": "assistant", "content": "yes" }, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": seen, "completion_tokens": 1, "total_tokens": seen + 1 } }).to_string())
    })
    .await;
    let whole = agent_messages(Format::OpenAiChat, 31);
    for end in [whole.len() - 4, whole.len() - 2, whole.len()] {
        harness
            .post("/v1/chat/completions", request_body(Format::OpenAiChat, &whole[..end]).replace("gpt-4o", "local"))
            .await;
    }
    let received = harness.received();
    assert!(
        received[..2].iter().all(|request| tokens(Format::OpenAiChat, request) > 8_192),
        "one count proves nothing"
    );
    assert!(tokens(Format::OpenAiChat, &received[2]) < 8_192, "folded to the real window from then on");
    assert!(harness.get("/foldline/metrics").await.text().contains(r#"kind="truncated_by_server"} 1"#));
}
