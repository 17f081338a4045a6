//! Amazon Bedrock with AWS credentials of the proxy: every request that leaves gets a new signature.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldline::Policy;
use foldline::engine::CreaseMode;
use foldline::wire::{Format, Request};
use foldline_server::proxy::{
    AccessToken, AwsCredentialSource, AwsCredentials, AwsSigner, NamedUpstream, Proxy, ProxySettings, SummaryMode,
    UpstreamAuth,
};
use ring::{digest, hmac};

use crate::fold::{agent_messages, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};
use crate::unfold_tool::{
    ReplyCall, parse_stream, small_window_settings, stream_endpoint, streamed_reply, was_answered,
};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const CLAUDE: &str = "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0";
/// Headers of a client that signed with other credentials.
const CLIENT_SIGNATURE: [(&str, &str); 5] = [
    (
        "authorization",
        "AWS4-HMAC-SHA256 Credential=AKIDCLIENT/20150830/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0",
    ),
    ("x-amz-date", "20150830T123600Z"),
    ("x-amz-security-token", "token of the client"),
    ("x-amz-content-sha256", "0"),
    ("amz-sdk-invocation-id", "1"),
];

fn signer(token: Option<&str>) -> UpstreamAuth {
    let keys = AwsCredentials::new("AKIDEXAMPLE", SECRET, token).unwrap();
    let url = "http://127.0.0.1:1".parse().unwrap();
    UpstreamAuth::Aws(AwsSigner::new(AwsCredentialSource::from_keys(keys), &url, Some("eu-west-1"), None).unwrap())
}

fn signing(settings: ProxySettings) -> ProxySettings {
    ProxySettings { bedrock_auth: signer(Some("TOKEN")), ..settings }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks a request as AWS does: computes the signature of what was received, and compares. Paths of these tests have only
/// `%` to encode again.
fn is_signed(request: &ReceivedRequest) -> bool {
    let header = |name: &str| request.headers[name].to_str().unwrap();
    let hash = |bytes: &[u8]| hex(digest::digest(&digest::SHA256, bytes).as_ref());
    let (_, rest) = header("authorization").split_once("Credential=AKIDEXAMPLE/").unwrap();
    let (scope, rest) = rest.split_once(", SignedHeaders=").unwrap();
    let (names, signature) = rest.split_once(", Signature=").unwrap();
    assert!(
        names.contains("host") && names.contains("x-amz-date") && names.contains("x-amz-security-token"),
        "{names}"
    );
    assert_eq!(header("x-amz-security-token"), "TOKEN");
    let lines: String = names.split(';').map(|name| format!("{name}:{}\n", header(name))).collect();
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let (method, path) = (&request.method, path.replace('%', "%25"));
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{}", hash(&request.body));
    let date = header("x-amz-date");
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hash(canonical.as_bytes()));
    assert!(scope.ends_with("/eu-west-1/bedrock/aws4_request") && date.starts_with(&scope[..8]), "{scope} {date}");
    let mac = |key: Vec<u8>, text: &str| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), text.as_bytes()).as_ref().to_vec()
    };
    let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), mac);
    hex(&mac(key, &to_sign)) == signature
}

/// A signed request is folded and signed again, and so is the request that answers the hidden call.
#[tokio::test]
async fn folded_requests_get_a_new_signature() {
    let format = Format::Converse;
    let kept = temp_archive();
    let harness = ProxyHarness::start(signing(small_window_settings()), Some(kept.archive.clone()), move |received| {
        match was_answered(format, received) {
            false => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
            true => streamed_reply(format, "It is 42.", &[]),
        }
    })
    .await;
    let body = request_body(format, &agent_messages(format, 60));
    let path = format!("{CLAUDE}/converse-stream");
    let got = harness.send_with("POST", &path, &CLIENT_SIGNATURE, body.clone()).await;
    assert_eq!(parse_stream(format, &got.body).text(), "Let me see. It is 42.");
    let received = harness.received();
    assert_eq!(received.len(), 2);
    for request in &received {
        assert!(is_signed(request) && request.path == path);
        assert!(request.body.len() < body.len() / 2, "the request is folded");
        assert!(!request.headers.contains_key("x-amz-content-sha256"));
        assert_eq!(request.headers["amz-sdk-invocation-id"], "1");
        assert_eq!(request.headers.get_all("authorization").iter().count(), 1);
    }
    assert!(Request::parse(format, &received[1].body).is_ok());
}

