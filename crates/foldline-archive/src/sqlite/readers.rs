//! Read connections: one per concurrent reader. Readers never wait for the writer, because write-ahead logging gives
//! each its own snapshot.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::{Error, ErrorKind, permissions};

/// Idle connections beyond this number are closed.
const MAX_IDLE_CONNECTIONS: usize = 16;

#[derive(Debug)]
pub(crate) struct ReaderPool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl ReaderPool {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), idle: Mutex::new(Vec::new()) }
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
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::CannotOpen) && is_wal_empty(path) => {
            let mut connection = Connection::open_with_flags(immutable_uri(path)?, flags | OpenFlags::SQLITE_OPEN_URI)?;
            configure(&mut connection)?;
            Ok(connection)
        }
        opened => Ok(opened?),
    }
}

fn configure(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(busy_handler))?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.pragma_update(None, "trusted_schema", false)
}

/// Waits while another process writes, and gives up after five seconds. SQLite's own handler sleeps longer and
/// longer and starves next to a process that writes continuously.
pub(crate) fn busy_handler(attempts: i32) -> bool {
    std::thread::sleep(Duration::from_millis(1));
    attempts < 5_000
}

/// Returns true if the file contains everything that was written. A read-only disk cannot hold the log files that
/// are shared with a writer, and therefore has no writer either.
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
