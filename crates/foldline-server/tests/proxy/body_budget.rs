//! The memory limit of all request bodies: responses to clients when it is exhausted.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::wire::Format;
use foldline_server::proxy::{AccessToken, ProxyLimits, ProxyMode, ProxySettings, Timeouts};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::fold::endpoint;
use crate::stores::temp_archive;
use crate::support::{ClientResponse, ProxyHarness, StreamPiece, UpstreamReply, settings};
use crate::unfold_tool::FORMATS;

const KB: usize = 1 << 10;

/// Returns settings with a body budget of this many bytes, and a short wait for it.
fn settings_with_budget(bodies: usize) -> ProxySettings {
    let timeouts = Timeouts { body_budget: Duration::from_millis(300), ..Timeouts::default() };
    ProxySettings { limits: ProxyLimits { total_body_bytes: bodies, ..ProxyLimits::default() }, timeouts, ..settings() }
}

/// Returns a body of about this size, which is not a conversation that could be folded.
fn body_of_size(bytes: usize) -> String {
    let body = json!({ "model": "gpt-4o", "stream": true, "max_tokens": 9, "input": null, "messages": null,
        "metadata": { "filler": "x".repeat(bytes) } });
    body.to_string()
}

/// Returns an upstream that replies to `x-slow` requests when the gate is closed, and to all others at once.
fn gated_upstream(
    gate: &Arc<Semaphore>,
) -> impl Fn(&crate::support::ReceivedRequest) -> UpstreamReply + Send + Sync + 'static {
    let gate = gate.clone();
    move |received| match received.headers.contains_key("x-slow") {
        true => UpstreamReply::Gated(gate.clone(), Box::new(UpstreamReply::json("{}"))),
        false => UpstreamReply::json("{}"),
    }
}

/// Starts a request that the upstream has received and does not reply to yet.
async fn start_slow_request(harness: &Arc<ProxyHarness>, body: String) -> tokio::task::JoinHandle<ClientResponse> {
    let before = harness.received().len();
    let request = harness.request("POST", endpoint(Format::OpenAiChat)).header("x-slow", "1");
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let task = tokio::spawn({
        let harness = harness.clone();
        async move { harness.send(request).await }
    });
    while harness.received().len() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task
}

/// A request without memory is refused in its dialect with `retry-after`; nothing of it reaches the provider, and it
/// succeeds once memory is available.
#[tokio::test]
async fn exhausted_body_budget_returns_503_with_retry_after() {
    let gate = Arc::new(Semaphore::new(0));
    let harness = Arc::new(ProxyHarness::start(settings_with_budget(300 * KB), None, gated_upstream(&gate)).await);
    let first = start_slow_request(&harness, body_of_size(200 * KB)).await;
    for format in FORMATS {
        let got = harness.post(endpoint(format), body_of_size(150 * KB)).await;
        assert_eq!((got.status.as_u16(), got.header("retry-after")), (503, Some("3")), "{format:?}");
        let error: Value = serde_json::from_slice(&got.body).unwrap();
        let (kind, shape) = match format {
            Format::Anthropic => ("overloaded_error", json!("error")),
            _ => ("server_error", Value::Null),
        };
        assert_eq!((&error["error"]["type"], &error["type"]), (&json!(kind), &shape), "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("max-bodies"), "{error}");
    }
    assert_eq!(harness.received().len(), 1, "only the first was forwarded");
    assert_eq!(
        harness.post(endpoint(Format::Anthropic), body_of_size(50 * KB)).await.status,
        200,
        "a smaller one fits"
    );
    assert_eq!(harness.metric("foldline_rejected_bodies_total").await, 3.0);
    assert!(harness.metric("foldline_held_body_bytes").await >= (200 * KB) as f64);
    gate.close();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(harness.post(endpoint(Format::Anthropic), body_of_size(150 * KB)).await.status, 200);
    assert_eq!(harness.metric("foldline_held_body_bytes").await, 0.0);
}

/// Memory that is released while a request waits goes to it; the client sees no error.
#[tokio::test]
async fn request_waits_for_body_budget() {
    let gate = Arc::new(Semaphore::new(0));
    let timeouts = Timeouts { body_budget: Duration::from_secs(20), ..Timeouts::default() };
    let harness = Arc::new(
        ProxyHarness::start(ProxySettings { timeouts, ..settings_with_budget(300 * KB) }, None, gated_upstream(&gate))
            .await,
    );
    let first = start_slow_request(&harness, body_of_size(200 * KB)).await;
    let release = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        gate.close();
    };
    let (second, ()) = tokio::join!(harness.post(endpoint(Format::OpenAiChat), body_of_size(250 * KB)), release);
    assert_eq!((second.status.as_u16(), first.await.unwrap().status.as_u16()), (200, 200));
    // A body larger than the whole budget is accepted alone.
    assert_eq!(harness.post(endpoint(Format::OpenAiChat), body_of_size(900 * KB)).await.status, 200);
}

