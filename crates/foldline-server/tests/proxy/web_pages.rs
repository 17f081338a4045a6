//! Requests that a web page makes a browser send to a proxy on loopback, and other requests that are refused by their
//! head.

use bytes::Bytes;
use foldline_server::proxy::{AccessToken, ProxySettings};
use http_body_util::Full;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::support::{ProxyHarness, UpstreamReply, exchange_raw, settings};

const CHAT_BODY: &str = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
const PATHS: [(&str, &str); 4] =
    [("POST", "/v1/chat/completions"), ("POST", "/v1/messages"), ("GET", "/v1/models"), ("GET", "/foldline/healthz")];

async fn harness(settings: ProxySettings) -> ProxyHarness {
    ProxyHarness::start(settings, None, |_| UpstreamReply::json("{}")).await
}

#[tokio::test]
async fn cross_site_request_is_refused_on_all_paths() {
    let harness = harness(settings()).await;
    for (method, path) in PATHS {
        for (name, value) in [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")]
        {
            let request = harness.request(method, path).header(name, value).body(Full::new(CHAT_BODY.into())).unwrap();
            assert_eq!(harness.send(request).await.status, 403, "{method} {path} {name}: {value}");
        }
        let own = format!("http://{}", harness.proxy);
        let request = harness.request(method, path).header("origin", own).body(Full::new(CHAT_BODY.into())).unwrap();
        assert_eq!(harness.send(request).await.status, 200, "{method} {path}: a page of the proxy itself");
    }
    assert_eq!(harness.received().len(), 3);
}

#[tokio::test]
async fn foreign_or_missing_host_is_refused_on_all_paths() {
    let harness = harness(settings()).await;
    for (method, path) in PATHS {
        let request = harness.request(method, path).header("host", "evil.example");
        let got = harness.send(request.body(Full::new(CHAT_BODY.into())).unwrap()).await;
        assert_eq!(got.status, 403, "{method} {path}");
        let raw = exchange_raw(harness.proxy, &format!("{method} {path} HTTP/1.0\r\n\r\n")).await;
        assert!(raw.starts_with("HTTP/1.0 403"), "{raw}");
    }
    assert_eq!(harness.received().len(), 0);
}

#[tokio::test]
async fn foreign_http2_authority_is_refused() {
    let harness = harness(settings()).await;
    // The client resolves any name to the proxy, as a browser does after DNS rebinding.
    let address = harness.proxy;
    let connector = tower::service_fn(move |_| {
        Box::pin(async move { tokio::net::TcpStream::connect(address).await.map(hyper_util::rt::TokioIo::new) })
    });
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
    for (host, status) in [("evil.example", 403), ("localhost", 200)] {
        let request = Request::post(format!("http://{host}/v1/chat/completions"));
        let request = request.header(CONTENT_TYPE, "application/json").body(CHAT_BODY.into()).unwrap();
        assert_eq!(client.request(request).await.unwrap().status(), status, "{host}");
    }
}

#[tokio::test]
async fn allowed_host_and_origin_are_served() {
    let allowed_hosts = vec!["foldline".to_owned()];
    let allowed_origins = vec!["http://localhost:3000".to_owned()];
    let harness = harness(ProxySettings { allowed_hosts, allowed_origins, ..settings() }).await;
    let request = harness.request("POST", "/v1/chat/completions").header("host", "foldline:8787");
    let request = request.header("origin", "http://localhost:3000").header("sec-fetch-site", "same-site");
    assert_eq!(harness.send(request.body(Full::new(CHAT_BODY.into())).unwrap()).await.status, 200);
}

#[tokio::test]
async fn host_is_free_if_clients_have_tokens() {
    let harness = harness(ProxySettings { tokens: AccessToken::parse_list("t1").unwrap(), ..settings() }).await;
    let request = harness.request("POST", "/v1/chat/completions").header("host", "foldline.example");
    let request = request.header("origin", "https://app.example").header("x-foldline-token", "t1");
    assert_eq!(harness.send(request.body(Full::new(CHAT_BODY.into())).unwrap()).await.status, 200);
}

#[tokio::test]
async fn conversation_needs_json_content_type() {
    let harness = harness(settings()).await;
    let uri = format!("http://{}/v1/chat/completions", harness.proxy);
    for (kind, status) in [
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (None, 415),
        (Some("application/json; charset=utf-8"), 200),
        (Some("application/vnd.api+json"), 200),
    ] {
        let request = kind.map_or(Request::post(&uri), |kind| Request::post(&uri).header(CONTENT_TYPE, kind));
        let got = harness.send(request.body(Full::new(CHAT_BODY.into())).unwrap()).await;
        assert_eq!(got.status, status, "{kind:?}");
    }
    assert_eq!(harness.received().len(), 2);
}

#[tokio::test]
async fn own_answers_forbid_sniffing() {
    let harness = harness(settings()).await;
    for path in ["/foldline/healthz", "/foldline/metrics", "/foldline/unfold/x", "/foldline/nothing"] {
        assert_eq!(harness.get(path).await.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let refused = harness.request("GET", "/v1/models").header("host", "evil.example").body(Full::default()).unwrap();
    assert_eq!(harness.send(refused).await.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn trace_and_connect_are_refused() {
    let harness = harness(settings()).await;
    let raw = exchange_raw(
        harness.proxy,
        "TRACE /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\nconnection: close\r\n\r\n",
    );
    let raw = raw.await;
    assert!(raw.starts_with("HTTP/1.1 405") && !raw.contains("Bearer k"), "{raw}");
    let raw =
        exchange_raw(harness.proxy, "CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let raw = raw.await;
    assert!(raw.starts_with("HTTP/1.1 405"), "{raw}");
    assert_eq!(harness.received().len(), 0);
}

/// A body in two transfer codings would reach the provider without the name of the inner one.
#[tokio::test]
async fn transfer_encoding_besides_chunked_is_refused() {
    let harness = harness(settings()).await;
    for path in ["/v1/chat/completions", "/v1/files"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        );
        let raw =
            exchange_raw(harness.proxy, &format!("{head}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n")).await;
        assert!(raw.starts_with("HTTP/1.1 501"), "{raw}");
        let request = format!("{head}transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n");
        let raw = exchange_raw(harness.proxy, &request).await;
        assert!(raw.starts_with("HTTP/1.1 200"), "{path}");
    }
    assert_eq!(harness.received().len(), 2);
}

/// Nothing is sent anywhere: the default upstreams are the providers themselves.
#[tokio::test]
async fn key_of_one_provider_never_travels_to_another() {
    let proxy = foldline_server::proxy::Proxy::bind(settings(), None).await.unwrap();
    let mut harness = harness(settings()).await;
    harness.proxy = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    for (path, name, value, issuer) in [
        ("/v1/chat/completions", "x-goog-api-key", "AIzaSy0123456789abcdef", "Google"),
        ("/v1/chat/completions?key=AIzaSy01234", "accept", "*/*", "Google"),
        ("/v1/chat/completions", "authorization", "Bearer sk-ant-api03-0123456789", "Anthropic"),
        ("/v1/messages", "x-api-key", "sk-proj-0123456789abcdef", "OpenAI"),
    ] {
        let request = harness.request("POST", path).header(name, value).body(Full::new(CHAT_BODY.into())).unwrap();
        let got = harness.send(request).await;
        assert_eq!(got.status, 400, "{path} {name}");
        assert!(got.text().contains(&format!("a key of {issuer}")) && !got.text().contains("0123"), "{got:?}");
    }
}
