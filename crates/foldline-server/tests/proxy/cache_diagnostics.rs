//! Cache diagnostics against a scripted provider: requested on a sample, removed from what the client receives, and
//! shown by the dashboard. Not tried against live providers.

use std::sync::{Arc, Mutex};

use foldline::wire::Format;
use foldline_server::proxy::ProxySettings;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::fold::{agent_messages, request_body};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};

/// A provider that compares each prompt with the one of the response that the request names.
#[derive(Clone, Default)]
struct DiagnosingProvider {
    prompts: Arc<Mutex<Vec<Vec<u8>>>>,
    refuses: bool,
}

const FIELD: &str = ",\"diagnostics\":";

impl DiagnosingProvider {
    fn reply(&self, request: &ReceivedRequest, is_stream: bool) -> UpstreamReply {
        let text = String::from_utf8(request.body.to_vec()).unwrap();
        let body: Value = serde_json::from_str(&text).unwrap();
        let asked = body["diagnostics"]["previous_message_id"].as_str();
        if asked.is_some() && self.refuses {
            return UpstreamReply::error(400, r#"{"error":{"message":"diagnostics: Extra inputs are not permitted"}}"#);
        }
        let mut prompts = self.prompts.lock().unwrap();
        let messages = serde_json::to_vec(&body["messages"]).unwrap();
        let verdict = asked.map(|id| {
            let previous = &prompts[id.trim_start_matches("msg_").parse::<usize>().unwrap()];
            let is_kept = messages.starts_with(&previous[..previous.len() - 1]);
            json!({ "cache_miss_reason": if is_kept { Value::Null } else { json!({ "type": "messages_changed" }) } })
        });
        let id = format!("msg_{}", prompts.len());
        prompts.push(messages);
        let diagnosis = verdict.map(|verdict| format!("{FIELD}{verdict}")).unwrap_or_default();
        let usage = r#""usage":{"input_tokens":9,"output_tokens":2}"#;
        if is_stream {
            return UpstreamReply::stream([
                format!("event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"{id}\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[]{diagnosis},{usage}}}}}\n\n"),
                "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n".to_owned(),
                "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"ok\"}}\n\n".to_owned(),
                "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n".to_owned(),
                "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n".to_owned(),
                "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n".to_owned(),
            ]);
        }
        UpstreamReply::json(format!(
            r#"{{"id":"{id}","type":"message","role":"assistant","content":[{{"type":"text","text":"ok"}}]{diagnosis},"stop_reason":"end_turn",{usage}}}"#
        ))
    }
}

/// Runs a session of 25 turns that creases, and returns what the client received and the session's requests in the API.
async fn run_session(
    settings: ProxySettings,
    provider: &DiagnosingProvider,
    is_stream: bool,
) -> (ProxyHarness, Vec<String>, Vec<Value>) {
    let script = provider.clone();
    let harness = ProxyHarness::start(settings, None, move |request| script.reply(request, is_stream)).await;
    let whole = agent_messages(Format::Anthropic, 25);
    let mut received = Vec::new();
    for end in (0..25).map(|turn| 2 * turn + 1) {
        let body = request_body(Format::Anthropic, &whole[..end]);
        let request = harness.request("POST", "/v1/messages").body(Full::new(body.into())).unwrap();
        let got = harness.send(request).await;
        assert_eq!(got.status.as_u16(), 200, "{}", got.text());
        received.push(got.text().to_owned());
    }
    let sessions: Value = serde_json::from_slice(&harness.get("/foldline/api/v1/sessions").await.body).unwrap();
    let id = sessions["sessions"][0]["id"].as_str().unwrap();
    let detail: Value =
        serde_json::from_slice(&harness.get(&format!("/foldline/api/v1/sessions/{id}")).await.body).unwrap();
    let requests = detail["requests"].as_array().unwrap().clone();
    (harness, received, requests)
}

fn sampled(interval: u64) -> ProxySettings {
    ProxySettings { window: Some(16_000), cache_diagnostics: interval, ..settings() }
}

fn asked(harness: &ProxyHarness) -> usize {
    harness.received().iter().filter(|request| String::from_utf8_lossy(&request.body).contains(FIELD)).count()
}

#[tokio::test]
async fn provider_certifies_every_request_but_creases() {
    for is_stream in [false, true] {
        let (plain, expected, _) = run_session(sampled(0), &DiagnosingProvider::default(), is_stream).await;
        assert_eq!(asked(&plain), 0, "it is off by default");
        let (harness, received, requests) = run_session(sampled(1), &DiagnosingProvider::default(), is_stream).await;
        assert_eq!(received, expected, "the client gets the same bytes");
        assert_eq!(asked(&harness), 24, "all but the first, which has no predecessor");
        let without = |body: &[u8]| {
            let text = String::from_utf8(body.to_vec()).unwrap();
            text.find(FIELD).map_or(text.clone(), |at| format!("{}}}", &text[..at]))
        };
        for (with, plain) in harness.received().iter().zip(plain.received()) {
            assert_eq!(without(&with.body).as_bytes(), &plain.body[..], "the request is one more field");
        }
        let mut creases = 0;
        for request in &requests[1..] {
            let (verdict, is_crease) = (&request["provider_verdict"], !request["crease"].is_null());
            assert_eq!(verdict["is_kept"], json!(!is_crease), "{request}");
            assert_eq!(verdict["reason"], if is_crease { json!("messages_changed") } else { Value::Null });
            creases += u64::from(is_crease);
        }
        assert!(creases > 0 && requests[0]["provider_verdict"].is_null());
        let metrics = harness.get("/foldline/metrics").await;
        assert!(metrics.text().contains(&format!("foldline_cache_verdicts_total{{verdict=\"missed\"}} {creases}")));
    }
}

#[tokio::test]
async fn sample_is_a_part_of_the_requests() {
    let (harness, _, requests) = run_session(sampled(4), &DiagnosingProvider::default(), false).await;
    let verdicts = requests.iter().filter(|request| !request["provider_verdict"].is_null()).count();
    assert_eq!(asked(&harness), verdicts);
    assert!((1..16).contains(&verdicts), "{verdicts}");
}

#[tokio::test]
async fn provider_that_refuses_the_field_costs_no_request() {
    let provider = DiagnosingProvider { refuses: true, ..DiagnosingProvider::default() };
    let (harness, received, requests) = run_session(sampled(1), &provider, false).await;
    assert_eq!((asked(&harness), received.len(), harness.received().len()), (1, 25, 26), "it is asked once");
    assert!(requests.iter().all(|request| request["provider_verdict"].is_null() && request["status"] == 200));
}
