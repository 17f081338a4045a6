//! Gateways that authenticate by client certificates, and name their tenants.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use foldline::engine::marker::handles;
use foldline::wire::Format;
use foldline_server::proxy::{AccessToken, Proxy, ProxySettings, Tenancy, TlsFiles, read_certificates};
use http_body_util::Full;
use hyper::Request;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioExecutor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fold::{agent_messages, request_body};
use crate::stores::{TestStore, store_tests};
use crate::support::{ProxyHarness, UpstreamReply};
use crate::unfold_tool::small_window_settings;

const FORMAT: Format = Format::OpenAiChat;
const PATH: &str = "/v1/chat/completions";
/// Headers with which the gateway names tenants.
const ALICE: (&str, &str) = ("x-foldline-tenant", "alice");
const BOB: (&str, &str) = ("x-foldline-tenant", "bob");

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxy/tls").join(name)
}

/// Returns settings with TLS that trust the authority of gateways, whose files are in `folder`.
fn gateway_settings(folder: &Path) -> ProxySettings {
    let (key, authorities) = (folder.join("key.pem"), folder.join("authorities.pem"));
    std::fs::copy(fixture("key.pem"), &key).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::copy(fixture("gateway-authority.pem"), &authorities).unwrap();
    ProxySettings {
        tls: Some(TlsFiles { certificate: fixture("cert.pem"), key }),
        gateway_authorities: Some(authorities),
        ..small_window_settings()
    }
}

/// A client of a proxy with TLS.
struct TlsClient {
    base: String,
    pool: Pool<hyper_rustls::HttpsConnector<hyper_util::client::legacy::connect::HttpConnector>, Full<Bytes>>,
}

