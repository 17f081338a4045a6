//! The open database of an archive, and opening it again if its file was removed.
//!
//! A removed file stays readable and writable for the process that has it open, and is gone when it closes it. So every
//! call checks that the path still names the open file. If it does not, the database is closed and opened again, and
//! the next write fails: the caller must know that earlier originals may be lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::encryption::ArchiveCipher;
use crate::error::Error;
use crate::sqlite::connection;
use crate::sqlite::database::OpenDatabase;
use crate::store::{ArchiveStore, HoldRows};
use crate::sync_handle::SyncHandle;

/// An archive in a SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    path: PathBuf,
    cipher: ArchiveCipher,
    is_writable: bool,
    /// None if the file could not be opened again.
    database: RwLock<Option<OpenDatabase>>,
    generation: AtomicU64,
    /// True if the file was lost and no write has reported it yet.
    has_unreported_loss: AtomicBool,
}

impl SqliteStore {
    /// Opens the file; creates it if it does not exist and `is_writable`.
    pub(crate) fn open(path: &Path, cipher: ArchiveCipher, is_writable: bool) -> Result<Self, Error> {
        let database = OpenDatabase::open(path, &cipher, is_writable)?;
        Ok(Self {
            path: path.to_owned(),
            cipher,
            is_writable,
            database: RwLock::new(Some(database)),
            generation: AtomicU64::new(0),
            has_unreported_loss: AtomicBool::new(false),
        })
    }

    /// Runs `reading` on the database at the path.
    pub(crate) fn read_with<T>(&self, reading: impl FnOnce(&OpenDatabase) -> Result<T, Error>) -> Result<T, Error> {
        let guard = self.current()?;
        guard.as_ref().map_or_else(|| Err(connection::replaced_error(&self.path)), reading)
    }

    /// Runs `writing` on the database at the path; fails once after the file was lost.
    pub(crate) fn write_with<T>(&self, writing: impl FnOnce(&OpenDatabase) -> Result<T, Error>) -> Result<T, Error> {
        let guard = self.current()?;
        if self.has_unreported_loss.swap(false, Ordering::AcqRel) {
            return Err(connection::replaced_error(&self.path));
        }
        guard.as_ref().map_or_else(|| Err(connection::replaced_error(&self.path)), writing)
    }

    fn current(&self) -> Result<RwLockReadGuard<'_, Option<OpenDatabase>>, Error> {
        let guard = self.database.read().unwrap_or_else(PoisonError::into_inner);
        if guard.as_ref().is_some_and(OpenDatabase::is_current) {
            return Ok(guard);
        }
        drop(guard);
        self.reopen()?;
        Ok(self.database.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes a database whose file was removed, then opens the file at the path. The order matters: two databases
    /// with the same path would share one memory map of the log.
    fn reopen(&self) -> Result<(), Error> {
        let mut guard = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if guard.as_ref().is_some_and(OpenDatabase::is_current) {
            return Ok(());
        }
        if let Some(lost) = guard.take() {
            self.generation.fetch_add(1, Ordering::AcqRel);
            self.has_unreported_loss.store(true, Ordering::Release);
            lost.retire();
        }
        *guard = Some(OpenDatabase::open(&self.path, &self.cipher, self.is_writable)?);
        Ok(())
    }
}

impl HoldRows for SqliteStore {}

impl ArchiveStore for SqliteStore {
    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn identity(&self) -> Result<Vec<u8>, Error> {
        self.read_with(|database| database.readers().identity())
    }

    fn generation(&self) -> u64 {
        // Notices that the file is gone. A failure is reported by the next call that needs the database.
        drop(self.current());
        self.generation.load(Ordering::Acquire)
    }

    fn request_sync(&self) -> SyncHandle {
        if !self.is_writable {
            return SyncHandle::completed(Ok(()));
        }
        let guard = self.database.read().unwrap_or_else(PoisonError::into_inner);
        match guard.as_ref().map(|database| database.write_queue().map(|writer| writer.request_sync())) {
            Some(Ok(sync)) => sync,
            Some(Err(error)) => SyncHandle::completed(Err(error)),
            None => SyncHandle::completed(Err(connection::replaced_error(&self.path))),
        }
    }
}
