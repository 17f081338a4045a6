//! The way to providers: a proxy of the network, certificate authorities besides those of the system, and a client
//! certificate.
//!
//! This machine is always reached directly. Must not happen here: a password or a private key is shown.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::Scheme;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::proxy::downstream::secret_file::check_secret_file;
use crate::proxy::downstream::tls::TlsFiles;

/// The way to providers.
///
/// ```
/// use foldline_server::proxy::{NetworkProxy, OutboundSettings};
///
/// let mut outbound = OutboundSettings::default();
/// outbound.https_proxy = Some("http://user:secret@proxy.example:3128".parse()?);
/// outbound.no_proxy = vec!["internal.example".to_owned()];
/// assert!(!format!("{outbound:?}").contains("secret"));
/// # Ok::<(), foldline_server::proxy::InvalidNetworkProxy>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OutboundSettings {
    /// Proxy for providers with TLS.
    pub https_proxy: Option<NetworkProxy>,
    /// Proxy for providers without TLS.
    pub http_proxy: Option<NetworkProxy>,
    /// Hosts that are reached directly: `*`, a name with its subdomains, an address, or a range of addresses; each may have
    /// a port.
    pub no_proxy: Vec<String>,
    /// Certificates of authorities, besides those of the system.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Certificate and key with which the proxy authenticates to providers.
    pub identity: Option<ClientIdentity>,
}

/// A client certificate and its key.
#[derive(Clone)]
pub struct ClientIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity").field("certificates", &self.chain.len()).finish_non_exhaustive()
    }
}

/// A proxy of the network.
#[derive(Clone, PartialEq, Eq)]
pub struct NetworkProxy {
    uri: Uri,
    credentials: Option<HeaderValue>,
}

impl fmt::Debug for NetworkProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkProxy").field("uri", &self.uri).finish_non_exhaustive()
    }
}

/// Shows the address without the password.
impl fmt::Display for NetworkProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri.to_string().trim_end_matches('/'))
    }
}

/// Error: a text is not the address of a proxy. It does not repeat the text, which may have a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidNetworkProxy(&'static str);

impl fmt::Display for InvalidNetworkProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidNetworkProxy {}

impl std::str::FromStr for NetworkProxy {
    type Err = InvalidNetworkProxy;

    fn from_str(text: &str) -> Result<Self, InvalidNetworkProxy> {
        let invalid =
            InvalidNetworkProxy("not the address of a proxy; write http://host:port or http://user:password@host:port");
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(InvalidNetworkProxy("only proxies with http:// are supported")),
            None => text,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (login, host) = authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
        let uri =
            Uri::builder().scheme(Scheme::HTTP).authority(host).path_and_query("/").build().map_err(|_| invalid)?;
        if uri.host().is_none_or(str::is_empty) {
            return Err(invalid);
        }
        let credentials = login.map(basic_credentials).transpose()?;
        Ok(Self { uri, credentials })
    }
}

/// Returns the header value for a user and a password, which may be percent-encoded.
fn basic_credentials(login: &str) -> Result<HeaderValue, InvalidNetworkProxy> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let plain = [percent_decoded(user), b":".to_vec(), percent_decoded(password)].concat();
    let text = format!("Basic {}", BASE64_STANDARD.encode(plain));
    let mut value = HeaderValue::from_str(&text).map_err(|_| InvalidNetworkProxy("the password is not valid"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the bytes of a percent-encoded text; what is not an encoded byte stays as it is.
pub(crate) fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    out
}

impl NetworkProxy {
    /// Returns the address of the proxy.
    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns the value of `Proxy-Authorization`.
    pub(crate) fn credentials(&self) -> Option<&HeaderValue> {
        self.credentials.as_ref()
    }
}

impl ClientIdentity {
    /// Reads a certificate and its key from PEM files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, has no certificate or no key, or other users may read the key.
    pub fn read(files: &TlsFiles) -> io::Result<Self> {
        check_secret_file(&files.key)?;
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| invalid_file(&files.key, &error))?;
        Ok(Self { chain: read_certificates(&files.certificate)?, key: Arc::new(key) })
    }
}

/// Reads the certificates of a PEM file.
///
/// # Errors
///
/// If the file cannot be read, or has none.
pub fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| invalid_file(path, &error))?;
    if certificates.is_empty() { Err(invalid_file(path, &"it has no certificate")) } else { Ok(certificates) }
}

fn invalid_file(path: &Path, reason: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} is not usable: {reason}", path.display()))
}

