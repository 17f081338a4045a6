//! The archive as a whole: one file, its writer and its readers.
//!
//! Nothing here gives out an original. What is read is read from a [`Shelf`], which belongs to one
//! namespace; that there is no other way is how no call can read across.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::encryption::{ArchiveCipher, ArchiveKey};
use crate::search::index::SearchIndex;
use crate::sqlite::maintenance::MaintenanceThread;
use crate::sqlite::readers;
use crate::sqlite::readers::ReaderPool;
use crate::sqlite::schema;
use crate::sqlite::store::SqliteStore;
use crate::sqlite::writer::{WriteQueue, WriterThread};
use crate::tenant::TenantArchive;
use crate::{Error, ErrorKind, Namespace, permissions};

/// A durable, exact, private store of everything that was folded.
///
/// Cloning is cheap; all clones share one writer. When the last one is dropped, what was handed over
/// is finished and the file is closed.
///
/// ```
/// use foldline::{Handle, Keep, Original};
/// use foldline_archive::{Archive, Namespace};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("archive.db");
/// let archive = Archive::open(&path)?;
/// let shelf = archive.shelf(&Namespace::local());
///
/// let text = "a long tool output";
/// let handle = Handle::of(text.as_bytes());
/// shelf.store(&[Original {
///     handle,
///     bytes: text.as_bytes(),
///     tool: Some("read_file"),
///     arguments: Some(r#"{"path":"src/main.rs"}"#),
///     message: 7,
///     tokens: 4,
/// }])?;
///
/// assert_eq!(shelf.unfold(handle.as_str())?.bytes, text.as_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Archive {
    pub(crate) core: Arc<ArchiveCore>,
}

/// How to open an archive.
#[derive(Clone, Debug, Default)]
pub struct ArchiveOptions {
    /// The key of a sealed archive. A new archive that is opened with a key is sealed from then on; an
    /// archive that exists is opened with the key that it was made with, or not at all.
    pub key: Option<ArchiveKey>,
    /// What will be done with it.
    pub access: AccessMode,
}

/// What will be done with an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessMode {
    /// Reading and writing; the file is created when there is none.
    #[default]
    ReadWrite,
    /// Reading alone; works on a read-only disk.
    ReadOnly,
}

/// What all clones and shelves share. Dropping it ends its threads.
#[derive(Debug)]
pub(crate) struct ArchiveCore {
    pub(crate) store: Arc<SqliteStore>,
    writer: Option<WriterThread>,
    maintenance: Option<MaintenanceThread>,
}

impl Archive {
    /// Opens the archive at this path for reading and writing, and creates it when there is none.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, ArchiveOptions::default())
    }

    /// Opens the archive at this path.
    pub fn open_with(path: impl AsRef<Path>, options: ArchiveOptions) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let seal = ArchiveCipher::new(options.key)?;
        let writer = match options.access {
            AccessMode::ReadWrite => {
                permissions::create_private(&path)?;
                let mut connection = open_for_writing(&path)?;
                schema::migrate(&mut connection, &path)?;
                write_key_check(&connection, &seal)?;
                Some(connection)
            }
            AccessMode::ReadOnly if !path.exists() => {
                let path = path.display();
                return Err(Error::new(
                    ErrorKind::Io,
                    format!("there is no archive at {path}; nothing was folded yet"),
                ));
            }
            AccessMode::ReadOnly => {
                permissions::check_private(&path)?;
                None
            }
        };
        let readers = ReaderPool::new(&path);
        readers.read(|connection| {
            if schema::check_version(connection, &path)? == 0 {
                return Err(Error::new(ErrorKind::NotAnArchive, format!("{} is empty", path.display())));
            }
            check_key(connection, &seal, &path)
        })?;
        let index = SearchIndex::for_archive(&path);
        let store = Arc::new(SqliteStore { path, cipher: seal, readers, index });
        let writer = writer.map(|connection| WriterThread::start(connection, &store.path)).transpose()?;
        let keeper = writer
            .as_ref()
            .map(|writer| MaintenanceThread::start(store.clone(), writer.queue().clone()))
            .transpose()?;
        Ok(Self { core: Arc::new(ArchiveCore { store, writer, maintenance: keeper }) })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.core.store.path
    }

    /// The namespace of whoever holds a credential: a hash of it under the archive's own identity and, where
    /// it is sealed, its key. The credential can not be had from it, and another archive gives another name.
    pub fn namespace_for_credential(&self, credential: &[u8]) -> Result<Namespace, Error> {
        let store = &self.core.store;
        let name = blake3::keyed_hash(&store.cipher.credential_key(&store.identity()?), credential).to_hex();
        Namespace::new(format!("key-{}", &name[..32]))
    }

    /// The part of the archive that belongs to a namespace.
    pub fn tenant(&self, namespace: &Namespace) -> TenantArchive {
        TenantArchive::new(self.core.clone(), namespace.clone())
    }
}

