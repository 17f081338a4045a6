//! Clients that hold memory, slots or connections without using them, and clients that close their sending half.

use std::time::{Duration, Instant};

use foldline_server::proxy::{ProxyLimits, ProxySettings, Timeouts};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ProxyHarness, UpstreamReply, settings};

const CHAT_BODY: &str = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;

async fn wait_for_no_open_requests(harness: &ProxyHarness) {
    let closed = async {
        while harness.metric("foldline_open_requests").await != 0.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), closed).await.is_ok(), "requests are still open");
}

/// 17 connections announce 64 MB each, more than the memory of all bodies, and send a byte.
#[tokio::test]
async fn announced_length_alone_takes_no_memory() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let mut greedy = Vec::new();
    for _ in 0..17 {
        let mut client = TcpStream::connect(harness.proxy).await.unwrap();
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{{",
            64 << 20
        );
        client.write_all(head.as_bytes()).await.unwrap();
        greedy.push(client);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let started_at = Instant::now();
    let body = format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{}"}}]}}"#, "word ".repeat(40_000));
    assert_eq!(harness.post("/v1/chat/completions", body).await.status, 200);
    assert!(started_at.elapsed() < Duration::from_secs(4), "{:?}", started_at.elapsed());
    assert!(harness.metric("foldline_held_body_bytes").await < (1 << 20) as f64);
}

/// A login needs no token.
#[tokio::test]
async fn dripping_body_of_a_login_is_let_go() {
    let timeouts = Timeouts { client_read: Duration::from_millis(300), ..Timeouts::default() };
    let harness =
        ProxyHarness::start(ProxySettings { timeouts, ..settings() }, None, |_| UpstreamReply::json("{}")).await;
    for path in ["POST /foldline/api/v1/login", "PUT /foldline/api/v1/sessions/s/pins"] {
        let (mut reader, mut writer) = TcpStream::connect(harness.proxy).await.unwrap().into_split();
        let head =
            format!("{path} HTTP/1.1\r\nhost: localhost\r\nx-foldline-request: 1\r\ncontent-length: 900\r\n\r\n");
        writer.write_all(head.as_bytes()).await.unwrap();
        let dripping = tokio::spawn(async move {
            while writer.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let mut status_line = [0; 12];
        let read = tokio::time::timeout(Duration::from_secs(10), reader.read_exact(&mut status_line)).await;
        dripping.abort();
        read.expect("let go").unwrap();
        assert_eq!(String::from_utf8_lossy(&status_line), "HTTP/1.1 408", "{path}");
    }
}

#[tokio::test]
async fn dripping_body_on_a_pass_through_path_is_let_go() {
    let timeouts = Timeouts { client_read: Duration::from_millis(300), ..Timeouts::default() };
    let limits = ProxyLimits { requests: 4, ..ProxyLimits::default() };
    let settings = ProxySettings { timeouts, limits, ..settings() };
    let harness = ProxyHarness::start(settings, None, |_| UpstreamReply::json("{}")).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let (mut reader, mut writer) = TcpStream::connect(harness.proxy).await.unwrap().into_split();
        let head = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\n";
        writer.write_all(head.as_bytes()).await.unwrap();
        let dripping = tokio::spawn(async move {
            while writer.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        clients.push(async move {
            let mut status_line = vec![0; 12];
            reader.read_exact(&mut status_line).await.unwrap();
            dripping.abort();
            String::from_utf8(status_line).unwrap()
        });
    }
    let statuses = tokio::time::timeout(Duration::from_secs(10), futures_util::future::join_all(clients)).await;
    assert_eq!(statuses.expect("let go"), ["HTTP/1.1 408"; 4]);
    wait_for_no_open_requests(&harness).await;
    assert_eq!(harness.post("/v1/files", "{}").await.status, 200);
}

/// An upstream that stops in the middle of a response on a pass-through path.
#[tokio::test]
async fn stalled_pass_through_response_is_aborted() {
    let timeouts = Timeouts { idle: Duration::from_millis(300), ..Timeouts::default() };
    let harness = ProxyHarness::start(ProxySettings { timeouts, ..settings() }, None, |_| {
        UpstreamReply::Stream(vec![
            crate::support::StreamPiece::Bytes("data: 1\n\n".into()),
            crate::support::StreamPiece::Wait(Duration::from_secs(60)),
        ])
    })
    .await;
    let got = tokio::time::timeout(Duration::from_secs(10), harness.get("/v1/events")).await.expect("aborted");
    assert_eq!((got.text(), got.is_complete), ("data: 1\n\n", false));
}

#[tokio::test]
async fn waiting_for_a_slot_ends() {
    let timeouts = Timeouts { request_slot: Duration::from_millis(200), ..Timeouts::default() };
    let limits = ProxyLimits { requests: 1, ..ProxyLimits::default() };
    let harness = ProxyHarness::start(ProxySettings { timeouts, limits, ..settings() }, None, |_| UpstreamReply::Hang);
    let harness = harness.await;
    let request = harness.request("POST", "/v1/chat/completions").body(Full::new(CHAT_BODY.into())).unwrap();
    let first = harness.send(request);
    tokio::pin!(first);
    let next = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        harness.post("/v1/chat/completions", CHAT_BODY).await
    };
    let next = tokio::select! {
        _ = &mut first => panic!("the upstream never answers"),
        next = tokio::time::timeout(Duration::from_secs(10), next) => next.expect("the wait ends"),
    };
    assert_eq!((next.status.as_u16(), next.header("retry-after")), (503, Some("3")));
    assert!(next.text().contains("max-requests"), "{next:?}");
}

#[tokio::test]
async fn half_closed_client_gets_its_answer() {
    let harness = ProxyHarness::start(settings(), None, |_| {
        UpstreamReply::Stream(vec![
            crate::support::StreamPiece::Wait(Duration::from_millis(300)),
            crate::support::StreamPiece::Bytes("data: [DONE]\n\n".into()),
        ])
    })
    .await;
    for (path, version) in
        [("/v1/chat/completions", "HTTP/1.1"), ("/v1/files", "HTTP/1.1"), ("/v1/chat/completions", "HTTP/1.0")]
    {
        let mut client = TcpStream::connect(harness.proxy).await.unwrap();
        let close = if version == "HTTP/1.1" { "connection: close\r\n" } else { "" };
        let head = format!(
            "POST {path} {version}\r\nhost: localhost\r\n{close}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            CHAT_BODY.len()
        );
        client.write_all(format!("{head}{CHAT_BODY}").as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = String::new();
        let read = tokio::time::timeout(Duration::from_secs(10), client.read_to_string(&mut received)).await;
        read.expect("answered").unwrap();
        assert!(received.contains(" 200 OK") && received.contains("data: [DONE]"), "{path} {version}: {received}");
    }
}

/// Idle connections of clients use up all file descriptors that they may; requests still reach their upstream.
#[cfg(unix)]
#[tokio::test]
async fn file_descriptors_remain_for_upstream_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(160), maximum }).unwrap();
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let mut first = TcpStream::connect(harness.proxy).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..90 {
        idle.push(TcpStream::connect(harness.proxy).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let request = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    first.write_all(request.as_bytes()).await.unwrap();
    let mut received = String::new();
    tokio::time::timeout(Duration::from_secs(10), first.read_to_string(&mut received)).await.unwrap().unwrap();
    assert!(received.starts_with("HTTP/1.1 200"), "{received}");
}