impl TlsClient {
    /// Creates a client, which has a certificate if it is named.
    fn new(proxy: std::net::SocketAddr, certificate: Option<&str>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(read_certificates(&fixture("cert.pem")).unwrap().remove(0)).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let config = match certificate {
            None => config.with_no_client_auth(),
            Some(name) => {
                let chain = read_certificates(&fixture(&format!("{name}-cert.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(fixture(&format!("{name}-key.pem"))).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().build();
        let base = format!("https://localhost:{}", proxy.port());
        Self { base, pool: Pool::builder(TokioExecutor::new()).build(connector) }
    }

    /// Sends a request. Returns the status; none if the handshake failed.
    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Option<u16> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        self.pool.request(request.body(Full::new(body.into())).unwrap()).await.ok().map(|it| it.status().as_u16())
    }

    /// Sends a long conversation.
    async fn converse(&self, headers: &[(&str, &str)]) -> Option<u16> {
        self.send("POST", PATH, headers, request_body(FORMAT, &agent_messages(FORMAT, 40))).await
    }

    async fn unfold(&self, handle: &str, headers: &[(&str, &str)]) -> Option<u16> {
        self.send("GET", &format!("/foldline/unfold/{handle}"), headers, String::new()).await
    }
}

fn folded_handle(harness: &ProxyHarness) -> Option<String> {
    let sent = harness.received().pop()?;
    handles(std::str::from_utf8(&sent.body).unwrap()).next().map(|handle| handle.to_string())
}

store_tests! {
    gateway_with_a_certificate_names_the_tenant,
    client_with_a_token_needs_no_certificate,
}

/// Without tokens only a gateway with a certificate can use the proxy.
async fn gateway_with_a_certificate_names_the_tenant(store: TestStore) {
    let (kept, folder) = (store.create(), tempfile::tempdir().unwrap());
    let archive = Some(kept.archive.clone());
    let harness = ProxyHarness::start(gateway_settings(folder.path()), archive, |_| UpstreamReply::json("{}")).await;
    let gateway = TlsClient::new(harness.proxy, Some("gateway"));
    assert_eq!(gateway.converse(&[ALICE]).await, Some(200));
    let handle = folded_handle(&harness).expect("something is folded");
    assert!(harness.received().iter().all(|received| !received.headers.contains_key("x-foldline-tenant")));
    assert_eq!(gateway.unfold(&handle, &[ALICE]).await, Some(200));
    assert_eq!(gateway.unfold(&handle, &[BOB]).await, Some(404));
    assert_eq!(gateway.unfold(&handle, &[]).await, Some(403), "it named no tenant");
    assert_eq!(gateway.converse(&[]).await, Some(200));
    assert_eq!(folded_handle(&harness), None, "forwarded unmodified");

    let received = harness.received().len();
    let without = TlsClient::new(harness.proxy, None);
    assert_eq!(without.converse(&[ALICE]).await, Some(401));
    assert_eq!(without.unfold(&handle, &[ALICE]).await, Some(401));
    assert_eq!(without.send("GET", "/foldline/livez", &[], String::new()).await, Some(200), "a probe");
    let stranger = TlsClient::new(harness.proxy, Some("client"));
    assert_eq!(stranger.converse(&[ALICE]).await, None, "another authority signed its certificate");
    assert_eq!(harness.received().len(), received);
}

/// Clients with tokens and a gateway with a certificate share a proxy, and no tenants.
async fn client_with_a_token_needs_no_certificate(store: TestStore) {
    let (kept, folder) = (store.create(), tempfile::tempdir().unwrap());
    let tokens = AccessToken::parse_list("alice = t-a").unwrap();
    let settings = ProxySettings { tokens, ..gateway_settings(folder.path()) };
    let harness = ProxyHarness::start(settings, Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let (token, client) = (("x-foldline-token", "t-a"), TlsClient::new(harness.proxy, None));
    assert_eq!(client.converse(&[token, BOB]).await, Some(200));
    let handle = folded_handle(&harness).expect("something is folded");
    assert_eq!(client.unfold(&handle, &[token]).await, Some(200));
    assert_eq!(client.unfold(&handle, &[BOB]).await, Some(401));
    let gateway = TlsClient::new(harness.proxy, Some("gateway"));
    for tenant in [ALICE, BOB] {
        assert_eq!(gateway.unfold(&handle, &[tenant]).await, Some(404), "a token of the same name is another tenant");
    }
    assert_eq!(gateway.unfold(&handle, &[token, BOB]).await, Some(200), "the token counts");
}

/// An authority is withdrawn while the proxy runs.
#[tokio::test]
async fn replaced_authority_is_used_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let settings = gateway_settings(folder.path());
    let authorities = settings.gateway_authorities.clone().unwrap();
    let proxy = Proxy::bind(settings, None).await.unwrap();
    let (address, reload) = (proxy.address(), proxy.tls_reload().unwrap());
    tokio::spawn(proxy.run(std::future::pending()));
    let admits = async |name| {
        TlsClient::new(address, Some(name)).send("GET", "/foldline/metrics", &[ALICE], String::new()).await.is_some()
    };
    assert!(admits("gateway").await && !admits("client").await);

    std::fs::write(&authorities, "no certificate").unwrap();
    let refused = reload.reload().unwrap_err().to_string();
    assert!(refused.contains("authorities of gateways"), "{refused}");
    assert!(admits("gateway").await, "the previous authority stays");

    std::fs::copy(fixture("client-cert.pem"), &authorities).unwrap();
    reload.reload().unwrap();
    assert!(admits("client").await && !admits("gateway").await);
}

#[tokio::test]
async fn certificates_of_gateways_replace_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let settings = gateway_settings(folder.path());
    let everywhere = ProxySettings { listen: ([0, 0, 0, 0], 0).into(), ..settings.clone() };
    let proxy = Proxy::bind(everywhere, None).await.expect("a request needs a certificate");
    assert_eq!(proxy.tenancy(), Tenancy::Token);
    let single = ProxySettings { tenancy: Some(Tenancy::Single), ..settings.clone() };
    assert!(Proxy::bind(single, None).await.is_err(), "tenants would share originals");
    let plain = ProxySettings { tls: None, ..settings };
    assert!(Proxy::bind(plain, None).await.err().unwrap().to_string().contains("need TLS"));
}
