//! The bodies of all requests at once have a limit: what a client sees when there is no room for its own.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::wire::Format;
use foldline_server::proxy::{ProxyLimits, ProxyMode, ProxySettings, Timeouts};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::fold::endpoint;
use crate::support::{ClientResponse, ProxyHarness, StreamPiece, UpstreamReply, settings};
use crate::unfold_tool::{FORMATS, temp_archive};

const KB: usize = 1 << 10;

/// Room for so many bytes, and a short wait for it.
fn settings_with_budget(bodies: usize) -> ProxySettings {
    let patience = Timeouts { body_budget: Duration::from_millis(300), ..Timeouts::default() };
    ProxySettings {
        limits: ProxyLimits { total_body_bytes: bodies, ..ProxyLimits::default() },
        timeouts: patience,
        ..settings()
    }
}

/// A body of about this size, which is no conversation that could be folded.
fn body_of_size(bytes: usize) -> String {
    let said = json!({ "model": "gpt-4o", "stream": true, "max_tokens": 9, "input": null, "messages": null,
        "metadata": { "filler": "x".repeat(bytes) } });
    said.to_string()
}

/// An upstream that answers `slow` requests when the gate is closed, and all others at once.
fn gated_upstream(
    gate: &Arc<Semaphore>,
) -> impl Fn(&crate::support::ReceivedRequest) -> UpstreamReply + Send + Sync + 'static {
    let gate = gate.clone();
    move |received| match received.headers.contains_key("x-slow") {
        true => UpstreamReply::Gated(gate.clone(), Box::new(UpstreamReply::json("{}"))),
        false => UpstreamReply::json("{}"),
    }
}

/// Begins a request that the upstream has received and does not answer yet.
async fn start_slow_request(stand: &Arc<ProxyHarness>, body: String) -> tokio::task::JoinHandle<ClientResponse> {
    let before = stand.received().len();
    let request = stand.request("POST", endpoint(Format::OpenAiChat)).header("x-slow", "1");
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let sending = tokio::spawn({
        let stand = stand.clone();
        async move { stand.send(request).await }
    });
    while stand.received().len() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sending
}

/// A request that finds no room is refused in the shape that its client's library reads, with the time after which to
/// come again; nothing of it reaches the provider; and it gets through once there is room.
#[tokio::test]
async fn exhausted_body_budget_returns_503_with_retry_after() {
    let gate = Arc::new(Semaphore::new(0));
    let stand = Arc::new(ProxyHarness::start(settings_with_budget(300 * KB), None, gated_upstream(&gate)).await);
    let first = start_slow_request(&stand, body_of_size(200 * KB)).await;
    for format in FORMATS {
        let got = stand.post(endpoint(format), body_of_size(150 * KB)).await;
        assert_eq!((got.status.as_u16(), got.header("retry-after")), (503, Some("3")), "{format:?}");
        let told: Value = serde_json::from_slice(&got.body).unwrap();
        let (kind, shape) = match format {
            Format::Anthropic => ("overloaded_error", json!("error")),
            _ => ("server_error", Value::Null),
        };
        assert_eq!((&told["error"]["type"], &told["type"]), (&json!(kind), &shape), "{told}");
        assert!(told["error"]["message"].as_str().unwrap().contains("max-bodies"), "{told}");
    }
    assert_eq!(stand.received().len(), 1, "only the first has arrived");
    assert_eq!(
        stand.post(endpoint(Format::Anthropic), body_of_size(50 * KB)).await.status,
        200,
        "a smaller one finds room"
    );
    assert_eq!(stand.metric("foldline_refused_bodies_total").await, 3.0);
    assert!(stand.metric("foldline_held_body_bytes").await >= (200 * KB) as f64);
    gate.close();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(stand.post(endpoint(Format::Anthropic), body_of_size(150 * KB)).await.status, 200);
    assert_eq!(stand.metric("foldline_held_body_bytes").await, 0.0);
}

