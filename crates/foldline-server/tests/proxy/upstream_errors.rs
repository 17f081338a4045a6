//! What goes wrong at the upstream, and what the client learns of it.

use std::time::Duration;

use foldline_server::proxy::{ProxySettings, Timeouts};
use http_body_util::{BodyExt, Full};

use crate::support::{ProxyHarness, StreamPiece, UpstreamReply, settings};

const MESSAGES_BODY: &str =
    r#"{"model":"claude-opus-4-6","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}"#;

#[tokio::test]
async fn provider_errors_are_forwarded_verbatim() {
    for status in [400, 401, 404, 429, 500, 529] {
        let body = format!(r#"{{"type":"error","error":{{"type":"x","message":"as said by {status}"}} }}"#);
        let told = body.clone();
        let stand = ProxyHarness::start(settings(), None, move |_| UpstreamReply::error(status, told.clone())).await;
        let got = stand.post("/v1/messages", MESSAGES_BODY).await;
        assert_eq!((got.status.as_u16(), got.text()), (status, body.as_str()));
        stand.only_request();
    }
}

#[tokio::test]
async fn invalid_json_is_forwarded() {
    for body in ["", "{", "not json", "[1,2", "\u{feff}{}", "{\"messages\":7}"] {
        let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::error(400, "no")).await;
        let got = stand.post("/v1/messages", body).await;
        assert_eq!((got.status.as_u16(), got.text()), (400, "no"));
        assert_eq!(stand.only_request().body, body);
    }
}

#[tokio::test]
async fn upstream_disconnect_returns_502() {
    let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::Disconnect).await;
    let got = stand.post("/v1/messages", MESSAGES_BODY).await;
    assert_eq!(got.status, 502);
    assert!(got.text().contains(r#""type":"error""#) && got.text().contains("foldline: the upstream"), "{got:?}");
}

#[tokio::test]
async fn unreachable_upstream_returns_502() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base: foldline_server::proxy::UpstreamUrl = format!("http://{gone}").parse().unwrap();
    let proxy =
        foldline_server::proxy::Proxy::bind(ProxySettings { anthropic: base, ..settings() }, None).await.unwrap();
    let address = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    let mut stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::Disconnect).await;
    stand.proxy = address;
    let got = stand.post("/v1/messages", MESSAGES_BODY).await;
    assert_eq!(got.status, 502);
    assert!(got.text().to_lowercase().contains("refused"), "{got:?}");
}

#[tokio::test]
async fn silent_upstream_returns_504() {
    let patience = Timeouts { response_start: Duration::from_millis(200), ..Timeouts::default() };
    let stand =
        ProxyHarness::start(ProxySettings { timeouts: patience, ..settings() }, None, |_| UpstreamReply::Hang).await;
    assert_eq!(stand.post("/v1/messages", MESSAGES_BODY).await.status, 504);
}

/// A stream that breaks, or that stalls, must not look to the client like one that ended.
#[tokio::test]
async fn broken_stream_is_aborted_for_the_client() {
    let begun = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[]}}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"so\"}}\n\nevent: cont";
    for end in [StreamPiece::Break, StreamPiece::Wait(Duration::from_secs(60))] {
        let patience = Timeouts { idle: Duration::from_millis(300), ..Timeouts::default() };
        let stand = ProxyHarness::start(ProxySettings { timeouts: patience, ..settings() }, None, move |_| {
            UpstreamReply::Stream(vec![StreamPiece::Bytes(begun.into()), end.clone()])
        })
        .await;
        let streamed = MESSAGES_BODY.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
        let got = tokio::time::timeout(Duration::from_secs(10), stand.post("/v1/messages", streamed)).await.unwrap();
        assert_eq!(got.status, 200);
        assert!(!got.is_complete, "it looks complete: {}", got.text());
        assert_eq!(got.text(), begun);
    }
}

