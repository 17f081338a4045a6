//! The way to providers: a proxy of the network, certificate authorities and client certificates.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use foldline_server::proxy::{
    ClientIdentity, OutboundSettings, OutboundTransport, Proxy, ProxySettings, TlsFiles, Upstreams, probe,
    read_certificates,
};
use foldline_summarize::HttpTransport;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::support::settings;

fn pem(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/proxy/tls").join(name)
}

/// Starts a provider with TLS under the name provider.test, which may require a client certificate.
async fn start_provider(requires_identity: bool) -> SocketAddr {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let config = if requires_identity {
        let mut roots = RootCertStore::empty();
        roots.add(read_certificates(&pem("client-cert.pem")).unwrap().remove(0)).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        config.with_client_cert_verifier(verifier)
    } else {
        config.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_file(pem("provider-key.pem")).unwrap();
    let config = config.with_single_cert(read_certificates(&pem("provider-cert.pem")).unwrap(), key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let answer = |request: Request<Incoming>| async move {
                    let has_secret = request.headers().contains_key("proxy-authorization");
                    Ok::<_, std::convert::Infallible>(Response::new(Full::new(bytes::Bytes::from(format!(
                        "provider {} {has_secret}",
                        request.uri()
                    )))))
                };
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    });
    address
}

/// A proxy of the network that opens tunnels to one address, whatever the name; other requests are answered.
#[derive(Clone)]
struct TunnelProxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl TunnelProxy {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self { address: listener.local_addr().unwrap(), heads: Arc::default() };
        let heads = proxy.heads.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let heads = heads.clone();
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = client.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap();
                    let is_tunnel = head.starts_with("CONNECT ");
                    let is_refused = head.contains("refused.test");
                    heads.lock().unwrap().push(head);
                    if is_refused {
                        let _ = client.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await;
                    } else if is_tunnel {
                        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                        let mut provider = TcpStream::connect(target).await.unwrap();
                        let _ = copy_bidirectional(&mut client, &mut provider).await;
                    } else {
                        let _ = client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nforwarded").await;
                    }
                });
            }
        });
        proxy
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn outbound(&self) -> OutboundSettings {
        let mut outbound = OutboundSettings::default();
        let address = format!("http://me:s%40cret@{}", self.address);
        outbound.https_proxy = Some(address.parse().unwrap());
        outbound.http_proxy = Some(address.parse().unwrap());
        outbound.authorities = read_certificates(&pem("provider-cert.pem")).unwrap();
        outbound
    }
}

/// Sends a request through a foldline proxy with these settings.
async fn get(upstream: &str, outbound: OutboundSettings) -> (u16, String) {
    let upstreams = Upstreams::all_at(&upstream.parse().unwrap());
    let proxy = Proxy::bind(ProxySettings { upstreams, outbound, ..settings() }, None).await.unwrap();
    let address = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    let head = format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let received = crate::support::exchange_raw(address, &head).await;
    let status = received[9..12].parse().unwrap();
    (status, received)
}

const CREDENTIALS: &str = "proxy-authorization: Basic bWU6c0BjcmV0";

#[tokio::test]
async fn provider_with_tls_is_reached_through_a_tunnel() {
    let proxy = TunnelProxy::start(start_provider(false).await).await;
    let (status, received) = get("https://provider.test", proxy.outbound()).await;
    assert!(status == 200 && received.ends_with("provider /v1/models false"), "{received}");
    let heads = proxy.heads();
    assert!(heads.iter().all(|head| head.starts_with("CONNECT provider.test:443 HTTP/1.1\r\n")), "{heads:?}");
    assert!(heads[0].to_ascii_lowercase().contains(&CREDENTIALS.to_ascii_lowercase()), "{heads:?}");
    let upstream = "https://provider.test".parse().unwrap();
    assert_eq!(probe::check_upstream(&upstream, &proxy.outbound()).await.unwrap(), 200);
}