/// A prompt that does not fit is folded again: the signature is that of the second body.
#[tokio::test]
async fn refolded_request_gets_a_signature_of_its_own() {
    let format = Format::Converse;
    let harness = ProxyHarness::start(signing(settings()), None, move |received| match received.body.len() > 60_000 {
        true => UpstreamReply::error(400, r#"{"message":"prompt is too long: 21000 tokens > 20000 maximum"}"#),
        false => streamed_reply(format, "Fine.", &[]),
    })
    .await;
    let body = request_body(format, &agent_messages(format, 60));
    let got = harness.send_with("POST", stream_endpoint(format), &[("authorization", "Bearer unused")], body).await;
    assert_eq!((got.status.as_u16(), parse_stream(format, &got.body).text().as_str()), (200, "Fine."));
    let received = harness.received();
    assert!(received.len() >= 2 && received.iter().all(is_signed));
}

/// The model that writes summaries, and queries for the window, are reached with signed requests.
#[tokio::test]
async fn own_requests_of_the_proxy_are_signed() {
    let format = Format::Converse;
    let own: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
    let seen = own.clone();
    let mode = SummaryMode::Inline(Duration::from_secs(30));
    let mut policy = Policy::balanced();
    policy.crease_mode = CreaseMode::Forced;
    let small = ProxySettings { window: Some(16_000), offer_unfold_tool: false, policy, ..settings() };
    let settings = ProxySettings { summary_mode: mode, ..signing(small) };
    let kept = temp_archive();
    let harness = ProxyHarness::start_answering_probes(settings, Some(kept.archive.clone()), move |received| {
        if received.headers["user-agent"].as_bytes().starts_with(b"foldline/") {
            seen.lock().unwrap().push(received.clone());
        }
        UpstreamReply::json("{}")
    })
    .await;
    let messages = agent_messages(format, 60);
    let path = format!("{CLAUDE}/converse");
    // A summary is requested at the first request that does not fit.
    for end in (1..messages.len()).step_by(2) {
        let body = request_body(format, &messages[..end]);
        harness.send_with("POST", &path, &[("user-agent", "agent/1")], body).await;
    }
    let own = own.lock().unwrap();
    assert!(own.iter().any(|request| request.path == path), "a summary was requested");
    assert!(own.iter().all(is_signed));
}

/// Requests without a conversation, and those of other models, are signed as they are.
#[tokio::test]
async fn other_requests_are_signed_unmodified() {
    let harness = ProxyHarness::start(signing(settings()), None, |_| UpstreamReply::json("{}")).await;
    for (method, path, body) in [
        ("POST", "/model/amazon.titan-text-express-v1/invoke", r#"{"inputText":"hi"}"#),
        ("POST", "/bedrock/guardrail/g/version/1/apply", "{}"),
        ("GET", "/async-invoke?maxResults=1&nextToken=a%2Fb", ""),
    ] {
        let got = harness.send_with(method, path, &CLIENT_SIGNATURE, body.to_owned()).await;
        assert_eq!(got.status, 200, "{path}: {}", got.text());
        let received = harness.received().pop().unwrap();
        assert!(is_signed(&received), "{path}");
        assert_eq!(
            (received.path.as_str(), &received.body[..]),
            (path.trim_start_matches("/bedrock"), body.as_bytes())
        );
    }
}

/// Other upstreams get no signature, and a signature in a query cannot be replaced.
#[tokio::test]
async fn only_requests_to_bedrock_are_signed() {
    let harness = ProxyHarness::start(signing(settings()), None, |_| UpstreamReply::json("{}")).await;
    let body = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 2));
    harness.send_with("POST", "/v1/messages", &[("x-api-key", "of-the-client")], body.clone()).await;
    let received = harness.only_request();
    assert!(received.headers["x-api-key"] == "of-the-client" && !received.headers.contains_key("authorization"));
    let refused = harness.send_with("POST", "/v1/messages", &CLIENT_SIGNATURE, body.clone()).await;
    assert!(refused.status == 400 && refused.text().contains("--bedrock-auth aws"), "{}", refused.text());
    let in_query = format!("{CLAUDE}/converse?X-Amz-Signature=0");
    assert_eq!(harness.send_with("POST", &in_query, &[], body).await.status, 400);
    assert_eq!(harness.received().len(), 1);
}

