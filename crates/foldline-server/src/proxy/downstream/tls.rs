//! TLS termination on the proxy's own port.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

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
    acceptor: Arc<RwLock<TlsAcceptor>>,
}

impl fmt::Debug for TlsReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsReload").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsReload {
    /// Loads the files.
    pub(crate) fn new(files: &TlsFiles) -> io::Result<Self> {
        Ok(Self { files: files.clone(), acceptor: Arc::new(RwLock::new(acceptor(files)?)) })
    }

    /// Loads the files again, for connections from now on.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used; then the previous certificate stays.
    pub fn reload(&self) -> io::Result<()> {
        let renewed = acceptor(&self.files)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }

    /// Returns the current acceptor of handshakes.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Loads the files and returns the acceptor for TLS handshakes.
fn acceptor(files: &TlsFiles) -> io::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(&files.certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| unusable("certificate", &files.certificate, &error))?;
    if chain.is_empty() {
        return Err(unusable("certificate", &files.certificate, &"the file contains no PEM certificate"));
    }
    check_secret_file(&files.key).map_err(|error| unusable("key", &files.key, &error))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unusable("key", &files.key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| unusable("certificate", &files.certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn unusable(kind: &str, path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("cannot use the TLS {kind} {}: {error}", path.display()))
}
