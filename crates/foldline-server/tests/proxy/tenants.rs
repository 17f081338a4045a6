//! Tenants: the originals that a request reads and writes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldline::engine::marker::handles;
use foldline::wire::Format;
use foldline::{Handle, Policy};
use foldline_archive::Namespace;
use foldline_server::proxy::{
    AccessToken, NamedUpstream, Proxy, ProxyLimits, ProxyMode, ProxySettings, Tenancy, TenantSettings, Timeouts,
    TlsFiles, UpstreamAuth,
};
use http_body_util::Full;
use hyper::StatusCode;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fold::{agent_messages, request_body};
use crate::stores::{TestStore, store_tests};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply};
use crate::unfold_tool::{raw_messages, small_window_settings};

const FORMAT: Format = Format::OpenAiChat;
const PATH: &str = "/v1/chat/completions";
const KEY: (&str, &str) = ("authorization", "Bearer sk-proj-0123456789abcdef");
const OAUTH: &str = "Bearer sk-ant-oat01-0123456789";

fn token_settings() -> ProxySettings {
    ProxySettings { tokens: AccessToken::parse_list("sesame").unwrap(), ..small_window_settings() }
}

/// Sends a long conversation, and returns a handle that was folded in it.
async fn fold(harness: &ProxyHarness, headers: &[(&str, &str)]) -> Option<Handle> {
    assert_eq!(
        harness.send_with("POST", PATH, headers, request_body(FORMAT, &agent_messages(FORMAT, 40))).await.status,
        200
    );
    let sent = harness.received().pop().unwrap();
    handles(std::str::from_utf8(&sent.body).unwrap()).next()
}

async fn unfold(harness: &ProxyHarness, handle: Handle, headers: &[(&str, &str)]) -> u16 {
    harness.send_with("GET", &format!("/foldline/unfold/{handle}"), headers, String::new()).await.status.as_u16()
}

store_tests! {
    token_on_loopback_separates_tenants,
    named_tokens_separate_tenants_that_share_a_key,
    gateway_names_the_tenant,
    settings_of_a_tenant_apply_to_no_other,
    stored_bytes_of_a_tenant_are_limited,
    rotated_oauth_token_keeps_the_tenant_of_a_named_token,
    request_without_lasting_identity_is_forwarded_unmodified,
    chosen_namespace_is_written_and_read,
}

