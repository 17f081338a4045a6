//! Traces against a scripted collector: one span per request, in the GenAI conventions, without text of conversations.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldline::wire::Format;
use foldline_server::proxy::ProxySettings;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::fold::{agent_messages, request_body};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings, start_upstream};

const PARENT_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Starts a collector and returns its address and what it receives.
async fn start_collector() -> (String, Arc<Mutex<Vec<ReceivedRequest>>>) {
    let received = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
    let address = start_upstream(received.clone(), Arc::default(), Arc::new(|_| UpstreamReply::json("{}"))).await;
    (format!("http://{address}"), received)
}

fn spans(received: &[ReceivedRequest]) -> Vec<Value> {
    let exports = received.iter().map(|export| serde_json::from_slice::<Value>(&export.body).unwrap());
    let scopes = exports.flat_map(|export| export["resourceSpans"].as_array().unwrap().clone());
    let spans = scopes.flat_map(|resource| resource["scopeSpans"].as_array().unwrap().clone());
    spans.flat_map(|scope| scope["spans"].as_array().unwrap().clone()).collect()
}

/// Returns the value of an attribute as a text.
fn attribute(span: &Value, name: &str) -> Option<String> {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == name)?;
    let value = found["value"].as_object().unwrap().values().next().unwrap();
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

#[tokio::test]
async fn every_request_is_a_span_in_the_conventions() {
    let (collector, received) = start_collector().await;
    let settings = ProxySettings { otlp_endpoint: Some(collector), offer_unfold_tool: false, ..settings() };
    let body = json!({ "id": "msg_1", "type": "message", "role": "assistant", "content": [{ "type": "text", "text": "secret answer" }],
        "usage": { "input_tokens": 30, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 5, "output_tokens": 7 } });
    let mut harness = ProxyHarness::start(settings, None, move |_| UpstreamReply::json(body.to_string())).await;
    let whole = agent_messages(Format::Anthropic, 2);
    for end in [1, 3] {
        let body = request_body(Format::Anthropic, &whole[..end]);
        let request = harness.request("POST", "/v1/messages");
        let request = request.header("traceparent", format!("00-{PARENT_TRACE}-b7ad6b7169203331-01"));
        assert_eq!(harness.send(request.body(Full::new(body.into())).unwrap()).await.status.as_u16(), 200);
    }
    harness.stop().await.unwrap();

    let received = received.lock().unwrap().clone();
    assert!(received.iter().all(|export| export.path == "/v1/traces"));
    let spans = spans(&received);
    assert_eq!(spans.len(), 2, "what is left is sent when the proxy stops");
    let span = &spans[0];
    assert_eq!(span["name"], "chat claude-opus-4-6");
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(PARENT_TRACE), &json!("b7ad6b7169203331")));
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "anthropic"),
        ("gen_ai.request.model", "claude-opus-4-6"),
        ("gen_ai.usage.input_tokens", "55"),
        ("gen_ai.usage.cache_read.input_tokens", "20"),
        ("gen_ai.usage.output_tokens", "7"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(attribute(span, name).as_deref(), Some(value), "{name} in {span}");
    }
    assert_eq!(attribute(span, "gen_ai.conversation.id"), attribute(&spans[1], "gen_ai.conversation.id"));
    let text = serde_json::to_string(&spans).unwrap();
    assert!(!text.contains("secret answer") && !text.contains("parser"), "no text of the conversation");
}

#[tokio::test]
async fn collector_that_is_away_slows_no_request() {
    let settings = ProxySettings { otlp_endpoint: Some("http://127.0.0.1:9".into()), ..settings() };
    let harness = ProxyHarness::start(settings, None, |_| UpstreamReply::json("{\"content\":[]}")).await;
    let body = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 1));
    let answered = tokio::time::timeout(Duration::from_secs(5), harness.post("/v1/messages", body)).await;
    assert_eq!(answered.unwrap().status.as_u16(), 200);
}
