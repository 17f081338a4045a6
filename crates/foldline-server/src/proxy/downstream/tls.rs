//! TLS termination on the proxy's own port, and certificates of trusted gateways.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::proxy::downstream::secret_file::check_secret_file;

/// The PEM files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate, followed by those of its issuers.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// The TLS of a listener. Clones share the certificate, which can be replaced while the proxy runs.
#[derive(Clone)]
pub struct TlsReload {
    files: TlsFiles,
    gateway_authorities: Option<PathBuf>,
    acceptor: Arc<RwLock<TlsAcceptor>>,
}

impl fmt::Debug for TlsReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsReload").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsReload {
    /// Loads the files. Clients may have certificates that `gateway_authorities` signed.
    pub(crate) fn new(files: &TlsFiles, gateway_authorities: Option<&Path>) -> io::Result<Self> {
        let acceptor = Arc::new(RwLock::new(acceptor(files, gateway_authorities)?));
        Ok(Self { files: files.clone(), gateway_authorities: gateway_authorities.map(Path::to_owned), acceptor })
    }

    /// Loads the files again, for connections from now on.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used; then the previous certificate stays.
    pub fn reload(&self) -> io::Result<()> {
        let renewed = acceptor(&self.files, self.gateway_authorities.as_deref())?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }

    /// Returns the current acceptor of handshakes.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Evidence that the client of a connection has a certificate of a trusted gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayCertificate(());

impl GatewayCertificate {
    /// Returns the evidence after a handshake. The connection keeps certificates only if an authority of gateways signed
    /// them; any others end the handshake.
    pub(crate) fn from_connection(connection: &ServerConnection) -> Option<Self> {
        connection.peer_certificates().is_some_and(|chain| !chain.is_empty()).then_some(Self(()))
    }

    /// Creates evidence for a test.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self(())
    }
}

/// Loads the files and returns the acceptor for TLS handshakes.
fn acceptor(files: &TlsFiles, gateway_authorities: Option<&Path>) -> io::Result<TlsAcceptor> {
    let chain = certificates("certificate", &files.certificate)?;
    check_secret_file(&files.key).map_err(|error| unusable("key", &files.key, &error))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unusable("key", &files.key, &error))?;
    let verifier = gateway_authorities.map_or(Ok(WebPkiClientVerifier::no_client_auth()), gateway_verifier)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_client_cert_verifier(verifier).with_single_cert(chain, key));
    let mut config = config.map_err(|error| unusable("certificate", &files.certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns the check of certificates of gateways. Clients without one are admitted: they have tokens, or send probes.
fn gateway_verifier(path: &Path) -> io::Result<Arc<dyn ClientCertVerifier>> {
    let unusable = |error: &dyn fmt::Display| unusable("authorities of gateways in", path, error);
    let mut roots = RootCertStore::empty();
    for authority in certificates("authorities of gateways in", path)? {
        roots.add(authority).map_err(|error| unusable(&error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
    verifier.allow_unauthenticated().build().map_err(|error| unusable(&error))
}

/// Reads the certificates of a PEM file.
fn certificates(kind: &str, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| unusable(kind, path, &error))?;
    match chain.is_empty() {
        true => Err(unusable(kind, path, &"the file contains no PEM certificate")),
        false => Ok(chain),
    }
}

fn unusable(kind: &str, path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("cannot use the TLS {kind} {}: {error}", path.display()))
}
