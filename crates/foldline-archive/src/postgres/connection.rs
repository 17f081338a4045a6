//! Connections to PostgreSQL: the URL, TLS and the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::config::{Config, Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, ErrorKind};

/// Connections of one process. A server accepts a hundred by default, so about ten replicas need no pooler.
const MAX_CONNECTIONS: usize = 8;

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time of silence after which a connection is checked, so that a failed network is noticed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// The history of the database that connections belong to. It changes when a standby was promoted, or the database was
/// restored: rows that were written before may be gone.
#[derive(Debug, Default)]
pub(crate) struct DatabaseHistory {
    /// Hash of the server's identifier and timeline; 0 if unknown.
    current: AtomicU64,
    changes: AtomicU64,
}

impl DatabaseHistory {
    /// Returns how many times the history has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn observe(&self, name: &str) {
        let hash = blake3::hash(name.as_bytes());
        let hash = hash.as_bytes().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1));
        let before = self.current.swap(hash, Ordering::AcqRel);
        if before != 0 && before != hash {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Parses the URL of an archive.
pub(crate) fn parse_url(url: &str) -> Result<Config, Error> {
    let invalid = |error| Error::new(ErrorKind::InvalidInput, format!("not the URL of a PostgreSQL archive: {error}"));
    let mut config: Config = url.parse().map_err(invalid)?;
    if !url.contains("sslmode=") {
        config.ssl_mode(if is_local(&config) { SslMode::Disable } else { SslMode::Require });
    }
    config.application_name("foldline").connect_timeout(CONNECT_TIMEOUT).keepalives_idle(KEEPALIVE_IDLE);
    Ok(config)
}

/// Returns true if all hosts are sockets or loopback addresses.
fn is_local(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => ["localhost", "127.0.0.1", "::1"].contains(&name.as_str()),
        #[cfg(unix)]
        Host::Unix(_) => true,
    })
}

/// Creates the pool; connects to nothing yet.
pub(crate) fn create_pool(config: Config, history: Arc<DatabaseHistory>) -> Result<Pool, Error> {
    let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config, MakeRustlsConnect::new(tls_config()?), manager_config);
    let observe = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
        let history = history.clone();
        Box::pin(async move {
            // A standby has no current position; its timeline is observed when it was promoted.
            let sql = "SELECT CASE WHEN pg_is_in_recovery() THEN ''
                 ELSE current_database() || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END";
            let row = client.query_one(sql, &[]).await.map_err(HookError::Backend)?;
            let name: String = row.get(0);
            if !name.is_empty() {
                history.observe(&name);
            }
            Ok(())
        })
    });
    Pool::builder(manager)
        .max_size(MAX_CONNECTIONS)
        .runtime(Runtime::Tokio1)
        .create_timeout(Some(2 * CONNECT_TIMEOUT))
        .wait_timeout(Some(2 * CONNECT_TIMEOUT))
        .post_create(observe)
        .build()
        .map_err(|error| Error::new(ErrorKind::Io, format!("could not create a pool of connections: {error}")))
}

/// Returns the TLS of connections: certificates are checked against those that the system trusts.
pub(crate) fn tls_config() -> Result<rustls::ClientConfig, Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Io, format!("TLS is not available: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_databases_need_tls() {
        let mode = |url: &str| parse_url(url).unwrap().get_ssl_mode();
        assert_eq!(mode("postgres://u:p@db.example.com/foldline"), SslMode::Require);
        assert_eq!(mode("postgres://u:p@db.example.com/foldline?sslmode=disable"), SslMode::Disable);
        assert_eq!(mode("postgresql://u@localhost/foldline"), SslMode::Disable);
        assert_eq!(mode("postgres://u@127.0.0.1,db.example.com/foldline"), SslMode::Require);
        assert!(parse_url("postgres://u@h/d?no_such_option=1").is_err());
    }

    #[test]
    fn promoted_standby_is_a_change() {
        let history = DatabaseHistory::default();
        for (name, changes) in [("db00000001", 0), ("db00000001", 0), ("db00000002", 1), ("db00000002", 1)] {
            history.observe(name);
            assert_eq!(history.changes(), changes, "{name}");
        }
    }
}