/// A TLS terminator in front of a proxy on loopback: both users have the same address and the same token.
async fn token_on_loopback_separates_tenants(store: TestStore) {
    let kept = store.create();
    let harness =
        ProxyHarness::start(token_settings(), Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let token = ("x-foldline-token", "sesame");
    let (ours, theirs) = (KEY, ("x-api-key", "sk-ant-api03-fedcba9876"));
    let handle = fold(&harness, &[token, ours]).await.expect("something is folded");
    assert_eq!(unfold(&harness, handle, &[token, ours]).await, 200);
    assert_eq!(unfold(&harness, handle, &[token, theirs]).await, 404);
}

async fn named_tokens_separate_tenants_that_share_a_key(store: TestStore) {
    let kept = store.create();
    let tokens = AccessToken::parse_list("alice = t-a\nbob = t-b").unwrap();
    let harness =
        ProxyHarness::start(ProxySettings { tokens, ..small_window_settings() }, Some(kept.archive.clone()), |_| {
            UpstreamReply::json("{}")
        })
        .await;
    let (alice, bob) = (("x-foldline-token", "t-a"), ("x-foldline-token", "t-b"));
    let handle = fold(&harness, &[alice, KEY]).await.expect("something is folded");
    assert_eq!(unfold(&harness, handle, &[alice, KEY]).await, 200);
    assert_eq!(unfold(&harness, handle, &[bob, KEY]).await, 404);
    assert_eq!(unfold(&harness, handle, &[("authorization", "Bearer t-a")]).await, 200, "without a key of a provider");
    assert_eq!(unfold(&harness, handle, &[("authorization", "Bearer t-b")]).await, 404);
    assert_eq!(unfold(&harness, handle, &[("authorization", "Bearer t-c")]).await, 401);
}

/// A service manager has no token; it learns a status and nothing else.
#[tokio::test]
async fn probes_need_no_token() {
    let harness = ProxyHarness::start(token_settings(), None, |_| UpstreamReply::json("{}")).await;
    for (path, status, text) in
        [("/foldline/livez", 200, "ok\n"), ("/foldline/readyz", 200, "ok\n"), ("/foldline/healthz", 401, "")]
    {
        let response = harness.get(path).await;
        assert_eq!(response.status, status, "{path}");
        assert!(text.is_empty() || response.text() == text, "{path}: {}", response.text());
    }
    assert_eq!(harness.send_with("POST", "/foldline/readyz", &[], String::new()).await.status, 401);
}

/// A gateway authenticates its users, and names them; no other client can.
async fn gateway_names_the_tenant(store: TestStore) {
    let kept = store.create();
    let tokens = AccessToken::parse_list("gate = t-g\nalice = t-a").unwrap();
    let settings = ProxySettings { tokens, gateways: vec!["gate".into()], ..small_window_settings() };
    let archive = Some(kept.archive.clone());
    let harness = ProxyHarness::start(settings.clone(), archive, |_| UpstreamReply::json("{}")).await;
    let (gate, alice) = (("x-foldline-token", "t-g"), ("x-foldline-token", "t-a"));
    let (ours, theirs) = (("x-foldline-tenant", "alice"), ("x-foldline-tenant", "bob"));
    let handle = fold(&harness, &[gate, ours, KEY]).await.expect("something is folded");
    assert!(harness.received().iter().all(|received| !received.headers.contains_key("x-foldline-tenant")));
    assert_eq!(unfold(&harness, handle, &[gate, ours]).await, 200);
    assert_eq!(unfold(&harness, handle, &[gate, theirs]).await, 404);
    assert_eq!(unfold(&harness, handle, &[alice, ours]).await, 404, "a token of the same name is another tenant");
    assert_eq!(unfold(&harness, handle, &[gate]).await, 403);
    assert_eq!(fold(&harness, &[gate, KEY]).await, None, "forwarded unmodified");
    let unknown = ProxySettings { gateways: vec!["door".into()], ..settings };
    assert!(Proxy::bind(unknown, None).await.err().unwrap().to_string().contains("the gateway door has no token"));
}

/// Each tenant gets its own mode, policy and upstream, and no other tenant does.
async fn settings_of_a_tenant_apply_to_no_other(store: TestStore) {
    let kept = store.create();
    let other = ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json("{}")).await;
    let url = format!("http://{}", other.upstream).parse().unwrap();
    let key = UpstreamAuth::from_key("sk-of-the-proxy").unwrap();
    let gpu = Arc::new(NamedUpstream::new("gpu", url, FORMAT, key).unwrap());
    let tenant = |mode, policy, upstreams| TenantSettings { mode, policy, upstreams };
    let settings = ProxySettings {
        tokens: AccessToken::parse_list("off = t-o\nwatch = t-w\nkeep = t-k\nmoved = t-m\nplain = t-p\ngate = t-g")
            .unwrap(),
        gateways: vec!["gate".into()],
        named_upstreams: vec![gpu.clone()],
        tenants: [
            ("off".to_owned(), tenant(Some(ProxyMode::Off), None, Vec::new())),
            ("watch".to_owned(), tenant(Some(ProxyMode::Observe), None, Vec::new())),
            ("keep".to_owned(), tenant(None, Some(Policy::none()), Vec::new())),
            ("moved".to_owned(), tenant(None, None, vec![gpu])),
            ("far".to_owned(), tenant(Some(ProxyMode::Off), None, Vec::new())),
        ]
        .into(),
        ..small_window_settings()
    };
    let harness =
        ProxyHarness::start(settings.clone(), Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let body = request_body(FORMAT, &agent_messages(FORMAT, 40));
    let send = async |headers: &[(&str, &str)]| {
        let response = harness.send_with("POST", PATH, &[headers, &[KEY]].concat(), body.clone()).await;
        assert_eq!(response.status, 200);
        response.headers.contains_key("x-foldline-tokens")
    };
    let is_folded = |received: Option<ReceivedRequest>| {
        // The description of the tool has a marker, too.
        handles(&raw_messages(FORMAT, &received.expect("a request arrived")).concat()).next().is_some()
    };
    // Tenant by tenant, and once more in the other order: nothing carries over from one to the next.
    for round in 0..2 {
        let mut tenants = vec!["t-o", "t-w", "t-k", "t-p"];
        if round == 1 {
            tenants.reverse();
        }
        for token in tenants {
            let measured = send(&[("x-foldline-token", token)]).await;
            let received = harness.received().pop().unwrap();
            assert_eq!(received.body == body.as_bytes(), ["t-o", "t-w"].contains(&token), "{token}");
            assert_eq!((is_folded(Some(received)), measured), (token == "t-p", token != "t-o"), "{token}");
        }
        let before = harness.received().len();
        send(&[("x-foldline-token", "t-m")]).await;
        assert_eq!(harness.received().len(), before, "sent to its own upstream");
        let moved = other.received().pop().unwrap();
        assert_eq!(moved.headers[KEY.0], "Bearer sk-of-the-proxy");
        assert!(is_folded(Some(moved)));
        let (gate, far, near) =
            (("x-foldline-token", "t-g"), ("x-foldline-tenant", "far"), ("x-foldline-tenant", "off"));
        assert!(!send(&[gate, far]).await && harness.received().pop().unwrap().body == body.as_bytes());
        assert!(send(&[gate, near]).await && is_folded(harness.received().pop()), "not the token of the same name");
        assert_eq!(other.received().len(), round + 1);
    }
    let unknown = ProxySettings { gateways: Vec::new(), ..settings };
    let refused = Proxy::bind(unknown, None).await.err().unwrap().to_string();
    assert!(refused.contains("no request can belong to the tenant far"), "{refused}");
}

#[tokio::test]
async fn requests_of_a_tenant_are_limited() {
    let tokens = AccessToken::parse_list("alice = t-a\nbob = t-b").unwrap();
    let limits = ProxyLimits { tenant_requests: Some(2), ..ProxyLimits::default() };
    let settings = ProxySettings { tokens, limits, ..small_window_settings() };
    let reply = |received: &ReceivedRequest| match received.headers.contains_key("x-hang") {
        true => UpstreamReply::Hang,
        false => UpstreamReply::json("{}"),
    };
    let harness = ProxyHarness::start(settings, None, reply).await;
    let post = async |headers: &[(&str, &str)]| {
        harness.send_with("POST", PATH, headers, request_body(FORMAT, &agent_messages(FORMAT, 1))).await
    };
    let (alice, bob) = (("x-foldline-token", "t-a"), ("x-foldline-token", "t-b"));
    let check = async {
        while harness.received().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let refused = post(&[alice]).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers.contains_key("retry-after") && refused.text().contains("this tenant"), "{refused:?}");
        assert_eq!(post(&[bob]).await.status, 200, "another tenant");
    };
    let hang = [alice, ("x-hang", "1")];
    tokio::select! {
        _ = post(&hang) => unreachable!("the upstream does not answer"),
        _ = post(&hang) => unreachable!("the upstream does not answer"),
        () = check => {}
    }
    // Both clients have left.
    let deadline = Instant::now() + Duration::from_secs(10);
    while post(&[alice]).await.status != 200 {
        assert!(Instant::now() < deadline, "requests of clients that left are counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A tenant that has reached its quota keeps what it has, and its requests pass unfolded.
async fn stored_bytes_of_a_tenant_are_limited(store: TestStore) {
    let kept = store.create();
    let tokens = AccessToken::parse_list("alice = t-a\nbob = t-b").unwrap();
    let limits = ProxyLimits { tenant_bytes: Some(1), ..ProxyLimits::default() };
    let timeouts = Timeouts { usage: Duration::ZERO, ..Timeouts::default() };
    let settings = ProxySettings { tokens, limits, timeouts, ..small_window_settings() };
    let harness = ProxyHarness::start(settings, Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let (alice, bob) = (("x-foldline-token", "t-a"), ("x-foldline-token", "t-b"));
    let send_turns = async |token, turns: usize| -> HashSet<Handle> {
        let body = request_body(FORMAT, &agent_messages(FORMAT, turns));
        assert_eq!(harness.send_with("POST", PATH, &[token], body).await.status, 200);
        let sent = harness.received().pop().unwrap().body;
        handles(std::str::from_utf8(&sent).unwrap()).collect()
    };
    let first = send_turns(alice, 40).await;
    assert!(!first.is_empty(), "the quota is not reached");
    // Its bytes are read in the background.
    send_turns(alice, 40).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(send_turns(alice, 90).await.is_subset(&first), "nothing new is folded");
    assert_eq!(unfold(&harness, *first.iter().next().unwrap(), &[alice]).await, 200);
    assert!(!send_turns(bob, 90).await.is_subset(&first), "another tenant folds");
}

/// An access token changes every hour; the conversation continues with the same ledger and the same originals.
async fn rotated_oauth_token_keeps_the_tenant_of_a_named_token(store: TestStore) {
    let kept = store.create();
    let start = |tokens: &str| {
        let tokens = AccessToken::parse_list(tokens).unwrap();
        ProxyHarness::start(ProxySettings { tokens, ..small_window_settings() }, Some(kept.archive.clone()), |_| {
            UpstreamReply::json("{}")
        })
    };
    let harness = start("alice = t-1").await;
    let token = ("x-foldline-token", "t-1");
    let handle = fold(&harness, &[token, ("authorization", OAUTH)]).await.expect("something is folded");
    let later = ("authorization", "Bearer sk-ant-oat01-another");
    assert_eq!(fold(&harness, &[token, later]).await, Some(handle));
    let bodies: Vec<Bytes> = harness.received().into_iter().map(|received| received.body).collect();
    assert_eq!(bodies[0], bodies[1]);
    assert_eq!(unfold(&harness, handle, &[token, later]).await, 200);
    // The token of foldline itself is replaced as well.
    let replaced = start("alice = t-2").await;
    assert_eq!(unfold(&replaced, handle, &[("x-foldline-token", "t-2"), later]).await, 200);
}

/// A token that all users share identifies none of them, and neither does a rotating credential.
async fn request_without_lasting_identity_is_forwarded_unmodified(store: TestStore) {
    let kept = store.create();
    let harness =
        ProxyHarness::start(token_settings(), Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let token = ("x-foldline-token", "sesame");
    for credential in [("authorization", OAUTH), ("authorization", "Bearer EMPTY"), ("accept", "*/*")] {
        assert_eq!(fold(&harness, &[token, credential]).await, None, "{credential:?}");
        assert_eq!(harness.received().last().unwrap().body, request_body(FORMAT, &agent_messages(FORMAT, 40)));
        assert_eq!(unfold(&harness, Handle::for_content(b"x"), &[token, credential]).await, 403);
    }
    // The operator may declare that all users of a token are one tenant.
    let shared = ProxySettings { tenancy: Some(Tenancy::Token), ..token_settings() };
    let harness = ProxyHarness::start(shared, Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let handle = fold(&harness, &[token, ("authorization", OAUTH)]).await.expect("something is folded");
    assert_eq!(unfold(&harness, handle, &[token]).await, 200);
}

#[tokio::test]
async fn single_tenancy_is_refused_with_a_token() {
    let refused = |settings: ProxySettings| async { Proxy::bind(settings, None).await.err().unwrap().to_string() };
    let single = ProxySettings { tenancy: Some(Tenancy::Single), ..token_settings() };
    assert!(refused(single).await.contains("choose token or credential"));
    let without = ProxySettings { tenancy: Some(Tenancy::Token), ..small_window_settings() };
    assert!(refused(without).await.contains("needs tokens"));
    let named = ProxySettings { namespace: Namespace::new("team").unwrap(), ..token_settings() };
    assert!(refused(named).await.contains("tenancy single"));
    let proxy = Proxy::bind(small_window_settings(), None).await.unwrap();
    assert_eq!(proxy.tenancy(), Tenancy::Single);
}

/// Unnamed tokens share the namespace `token-default`, which must not be that of a user.
#[tokio::test]
async fn token_named_default_never_shares_with_unnamed_tokens() {
    let bind = |tokens: &str, tenancy: Tenancy| {
        let tokens = AccessToken::parse_list(tokens).unwrap();
        Proxy::bind(ProxySettings { tokens, tenancy: Some(tenancy), ..small_window_settings() }, None)
    };
    let error = bind("default = t-a\nt-b", Tenancy::Token).await.expect_err("refused").to_string();
    assert!(error.contains("token named default"), "{error}");
    assert!(bind("default = t-a\nbob = t-b", Tenancy::Token).await.is_ok());
    assert!(bind("default = t-a\nt-b", Tenancy::Credential).await.is_ok(), "separate tenants by API keys");
}

async fn chosen_namespace_is_written_and_read(store: TestStore) {
    let kept = store.create();
    let namespace = Namespace::new("team-7").unwrap();
    let settings = ProxySettings { namespace: namespace.clone(), ..small_window_settings() };
    let harness = ProxyHarness::start(settings, Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let handle = fold(&harness, &[]).await.expect("something is folded");
    assert_eq!(unfold(&harness, handle, &[]).await, 200);
    assert!(kept.archive.tenant(&namespace).unfold(handle.as_str()).is_ok());
    assert!(kept.archive.tenant(&Namespace::local()).unfold(handle.as_str()).is_err());
}

/// Tokens reach neither the provider nor the Debug output of the settings.
#[tokio::test]
async fn tokens_are_neither_forwarded_nor_printed() {
    let harness = ProxyHarness::start(token_settings(), None, |_| UpstreamReply::json("{}")).await;
    for (path, headers) in [
        ("/token/sesame/v1/models", &[][..]),
        ("/token/sesame/v1/chat/completions", &[("authorization", "Bearer sesame")]),
        ("/v1/chat/completions", &[("x-foldline-token", "sesame"), ("authorization", "bearer sesame")]),
    ] {
        assert_eq!(
            harness.send_with("POST", path, headers, request_body(FORMAT, &agent_messages(FORMAT, 1))).await.status,
            200,
            "{path}"
        );
    }
    assert_eq!(harness.received().len(), 3);
    assert!(!format!("{:?} {:?}", harness.received(), token_settings()).contains("sesame"));
}

/// Connects to a proxy. Returns true if its certificate is the given one.
async fn presents(proxy: std::net::SocketAddr, certificate: &std::path::Path) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let connector =
        tokio_rustls::TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()));
    let stream = TcpStream::connect(proxy).await.unwrap();
    connector.connect("localhost".try_into().unwrap(), stream).await.is_ok()
}

#[tokio::test]
async fn renewed_certificate_is_used_without_a_restart() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxy/tls");
    let folder = tempfile::tempdir().unwrap();
    let tls = TlsFiles { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
    let install = |certificate: &str, key: &str| {
        std::fs::copy(fixtures.join(certificate), &tls.certificate).unwrap();
        std::fs::copy(fixtures.join(key), &tls.key).unwrap();
        std::fs::set_permissions(&tls.key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    install("cert.pem", "key.pem");
    let proxy = Proxy::bind(ProxySettings { tls: Some(tls.clone()), ..token_settings() }, None).await.unwrap();
    let (address, reload) = (proxy.address(), proxy.tls_reload().unwrap());
    tokio::spawn(proxy.run(std::future::pending()));
    let (first, renewed) = (fixtures.join("cert.pem"), fixtures.join("renewed-cert.pem"));
    assert!(presents(address, &first).await && !presents(address, &renewed).await);

    std::fs::write(&tls.certificate, "half a certif").unwrap();
    let refused = reload.reload().unwrap_err();
    assert!(refused.to_string().contains("TLS certificate"), "{refused}");
    assert!(presents(address, &first).await, "the previous certificate stays");

    install("renewed-cert.pem", "renewed-key.pem");
    reload.reload().unwrap();
    assert!(presents(address, &renewed).await && !presents(address, &first).await);
}

/// New tokens are accepted and removed ones refused from the next request on; tokens that do not fit change nothing.
#[tokio::test]
async fn replaced_tokens_are_used_without_a_restart() {
    let tokens = |text: &str| AccessToken::parse_list(text).unwrap();
    let settings = ProxySettings {
        tokens: tokens("gate = t-g\nalice = t-1\nbob = t-2"),
        gateways: vec!["gate".into()],
        tenants: [("alice".to_owned(), TenantSettings::default())].into(),
        ..small_window_settings()
    };
    assert!(Proxy::bind(small_window_settings(), None).await.unwrap().token_reload().is_none());
    let proxy = Proxy::bind(settings, None).await.unwrap();
    let (address, reload) = (proxy.address(), proxy.token_reload().unwrap());
    tokio::spawn(proxy.run(std::future::pending()));
    // One connection for all requests.
    let client: Pool<_, Full<Bytes>> = Pool::builder(TokioExecutor::new()).build_http();
    let statuses = async || {
        let mut statuses = Vec::new();
        for token in ["t-1", "t-2", "t-3", "t-4"] {
            let request = hyper::Request::get(format!("http://{address}/foldline/metrics"));
            let request = request.header("x-foldline-token", token).body(Full::default()).unwrap();
            statuses.push(client.request(request).await.unwrap().status().as_u16());
        }
        statuses
    };
    assert_eq!(statuses().await, [200, 200, 401, 401]);
    for (refused, reason) in [
        ("", "no token"),
        ("alice = t-3", "the gateway gate has no token"),
        ("gate = t-g\nbob = t-3", "the tenant alice"),
        ("gate = t-g\nalice = t-3\nt-4", "the tenancy"),
    ] {
        let error = reload.replace_tokens(tokens(refused)).unwrap_err().to_string();
        assert!(error.contains(reason) && !error.contains("t-3"), "{error}");
        assert_eq!(statuses().await, [200, 200, 401, 401], "{refused}");
    }
    reload.replace_tokens(tokens("gate = t-g\nalice = t-3\nalice = t-1\ncarol = t-4")).unwrap();
    assert_eq!(statuses().await, [200, 401, 200, 200]);
}

#[tokio::test]
async fn proxy_terminates_tls() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxy/tls");
    let private = tempfile::tempdir().unwrap();
    let tls = TlsFiles { certificate: folder.join("cert.pem"), key: private.path().join("key.pem") };
    std::fs::copy(folder.join("key.pem"), &tls.key).unwrap();
    let set_mode =
        |mode| std::fs::set_permissions(&tls.key, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o644);
    let readable = Proxy::bind(ProxySettings { tls: Some(tls.clone()), ..token_settings() }, None).await.err().unwrap();
    assert!(readable.to_string().contains("chmod 600"), "{readable}");
    set_mode(0o600);
    let harness = ProxyHarness::start(ProxySettings { tls: Some(tls.clone()), ..token_settings() }, None, |_| {
        UpstreamReply::json("{}")
    })
    .await;

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&tls.certificate).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config.with_root_certificates(roots).with_no_client_auth())
        .https_only()
        .enable_http1()
        .enable_http2()
        .build();
    let client: Pool<_, Full<Bytes>> = Pool::builder(TokioExecutor::new()).build(connector);
    let url = format!("https://localhost:{}/token/sesame/v1/chat/completions", harness.proxy.port());
    let request =
        hyper::Request::post(url).body(Full::new(request_body(FORMAT, &agent_messages(FORMAT, 1)).into())).unwrap();
    let response = client.request(request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, hyper::Version::HTTP_2));
    assert_eq!(harness.received().len(), 1);

    // A client that starts in plain text is disconnected without a response.
    let mut plain = TcpStream::connect(harness.proxy).await.unwrap();
    plain.write_all(b"GET /foldline/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut got = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(5), plain.read_to_end(&mut got)).await.expect("disconnected");
    assert!(!got.starts_with(b"HTTP"), "{got:?}");

    std::fs::copy(folder.join("cert.pem"), private.path().join("wrong.pem")).unwrap();
    let wrong = TlsFiles { key: private.path().join("wrong.pem"), ..tls.clone() };
    std::fs::set_permissions(&wrong.key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let refused = Proxy::bind(ProxySettings { tls: Some(wrong), ..token_settings() }, None).await.err().unwrap();
    assert!(refused.to_string().contains("TLS key"), "{refused}");
}