/// When the client is gone the upstream is let go, so that it stops working for nobody.
#[tokio::test]
async fn client_disconnect_leaves_proxy_healthy() {
    let stand = ProxyHarness::start(settings(), None, |_| {
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
    let request = stand.request("POST", "/v1/chat/completions").body(Full::new(body.into())).unwrap();
    let mut streaming = stand.send_head(request).await.into_body();
    streaming.frame().await.unwrap().unwrap();
    drop(streaming);
    // The next request finds the proxy in good health.
    assert_eq!(stand.get("/foldline/healthz").await.status, 200);
}

#[tokio::test]
async fn five_hundred_concurrent_requests_are_answered() {
    let stand = std::sync::Arc::new(
        ProxyHarness::start(settings(), None, |received| UpstreamReply::json(String::from_utf8_lossy(&received.body)))
            .await,
    );
    let asking = (0..500).map(|at| {
        let stand = stand.clone();
        tokio::spawn(async move {
            let body = format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{at}"}}]}}"#);
            let got = stand.post("/v1/chat/completions", body.clone()).await;
            assert_eq!((got.status.as_u16(), got.text()), (200, body.as_str()));
        })
    });
    for asked in asking.collect::<Vec<_>>() {
        asked.await.unwrap();
    }
}

/// Streams that end in the middle of an event, or without an end, come to the client as they came, whether
/// or not a tool of ours was offered.
#[tokio::test]
async fn incomplete_stream_is_forwarded_byte_for_byte() {
    let (begun, cut) = (
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"so\"}}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"del",
    );
    let folder = tempfile::tempdir().unwrap();
    let archive = foldline_archive::Archive::open(folder.path().join("archive.db")).unwrap();
    let tools = r#""tools":[{"type":"function","function":{"name":"a","parameters":{}}}],"#;
    for (archive, tools) in [(None, ""), (Some(archive), tools)] {
        for pieces in [vec![begun], vec![begun, cut], vec!["not an event\n\n", "{\"neither\":1}"], vec![]] {
            let said = pieces.concat();
            let stand =
                ProxyHarness::start(settings(), archive.clone(), move |_| UpstreamReply::stream(pieces.clone())).await;
            let body =
                format!(r#"{{"model":"gpt-4o","stream":true,{tools}"messages":[{{"role":"user","content":"hi"}}]}}"#);
            let got = tokio::time::timeout(Duration::from_secs(10), stand.post("/v1/chat/completions", body)).await;
            let got = got.expect("no hang");
            assert_eq!((got.status.as_u16(), got.text(), got.is_complete), (200, said.as_str(), true));
        }
    }
}

/// What is no JSON, or JSON of another kind, is the client's to read.
#[tokio::test]
async fn unparsable_response_is_forwarded_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let archive = foldline_archive::Archive::open(folder.path().join("archive.db")).unwrap();
    let with_tools = MESSAGES_BODY.replacen('{', r#"{"tools":[{"name":"a","input_schema":{"type":"object"}}],"#, 1);
    for said in ["", "{", "<html>busy</html>", "[1,2]", "null", "{\"content\":7}", "\u{feff}{}"] {
        for request in [MESSAGES_BODY, &with_tools] {
            let stand =
                ProxyHarness::start(settings(), Some(archive.clone()), move |_| UpstreamReply::json(said)).await;
            let got = stand.post("/v1/messages", request.to_owned()).await;
            assert_eq!((got.status.as_u16(), got.text(), got.is_complete), (200, said, true), "{request}");
        }
    }
}

/// A body that breaks off in its middle is broken for the client too.
#[tokio::test]
async fn truncated_response_is_not_reported_complete() {
    let stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::Truncated {
        length: 1_000,
        body: r#"{"content":[{"type":"text","text":"so fa"#.into(),
    })
    .await;
    let got = tokio::time::timeout(Duration::from_secs(10), stand.post("/v1/messages", MESSAGES_BODY)).await.unwrap();
    assert!(!got.is_complete && got.text().ends_with("so fa"), "{got:?}");
}

/// A connection that the upstream closed while it was kept alive costs no request.
#[tokio::test]
async fn closed_keep_alive_connection_is_reopened() {
    let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", upstream.local_addr().unwrap());
    // It promises to keep each connection, answers once, and closes it a moment later.
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
        ProxySettings { anthropic: upstream.clone(), openai: upstream, window: Some(100_000), ..settings() },
        None,
    );
    let proxy = proxy.await.unwrap();
    let mut stand = ProxyHarness::start(settings(), None, |_| UpstreamReply::Disconnect).await;
    stand.proxy = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    for pause in (0..60).map(|at| at % 12) {
        let got = stand.post("/v1/messages", MESSAGES_BODY).await;
        assert_eq!((got.status.as_u16(), got.text()), (200, "{}"));
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Two thousand at once, each held by the upstream until all have come. Client, proxy and upstream are one process here,
/// which holds both ends of two connections for each; where it may not, it takes as many as it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_concurrent_streams_are_answered() {
    let all = (raise_open_file_limit() / 5).min(2_000);
    let arrived = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (count, gate) = (arrived.clone(), std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    let stand = ProxyHarness::start(settings(), None, move |received| {
        if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == all {
            gate.close();
        }
        let said = format!("data: {}\n\n", received.body.len());
        UpstreamReply::Stream(vec![
            StreamPiece::Bytes(said),
            StreamPiece::GateClosed(gate.clone()),
            StreamPiece::Bytes("data: [DONE]\n\n".into()),
        ])
    })
    .await;
    let stand = std::sync::Arc::new(stand);
    let asking = (0..all).map(|at| {
        let stand = stand.clone();
        tokio::spawn(async move {
            let body = format!(
                r#"{{"model":"gpt-4o","stream":true,"messages":[{{"role":"user","content":"{at} {}"}}]}}"#,
                "x".repeat(at)
            );
            let (length, got) = (body.len(), stand.post("/v1/chat/completions", body).await);
            let whole = format!("data: {length}\n\ndata: [DONE]\n\n");
            assert_eq!((got.status.as_u16(), got.text(), got.is_complete), (200, whole.as_str(), true));
        })
    });
    let asking: Vec<_> = asking.collect();
    for asked in asking {
        tokio::time::timeout(Duration::from_secs(120), asked).await.expect("no hang").unwrap();
    }
    assert_eq!(stand.metric("foldline_open_requests").await, 0.0);
}

/// How many files may be open, raised as far as that is allowed.
fn raise_open_file_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: Some(maximum.unwrap_or(10_000).min(10_000)), maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
    raised.current.unwrap() as usize
}
