//! The archive as a whole: one file, its writer and its readers.
//!
//! Nothing here returns an original. Originals are read only through a [`TenantArchive`], which belongs to one
//! namespace, so no call can read across namespaces.

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
/// Cloning is cheap; all clones share one writer. Dropping the last clone finishes the queued writes and
/// closes the file.
///
/// ```
/// use foldline::{Handle, Original, OriginalStore};
/// use foldline_archive::{Archive, Namespace};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("archive.db");
/// let archive = Archive::open(&path)?;
/// let tenant = archive.tenant(&Namespace::local());
///
/// let text = "a long tool output";
/// let handle = Handle::for_content(text.as_bytes());
/// tenant.store(&[Original {
///     handle,
///     bytes: text.as_bytes(),
///     tool: Some("read_file"),
///     arguments: Some(r#"{"path":"src/main.rs"}"#),
///     message: 7,
///     tokens: 4,
/// }])?;
///
/// assert_eq!(tenant.unfold(handle.as_str())?.bytes, text.as_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Archive {
    pub(crate) core: Arc<ArchiveCore>,
}

/// Options for opening an archive.
#[derive(Clone, Debug, Default)]
pub struct ArchiveOptions {
    /// The key of an encrypted archive. A new archive opened with a key is encrypted from then on; an existing
    /// archive opens only with the key it was created with.
    pub key: Option<ArchiveKey>,
    /// The access mode.
    pub access: AccessMode,
}

/// The access mode of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessMode {
    /// Reads and writes; creates the file if it does not exist.
    #[default]
    ReadWrite,
    /// Reads only; works on a read-only disk.
    ReadOnly,
}

/// State shared by all clones and tenants. Dropping it ends its threads.
#[derive(Debug)]
pub(crate) struct ArchiveCore {
    pub(crate) store: Arc<SqliteStore>,
    writer: Option<WriterThread>,
    maintenance: Option<MaintenanceThread>,
}

impl Archive {
    /// Opens the archive at this path for reading and writing, and creates it if it does not exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, ArchiveOptions::default())
    }

    /// Opens the archive at this path.
    pub fn open_with(path: impl AsRef<Path>, options: ArchiveOptions) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let cipher = ArchiveCipher::new(options.key)?;
        let writer = match options.access {
            AccessMode::ReadWrite => {
                permissions::create_private(&path)?;
                let mut connection = open_for_writing(&path)?;
                schema::migrate(&mut connection, &path)?;
                write_key_check(&connection, &cipher)?;
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
            check_key(connection, &cipher, &path)
        })?;
        let index = SearchIndex::for_archive(&path);
        let store = Arc::new(SqliteStore { path, cipher, readers, index });
        let writer = writer.map(|connection| WriterThread::start(connection, &store.path)).transpose()?;
        let maintenance = writer
            .as_ref()
            .map(|writer| MaintenanceThread::start(store.clone(), writer.queue().clone()))
            .transpose()?;
        Ok(Self { core: Arc::new(ArchiveCore { store, writer, maintenance }) })
    }

    /// Returns the path of the archive's file.
    pub fn path(&self) -> &Path {
        &self.core.store.path
    }

    /// Returns the namespace for a credential: a keyed hash under the archive's own identity and, if the archive is
    /// encrypted, its key. The credential cannot be recovered from it, and every archive yields a different name.
    pub fn namespace_for_credential(&self, credential: &[u8]) -> Result<Namespace, Error> {
        let store = &self.core.store;
        let name = blake3::keyed_hash(&store.cipher.credential_key(&store.identity()?), credential).to_hex();
        Namespace::new(format!("key-{}", &name[..32]))
    }

    /// Returns the part of the archive that belongs to a namespace.
    pub fn tenant(&self, namespace: &Namespace) -> TenantArchive {
        TenantArchive::new(self.core.clone(), namespace.clone())
    }
}

impl Drop for ArchiveCore {
    /// Closes the writer last: the last connection to close checkpoints the log, and a reader cannot.
    fn drop(&mut self) {
        self.maintenance.take();
        self.store.readers.close_idle();
        self.writer.take();
    }
}

impl ArchiveCore {
    /// Returns the write queue, or an error if the archive is read-only.
    pub(crate) fn write_queue(&self) -> Result<&WriteQueue, Error> {
        self.writer.as_ref().map(WriterThread::queue).ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, format!("{} was opened read-only", self.store.path.display()))
        })
    }

    /// Notifies the maintenance thread that there is new data.
    pub(crate) fn wake_maintenance(&self) {
        self.maintenance.iter().for_each(MaintenanceThread::wake);
    }
}

/// Opens the writer's connection, with a write-ahead log that [`crate::sqlite::sync`] syncs.
pub(crate) fn open_for_writing(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        let path = path.display();
        return Err(Error::new(ErrorKind::ReadOnly, format!("{path} is not writable by this user")));
    }
    connection.busy_handler(Some(readers::busy_handler))?;
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
    Ok(connection)
}

/// The plaintext of the key check of an encrypted archive.
const KEY_CHECK_PLAINTEXT: &[u8] = b"foldline";

/// Marks a new archive as encrypted or plaintext, before anything is stored in it.
fn write_key_check(connection: &Connection, cipher: &ArchiveCipher) -> Result<(), Error> {
    let key_check = if cipher.is_plaintext() {
        Vec::new()
    } else {
        cipher.encrypt(&Namespace::local(), "lock", KEY_CHECK_PLAINTEXT.to_vec())?
    };
    connection.execute("INSERT OR IGNORE INTO setting (name, value) VALUES ('lock', ?1)", [key_check])?;
    Ok(())
}

/// Rejects a wrong key, a missing key, and a key for a plaintext archive: a caller who passes a key expects
/// encryption.
fn check_key(connection: &Connection, cipher: &ArchiveCipher, path: &Path) -> Result<(), Error> {
    let key_check: Vec<u8> = connection
        .query_row("SELECT value FROM setting WHERE name = 'lock'", (), |row| row.get(0))
        .optional()?
        .unwrap_or_default();
    let denied = |why: &str| Err(Error::new(ErrorKind::WrongKey, format!("{} {why}", path.display())));
    match (key_check.is_empty(), cipher.is_plaintext()) {
        (true, true) => Ok(()),
        (true, false) => denied("is not encrypted, but a key was given; open it without the key, or use a new archive"),
        (false, true) => denied("is sealed (encrypted); give its key"),
        (false, false) => match cipher.decrypt(&Namespace::local(), "lock", key_check) {
            Ok(opened) if opened == KEY_CHECK_PLAINTEXT => Ok(()),
            _ => denied("is encrypted with a different key"),
        },
    }
}