/// Room that comes free while a request waits for it is its own: the client notices nothing.
#[tokio::test]
async fn request_waits_for_body_budget() {
    let gate = Arc::new(Semaphore::new(0));
    let patience = Timeouts { body_budget: Duration::from_secs(20), ..Timeouts::default() };
    let stand = Arc::new(
        ProxyHarness::start(
            ProxySettings { timeouts: patience, ..settings_with_budget(300 * KB) },
            None,
            gated_upstream(&gate),
        )
        .await,
    );
    let first = start_slow_request(&stand, body_of_size(200 * KB)).await;
    let release = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        gate.close();
    };
    let (second, ()) = tokio::join!(stand.post(endpoint(Format::OpenAiChat), body_of_size(250 * KB)), release);
    assert_eq!((second.status.as_u16(), first.await.unwrap().status.as_u16()), (200, 200));
    // More than all the room there is: it has it to itself.
    assert_eq!(stand.post(endpoint(Format::OpenAiChat), body_of_size(900 * KB)).await.status, 200);
}

/// A small body that is large when it is decoded takes the room that it takes decoded.
#[tokio::test]
async fn decoded_body_counts_against_the_budget() {
    let gate = Arc::new(Semaphore::new(0));
    let stand = Arc::new(ProxyHarness::start(settings_with_budget(300 * KB), None, gated_upstream(&gate)).await);
    let first = start_slow_request(&stand, body_of_size(200 * KB)).await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(body_of_size(250 * KB).as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    assert!(packed.len() < 10 * KB);
    let request = || {
        let request = stand.request("POST", endpoint(Format::OpenAiChat)).header("content-encoding", "gzip");
        request.body(Full::new(packed.clone().into())).unwrap()
    };
    assert_eq!(stand.send(request()).await.status, 503);
    gate.close();
    first.await.unwrap();
    assert_eq!(stand.send(request()).await.status, 200);
    assert_eq!(stand.received().last().unwrap().body, packed);
}

/// While an answer streams, its request takes room only when it may have to be asked again.
#[tokio::test]
async fn unneeded_body_is_released_while_streaming() {
    let kept = temp_archive();
    for (mode, held) in [(ProxyMode::Off, false), (ProxyMode::Observe, false), (ProxyMode::Fold, true)] {
        let gate = Arc::new(Semaphore::new(0));
        let closed = gate.clone();
        let said = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
        let settings = ProxySettings { mode, ..settings_with_budget(300 * KB) };
        let stand = ProxyHarness::start(settings, Some(kept.archive.clone()), move |_| {
            UpstreamReply::Stream(vec![StreamPiece::Bytes(said.into()), StreamPiece::GateClosed(closed.clone())])
        })
        .await;
        let tool = json!({ "type": "function", "function": { "name": "a", "parameters": {} } });
        let asked = json!({ "model": "gpt-4o", "stream": true, "tools": [tool],
            "messages": [{ "role": "user", "content": "word ".repeat(20 * KB) }] });
        let request = stand.request("POST", endpoint(Format::OpenAiChat));
        let mut body = stand.send_head(request.body(Full::new(asked.to_string().into())).unwrap()).await.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(stand.metric("foldline_held_body_bytes").await > 0.0, held, "{mode:?}");
        gate.close();
        body.collect().await.unwrap();
        assert_eq!(stand.metric("foldline_held_body_bytes").await, 0.0, "{mode:?}");
    }
}

/// A client that sends all of a body before it listens hears why it was not taken, and not that its connection was reset.
#[tokio::test]
async fn client_reads_413_after_sending_everything() {
    let limits = ProxyLimits { body_bytes: 1000, ..ProxyLimits::default() };
    let stand = ProxyHarness::start(ProxySettings { limits, ..settings() }, None, |_| UpstreamReply::json("{}")).await;
    let mut client = TcpStream::connect(stand.proxy).await.unwrap();
    let body = body_of_size(30_000 * KB);
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(body.as_bytes()).await.unwrap();
    let mut told = vec![0; 12];
    client.read_exact(&mut told).await.unwrap();
    assert_eq!(told, b"HTTP/1.1 413");
}
