//! An archive in PostgreSQL, and its threads.

use std::sync::Arc;

#[cfg(feature = "testing")]
use crate::encryption::ArchiveCipher;
use crate::error::Error;
#[cfg(feature = "testing")]
use crate::object_storage::ObjectStorage;
use crate::postgres::database::{Database, DatabaseOptions, RowScope, WaitLimit};
use crate::postgres::indexer::IndexerThread;
use crate::postgres::journal_thread::JournalThread;
use crate::store::{ArchiveStore, ObjectHealth, StoreHealth};
use crate::sync_handle::SyncHandle;

/// An archive in PostgreSQL.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    database: Arc<Database>,
    /// `None` if the archive was opened for reading.
    threads: Option<(JournalThread, IndexerThread)>,
}

impl PostgresStore {
    /// Opens the archive; creates it if the database has none and it is opened for writing. A database that is not
    /// reachable now is tried again by later calls.
    pub(crate) fn open(options: DatabaseOptions<'_>) -> Result<Self, Error> {
        let is_writable = options.is_writable;
        Self::with_database(Database::open(options)?, is_writable)
    }

    /// Opens the archive without conditions on the tenant in its statements: only row-level security separates tenants.
    #[cfg(feature = "testing")]
    pub(crate) fn open_without_tenant_checks(url: &str, objects: Option<&ObjectStorage>) -> Result<Self, Error> {
        let (location, cipher) = (url.to_owned(), ArchiveCipher::Plaintext);
        let database = Database::open(DatabaseOptions { url, location, cipher, is_writable: true, objects })?;
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
        // Without its object store an archive has all but the originals in it.
        self.database.query(RowScope::Everything, WaitLimit::for_lookups(), "SELECT 1", &[]).map(drop)
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            outage: self.database.outage().map(|error| error.to_string()),
            objects: self
                .database
                .objects()
                .map(|objects| ObjectHealth { outage: objects.outage().map(|error| error.to_string()) }),
            round_trips: self.database.round_trips(),
        }
    }
}
