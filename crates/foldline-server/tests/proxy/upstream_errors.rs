//! Errors of the upstream, and what the client gets.

use std::time::Duration;

use foldline_server::proxy::{ProxySettings, Timeouts, Upstreams};
use http_body_util::{BodyExt, Full};

use crate::support::{ProxyHarness, StreamPiece, UpstreamReply, settings};

const MESSAGES_BODY: &str =
    r#"{"model":"claude-opus-4-6","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}"#;

#[tokio::test]
async fn provider_errors_are_forwarded_verbatim() {
    for status in [400, 401, 404, 429, 500, 529] {
        let body = format!(r#"{{"type":"error","error":{{"type":"x","message":"error {status}"}} }}"#);
        let reply = body.clone();
        let harness = ProxyHarness::start(settings(), None, move |_| UpstreamReply::error(status, reply.clone())).await;
        let got = harness.post("/v1/messages", MESSAGES_BODY).await;
        assert_eq!((got.status.as_u16(), got.text()), (status, body.as_str()));
        harness.only_request();
    }
}

#[tokio::test]
async fn invalid_json_is_forwarded() {
    for body in ["", "{", "not json", "[1,2", "\u{feff}{}", "{\"messages\":7}"] {
        let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::error(400, "no")).await;
        let got = harness.post("/v1/messages", body).await;
        assert_eq!((got.status.as_u16(), got.text()), (400, "no"));
        assert_eq!(harness.only_request().body, body);
    }
}

#[tokio::test]
async fn upstream_disconnect_returns_502() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::Disconnect).await;
    let got = harness.post("/v1/messages", MESSAGES_BODY).await;
    assert_eq!(got.status, 502);
    assert!(got.text().contains(r#""type":"error""#) && got.text().contains("foldline: the upstream"), "{got:?}");
}

#[tokio::test]
async fn unreachable_upstream_returns_502() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base: foldline_server::proxy::UpstreamUrl = format!("http://{gone}").parse().unwrap();
    let proxy =
        foldline_server::proxy::Proxy::bind(ProxySettings { upstreams: Upstreams::all_at(&base), ..settings() }, None)
            .await
            .unwrap();
    let address = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    let mut harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::Disconnect).await;
    harness.proxy = address;
    let got = harness.post("/v1/messages", MESSAGES_BODY).await;
    assert_eq!(got.status, 502);
    assert!(got.text().to_lowercase().contains("refused"), "{got:?}");
}

#[tokio::test]
async fn silent_upstream_returns_504() {
    let timeouts = Timeouts { response_start: Duration::from_millis(200), ..Timeouts::default() };
    let harness = ProxyHarness::start(ProxySettings { timeouts, ..settings() }, None, |_| UpstreamReply::Hang).await;
    assert_eq!(harness.post("/v1/messages", MESSAGES_BODY).await.status, 504);
}

/// A stream that breaks or stalls must not look complete to the client.
#[tokio::test]
async fn broken_stream_is_aborted_for_the_client() {
    let sent = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[]}}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"so\"}}\n\nevent: cont";
    for end in [StreamPiece::Break, StreamPiece::Wait(Duration::from_secs(60))] {
        let timeouts = Timeouts { idle: Duration::from_millis(300), ..Timeouts::default() };
        let harness = ProxyHarness::start(ProxySettings { timeouts, ..settings() }, None, move |_| {
            UpstreamReply::Stream(vec![StreamPiece::Bytes(sent.into()), end.clone()])
        })
        .await;
        let streamed = MESSAGES_BODY.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
        let got = tokio::time::timeout(Duration::from_secs(10), harness.post("/v1/messages", streamed)).await.unwrap();
        assert_eq!(got.status, 200);
        assert!(!got.is_complete, "it looks complete: {}", got.text());
        assert_eq!(got.text(), sent);
    }
}

/// The proxy keeps serving after a client has disconnected in the middle of a stream.
#[tokio::test]
async fn client_disconnect_leaves_proxy_healthy() {
    let harness = ProxyHarness::start(settings(), None, |_| {
        let piece = |_| {
            [
                StreamPiece::Bytes("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n".into()),
                StreamPiece::Wait(Duration::from_millis(20)),
            ]
        };
        UpstreamReply::Stream((0..100_000).flat_map(piece).collect())
    })
    .await;
    let body = r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let request = harness.request("POST", "/v1/chat/completions").body(Full::new(body.into())).unwrap();
    let mut streaming = harness.send_head(request).await.into_body();
    streaming.frame().await.unwrap().unwrap();
    drop(streaming);
    // The next request is served.
    assert_eq!(harness.get("/foldline/healthz").await.status, 200);
}

