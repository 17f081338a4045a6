//! Requests that are not folded are forwarded unmodified.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline_server::proxy::{AccessToken, Proxy, ProxyLimits, ProxyMode, ProxySettings, Timeouts};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::support::{LogBuffer, ProxyHarness, StreamPiece, UpstreamReply, settings};

/// A body that no serializer would produce.
const ODD_BODY: &str = "{ \"model\" : \"gpt-4o\",\n\t\"messages\":[{\"role\":\"user\",\"content\":\"h\\u0069\"} ] , \"x\":1e3, \"x\":[ ] }";

#[tokio::test]
async fn unfolded_conversation_is_forwarded_byte_for_byte() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json(r#"{"choices":[]}"#)).await;
    let got = harness.post("/v1/chat/completions?a=%2F&b", ODD_BODY).await;
    assert_eq!((got.status.as_u16(), got.text()), (200, r#"{"choices":[]}"#));
    let received = harness.only_request();
    assert_eq!(received.body, ODD_BODY);
    assert_eq!(received.path, "/v1/chat/completions?a=%2F&b");
}

#[tokio::test]
async fn unknown_requests_are_forwarded() {
    let harness =
        ProxyHarness::start(settings(), None, |_| UpstreamReply::Body(418, "text/plain", "short and stout".into()))
            .await;
    let body = Bytes::from_static(b"\x00\xff binary");
    let request = harness
        .request("PATCH", "/some/where//else?q=a+b")
        .header("authorization", "Bearer secret")
        .header("x-foldline-session", "mine")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .body(Full::new(body.clone()))
        .unwrap();
    let got = harness.send(request).await;
    assert_eq!((got.status.as_u16(), got.text()), (418, "short and stout"));
    let received = harness.only_request();
    assert_eq!((received.method.as_str(), received.path.as_str()), ("PATCH", "/some/where//else?q=a+b"));
    assert_eq!(received.body, body);
    assert_eq!(received.headers["authorization"], "Bearer secret");
    assert!(!received.headers.contains_key("x-foldline-session") && !received.headers.contains_key("x-hop"));
    assert_eq!(received.headers["host"], harness.upstream.to_string());
}

/// A large body with messages on a path that the proxy does not know is forwarded unmodified, with one warning that names
/// the paths it knows.
#[tokio::test]
async fn conversation_on_an_unknown_path_is_reported_once() {
    let log = LogBuffer::default();
    let writer = log.clone();
    let _ = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).try_init();
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let body = |key: &str, length: usize| format!(r#"{{"x":{{"messages":[]}},"{key}":["{}"]}}"#, "a".repeat(length));
    for (path, sent) in [
        ("/api/v9/converse", body("contents", 40_000)),
        ("/api/v9/converse?again", body("messages", 40_000)),
        ("/v1/small", body("messages", 30_000)),
        ("/v1/embeddings_of_texts", body("texts", 40_000)),
    ] {
        assert_eq!(harness.post(path, sent.clone()).await.status, 200);
        assert_eq!(harness.received().pop().unwrap().body, sent);
    }
    let log = log.text();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("looks like a conversation")).collect();
    assert!(
        matches!(lines[..], [line] if line.contains("/api/v9/converse") && line.contains("/v1/chat/completions")),
        "{log}"
    );
}

#[tokio::test]
async fn head_request_to_root_is_forwarded() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("")).await;
    let got = harness.send(harness.request("HEAD", "/").body(Full::default()).unwrap()).await;
    assert_eq!(got.status, 200);
    assert_eq!(harness.only_request().method, "HEAD");
}

#[tokio::test]
async fn websocket_upgrade_is_refused_with_426() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let request = harness
        .request("GET", "/v1/responses")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-key", "x")
        .body(Full::default())
        .unwrap();
    assert_eq!(harness.send(request).await.status, 426);
    assert!(harness.received().is_empty());
}

#[tokio::test]
async fn path_prefix_selects_provider_and_is_stripped() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    harness.post("/openai/v1/chat/completions", ODD_BODY).await;
    harness.post("/anthropic/v1/messages?beta=true", r#"{"messages":[{"role":"user","content":"hi"}]}"#).await;
    let paths: Vec<String> = harness.received().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/v1/chat/completions", "/v1/messages?beta=true"]);
}

#[tokio::test]
async fn unfolded_compressed_body_stays_compressed() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let sent = zstd::encode_all(ODD_BODY.as_bytes(), 3).unwrap();
    let request = harness
        .request("POST", "/v1/chat/completions")
        .header("content-encoding", "zstd")
        .body(Full::new(sent.clone().into()))
        .unwrap();
    assert_eq!(harness.send(request).await.status, 200);
    let received = harness.only_request();
    assert_eq!(received.body, sent);
    assert_eq!(received.headers["content-encoding"], "zstd");
}

