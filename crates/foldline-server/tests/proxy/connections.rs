//! Client connections: HTTP versions and framings, and clients that hold a connection without using it.

use std::time::Duration;

use bytes::Bytes;
use foldline_server::proxy::{ProxyLimits, ProxySettings, Timeouts};
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::Request;
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ProxyHarness, StreamPiece, UpstreamReply, settings};

const CHAT_BODY: &str = r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
const CHAT_EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";

#[tokio::test]
async fn http2_clients_are_served() {
    let harness =
        ProxyHarness::start(settings(), None, |_| UpstreamReply::stream([CHAT_EVENT, "data: [DONE]\n\n"])).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let requests = (0..20)
        .map(|_| client.request(harness.request("POST", "/v1/chat/completions").body(CHAT_BODY.into()).unwrap()));
    for response in futures_util::future::join_all(requests).await {
        let response = response.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, hyper::Version::HTTP_2));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, format!("{CHAT_EVENT}data: [DONE]\n\n"));
    }
    assert!(harness.received().iter().all(|received| received.body == CHAT_BODY));
}

#[tokio::test]
async fn chunked_bodies_are_read_up_to_the_limit() {
    let limits = ProxyLimits { body_bytes: 1000, ..ProxyLimits::default() };
    let harness =
        ProxyHarness::start(ProxySettings { limits, ..settings() }, None, |_| UpstreamReply::json("{}")).await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    for (length, status) in [(1, 200), (20, 413)] {
        let chunks: Vec<Bytes> = CHAT_BODY.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
        let chunks = std::iter::repeat_n(chunks, length).flatten();
        let frames = chunks.map(|chunk| Ok::<_, std::convert::Infallible>(Frame::data(chunk)));
        let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()));
        let request: Request<_> = harness.request("POST", "/v1/chat/completions").body(body).unwrap();
        assert_eq!(client.request(request).await.unwrap().status(), status);
    }
    assert_eq!(harness.only_request().body, CHAT_BODY);
}

/// Connections that send nothing, or too little to determine the protocol, are closed.
#[tokio::test]
async fn idle_connection_is_closed() {
    let timeouts = Timeouts { client_read: Duration::from_millis(200), ..Timeouts::default() };
    let harness =
        ProxyHarness::start(ProxySettings { timeouts, ..settings() }, None, |_| UpstreamReply::json("{}")).await;
    for prefix in ["", "P", "PRI * HTTP/2.0\r\n"] {
        let mut idle = TcpStream::connect(harness.proxy).await.unwrap();
        idle.write_all(prefix.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), idle.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{prefix:?}");
    }
}

/// Single bytes at intervals must not keep a request open.
#[tokio::test]
async fn slow_loris_client_gets_408() {
    let timeouts = Timeouts { client_read: Duration::from_millis(300), ..Timeouts::default() };
    let harness =
        ProxyHarness::start(ProxySettings { timeouts, ..settings() }, None, |_| UpstreamReply::json("{}")).await;
    let connection = TcpStream::connect(harness.proxy).await.unwrap();
    let (mut reader, mut writer) = connection.into_split();
    let head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n";
    writer.write_all(head.as_bytes()).await.unwrap();
    let dripping = async {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut status_line = vec![0; 12];
    let response = async {
        tokio::select! {
            read = reader.read_exact(&mut status_line) => read.map(|_| ()),
            () = dripping => Ok(()),
        }
    };
    tokio::time::timeout(Duration::from_secs(10), response).await.expect("disconnected").unwrap();
    assert_eq!(status_line, b"HTTP/1.1 408");
    assert_eq!(harness.metric("foldline_open_requests").await, 0.0);
}

/// A client that never reads its response holds neither a request permit nor the upstream.
#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let timeouts = Timeouts { idle: Duration::from_millis(300), ..Timeouts::default() };
    let limits = ProxyLimits { requests: 1, ..ProxyLimits::default() };
    let harness =
        ProxyHarness::start(ProxySettings { timeouts, limits, ..settings() }, None, |received| {
            match received.headers.contains_key("x-endless") {
                true => UpstreamReply::Stream((0..4000).map(|_| StreamPiece::Bytes(CHAT_EVENT.repeat(100))).collect()),
                false => UpstreamReply::json("{}"),
            }
        })
        .await;
    let mut client = TcpStream::connect(harness.proxy).await.unwrap();
    let length = CHAT_BODY.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-endless: 1\r\ncontent-length: {length}\r\n\r\n{CHAT_BODY}"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let next = harness.post("/v1/chat/completions", CHAT_BODY);
    let next = tokio::time::timeout(Duration::from_secs(10), next).await.expect("the only permit is free again");
    assert_eq!(next.status, 200);
    drop(client);
}