impl Drop for ArchiveCore {
    /// The writer goes last: whoever closes the file last folds the log into it, and a reader can not.
    fn drop(&mut self) {
        self.maintenance.take();
        self.store.readers.close_idle();
        self.writer.take();
    }
}

impl ArchiveCore {
    /// Where writing is handed over, or why there is none.
    pub(crate) fn write_queue(&self) -> Result<&WriteQueue, Error> {
        self.writer.as_ref().map(WriterThread::queue).ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, format!("{} was opened for reading alone", self.store.path.display()))
        })
    }

    /// Tells the keeper that there is something new.
    pub(crate) fn wake_maintenance(&self) {
        self.maintenance.iter().for_each(MaintenanceThread::wake);
    }
}

/// A connection as the writer wants it: a write-ahead log, which is synced beside (see `disk`).
pub(crate) fn open_for_writing(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        let path = path.display();
        return Err(Error::new(ErrorKind::ReadOnly, format!("{path} can be read but not written by this user")));
    }
    connection.busy_handler(Some(readers::busy_handler))?;
    connection.set_prepared_statement_cache_capacity(64);
    // A file that is not ours is left exactly as it is, so this comes before anything that writes.
    if schema::check_version(&connection, path)? == 0 {
        // Pages that retention frees can be given back to the disk.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            format!("{} can not be written (its journal stays in mode {mode})", path.display()),
        ));
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

/// What the lock of a sealed archive holds once it is opened.
const KEY_CHECK_PLAINTEXT: &[u8] = b"foldline";

/// Marks a new archive as sealed or open, before anything is in it.
fn write_key_check(connection: &Connection, seal: &ArchiveCipher) -> Result<(), Error> {
    let lock = if seal.is_plaintext() {
        Vec::new()
    } else {
        seal.encrypt(&Namespace::local(), "lock", KEY_CHECK_PLAINTEXT.to_vec())?
    };
    connection.execute("INSERT OR IGNORE INTO setting (name, value) VALUES ('lock', ?1)", [lock])?;
    Ok(())
}

/// Refuses a key that does not fit, a key that is missing, and a key where there is no lock: whoever
/// gives one believes that the archive is sealed.
fn check_key(connection: &Connection, seal: &ArchiveCipher, path: &Path) -> Result<(), Error> {
    let lock: Vec<u8> = connection
        .query_row("SELECT value FROM setting WHERE name = 'lock'", (), |row| row.get(0))
        .optional()?
        .unwrap_or_default();
    let denied = |why: &str| Err(Error::new(ErrorKind::WrongKey, format!("{} {why}", path.display())));
    match (lock.is_empty(), seal.is_plaintext()) {
        (true, true) => Ok(()),
        (true, false) => denied("is not sealed, but a key was given; use it without the key, or begin another archive"),
        (false, true) => denied("is sealed; give its key"),
        (false, false) => match seal.decrypt(&Namespace::local(), "lock", lock) {
            Ok(opened) if opened == KEY_CHECK_PLAINTEXT => Ok(()),
            _ => denied("is sealed with another key"),
        },
    }
}
