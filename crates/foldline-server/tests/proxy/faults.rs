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
