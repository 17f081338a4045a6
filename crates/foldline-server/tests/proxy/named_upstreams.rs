//! Upstreams that the settings name: selected by the first segment of a path, and by nothing else.

use std::sync::Arc;

use bytes::Bytes;
use foldline::wire::Format;
use foldline_server::proxy::{NamedUpstream, ProxySettings, UpstreamAuth};
use http_body_util::Full;

use crate::fold::{agent_messages, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, UpstreamReply};
use crate::unfold_tool::small_window_settings;

const KEY: (&str, &str) = ("authorization", "Bearer sk-proj-0123456789abcdef");

/// Starts a second provider, and a proxy that knows it under a name.
async fn start(
    dialect: Format,
    auth: UpstreamAuth,
    archive: Option<foldline_archive::Archive>,
) -> (ProxyHarness, ProxyHarness) {
    let other = ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json(r#"{"at":"other"}"#)).await;
    let url = format!("http://{}", other.upstream).parse().unwrap();
    let named = Arc::new(NamedUpstream::new("gpu", url, dialect, auth).unwrap());
    let settings = ProxySettings { named_upstreams: vec![named], ..small_window_settings() };
    let harness = ProxyHarness::start(settings, archive, |_| UpstreamReply::json(r#"{"at":"first"}"#)).await;
    (harness, other)
}

async fn send(harness: &ProxyHarness, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> String {
    let request =
        headers.iter().fold(harness.request(method, path), |request, (name, value)| request.header(*name, *value));
    let response = harness.send(request.body(Full::new(Bytes::from(body))).unwrap()).await;
    response.lossy_text()
}

#[tokio::test]
async fn path_prefix_selects_a_named_upstream() {
    let kept = temp_archive();
    let (harness, other) = start(Format::OpenAiChat, UpstreamAuth::Client, Some(kept.archive.clone())).await;
    for format in [Format::OpenAiChat, Format::Anthropic] {
        let path = crate::fold::endpoint(format);
        let body = request_body(format, &agent_messages(format, 40));
        assert!(send(&harness, "POST", &format!("/gpu{path}"), &[KEY], body.clone()).await.contains("other"));
        let sent = other.received().pop().unwrap();
        assert_eq!(sent.path, path);
        assert_eq!(sent.headers[KEY.0], KEY.1);
        assert!(sent.body.len() < body.len() && String::from_utf8_lossy(&sent.body).contains("[folded: "));
        assert!(harness.received().is_empty());
    }
    assert!(send(&harness, "GET", "/gpu/v1/models?x=1", &[], String::new()).await.contains("other"));
    assert_eq!(other.received().pop().unwrap().path, "/v1/models?x=1");
    let health = harness.get("/foldline/healthz").await;
    assert!(health.text().contains(&format!(r#""named_upstreams":{{"gpu":"http://{}"}}"#, other.upstream)));
}

/// Neither headers nor other places of the path select an upstream.
#[tokio::test]
async fn nothing_else_selects_a_named_upstream() {
    let (harness, other) = start(Format::OpenAiChat, UpstreamAuth::Client, None).await;
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}],"upstream":"gpu"}"#;
    let headers = [KEY, ("x-foldline-upstream", "gpu"), ("x-upstream", "gpu"), ("x-forwarded-host", "gpu")];
    for path in [
        "/v1/chat/completions",
        "/v1/chat/completions?upstream=gpu",
        "/gpux/v1/chat/completions",
        "//gpu/v1/chat/completions",
        "/v1/gpu/chat/completions",
        "/GPU/v1/chat/completions",
        "/gpu",
    ] {
        assert!(send(&harness, "POST", path, &headers, body.to_owned()).await.contains("first"), "{path}");
    }
    assert!(other.received().is_empty());
}

#[tokio::test]
async fn key_of_the_settings_replaces_that_of_the_client() {
    let kept = temp_archive();
    let auth = UpstreamAuth::from_key("of-the-proxy").unwrap();
    let (harness, other) = start(Format::Anthropic, auth, Some(kept.archive.clone())).await;
    let format = Format::Anthropic;
    let body = request_body(format, &agent_messages(format, 40));
    send(&harness, "POST", "/gpu/v1/messages", &[KEY, ("x-api-key", "of-the-client")], body.clone()).await;
    send(&harness, "GET", "/gpu/v1/models", &[("x-goog-api-key", "of-the-client")], String::new()).await;
    let received = other.received();
    assert_eq!(received.len(), 2);
    for sent in received {
        assert_eq!(sent.headers["x-api-key"], "of-the-proxy");
        assert!(!sent.headers.contains_key("authorization") && !sent.headers.contains_key("x-goog-api-key"));
    }
    // The key is sent nowhere else.
    send(&harness, "POST", "/v1/messages", &[("x-api-key", "of-the-client")], body).await;
    assert_eq!(harness.only_request().headers["x-api-key"], "of-the-client");
}
