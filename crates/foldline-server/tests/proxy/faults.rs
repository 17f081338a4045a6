//! What goes wrong at the upstream, and what the client learns of it.

use std::time::Duration;

use foldline_server::proxy::{Patience, Settings};
use http_body_util::{BodyExt, Full};

use crate::support::{Piece, Reply, Stand, settings};

const HI: &str = r#"{"model":"claude-opus-4-6","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}"#;

#[tokio::test]
async fn errors_of_the_provider_pass_word_for_word() {
    for status in [400, 401, 404, 429, 500, 529] {
        let body = format!(r#"{{"type":"error","error":{{"type":"x","message":"as said by {status}"}} }}"#);
        let told = body.clone();
        let stand = Stand::start(settings(), None, move |_| Reply::error(status, told.clone())).await;
        let got = stand.post("/v1/messages", HI).await;
        assert_eq!((got.status.as_u16(), got.text()), (status, body.as_str()));
        stand.only();
    }
}

#[tokio::test]
async fn what_is_no_json_is_the_providers_to_refuse() {
    for body in ["", "{", "not json", "[1,2", "\u{feff}{}", "{\"messages\":7}"] {
        let stand = Stand::start(settings(), None, |_| Reply::error(400, "no")).await;
        let got = stand.post("/v1/messages", body).await;
        assert_eq!((got.status.as_u16(), got.text()), (400, "no"));
        assert_eq!(stand.only().body, body);
    }
}

#[tokio::test]
async fn an_upstream_that_hangs_up_is_told() {
    let stand = Stand::start(settings(), None, |_| Reply::HangUp).await;
    let got = stand.post("/v1/messages", HI).await;
    assert_eq!(got.status, 502);
    assert!(got.text().contains(r#""type":"error""#) && got.text().contains("foldline: the upstream"), "{got:?}");
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_told() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base: foldline_server::proxy::Upstream = format!("http://{gone}").parse().unwrap();
    let proxy = foldline_server::proxy::Proxy::bind(Settings { anthropic: base, ..settings() }, None).await.unwrap();
    let address = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    let mut stand = Stand::start(settings(), None, |_| Reply::HangUp).await;
    stand.proxy = address;
    let got = stand.post("/v1/messages", HI).await;
    assert_eq!(got.status, 502);
    assert!(got.text().to_lowercase().contains("refused"), "{got:?}");
}

#[tokio::test]
async fn an_upstream_that_says_nothing_is_given_up() {
    let patience = Patience { answer: Duration::from_millis(200), ..Patience::default() };
    let stand = Stand::start(Settings { patience, ..settings() }, None, |_| Reply::Silence).await;
    assert_eq!(stand.post("/v1/messages", HI).await.status, 504);
}

/// A stream that breaks, or that stalls, must not look to the client like one that ended.
#[tokio::test]
async fn a_broken_stream_is_broken_for_the_client_too() {
    let begun = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[]}}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"so\"}}\n\nevent: cont";
    for end in [Piece::Break, Piece::Wait(Duration::from_secs(60))] {
        let patience = Patience { stall: Duration::from_millis(300), ..Patience::default() };
        let stand = Stand::start(Settings { patience, ..settings() }, None, move |_| {
            Reply::Stream(vec![Piece::Bytes(begun.into()), end.clone()])
        })
        .await;
        let streamed = HI.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
        let got = tokio::time::timeout(Duration::from_secs(10), stand.post("/v1/messages", streamed)).await.unwrap();
        assert_eq!(got.status, 200);
        assert!(!got.whole, "it looks complete: {}", got.text());
        assert_eq!(got.text(), begun);
    }
}

/// When the client is gone the upstream is let go, so that it stops working for nobody.
#[tokio::test]
async fn a_client_that_goes_takes_the_upstream_with_it() {
    let stand = Stand::start(settings(), None, |_| {
        let piece = |_| {
            [
                Piece::Bytes("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n".into()),
                Piece::Wait(Duration::from_millis(20)),
            ]
        };
        Reply::Stream((0..100_000).flat_map(piece).collect())
    })
    .await;
    let body = r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let request = stand.request("POST", "/v1/chat/completions").body(Full::new(body.into())).unwrap();
    let mut streaming = stand.begin(request).await.into_body();
    streaming.frame().await.unwrap().unwrap();
    drop(streaming);
    // The next request finds the proxy in good health.
    assert_eq!(stand.get("/foldline/healthz").await.status, 200);
}

#[tokio::test]
async fn many_requests_at_once_are_all_answered() {
    let stand = std::sync::Arc::new(
        Stand::start(settings(), None, |received| Reply::json(String::from_utf8_lossy(&received.body))).await,
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
async fn a_stream_without_an_end_passes_byte_for_byte() {
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
            let stand = Stand::start(settings(), archive.clone(), move |_| Reply::stream(pieces.clone())).await;
            let body =
                format!(r#"{{"model":"gpt-4o","stream":true,{tools}"messages":[{{"role":"user","content":"hi"}}]}}"#);
            let got = tokio::time::timeout(Duration::from_secs(10), stand.post("/v1/chat/completions", body)).await;
            let got = got.expect("no hang");
            assert_eq!((got.status.as_u16(), got.text(), got.whole), (200, said.as_str(), true));
        }
    }
}

/// What is no JSON, or JSON of another kind, is the client's to read.
#[tokio::test]
async fn an_answer_that_can_not_be_read_passes_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let archive = foldline_archive::Archive::open(folder.path().join("archive.db")).unwrap();
    let with_tools = HI.replacen('{', r#"{"tools":[{"name":"a","input_schema":{"type":"object"}}],"#, 1);
    for said in ["", "{", "<html>busy</html>", "[1,2]", "null", "{\"content\":7}", "\u{feff}{}"] {
        for request in [HI, &with_tools] {
            let stand = Stand::start(settings(), Some(archive.clone()), move |_| Reply::json(said)).await;
            let got = stand.post("/v1/messages", request.to_owned()).await;
            assert_eq!((got.status.as_u16(), got.text(), got.whole), (200, said, true), "{request}");
        }
    }
}

/// A body that breaks off in its middle is broken for the client too.
#[tokio::test]
async fn an_answer_that_is_cut_short_does_not_look_whole() {
    let stand = Stand::start(settings(), None, |_| Reply::Cut {
        length: 1_000,
        body: r#"{"content":[{"type":"text","text":"so fa"#.into(),
    })
    .await;
    let got = tokio::time::timeout(Duration::from_secs(10), stand.post("/v1/messages", HI)).await.unwrap();
    assert!(!got.whole && got.text().ends_with("so fa"), "{got:?}");
}

/// A connection that the upstream closed while it was kept alive costs no request.
#[tokio::test]
async fn a_kept_connection_that_was_closed_is_opened_again() {
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
    let upstream: foldline_server::proxy::Upstream = base.parse().unwrap();
    let proxy = foldline_server::proxy::Proxy::bind(
        Settings { anthropic: upstream.clone(), openai: upstream, window: Some(100_000), ..settings() },
        None,
    );
    let proxy = proxy.await.unwrap();
    let mut stand = Stand::start(settings(), None, |_| Reply::HangUp).await;
    stand.proxy = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    for pause in (0..60).map(|at| at % 12) {
        let got = stand.post("/v1/messages", HI).await;
        assert_eq!((got.status.as_u16(), got.text()), (200, "{}"));
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Two thousand at once, each held by the upstream until all have come. Client, proxy and upstream are one process here,
/// which holds both ends of two connections for each; where it may not, it takes as many as it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_requests_at_once_are_all_answered() {
    let all = (open_files() / 5).min(2_000);
    let arrived = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (count, gate) = (arrived.clone(), std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    let stand = Stand::start(settings(), None, move |received| {
        if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == all {
            gate.close();
        }
        let said = format!("data: {}\n\n", received.body.len());
        Reply::Stream(vec![Piece::Bytes(said), Piece::Closed(gate.clone()), Piece::Bytes("data: [DONE]\n\n".into())])
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
            assert_eq!((got.status.as_u16(), got.text(), got.whole), (200, whole.as_str(), true));
        })
    });
    let asking: Vec<_> = asking.collect();
    for asked in asking {
        tokio::time::timeout(Duration::from_secs(120), asked).await.expect("no hang").unwrap();
    }
    assert_eq!(stand.metric("foldline_open_requests").await, 0.0);
}

/// How many files may be open, raised as far as that is allowed.
fn open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: Some(maximum.unwrap_or(10_000).min(10_000)), maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
    raised.current.unwrap() as usize
}