/// Returns a request whose fold takes a while: many rounds with long results, far beyond the window.
fn long_conversation(rounds: usize) -> String {
    let mut messages = vec![json!({ "role": "user", "content": "Find the bug." })];
    for round in 0..rounds {
        let id = format!("call_{round}");
        let lines =
            (0..400).map(|line| format!("let value_{line} = compute_{round}({}, other[{line}]);\n", line * round));
        messages.extend([
            json!({ "role": "assistant", "content": "Reading.", "tool_calls": [
                { "id": id, "type": "function", "function": { "name": "read_file", "arguments": "{\"path\":\"x\"}" } }] }),
            json!({ "role": "tool", "tool_call_id": id, "content": lines.collect::<String>() }),
        ]);
    }
    json!({ "model": "gpt-4o", "messages": messages }).to_string()
}

async fn post_and_disconnect(address: std::net::SocketAddr, body: &str, after: Duration) {
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(body.as_bytes()).await.unwrap();
    tokio::time::sleep(after).await;
}

/// Waits until a metric has a value.
async fn wait_for_metric(harness: &ProxyHarness, name: &str, value: f64) {
    let reached = async {
        while harness.metric(name).await != value {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(10), reached).await;
    assert!(reached.is_ok(), "{name} is not {value}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_disconnect_cancels_its_fold() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    post_and_disconnect(harness.proxy, &long_conversation(400), Duration::from_millis(200)).await;
    wait_for_metric(&harness, "foldline_cancelled_folds_total", 1.0).await;
    wait_for_metric(&harness, "foldline_open_requests", 0.0).await;
    wait_for_metric(&harness, "foldline_held_body_bytes", 0.0).await;
    assert_eq!(harness.metric("foldline_internal_errors_total").await, 0.0);
    assert_eq!(harness.received().len(), 0, "nothing is sent for a disconnected client");
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_client_disconnect_cancels_its_fold() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let body = long_conversation(800);
    let length = body.len() as f64;
    let request = harness.request("POST", "/v1/chat/completions").body(Full::new(body.into())).unwrap();
    // A large body takes several round trips over HTTP/2; the fold begins when it is complete.
    let is_received = async {
        while harness.metric("foldline_held_body_bytes").await < length {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    tokio::select! {
        _ = client.request(request) => panic!("the fold takes longer"),
        () = is_received => {}
    }
    wait_for_metric(&harness, "foldline_cancelled_folds_total", 1.0).await;
    assert_eq!(harness.received().len(), 0);
}

#[tokio::test]
async fn responses_longer_than_shutdown_timeout_are_aborted() {
    let timeouts = Timeouts { shutdown: Duration::from_millis(200), ..Timeouts::default() };
    let settings = ProxySettings { timeouts, ..settings() };
    let mut harness = ProxyHarness::start(settings, None, |_| {
        UpstreamReply::Stream(vec![StreamPiece::Bytes(CHAT_EVENT.into()), StreamPiece::Wait(Duration::from_secs(60))])
    })
    .await;
    let request = harness.request("POST", "/v1/chat/completions").body(Full::new(CHAT_BODY.into())).unwrap();
    let body = harness.send_head(request).await.into_body();
    let stopped = harness.stop();
    tokio::time::timeout(Duration::from_secs(5), stopped).await.unwrap().unwrap();
    let rest = tokio::time::timeout(Duration::from_secs(5), body.collect()).await.expect("the connection is closed");
    assert!(rest.is_err(), "an aborted response must not look complete");
}

#[tokio::test]
async fn long_model_name_is_forwarded_without_delay() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    for model in ["/".repeat(12_000), "a".repeat(200_000), "gpt-4o:".repeat(2_000)] {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] }).to_string();
        let response = harness.post("/v1/chat/completions", body.clone());
        let response = tokio::time::timeout(Duration::from_secs(5), response).await.expect("answered in time");
        assert_eq!(response.status, 200);
        assert_eq!(harness.received().last().unwrap().body, body);
    }
}
