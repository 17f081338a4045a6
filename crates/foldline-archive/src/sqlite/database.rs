//! An open archive file: its connections and threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use crate::encryption::ArchiveCipher;
use crate::error::{Error, ErrorKind};
use crate::permissions;
use crate::sqlite::connection::{self, FileIdentity};
use crate::sqlite::maintenance::MaintenanceThread;
use crate::sqlite::readers::ReaderPool;
use crate::sqlite::schema;
use crate::sqlite::search_index::SearchIndex;
use crate::sqlite::writer::{WriteQueue, WriterThread};

/// An open file. Dropping it finishes the queued writes and ends its threads.
#[derive(Debug)]
pub(crate) struct OpenDatabase {
    path: PathBuf,
    log: Option<FileIdentity>,
    readers: Arc<ReaderPool>,
    index: Arc<SearchIndex>,
    writer: Option<WriterThread>,
    maintenance: Option<MaintenanceThread>,
}

impl OpenDatabase {
    /// Opens the file; creates it if it does not exist and `is_writable`.
    pub(crate) fn open(path: &Path, cipher: &ArchiveCipher, is_writable: bool) -> Result<Self, Error> {
        let writer = if is_writable { Some(open_writer(path, cipher)?) } else { None };
        if !is_writable {
            check_readable(path)?;
        }
        let readers = Arc::new(ReaderPool::new(path, cipher.clone()));
        readers.read(|connection| {
            if schema::check_version(connection, path)? == 0 {
                return Err(Error::new(ErrorKind::NotAnArchive, format!("{} is empty", path.display())));
            }
            check_key(connection, cipher, path)
        })?;
        let index = Arc::new(SearchIndex::for_archive(path));
        let log = writer.as_ref().and_then(|_| FileIdentity::read(&permissions::sibling_path(path, "-wal")));
        let writer = writer.map(|connection| WriterThread::start(connection, path, readers.file())).transpose()?;
        let maintenance = writer
            .as_ref()
            .map(|writer| MaintenanceThread::start(readers.clone(), index.clone(), writer.queue().clone()))
            .transpose()?;
        Ok(Self { path: path.to_owned(), log, readers, index, writer, maintenance })
    }

    /// Returns true if the path still names the open file.
    pub(crate) fn is_current(&self) -> bool {
        self.readers.is_current()
    }

    /// Closes a database whose file is no longer at its path. Its log, if it was left there, is removed: SQLite would
    /// apply it to the next file of that name.
    pub(crate) fn retire(self) {
        let (path, log) = (self.path.clone(), self.log);
        // Copies the log into the removed file, in case that it was only moved.
        drop(self);
        if log.is_some() && FileIdentity::read(&permissions::sibling_path(&path, "-wal")) == log {
            for suffix in ["-wal", "-shm"] {
                // A file that remains makes opening the next archive fail, which is reported.
                let _ = std::fs::remove_file(permissions::sibling_path(&path, suffix));
            }
        }
    }

    pub(crate) fn readers(&self) -> &ReaderPool {
        &self.readers
    }

    pub(crate) fn shared_readers(&self) -> Arc<ReaderPool> {
        self.readers.clone()
    }

    pub(crate) fn index(&self) -> &SearchIndex {
        &self.index
    }

    /// Returns the write queue, or an error if the archive is read-only.
    pub(crate) fn write_queue(&self) -> Result<&WriteQueue, Error> {
        self.writer
            .as_ref()
            .map(WriterThread::queue)
            .ok_or_else(|| Error::new(ErrorKind::ReadOnly, format!("{} was opened read-only", self.path.display())))
    }

    /// Notifies the maintenance thread that there is new data.
    pub(crate) fn wake_maintenance(&self) {
        self.maintenance.iter().for_each(MaintenanceThread::wake);
    }
}

impl Drop for OpenDatabase {
    /// Closes the writer last: the last connection to close checkpoints the log, and a reader cannot.
    fn drop(&mut self) {
        self.maintenance.take();
        self.readers.close_idle();
        self.index.close();
        self.writer.take();
    }
}

fn open_writer(path: &Path, cipher: &ArchiveCipher) -> Result<Connection, Error> {
    permissions::create_private(path)?;
    let mut connection = connection::open_for_writing(path)?;
    schema::migrate(&mut connection, path)?;
    // Marks a new archive as encrypted or plaintext, before anything is stored in it.
    let sql = "INSERT OR IGNORE INTO setting (name, value) VALUES ('lock', ?1)";
    connection.execute(sql, [cipher.new_key_check()?])?;
    Ok(connection)
}

fn check_readable(path: &Path) -> Result<(), Error> {
    if !path.exists() {
        let path = path.display();
        let missing = format!("there is no archive at {path}; nothing was folded yet");
        return Err(Error::new(ErrorKind::Io, missing));
    }
    permissions::check_private(path)
}

fn check_key(connection: &Connection, cipher: &ArchiveCipher, path: &Path) -> Result<(), Error> {
    let key_check: Option<Vec<u8>> =
        connection.query_row("SELECT value FROM setting WHERE name = 'lock'", (), |row| row.get(0)).optional()?;
    cipher.verify_key_check(key_check.unwrap_or_default(), &path.display().to_string())
}