#[tokio::test]
async fn named_upstream_can_be_signed() {
    let other = ProxyHarness::start(settings(), None, |_| UpstreamReply::json("{}")).await;
    let url = format!("http://{}", other.upstream).parse().unwrap();
    let named = Arc::new(NamedUpstream::new("aws", url, Format::Converse, signer(Some("TOKEN"))).unwrap());
    let settings = ProxySettings { named_upstreams: vec![named], ..settings() };
    let harness = ProxyHarness::start(settings, None, |_| UpstreamReply::json("{}")).await;
    let body = request_body(Format::Converse, &agent_messages(Format::Converse, 2));
    let path = format!("/aws{CLAUDE}/converse");
    assert_eq!(harness.send_with("POST", &path, &CLIENT_SIGNATURE, body).await.status, 200);
    assert!(is_signed(&other.only_request()));
}

/// The credentials of a machine are for its own clients, or for those with a token.
#[tokio::test]
async fn strangers_cannot_use_the_credentials_of_the_proxy() {
    let bind = |settings: ProxySettings| async { Proxy::bind(signing(settings), None).await.map(drop) };
    let everywhere = ([0, 0, 0, 0], 0).into();
    let with_host = || ProxySettings { allowed_hosts: vec!["llm.example".to_owned()], ..settings() };
    for settings in [ProxySettings { listen: everywhere, ..settings() }, with_host()] {
        let error = bind(settings).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("bedrock") && error.to_string().contains("--token-file"), "{error}");
    }
    let tokens = vec![AccessToken::new(Some("alice"), "0123456789abcdef").unwrap()];
    for settings in [ProxySettings { listen: everywhere, ..settings() }, with_host(), settings()] {
        bind(ProxySettings { tokens: tokens.clone(), ..settings }).await.unwrap();
    }
    bind(settings()).await.unwrap();

    let key = UpstreamAuth::from_key("a-key-of-the-settings").unwrap();
    let named = NamedUpstream::new("gateway", "http://127.0.0.1:1".parse().unwrap(), Format::OpenAiChat, key).unwrap();
    let with_key = ProxySettings { named_upstreams: vec![Arc::new(named)], ..with_host() };
    let error = Proxy::bind(with_key.clone(), None).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("upstream gateway"), "{error}");
    Proxy::bind(ProxySettings { allowed_hosts: Vec::new(), ..with_key }, None).await.unwrap();
}

#[tokio::test]
async fn proxy_without_credentials_to_sign_with_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let source = AwsCredentialSource::from_profile("work", file("credentials"), file("config"));
    let url = "https://bedrock-runtime.us-east-1.amazonaws.com".parse().unwrap();
    let auth = UpstreamAuth::Aws(AwsSigner::new(source, &url, None, None).unwrap());
    let error = Proxy::bind(ProxySettings { bedrock_auth: auth, ..settings() }, None).await.unwrap_err().to_string();
    assert!(error.starts_with("upstream bedrock: no AWS credentials") && error.contains("\"work\""), "{error}");
}
