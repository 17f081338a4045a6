//! When a request is resent: only if the provider cannot have read it. And what an upstream's response must not contain.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, exchange_raw, settings, start_proxy};

const CHAT_BODY: &str = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;

/// Reads one request with a content length, or without a body. Returns false at the end of the connection.
async fn read_request(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return false,
        }
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.is_ok()
}

/// Starts an upstream that answers one request per connection and closes the connection, unannounced, when the next one
/// arrives: the worst case of the race between a client and a server that ends idle connections.
async fn start_closing_upstream(answered: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answered = answered.clone();
            tokio::spawn(async move {
                if read_request(&mut stream).await {
                    answered.fetch_add(1, Ordering::SeqCst);
                    let response = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(response).await.unwrap();
                    // Nothing of the next request is read.
                    let _ = stream.readable().await;
                    stream.set_zero_linger().unwrap();
                }
            });
        }
    });
    address
}

fn raw_request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nuser-agent: foldline/test\r\ncontent-type: application/json\r\n\
        connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn keep_alive_race_is_retried_on_a_fresh_connection() {
    let answered = Arc::new(AtomicUsize::new(0));
    let upstream = start_closing_upstream(answered.clone()).await;
    let settings = foldline_server::proxy::ProxySettings { window: Some(100_000), ..settings() };
    let proxy = start_proxy(upstream, settings).await;
    for turn in 0..30 {
        let got = exchange_raw(proxy, &raw_request("POST", "/v1/chat/completions", CHAT_BODY)).await;
        assert!(got.starts_with("HTTP/1.1 200"), "turn {turn}: {got}");
        let request = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let got = exchange_raw(proxy, request).await;
        assert!(got.starts_with("HTTP/1.1 200"), "pass-through {turn}: {got}");
    }
    assert_eq!(answered.load(Ordering::SeqCst), 60);
}

/// A provider that read the request may bill it, whatever happened to its response.
#[tokio::test]
async fn post_that_was_read_is_not_resent() {
    // With a window the server is not queried for it, so that the connection is a new one.
    let settings = foldline_server::proxy::ProxySettings { window: Some(100_000), ..settings() };
    let harness = ProxyHarness::start(settings, None, |_| UpstreamReply::Disconnect).await;
    assert_eq!(harness.post("/v1/chat/completions", CHAT_BODY).await.status, 502);
    assert_eq!(harness.received().len(), 1);
    assert_eq!(harness.post("/v1/files", CHAT_BODY).await.status, 502);
    assert_eq!(harness.received().len(), 2);
}

#[tokio::test]
async fn upstream_cannot_set_headers_of_the_proxy() {
    let reply = |_: &ReceivedRequest| {
        let forged = vec![("x-foldline-tokens", "1,1"), ("x-foldline-anything", "x"), ("x-request-id", "r")];
        UpstreamReply::Headed(200, forged, "{}".into())
    };
    let harness = ProxyHarness::start(settings(), None, reply).await;
    let turn = harness.post("/v1/chat/completions", CHAT_BODY).await;
    assert_ne!(turn.header("x-foldline-tokens"), Some("1,1"));
    let other = harness.get("/v1/models").await;
    for got in [turn, other] {
        assert_eq!((got.header("x-foldline-anything"), got.header("x-request-id")), (None, Some("r")), "{got:?}");
    }
}

/// A 101 would turn the connection into a tunnel that nothing was checked for.
#[tokio::test]
async fn switching_protocols_is_not_passed_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_request(&mut stream).await;
                let response = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
                stream.write_all(response).await.unwrap();
                let _ = stream.read_u8().await;
            });
        }
    });
    let settings = foldline_server::proxy::ProxySettings { window: Some(100_000), ..settings() };
    let proxy = start_proxy(upstream, settings).await;
    for request in [
        raw_request("POST", "/v1/chat/completions", CHAT_BODY),
        "GET /v1/x HTTP/1.1\r\nhost: localhost\r\nupgrade: x\r\nconnection: upgrade, close\r\n\r\n".to_owned(),
    ] {
        let got = exchange_raw(proxy, &request).await;
        assert!(got.starts_with("HTTP/1.1 502"), "{got}");
    }
}

/// Clients that leave early, in every phase of a request.
#[tokio::test]
async fn open_requests_do_not_leak_when_clients_leave() {
    let stream = |_: &ReceivedRequest| {
        let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n".to_owned();
        let pause = std::time::Duration::from_millis(100);
        let pieces = (0..100).flat_map(|_| {
            [crate::support::StreamPiece::Bytes(event.clone()), crate::support::StreamPiece::Wait(pause)]
        });
        UpstreamReply::Stream(pieces.collect())
    };
    let harness = ProxyHarness::start(settings(), None, stream).await;
    let streaming = CHAT_BODY.replace("{\"model\"", "{\"stream\":true,\"model\"");
    for (path, body) in [("/v1/chat/completions", streaming.as_str()), ("/v1/files", "{}"), ("/v1/responses", "{}")] {
        for left_after in [0, 1, 30, 250] {
            let mut client = TcpStream::connect(harness.proxy).await.unwrap();
            let request = raw_request("POST", path, body).replace("connection: close\r\n", "");
            client.write_all(request.as_bytes()).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(left_after)).await;
            drop(client);
            // One that announces more than it sends.
            let mut client = TcpStream::connect(harness.proxy).await.unwrap();
            client.write_all(&request.as_bytes()[..request.len() - 1]).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(left_after)).await;
        }
    }
    let request = harness.request("POST", "/v1/chat/completions").body(Full::new(streaming.into())).unwrap();
    drop(harness.send_head(request).await);
    let closed = async {
        while harness.metric("foldline_open_requests").await != 0.0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let closed = tokio::time::timeout(std::time::Duration::from_secs(10), closed).await;
    assert!(closed.is_ok(), "{} requests are still open", harness.metric("foldline_open_requests").await);
}
