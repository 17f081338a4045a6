//! What is not folded goes through as it came.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline_server::proxy::{AccessToken, Proxy, ProxyLimits, ProxyMode, ProxySettings, Timeouts};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::support::{ProxyHarness, StreamPiece, UpstreamReply, settings};

/// A body that no serialiser would write like this.
const ODD_BODY: &str = "{ \"model\" : \"gpt-4o\",\n\t\"messages\":[{\"role\":\"user\",\"content\":\"h\\u0069\"} ] , \"x\":1e3, \"x\":[ ] }";

#[tokio::test]
async fn unfolded_conversation_is_forwarded_byte_for_byte() {
    let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::json(r#"{"choices":[]}"#)).await;
    let got = stand.post("/v1/chat/completions?a=%2F&b", ODD_BODY).await;
    assert_eq!((got.status.as_u16(), got.text()), (200, r#"{"choices":[]}"#));
    let received = stand.only_request();
    assert_eq!(received.body, ODD_BODY);
    assert_eq!(received.path, "/v1/chat/completions?a=%2F&b");
}

#[tokio::test]
async fn unknown_requests_are_forwarded() {
    let stand =
        ProxyHarness::start(settings(), None, |_| UpstreamReply::Body(418, "text/plain", "short and stout".into()))
            .await;
    let body = Bytes::from_static(b"\x00\xff binary");
    let request = stand
        .request("PATCH", "/some/where//else?q=a+b")
        .header("authorization", "Bearer secret")
        .header("x-foldline-session", "mine")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .body(Full::new(body.clone()))
        .unwrap();
    let got = stand.send(request).await;
    assert_eq!((got.status.as_u16(), got.text()), (418, "short and stout"));
    let received = stand.only_request();
    assert_eq!((received.method.as_str(), received.path.as_str()), ("PATCH", "/some/where//else?q=a+b"));
    assert_eq!(received.body, body);
    assert_eq!(received.headers["authorization"], "Bearer secret");
    assert!(!received.headers.contains_key("x-foldline-session") && !received.headers.contains_key("x-hop"));
    assert_eq!(received.headers["host"], stand.upstream.to_string());
}

#[tokio::test]
async fn head_request_to_root_is_forwarded() {
    let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("")).await;
    let got = stand.send(stand.request("HEAD", "/").body(Full::default()).unwrap()).await;
    assert_eq!(got.status, 200);
    assert_eq!(stand.only_request().method, "HEAD");
}

#[tokio::test]
async fn websocket_upgrade_is_refused_with_426() {
    let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let request = stand
        .request("GET", "/v1/responses")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-key", "x")
        .body(Full::default())
        .unwrap();
    assert_eq!(stand.send(request).await.status, 426);
    assert!(stand.received().is_empty());
}

#[tokio::test]
async fn path_prefix_selects_provider_and_is_stripped() {
    let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    stand.post("/openai/v1/chat/completions", ODD_BODY).await;
    stand.post("/anthropic/v1/messages?beta=true", r#"{"messages":[{"role":"user","content":"hi"}]}"#).await;
    let paths: Vec<String> = stand.received().into_iter().map(|it| it.path).collect();
    assert_eq!(paths, ["/v1/chat/completions", "/v1/messages?beta=true"]);
}

#[tokio::test]
async fn unfolded_compressed_body_stays_compressed() {
    let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let sent = zstd::encode_all(ODD_BODY.as_bytes(), 3).unwrap();
    let request = stand
        .request("POST", "/v1/chat/completions")
        .header("content-encoding", "zstd")
        .body(Full::new(sent.clone().into()))
        .unwrap();
    assert_eq!(stand.send(request).await.status, 200);
    let received = stand.only_request();
    assert_eq!(received.body, sent);
    assert_eq!(received.headers["content-encoding"], "zstd");
}

#[tokio::test]
async fn oversized_body_gets_a_dialect_error() {
    let limits = ProxyLimits { body_bytes: 1000, ..ProxyLimits::default() };
    let stand = ProxyHarness::start(ProxySettings { limits, ..settings() }, None, |_| UpstreamReply::json("{}")).await;
    let got = stand.post("/v1/messages", "x".repeat(1001)).await;
    assert_eq!(got.status, 413);
    assert!(
        got.text().starts_with(r#"{"error":{"message":"foldline: the request is larger than 1000 bytes"#),
        "{got:?}"
    );
    assert!(got.text().contains(r#""type":"error""#), "{got:?}");
    assert!(stand.received().is_empty());
}

/// The first piece of a stream is with the client before the upstream writes the next one.
#[tokio::test]
async fn stream_is_not_buffered() {
    let events = ["data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n", "data: [DONE]\n\n"];
    let told = Arc::new(Notify::new());
    let until = told.clone();
    let stand = ProxyHarness::start(settings(), None, move |_| {
        UpstreamReply::Stream(vec![
            StreamPiece::Bytes(events[0].into()),
            StreamPiece::Notified(until.clone()),
            StreamPiece::Bytes(events[1].into()),
        ])
    })
    .await;
    let request = stand.request("POST", "/v1/chat/completions").body(Full::new(ODD_BODY.into())).unwrap();
    let mut body = stand.send_head(request).await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, events[0]);
    told.notify_one();
    assert_eq!(body.collect().await.unwrap().to_bytes(), events[1]);
}

#[tokio::test]
async fn non_loopback_requires_a_token() {
    let open = ProxySettings { listen: ([0, 0, 0, 0], 0).into(), ..settings() };
    let refused = Proxy::bind(open.clone(), None).await.err().unwrap();
    assert!(refused.to_string().contains("set a token"), "{refused}");

    let guarded = ProxySettings { tokens: AccessToken::parse_list("sesame").unwrap(), ..open };
    let stand = ProxyHarness::start(guarded, None, |_| UpstreamReply::json("{}")).await;
    assert_eq!(stand.post("/v1/chat/completions", ODD_BODY).await.status, 401);
    assert_eq!(stand.get("/foldline/metrics").await.status, 401);
    assert_eq!(stand.post("/token/sesame/v1/chat/completions", ODD_BODY).await.status, 200);
    let request = stand.request("POST", "/v1/chat/completions").header("x-foldline-token", "sesame");
    assert_eq!(stand.send(request.body(Full::new(ODD_BODY.into())).unwrap()).await.status, 200);
    for received in stand.received() {
        assert!(!format!("{received:?}").contains("sesame"));
    }
}

#[tokio::test]
async fn shutdown_waits_for_open_streams() {
    let mut stand = ProxyHarness::start(settings(), None, |_| {
        let wait = || StreamPiece::Wait(Duration::from_millis(150));
        UpstreamReply::Stream(vec![
            StreamPiece::Bytes("data: 1\n\n".into()),
            wait(),
            wait(),
            StreamPiece::Bytes("data: 2\n\n".into()),
        ])
    })
    .await;
    let request = stand.request("POST", "/v1/chat/completions").body(Full::new(ODD_BODY.into())).unwrap();
    let body = stand.send_head(request).await.into_body();
    let stopped = stand.stop();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "data: 1\n\ndata: 2\n\n");
    tokio::time::timeout(Duration::from_secs(5), stopped).await.unwrap().unwrap();
    assert!(TcpStream::connect(stand.proxy).await.is_err(), "nobody listens any more");
}

/// A client that sends a head, or a body, a byte at a time and then none does not hold a place for ever.
#[tokio::test]
async fn slow_clients_are_disconnected() {
    let patience = Timeouts { client_read: Duration::from_millis(200), ..Timeouts::default() };
    let limits = ProxyLimits { requests: 1, ..ProxyLimits::default() };
    let stand = ProxyHarness::start(ProxySettings { timeouts: patience, limits, ..settings() }, None, |_| {
        UpstreamReply::json("{}")
    })
    .await;
    for begun in [
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{\"mod",
    ] {
        let mut slow = TcpStream::connect(stand.proxy).await.unwrap();
        slow.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(5), slow.read_to_end(&mut rest)).await.expect("let go").unwrap();
        assert_eq!(stand.post("/v1/chat/completions", ODD_BODY).await.status, 200, "the place is free again");
    }
}

#[tokio::test]
async fn off_mode_forwards_unmodified() {
    let stand =
        ProxyHarness::start(ProxySettings { mode: ProxyMode::Off, ..settings() }, None, |_| UpstreamReply::json("{}"))
            .await;
    let with_tools = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"a","parameters":{}}}]}"#;
    stand.post("/v1/chat/completions", with_tools).await;
    assert_eq!(stand.only_request().body, with_tools);
}
