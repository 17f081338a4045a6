//! Read connections: one per concurrent reader. Readers never wait for the writer, because write-ahead logging gives
//! each its own snapshot.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags};

use crate::encryption::ArchiveCipher;
use crate::error::{Error, ErrorKind};
use crate::permissions;
use crate::sqlite::connection::{FileIdentity, busy_handler, replaced_error};

/// Idle connections beyond this number are closed.
const MAX_IDLE_CONNECTIONS: usize = 16;

#[derive(Debug)]
pub(crate) struct ReaderPool {
    path: PathBuf,
    file: Option<FileIdentity>,
    cipher: ArchiveCipher,
    idle: Mutex<Vec<Connection>>,
}

impl ReaderPool {
    pub(crate) fn new(path: &Path, cipher: ArchiveCipher) -> Self {
        let file = FileIdentity::read(path);
        Self { path: path.to_owned(), file, cipher, idle: Mutex::new(Vec::new()) }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity of the file that was opened.
    pub(crate) fn file(&self) -> Option<FileIdentity> {
        self.file
    }

    /// Returns true if the path still names the file that was opened.
    pub(crate) fn is_current(&self) -> bool {
        FileIdentity::read(&self.path) == self.file
    }

    /// Returns the cipher of the archive.
    pub(crate) fn cipher(&self) -> &ArchiveCipher {
        &self.cipher
    }

    /// Returns the random identity of the archive.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        let sql = "SELECT value FROM setting WHERE name = 'identity'";
        self.read(|connection| Ok(connection.query_row(sql, (), |row| row.get(0))?))
    }

    /// Closes the idle connections.
    pub(crate) fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Runs `reading` on a separate connection. The whole call sees one snapshot, so a pack cannot move between finding
    /// an original and fetching it.
    pub(crate) fn read<T>(&self, reading: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            // Another file at the same path must not be opened next to this one.
            None if !self.is_current() => return Err(replaced_error(&self.path)),
            None => open_reader(&self.path)?,
        };
        let outcome = connection.unchecked_transaction().map_err(Error::from).and_then(|snapshot| reading(&snapshot));
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(connection);
        }
        outcome
    }
}

/// Opens the file for reading, even on a read-only disk.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags).and_then(|mut connection| {
        configure(&mut connection)?;
        // Opening is lazy; this is the first access to the file.
        connection.query_row("PRAGMA user_version", (), |_| Ok(()))?;
        Ok(connection)
    });
    match opened {
        // The files that are shared with a writer cannot be created, so there is no writer either.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::CannotOpen) => match is_wal_empty(path) {
            true => open_immutable(path, flags),
            false => open_with_private_wal(path, flags).map_err(|_| Error::from(error)),
        },
        opened => Ok(opened?),
    }
}

fn open_immutable(path: &Path, flags: OpenFlags) -> Result<Connection, Error> {
    let mut connection = Connection::open_with_flags(immutable_uri(path)?, flags | OpenFlags::SQLITE_OPEN_URI)?;
    configure(&mut connection)?;
    Ok(connection)
}

/// Opens a file with a log of its own, without locks and shared memory: the index of the log is in this process.
fn open_with_private_wal(path: &Path, flags: OpenFlags) -> Result<Connection, Error> {
    let vfs = if cfg!(windows) { "win32-none" } else { "unix-none" };
    let mut connection = Connection::open_with_flags_and_vfs(path, flags, vfs)?;
    configure(&mut connection)?;
    connection.query_row("PRAGMA locking_mode = EXCLUSIVE", (), |_| Ok(()))?;
    connection.query_row("PRAGMA user_version", (), |_| Ok(()))?;
    Ok(connection)
}

fn configure(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(busy_handler))?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.pragma_update(None, "trusted_schema", false)
}

/// Returns true if the file contains everything that was written.
fn is_wal_empty(path: &Path) -> bool {
    std::fs::metadata(permissions::sibling_path(path, "-wal")).map_or(true, |log| log.len() == 0)
}

fn immutable_uri(path: &Path) -> Result<String, Error> {
    let path = std::path::absolute(path).map_err(|error| Error::io("find", path, &error))?;
    let text = path.to_str().ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, format!("the path {} is not valid UTF-8", path.display()))
    })?;
    let escaped = text.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    Ok(format!("file:{escaped}?immutable=1"))
}