impl OutboundSettings {
    /// Returns the proxy through which a provider is reached; none if it is reached directly.
    pub(crate) fn proxy_for(&self, destination: &Uri) -> Option<&NetworkProxy> {
        let is_tls = destination.scheme() == Some(&Scheme::HTTPS);
        let proxy = if is_tls { self.https_proxy.as_ref() } else { self.http_proxy.as_ref() }?;
        let host = destination.host()?.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let port = destination.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let is_local = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let is_direct = is_local || self.no_proxy.iter().any(|rule| matches_rule(rule, &host, port));
        (!is_direct).then_some(proxy)
    }

    /// Returns the TLS of connections to providers; none if it is that of the system.
    ///
    /// # Errors
    ///
    /// A certificate cannot be used, or does not match its key.
    pub(crate) fn tls_config(&self) -> io::Result<Option<ClientConfig>> {
        if self.authorities.is_empty() && self.identity.is_none() {
            return Ok(None);
        }
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("TLS to providers: {error}"));
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for authority in &self.authorities {
            roots.add(authority.clone()).map_err(invalid)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().map_err(invalid)?.with_root_certificates(roots);
        Ok(Some(match &self.identity {
            None => config.with_no_client_auth(),
            Some(ClientIdentity { chain, key }) => {
                config.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(invalid)?
            }
        }))
    }
}

/// Returns true if a rule of `NO_PROXY` covers a host.
fn matches_rule(rule: &str, host: &str, port: u16) -> bool {
    let rule = rule.trim().to_ascii_lowercase();
    if rule == "*" {
        return true;
    }
    if let (Some((network, bits)), Ok(address)) = (rule.split_once('/'), host.parse::<IpAddr>()) {
        return network.parse().is_ok_and(|network| in_range(address, network, bits.parse().unwrap_or(u32::MAX)));
    }
    let is_address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let (name, rule_port) = match rule.rsplit_once(':') {
        Some((name, digits)) if !is_address(&rule) => match digits.parse::<u16>() {
            Ok(number) => (name, Some(number)),
            Err(_) => return false,
        },
        _ => (rule.as_str(), None),
    };
    let name = name.trim_matches(['[', ']']).trim_start_matches("*.").trim_start_matches('.');
    let is_subdomain = || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    !name.is_empty() && rule_port.is_none_or(|number| number == port) && (host == name || is_subdomain())
}

/// Returns true if an address is in a network with this many leading bits.
fn in_range(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let equal =
        |a: u128, b: u128, width: u32| bits <= width && (bits == 0 || a >> (width - bits) == b >> (width - bits));
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => equal(u32::from(a).into(), u32::from(b).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => equal(a.into(), b.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_proxies_are_parsed() {
        let parse = |text: &str| text.parse::<NetworkProxy>();
        assert_eq!(parse("proxy:3128").unwrap().to_string(), "http://proxy:3128");
        let with_login = parse("HTTP://me:p%40ss%zz@[::1]:8080/path").unwrap();
        assert_eq!(with_login.to_string(), "http://[::1]:8080");
        assert_eq!(with_login.credentials().unwrap(), &format!("Basic {}", BASE64_STANDARD.encode("me:p@ss%zz")));
        assert!(!format!("{with_login:?}").contains("me:"));
        for text in ["", "https://proxy:1", "socks5://proxy:1", "http://", "http://a b", "http://user:secret@"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn excluded_hosts_are_reached_directly() {
        let outbound = |rules: &str| OutboundSettings {
            https_proxy: Some("p:1".parse().unwrap()),
            no_proxy: rules.split(',').map(str::to_owned).collect(),
            ..OutboundSettings::default()
        };
        for (rules, host, is_direct) in [
            ("", "api.example", false),
            ("", "127.0.0.1", true),
            ("", "localhost", true),
            ("", "[::1]:8080", true),
            ("*", "api.example", true),
            ("example", "api.example", true),
            (".example", "api.example", true),
            ("*.example", "api.example", true),
            (" Example , x", "api.EXAMPLE", true),
            ("ple", "api.example", false),
            ("example:443", "api.example", true),
            ("example:8443", "api.example", false),
            ("10.0.0.0/8", "10.9.8.7", true),
            ("10.0.0.0/8", "11.9.8.7", false),
            ("10.0.0.0/99", "10.9.8.7", false),
            ("0.0.0.0/0", "10.9.8.7", true),
            ("fd00::/8", "[fd12::1]", true),
            ("10.9.8.7", "10.9.8.7", true),
            ("[fd12::1]:443", "[fd12::1]", true),
        ] {
            let uri: Uri = format!("https://{host}/v1").parse().unwrap();
            assert_eq!(outbound(rules).proxy_for(&uri).is_none(), is_direct, "{rules} {host}");
        }
        let uri: Uri = "http://api.example/v1".parse().unwrap();
        assert!(outbound("").proxy_for(&uri).is_none(), "no proxy for HTTP is set");
    }
}