#[tokio::test]
async fn oversized_body_gets_a_dialect_error() {
    let limits = ProxyLimits { body_bytes: 1000, ..ProxyLimits::default() };
    let harness =
        ProxyHarness::start(ProxySettings { limits, ..settings() }, None, |_| UpstreamReply::json("{}")).await;
    let got = harness.post("/v1/messages", "x".repeat(1001)).await;
    assert_eq!(got.status, 413);
    let start = r#"{"type":"error","error":{"type":"request_too_large","message":"foldline: the request is larger than 1000 bytes"#;
    assert!(got.text().starts_with(start), "{got:?}");
    assert!(harness.received().is_empty());
}

/// The first chunk of a stream reaches the client before the upstream writes the next one.
#[tokio::test]
async fn stream_is_not_buffered() {
    check_stream_is_not_buffered("text/event-stream").await;
}

#[tokio::test]
async fn stream_with_upper_case_type_is_not_buffered() {
    check_stream_is_not_buffered("TEXT/Event-Stream; charset=UTF-8").await;
}

async fn check_stream_is_not_buffered(content_type: &'static str) {
    let events = ["data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n", "data: [DONE]\n\n"];
    let notify = Arc::new(Notify::new());
    let wait_for = notify.clone();
    let harness = ProxyHarness::start(settings(), None, move |_| {
        let pieces = vec![
            StreamPiece::Bytes(events[0].into()),
            StreamPiece::Notified(wait_for.clone()),
            StreamPiece::Bytes(events[1].into()),
        ];
        UpstreamReply::TypedStream(content_type, pieces)
    })
    .await;
    let request = harness.request("POST", "/v1/chat/completions").body(Full::new(ODD_BODY.into())).unwrap();
    let mut body = harness.send_head(request).await.into_body();
    let first = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.expect("the stream is forwarded");
    assert_eq!(first.unwrap().unwrap().into_data().unwrap(), events[0]);
    notify.notify_one();
    assert_eq!(body.collect().await.unwrap().to_bytes(), events[1]);
}

#[tokio::test]
async fn non_loopback_requires_a_token() {
    let open = ProxySettings { listen: ([0, 0, 0, 0], 0).into(), ..settings() };
    let refused = Proxy::bind(open.clone(), None).await.err().unwrap();
    assert!(refused.to_string().contains("set a token"), "{refused}");

    let guarded = ProxySettings { tokens: AccessToken::parse_list("sesame").unwrap(), ..open };
    let harness = ProxyHarness::start(guarded, None, |_| UpstreamReply::json("{}")).await;
    assert_eq!(harness.post("/v1/chat/completions", ODD_BODY).await.status, 401);
    assert_eq!(harness.get("/foldline/metrics").await.status, 401);
    assert_eq!(harness.post("/token/sesame/v1/chat/completions", ODD_BODY).await.status, 200);
    let request = harness.request("POST", "/v1/chat/completions").header("x-foldline-token", "sesame");
    assert_eq!(harness.send(request.body(Full::new(ODD_BODY.into())).unwrap()).await.status, 200);
    for received in harness.received() {
        assert!(!format!("{received:?}").contains("sesame"));
    }
}

#[tokio::test]
async fn shutdown_waits_for_open_streams() {
    let mut harness = ProxyHarness::start(settings(), None, |_| {
        let wait = || StreamPiece::Wait(Duration::from_millis(150));
        UpstreamReply::Stream(vec![
            StreamPiece::Bytes("data: 1\n\n".into()),
            wait(),
            wait(),
            StreamPiece::Bytes("data: 2\n\n".into()),
        ])
    })
    .await;
    let request = harness.request("POST", "/v1/chat/completions").body(Full::new(ODD_BODY.into())).unwrap();
    let body = harness.send_head(request).await.into_body();
    let stopped = harness.stop();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "data: 1\n\ndata: 2\n\n");
    tokio::time::timeout(Duration::from_secs(5), stopped).await.unwrap().unwrap();
    assert!(TcpStream::connect(harness.proxy).await.is_err(), "the port is closed");
}

/// A client that stops in the middle of a head or a body does not hold a request permit.
#[tokio::test]
async fn slow_clients_are_disconnected() {
    let timeouts = Timeouts { client_read: Duration::from_millis(200), ..Timeouts::default() };
    let limits = ProxyLimits { requests: 1, ..ProxyLimits::default() };
    let harness =
        ProxyHarness::start(ProxySettings { timeouts, limits, ..settings() }, None, |_| UpstreamReply::json("{}"))
            .await;
    for prefix in [
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"mod",
    ] {
        let mut slow = TcpStream::connect(harness.proxy).await.unwrap();
        slow.write_all(prefix.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(5), slow.read_to_end(&mut rest)).await.expect("disconnected").unwrap();
        assert_eq!(harness.post("/v1/chat/completions", ODD_BODY).await.status, 200, "the permit is free again");
    }
}

#[tokio::test]
async fn off_mode_forwards_unmodified() {
    let harness =
        ProxyHarness::start(ProxySettings { mode: ProxyMode::Off, ..settings() }, None, |_| UpstreamReply::json("{}"))
            .await;
    let with_tools = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"a","parameters":{}}}]}"#;
    harness.post("/v1/chat/completions", with_tools).await;
    assert_eq!(harness.only_request().body, with_tools);
}