#[tokio::test]
async fn five_hundred_concurrent_requests_are_answered() {
    let harness = std::sync::Arc::new(
        ProxyHarness::start(settings(), None, |received| UpstreamReply::json(String::from_utf8_lossy(&received.body)))
            .await,
    );
    let tasks = (0..500).map(|at| {
        let harness = harness.clone();
        tokio::spawn(async move {
            let body = format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{at}"}}]}}"#);
            let got = harness.post("/v1/chat/completions", body.clone()).await;
            assert_eq!((got.status.as_u16(), got.text()), (200, body.as_str()));
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Streams that end in the middle of an event, or without an end event, are forwarded unchanged, with and without the
/// unfold tool.
#[tokio::test]
async fn incomplete_stream_is_forwarded_byte_for_byte() {
    let (event, cut) = (
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"so\"}}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"del",
    );
    let folder = tempfile::tempdir().unwrap();
    let archive = foldline_archive::Archive::open(folder.path().join("archive.db")).unwrap();
    let tools = r#""tools":[{"type":"function","function":{"name":"a","parameters":{}}}],"#;
    for (archive, tools) in [(None, ""), (Some(archive), tools)] {
        for pieces in [vec![event], vec![event, cut], vec!["not an event\n\n", "{\"neither\":1}"], vec![]] {
            let expected = pieces.concat();
            let harness =
                ProxyHarness::start(settings(), archive.clone(), move |_| UpstreamReply::stream(pieces.clone())).await;
            let body =
                format!(r#"{{"model":"gpt-4o","stream":true,{tools}"messages":[{{"role":"user","content":"hi"}}]}}"#);
            let got = tokio::time::timeout(Duration::from_secs(10), harness.post("/v1/chat/completions", body)).await;
            let got = got.expect("no hang");
            assert_eq!((got.status.as_u16(), got.text(), got.is_complete), (200, expected.as_str(), true));
        }
    }
}

/// A body that is not JSON, or JSON of another kind, is forwarded.
#[tokio::test]
async fn unparsable_response_is_forwarded_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let archive = foldline_archive::Archive::open(folder.path().join("archive.db")).unwrap();
    let with_tools = MESSAGES_BODY.replacen('{', r#"{"tools":[{"name":"a","input_schema":{"type":"object"}}],"#, 1);
    for body in ["", "{", "<html>busy</html>", "[1,2]", "null", "{\"content\":7}", "\u{feff}{}"] {
        for request in [MESSAGES_BODY, &with_tools] {
            let harness =
                ProxyHarness::start(settings(), Some(archive.clone()), move |_| UpstreamReply::json(body)).await;
            let got = harness.post("/v1/messages", request.to_owned()).await;
            assert_eq!((got.status.as_u16(), got.text(), got.is_complete), (200, body, true), "{request}");
        }
    }
}

/// A body that breaks off is aborted for the client too.
#[tokio::test]
async fn truncated_response_is_not_reported_complete() {
    let harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::Truncated {
        length: 1_000,
        body: r#"{"content":[{"type":"text","text":"so fa"#.into(),
    })
    .await;
    let got = tokio::time::timeout(Duration::from_secs(10), harness.post("/v1/messages", MESSAGES_BODY)).await.unwrap();
    assert!(!got.is_complete && got.text().ends_with("so fa"), "{got:?}");
}

/// A kept-alive connection that the upstream closed fails no request.
#[tokio::test]
async fn closed_keep_alive_connection_is_reopened() {
    let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", upstream.local_addr().unwrap());
    // It keeps each connection alive, responds once, and closes it shortly afterwards.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = upstream.accept().await {
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            });
        }
    });
    let upstream: foldline_server::proxy::UpstreamUrl = base.parse().unwrap();
    let proxy = foldline_server::proxy::Proxy::bind(
        ProxySettings { upstreams: Upstreams::all_at(&upstream), window: Some(100_000), ..settings() },
        None,
    );
    let proxy = proxy.await.unwrap();
    let mut harness = ProxyHarness::start(settings(), None, |_| UpstreamReply::Disconnect).await;
    harness.proxy = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    for pause in (0..60).map(|at| at % 12) {
        let got = harness.post("/v1/messages", MESSAGES_BODY).await;
        assert_eq!((got.status.as_u16(), got.text()), (200, "{}"));
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Two thousand concurrent streams, each held by the upstream until all have arrived. Client, proxy and upstream are one
/// process here, with both ends of two connections per stream; the number is reduced to the limit of open files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_concurrent_streams_are_answered() {
    let all = (raise_open_file_limit() / 5).min(2_000);
    let arrived = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (count, gate) = (arrived.clone(), std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    let harness = ProxyHarness::start(settings(), None, move |received| {
        if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == all {
            gate.close();
        }
        let event = format!("data: {}\n\n", received.body.len());
        UpstreamReply::Stream(vec![
            StreamPiece::Bytes(event),
            StreamPiece::GateClosed(gate.clone()),
            StreamPiece::Bytes("data: [DONE]\n\n".into()),
        ])
    })
    .await;
    let harness = std::sync::Arc::new(harness);
    let tasks = (0..all).map(|at| {
        let harness = harness.clone();
        tokio::spawn(async move {
            let body = format!(
                r#"{{"model":"gpt-4o","stream":true,"messages":[{{"role":"user","content":"{at} {}"}}]}}"#,
                "x".repeat(at)
            );
            let (length, got) = (body.len(), harness.post("/v1/chat/completions", body).await);
            let expected = format!("data: {length}\n\ndata: [DONE]\n\n");
            assert_eq!((got.status.as_u16(), got.text(), got.is_complete), (200, expected.as_str(), true));
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(120), task).await.expect("no hang").unwrap();
    }
    assert_eq!(harness.metric("foldline_open_requests").await, 0.0);
}

/// Raises the limit of open files as far as allowed, and returns it.
fn raise_open_file_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: Some(maximum.unwrap_or(10_000).min(10_000)), maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
    raised.current.unwrap() as usize
}
