//! An archive in PostgreSQL, and its threads.

use std::sync::Arc;

use crate::encryption::ArchiveCipher;
use crate::error::Error;
use crate::postgres::database::{Database, RowScope, WaitLimit};
use crate::postgres::indexer::IndexerThread;
use crate::postgres::journal_thread::JournalThread;
use crate::store::{ArchiveStore, StoreHealth};
use crate::sync_handle::SyncHandle;

/// An archive in PostgreSQL.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    database: Arc<Database>,
    /// `None` if the archive was opened for reading.
    threads: Option<(JournalThread, IndexerThread)>,
}

impl PostgresStore {
    /// Opens the archive at this URL, which messages call `location`; creates it if the database has none and `is_writable`. A database that is not
    /// reachable now is tried again by later calls.
    pub(crate) fn open(url: &str, location: String, cipher: ArchiveCipher, is_writable: bool) -> Result<Self, Error> {
        Self::with_database(Database::open(url, location, cipher, is_writable)?, is_writable)
    }

    /// Opens the archive without conditions on the tenant in its statements: only row-level security separates tenants.
    #[cfg(feature = "testing")]
    pub(crate) fn open_without_tenant_checks(url: &str) -> Result<Self, Error> {
        let database = Database::open(url, url.to_owned(), ArchiveCipher::Plaintext, true)?;
        Self::with_database(database.without_tenant_checks(), true)
    }

    fn with_database(database: Database, is_writable: bool) -> Result<Self, Error> {
        let database = Arc::new(database);
        let threads = match is_writable {
            true => Some((JournalThread::start(database.clone())?, IndexerThread::start(database.clone())?)),
            false => None,
        };
        Ok(Self { database, threads })
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// Returns the journal, unless the archive was opened for reading.
    pub(crate) fn journal(&self) -> Result<&JournalThread, Error> {
        match &self.threads {
            Some((journal, _)) => Ok(journal),
            None => Err(self
                .database
                .check_writable()
                .err()
                .unwrap_or_else(|| Error::new(crate::ErrorKind::ReadOnly, "the archive was opened for reading"))),
        }
    }

    /// Waits until the journal was written: last-used times must be known before something expires.
    pub(crate) fn flush_journal(&self) {
        if let Some((journal, _)) = &self.threads {
            journal.flush();
        }
    }

    pub(crate) fn wake_indexer(&self) {
        if let Some((_, indexer)) = &self.threads {
            indexer.wake();
        }
    }
}

impl ArchiveStore for PostgresStore {
    fn location(&self) -> String {
        self.database.location().to_owned()
    }

    fn identity(&self) -> Result<Vec<u8>, Error> {
        self.database.identity()
    }

    fn adopt_identity(&self, identity: &[u8]) -> Result<(), Error> {
        self.database.check_writable()?;
        self.database.adopt_identity(identity)
    }

    fn generation(&self) -> u64 {
        self.database.generation()
    }

    fn request_sync(&self) -> SyncHandle {
        // A commit is on disk when the server confirms it.
        SyncHandle::completed(Ok(()))
    }

    fn ping(&self) -> Result<(), Error> {
        self.database.query(RowScope::Everything, WaitLimit::Request, "SELECT 1", &[])?;
        Ok(())
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            outage: self.database.outage().map(|error| error.to_string()),
            round_trips: self.database.round_trips(),
        }
    }
}