/// A compressed body reserves its decoded size.
#[tokio::test]
async fn decoded_body_counts_against_the_budget() {
    let gate = Arc::new(Semaphore::new(0));
    let harness = Arc::new(ProxyHarness::start(settings_with_budget(300 * KB), None, gated_upstream(&gate)).await);
    let first = start_slow_request(&harness, body_of_size(200 * KB)).await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(body_of_size(250 * KB).as_bytes()).unwrap();
    let compressed = gzip.finish().unwrap();
    assert!(compressed.len() < 10 * KB);
    let request = || {
        let request = harness.request("POST", endpoint(Format::OpenAiChat)).header("content-encoding", "gzip");
        request.body(Full::new(compressed.clone().into())).unwrap()
    };
    assert_eq!(harness.send(request()).await.status, 503);
    gate.close();
    first.await.unwrap();
    assert_eq!(harness.send(request()).await.status, 200);
    assert_eq!(harness.received().last().unwrap().body, compressed);
}

/// While a response is streamed, its request is kept in memory only if a further round may need it.
#[tokio::test]
async fn unneeded_body_is_released_while_streaming() {
    let kept = temp_archive();
    for (mode, is_held) in [(ProxyMode::Off, false), (ProxyMode::Observe, false), (ProxyMode::Fold, true)] {
        let gate = Arc::new(Semaphore::new(0));
        let closed = gate.clone();
        let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
        let settings = ProxySettings { mode, ..settings_with_budget(300 * KB) };
        let harness = ProxyHarness::start(settings, Some(kept.archive.clone()), move |_| {
            UpstreamReply::Stream(vec![StreamPiece::Bytes(event.into()), StreamPiece::GateClosed(closed.clone())])
        })
        .await;
        let tool = json!({ "type": "function", "function": { "name": "a", "parameters": {} } });
        let request = json!({ "model": "gpt-4o", "stream": true, "tools": [tool],
            "messages": [{ "role": "user", "content": "word ".repeat(20 * KB) }] });
        let body = Full::new(request.to_string().into());
        let request = harness.request("POST", endpoint(Format::OpenAiChat)).body(body).unwrap();
        let mut body = harness.send_head(request).await.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(harness.metric("foldline_held_body_bytes").await > 0.0, is_held, "{mode:?}");
        gate.close();
        body.collect().await.unwrap();
        assert_eq!(harness.metric("foldline_held_body_bytes").await, 0.0, "{mode:?}");
    }
}

/// Sends a request of 30 MB, reads only then, and returns the start of the response.
async fn send_whole_then_read(settings: ProxySettings, path: &str) -> String {
    let harness = ProxyHarness::start(settings, None, |_| UpstreamReply::json("{}")).await;
    let mut client = TcpStream::connect(harness.proxy).await.unwrap();
    let body = body_of_size(30_000 * KB);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(body.as_bytes()).await.unwrap();
    let mut status_line = vec![0; 12];
    client.read_exact(&mut status_line).await.unwrap();
    String::from_utf8(status_line).unwrap()
}

/// A client that sends the whole body before it reads gets the error, and not a connection reset.
#[tokio::test]
async fn client_reads_an_error_after_sending_everything() {
    let limits = ProxyLimits { body_bytes: 1000, ..ProxyLimits::default() };
    let with_limit = ProxySettings { limits, ..settings() };
    assert_eq!(send_whole_then_read(with_limit, "/v1/messages").await, "HTTP/1.1 413");
    let tokens = AccessToken::parse_list("sesame").unwrap();
    let with_token = ProxySettings { tokens, ..settings() };
    for path in ["/v1/messages", "/v1/compress"] {
        assert_eq!(send_whole_then_read(with_token.clone(), path).await, "HTTP/1.1 401", "{path}");
    }
}
