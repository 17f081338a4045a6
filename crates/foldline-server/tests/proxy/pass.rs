//! What is not folded goes through as it came.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline_server::proxy::{AccessToken, Limits, Mode, Patience, Proxy, Settings};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::support::{Piece, Reply, Stand, settings};

/// A body that no serialiser would write like this.
const ODD: &str = "{ \"model\" : \"gpt-4o\",\n\t\"messages\":[{\"role\":\"user\",\"content\":\"h\\u0069\"} ] , \"x\":1e3, \"x\":[ ] }";

#[tokio::test]
async fn a_conversation_with_nothing_to_fold_arrives_byte_for_byte() {
    let stand = Stand::start(settings(), None, |_| Reply::json(r#"{"choices":[]}"#)).await;
    let got = stand.post("/v1/chat/completions?a=%2F&b", ODD).await;
    assert_eq!((got.status.as_u16(), got.text()), (200, r#"{"choices":[]}"#));
    let received = stand.only();
    assert_eq!(received.body, ODD);
    assert_eq!(received.path, "/v1/chat/completions?a=%2F&b");
}

#[tokio::test]
async fn unknown_paths_methods_headers_and_bodies_pass() {
    let stand = Stand::start(settings(), None, |_| Reply::Body(418, "text/plain", "short and stout".into())).await;
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
    let received = stand.only();
    assert_eq!((received.method.as_str(), received.path.as_str()), ("PATCH", "/some/where//else?q=a+b"));
    assert_eq!(received.body, body);
    assert_eq!(received.headers["authorization"], "Bearer secret");
    assert!(!received.headers.contains_key("x-foldline-session") && !received.headers.contains_key("x-hop"));
    assert_eq!(received.headers["host"], stand.upstream.to_string());
}

#[tokio::test]
async fn claude_code_asks_for_the_root_first() {
    let stand = Stand::start(settings(), None, |_| Reply::json("")).await;
    let got = stand.send(stand.request("HEAD", "/").body(Full::default()).unwrap()).await;
    assert_eq!(got.status, 200);
    assert_eq!(stand.only().method, "HEAD");
}

#[tokio::test]
async fn codex_is_told_to_speak_http() {
    let stand = Stand::start(settings(), None, |_| Reply::json("{}")).await;
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
async fn prefixes_choose_the_provider_and_do_not_travel() {
    let stand = Stand::start(settings(), None, |_| Reply::json("{}")).await;
    stand.post("/openai/v1/chat/completions", ODD).await;
    stand.post("/anthropic/v1/messages?beta=true", r#"{"messages":[{"role":"user","content":"hi"}]}"#).await;
    let paths: Vec<String> = stand.received().into_iter().map(|it| it.path).collect();
    assert_eq!(paths, ["/v1/chat/completions", "/v1/messages?beta=true"]);
}

#[tokio::test]
async fn a_compressed_body_with_nothing_to_fold_goes_out_compressed() {
    let stand = Stand::start(settings(), None, |_| Reply::json("{}")).await;
    let sent = zstd::encode_all(ODD.as_bytes(), 3).unwrap();
    let request = stand
        .request("POST", "/v1/chat/completions")
        .header("content-encoding", "zstd")
        .body(Full::new(sent.clone().into()))
        .unwrap();
    assert_eq!(stand.send(request).await.status, 200);
    let received = stand.only();
    assert_eq!(received.body, sent);
    assert_eq!(received.headers["content-encoding"], "zstd");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_in_the_words_of_the_dialect() {
    let limits = Limits { body: 1000, ..Limits::default() };
    let stand = Stand::start(Settings { limits, ..settings() }, None, |_| Reply::json("{}")).await;
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
async fn a_stream_stays_a_stream() {
    let events = ["data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n", "data: [DONE]\n\n"];
    let told = Arc::new(Notify::new());
    let until = told.clone();
    let stand = Stand::start(settings(), None, move |_| {
        Reply::Stream(vec![Piece::Bytes(events[0].into()), Piece::Until(until.clone()), Piece::Bytes(events[1].into())])
    })
    .await;
    let request = stand.request("POST", "/v1/chat/completions").body(Full::new(ODD.into())).unwrap();
    let mut body = stand.begin(request).await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, events[0]);
    told.notify_one();
    assert_eq!(body.collect().await.unwrap().to_bytes(), events[1]);
}

#[tokio::test]
async fn others_need_a_token() {
    let open = Settings { listen: ([0, 0, 0, 0], 0).into(), ..settings() };
    let refused = Proxy::bind(open.clone(), None).await.err().unwrap();
    assert!(refused.to_string().contains("set a token"), "{refused}");

    let guarded = Settings { tokens: AccessToken::parse_list("sesame").unwrap(), ..open };
    let stand = Stand::start(guarded, None, |_| Reply::json("{}")).await;
    assert_eq!(stand.post("/v1/chat/completions", ODD).await.status, 401);
    assert_eq!(stand.get("/foldline/metrics").await.status, 401);
    assert_eq!(stand.post("/token/sesame/v1/chat/completions", ODD).await.status, 200);
    let request = stand.request("POST", "/v1/chat/completions").header("x-foldline-token", "sesame");
    assert_eq!(stand.send(request.body(Full::new(ODD.into())).unwrap()).await.status, 200);
    for received in stand.received() {
        assert!(!format!("{received:?}").contains("sesame"));
    }
}

#[tokio::test]
async fn a_shutdown_lets_streams_end() {
    let mut stand = Stand::start(settings(), None, |_| {
        let wait = || Piece::Wait(Duration::from_millis(150));
        Reply::Stream(vec![Piece::Bytes("data: 1\n\n".into()), wait(), wait(), Piece::Bytes("data: 2\n\n".into())])
    })
    .await;
    let request = stand.request("POST", "/v1/chat/completions").body(Full::new(ODD.into())).unwrap();
    let body = stand.begin(request).await.into_body();
    let stopped = stand.stop();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "data: 1\n\ndata: 2\n\n");
    tokio::time::timeout(Duration::from_secs(5), stopped).await.unwrap().unwrap();
    assert!(TcpStream::connect(stand.proxy).await.is_err(), "nobody listens any more");
}

/// A client that sends a head, or a body, a byte at a time and then none does not hold a place for ever.
#[tokio::test]
async fn slow_clients_are_let_go() {
    let patience = Patience { client: Duration::from_millis(200), ..Patience::default() };
    let limits = Limits { requests: 1, ..Limits::default() };
    let stand = Stand::start(Settings { patience, limits, ..settings() }, None, |_| Reply::json("{}")).await;
    for begun in [
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{\"mod",
    ] {
        let mut slow = TcpStream::connect(stand.proxy).await.unwrap();
        slow.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(5), slow.read_to_end(&mut rest)).await.expect("let go").unwrap();
        assert_eq!(stand.post("/v1/chat/completions", ODD).await.status, 200, "the place is free again");
    }
}

#[tokio::test]
async fn off_means_off() {
    let stand = Stand::start(Settings { mode: Mode::Off, ..settings() }, None, |_| Reply::json("{}")).await;
    let with_tools = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"a","parameters":{}}}]}"#;
    stand.post("/v1/chat/completions", with_tools).await;
    assert_eq!(stand.only().body, with_tools);
}
