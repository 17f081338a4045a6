//! Connections to the file, and the identity of the file that they have open.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::{Error, ErrorKind};
use crate::sqlite::schema;

/// The identity of a file, which a path keeps until the file is removed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Returns the identity of the file at this path; `None` if there is none.
    #[cfg(unix)]
    pub(crate) fn read(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Returns a constant: an open file cannot be removed on these systems.
    #[cfg(not(unix))]
    pub(crate) fn read(path: &Path) -> Option<Self> {
        path.exists().then_some(Self { device: 0, inode: 0 })
    }
}

/// Returns the error for a file that is no longer the open one.
pub(crate) fn replaced_error(path: &Path) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Replaced,
        format!("{path} was removed or replaced while it was open; originals that were stored in it may be lost"),
    )
}

/// Waits while another process writes, and gives up after five seconds. SQLite's own handler sleeps longer and
/// longer and starves next to a process that writes continuously.
pub(crate) fn busy_handler(attempts: i32) -> bool {
    std::thread::sleep(Duration::from_millis(1));
    attempts < 5_000
}

/// Opens a connection that writes, with a write-ahead log that [`crate::sqlite::sync`] syncs.
pub(crate) fn open_for_writing(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        let path = path.display();
        return Err(Error::new(ErrorKind::ReadOnly, format!("{path} is not writable by this user")));
    }
    connection.busy_handler(Some(busy_handler))?;
    connection.set_prepared_statement_cache_capacity(64);
    // A foreign file must stay unchanged, so this check comes before anything that writes.
    if schema::check_version(&connection, path)? == 0 {
        // Lets pages freed by retention be returned to the disk.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            format!("{} cannot be written (its journal mode remains {mode})", path.display()),
        ));
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // Deleted rows are overwritten where that costs no further write. Free pages are returned to the system by the
    // vacuum that follows a deletion.
    connection.query_row("PRAGMA secure_delete = FAST", (), |_| Ok(()))?;
    Ok(connection)
}
