//! Connections of clients: their versions and framings, and clients that hold a place without using it.

use std::time::Duration;

use bytes::Bytes;
use foldline_server::proxy::{Limits, Patience, Settings};
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::Request;
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Piece, Reply, Stand, settings};

const HI: &str = r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
const SAID: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";

#[tokio::test]
async fn a_client_may_speak_http_2() {
    let stand = Stand::start(settings(), None, |_| Reply::stream([SAID, "data: [DONE]\n\n"])).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let requests =
        (0..20).map(|_| client.request(stand.request("POST", "/v1/chat/completions").body(HI.into()).unwrap()));
    for response in futures_util::future::join_all(requests).await {
        let response = response.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, hyper::Version::HTTP_2));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, format!("{SAID}data: [DONE]\n\n"));
    }
    assert!(stand.received().iter().all(|received| received.body == HI));
}

#[tokio::test]
async fn a_body_may_come_in_chunks_of_any_size_up_to_the_limit() {
    let limits = Limits { body: 1000, ..Limits::default() };
    let stand = Stand::start(Settings { limits, ..settings() }, None, |_| Reply::json("{}")).await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    for (length, status) in [(1, 200), (20, 413)] {
        let pieces: Vec<Bytes> = HI.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
        let pieces = std::iter::repeat_n(pieces, length).flatten();
        let frames = pieces.map(|piece| Ok::<_, std::convert::Infallible>(Frame::data(piece)));
        let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()));
        let request: Request<_> = stand.request("POST", "/v1/chat/completions").body(body).unwrap();
        assert_eq!(client.request(request).await.unwrap().status(), status);
    }
    assert_eq!(stand.only().body, HI);
}

/// Connections that say nothing, or too little to tell what they will speak, are closed.
#[tokio::test]
async fn a_connection_that_does_not_begin_is_closed() {
    let patience = Patience { client: Duration::from_millis(200), ..Patience::default() };
    let stand = Stand::start(Settings { patience, ..settings() }, None, |_| Reply::json("{}")).await;
    for begun in ["", "P", "PRI * HTTP/2.0\r\n"] {
        let mut idle = TcpStream::connect(stand.proxy).await.unwrap();
        idle.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), idle.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{begun:?}");
    }
}

/// A byte now and then keeps a connection busy and is no request.
#[tokio::test]
async fn a_client_that_drips_is_let_go() {
    let patience = Patience { client: Duration::from_millis(300), ..Patience::default() };
    let stand = Stand::start(Settings { patience, ..settings() }, None, |_| Reply::json("{}")).await;
    let dripping = TcpStream::connect(stand.proxy).await.unwrap();
    let (mut reader, mut writer) = dripping.into_split();
    let head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n";
    writer.write_all(head.as_bytes()).await.unwrap();
    let drips = async {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut told = vec![0; 12];
    let answered = async {
        tokio::select! {
            read = reader.read_exact(&mut told) => read.map(|_| ()),
            () = drips => Ok(()),
        }
    };
    tokio::time::timeout(Duration::from_secs(10), answered).await.expect("let go").unwrap();
    assert_eq!(told, b"HTTP/1.1 408");
    assert_eq!(stand.metric("foldline_open_requests").await, 0.0);
}

/// A client that asks and never reads holds neither its place nor the upstream.
#[tokio::test]
async fn a_client_that_does_not_take_its_answer_is_let_go() {
    let patience = Patience { stall: Duration::from_millis(300), ..Patience::default() };
    let limits = Limits { requests: 1, ..Limits::default() };
    let stand = Stand::start(Settings { patience, limits, ..settings() }, None, |received| {
        match received.headers.contains_key("x-endless") {
            true => Reply::Stream((0..4000).map(|_| Piece::Bytes(SAID.repeat(100))).collect()),
            false => Reply::json("{}"),
        }
    })
    .await;
    let mut deaf = TcpStream::connect(stand.proxy).await.unwrap();
    let length = HI.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-endless: 1\r\ncontent-length: {length}\r\n\r\n{HI}"
    );
    deaf.write_all(request.as_bytes()).await.unwrap();
    let next = stand.post("/v1/chat/completions", HI);
    let next = tokio::time::timeout(Duration::from_secs(10), next).await.expect("the only place is free again");
    assert_eq!(next.status, 200);
    drop(deaf);
}
