//! Databases for tests (cargo features `postgres` and `testing`).
//!
//! `cargo xtask postgres` starts a private server and puts the URL of its administrator into
//! `TEST_POSTGRES_URL`; a test without that variable has nothing to test.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a failing test panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::archive::{Archive, ArchiveOptions};
use crate::conformance::StoreFixture;
use crate::encryption::ArchiveCipher;
use crate::error::Error;
use crate::object_storage::ObjectStorage;
use crate::postgres::store::PostgresStore;

/// The role of archives in tests: an ordinary one, to which row-level security applies.
const TEST_ROLE: &str = "foldline_test";

/// An empty database. Dropping it drops the database.
#[derive(Debug)]
pub struct TestDatabase {
    admin_url: String,
    name: String,
}

impl TestDatabase {
    /// Creates a database on the server with this URL of an administrator.
    pub fn create(admin_url: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let role = format!(
            "SELECT pg_advisory_lock(1);
             DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{TEST_ROLE}') THEN
             CREATE ROLE {TEST_ROLE} LOGIN; END IF; END $$"
        );
        run_sql(admin_url, &role);
        run_sql(admin_url, &format!("DROP DATABASE IF EXISTS {name}"));
        run_sql(admin_url, &format!("CREATE DATABASE {name} OWNER {TEST_ROLE} TEMPLATE template0"));
        Self { admin_url: admin_url.to_owned(), name }
    }

    /// Returns the URL of the database for an archive.
    pub fn url(&self) -> String {
        let config = crate::postgres::connection::parse_url(&self.admin_url).unwrap();
        self.url_at(config.get_ports()[0])
    }

    /// Returns the URL of the database through another port.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{TEST_ROLE}@127.0.0.1:{port}/{}", self.name)
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        crate::postgres::connection::parse_url(&self.admin_url).unwrap().get_ports()[0]
    }

    /// Runs statements as the archive's role, and returns the rows of all of them.
    pub fn query(&self, sql: &str) -> Vec<Vec<String>> {
        run_sql(&self.url(), sql)
    }

    /// Opens an archive in which only row-level security separates tenants.
    pub fn open_without_tenant_checks(&self, objects: Option<&ObjectStorage>) -> Archive {
        let store = PostgresStore::open_without_tenant_checks(&self.url(), objects).unwrap();
        Archive::with_store(Arc::new(store), ArchiveCipher::Plaintext)
    }
}

impl StoreFixture for TestDatabase {
    fn open_with(&self, options: ArchiveOptions) -> Result<Archive, Error> {
        Archive::open_with(self.url(), options)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        run_sql(&self.admin_url, &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
    }
}

/// Runs statements and returns the rows of all of them.
pub fn run_sql(url: &str, sql: &str) -> Vec<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        let moving = tokio::spawn(connection);
        let messages = client.simple_query(sql).await.unwrap();
        moving.abort();
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| (0..row.len()).map(|at| row.get(at).unwrap_or_default().to_owned()).collect()).collect()
    })
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