#[tokio::test]
async fn provider_without_tls_is_forwarded_by_the_proxy() {
    let proxy = TunnelProxy::start(start_provider(false).await).await;
    let (status, received) = get("http://plain.test:8000", proxy.outbound()).await;
    assert!(status == 200 && received.ends_with("forwarded"), "{received}");
    let heads = proxy.heads();
    assert!(heads[0].starts_with("GET http://plain.test:8000/v1/models HTTP/1.1\r\n"), "{heads:?}");
    assert!(heads[0].to_ascii_lowercase().contains(&CREDENTIALS.to_ascii_lowercase()), "{heads:?}");
}

#[tokio::test]
async fn this_machine_and_excluded_hosts_are_reached_directly() {
    let provider = start_provider(false).await;
    let proxy = TunnelProxy::start(provider).await;
    // The certificate is for another name, so the handshake fails: with the provider itself.
    let (status, received) = get(&format!("https://127.0.0.1:{}", provider.port()), proxy.outbound()).await;
    assert!(status == 502 && received.contains("certificate"), "{received}");
    let mut outbound = proxy.outbound();
    outbound.no_proxy = vec!["test".to_owned()];
    assert_eq!(get("https://provider.test", outbound).await.0, 502);
    assert!(proxy.heads().is_empty());
}

#[tokio::test]
async fn refusal_of_the_proxy_is_reported_without_its_password() {
    let proxy = TunnelProxy::start(start_provider(false).await).await;
    let (status, received) = get("https://refused.test", proxy.outbound()).await;
    assert!(status == 502 && !received.contains("cret"), "{received}");
    let mut unreachable = proxy.outbound();
    unreachable.https_proxy = Some("http://me:secret@127.0.0.1:1".parse().unwrap());
    let (status, received) = get("https://provider.test", unreachable).await;
    assert!(status == 502 && received.contains("proxy of the network") && !received.contains("secret"), "{received}");
}

#[tokio::test]
async fn unknown_authority_is_refused() {
    let proxy = TunnelProxy::start(start_provider(false).await).await;
    let mut outbound = proxy.outbound();
    outbound.authorities.clear();
    let (status, received) = get("https://provider.test", outbound).await;
    assert!(status == 502 && received.contains("certificate"), "{received}");
}

/// A model that writes summaries is reached like a provider: through the tunnel, with the authorities of the settings.
#[tokio::test]
async fn models_of_summaries_are_reached_through_a_tunnel() {
    let proxy = TunnelProxy::start(start_provider(false).await).await;
    let uri = "https://provider.test/v1/chat/completions";
    let send = |outbound: OutboundSettings| async move {
        let request = Request::builder().method("POST").uri(uri).body(bytes::Bytes::from("{}")).unwrap();
        OutboundTransport::new(&outbound).unwrap().send(request, 1_000).await
    };
    let response = send(proxy.outbound()).await.unwrap();
    assert_eq!(response.body(), "provider /v1/chat/completions false");
    assert!(proxy.heads().iter().all(|head| head.starts_with("CONNECT provider.test:443 HTTP/1.1\r\n")));
    let mut outbound = proxy.outbound();
    outbound.authorities.clear();
    assert!(send(outbound).await.unwrap_err().contains("certificate"));
    let mut outbound = proxy.outbound();
    outbound.no_proxy = vec!["provider.test".to_owned()];
    let tunnels = proxy.heads().len();
    send(outbound).await.unwrap_err();
    assert_eq!(proxy.heads().len(), tunnels, "an excluded host is reached directly");
}

#[tokio::test]
async fn client_certificate_is_sent() {
    let proxy = TunnelProxy::start(start_provider(true).await).await;
    assert_eq!(get("https://provider.test", proxy.outbound()).await.0, 502);
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key.pem");
    std::fs::copy(pem("client-key.pem"), &key).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let files = TlsFiles { certificate: pem("client-cert.pem"), key };
    let mut outbound = proxy.outbound();
    outbound.identity = Some(ClientIdentity::read(&files).unwrap());
    let (status, received) = get("https://provider.test", outbound).await;
    assert!(status == 200, "{received}");
    let missing = TlsFiles { certificate: pem("client-key.pem"), key: pem("nowhere.pem") };
    ClientIdentity::read(&missing).unwrap_err();
    assert!(read_certificates(&pem("client-key.pem")).is_err());
}
