//! The archive as a whole: one store, opened with its key.
//!
//! Nothing here returns an original. Originals are read only through a [`TenantArchive`], which belongs to one
//! namespace, so no call can read across namespaces.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::audit::{AuditAction, AuditEntry, AuditLog, append_audit};
use crate::encryption::{ArchiveCipher, ArchiveKey};
use crate::error::{Error, ErrorKind};
use crate::location::{self, url_scheme};
use crate::namespace::Namespace;
use crate::object_storage::ObjectStorage;
use crate::sqlite::SqliteStore;
use crate::store::{ArchiveStore, StoreHealth};
use crate::tenant::TenantArchive;

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
    store: Arc<dyn ArchiveStore>,
    cipher: ArchiveCipher,
    identity: Arc<Mutex<Option<KnownIdentity>>>,
    audit: Option<AuditLog>,
}

/// The identity of a store, and the generation in which it was read.
#[derive(Debug)]
struct KnownIdentity {
    generation: u64,
    identity: Vec<u8>,
}

/// Options for opening an archive.
#[derive(Clone, Debug, Default)]
pub struct ArchiveOptions {
    /// The key of an encrypted archive. A new archive opened with a key is encrypted from then on; an existing
    /// archive opens only with the key it was created with.
    pub key: Option<ArchiveKey>,
    /// The access mode.
    pub access: AccessMode,
    /// The store of large packs; only of an archive in PostgreSQL.
    pub objects: Option<ObjectStorage>,
    /// The log of reads and deletions.
    pub audit: Option<AuditLog>,
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

impl Archive {
    /// Opens the archive at this path for reading and writing, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, is not an archive, or is accessible to other users.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, ArchiveOptions::default())
    }

    /// Opens the archive at this path, or in the PostgreSQL database with this URL (cargo feature `postgres`). A database
    /// that is not reachable is no error: later calls try again.
    ///
    /// # Errors
    ///
    /// The same as for [`Archive::open`], if the key is wrong, and if the path is another URL.
    pub fn open_with(path: impl AsRef<Path>, options: ArchiveOptions) -> Result<Self, Error> {
        let cipher = ArchiveCipher::new(options.key)?;
        let is_writable = options.access == AccessMode::ReadWrite;
        let store: Arc<dyn ArchiveStore> = match url_scheme(path.as_ref()) {
            None if options.objects.is_some() => {
                let message = "an object store needs an archive in PostgreSQL; set it with --archive";
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            None => Arc::new(SqliteStore::open(path.as_ref(), cipher.clone(), is_writable)?),
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", url)) => {
                Arc::new(crate::postgres::PostgresStore::open(crate::postgres::DatabaseOptions {
                    url,
                    location: Self::describe(url),
                    cipher: cipher.clone(),
                    is_writable,
                    objects: options.objects.as_ref(),
                })?)
            }
            Some((scheme, _)) => return Err(unsupported_scheme(scheme)),
        };
        Ok(Self { audit: options.audit, ..Self::with_store(store, cipher) })
    }

    /// Returns true if a path is the URL of a database rather than the path of a file.
    pub fn is_url(path: impl AsRef<Path>) -> bool {
        url_scheme(path.as_ref()).is_some()
    }

    /// Returns the name of an archive for messages, without opening it: its path, or its URL without credentials and
    /// options.
    pub fn describe(path: impl AsRef<Path>) -> String {
        location::describe(path.as_ref())
    }

    /// Waits, for at most a few seconds, for an answer of the archive's database. A file needs none.
    ///
    /// # Errors
    ///
    /// If the database is not reachable.
    pub fn ping(&self) -> Result<(), Error> {
        self.store.ping()
    }

    /// Returns whether the store answered last, without asking it.
    pub fn health(&self) -> StoreHealth {
        self.store.health()
    }

    pub(crate) fn with_store(store: Arc<dyn ArchiveStore>, cipher: ArchiveCipher) -> Self {
        Self { store, cipher, identity: Arc::default(), audit: None }
    }

    /// Returns the name of the store for messages: a path, or a URL without credentials.
    pub fn location(&self) -> String {
        self.store.location()
    }

    /// Returns the namespace for a credential: a keyed hash under the archive's own identity and, if the archive is
    /// encrypted, its key. The credential cannot be recovered from it, and every archive yields a different name.
    ///
    /// # Errors
    ///
    /// If the identity of the archive cannot be read.
    pub fn namespace_for_credential(&self, credential: &[u8]) -> Result<Namespace, Error> {
        self.credential_namespace(&self.identity()?, credential)
    }

    /// Returns the namespace for a credential like [`namespace_for_credential`](Self::namespace_for_credential) if the
    /// identity of the archive is known, without waiting for the database.
    pub fn known_namespace_for_credential(&self, credential: &[u8]) -> Option<Namespace> {
        self.credential_namespace(&self.known_identity(self.store.generation())?, credential).ok()
    }

    fn credential_namespace(&self, identity: &[u8], credential: &[u8]) -> Result<Namespace, Error> {
        let name = blake3::keyed_hash(&self.cipher.credential_key(identity), credential).to_hex();
        Namespace::new(format!("key-{}", &name[..32]))
    }

    /// Returns the part of the archive that belongs to a namespace.
    pub fn tenant(&self, namespace: &Namespace) -> TenantArchive {
        TenantArchive::new(self.store.clone(), &self.cipher, namespace.clone(), self.audit.clone())
    }

    /// Records an action on all namespaces in the audit log.
    pub(crate) fn audit(&self, action: AuditAction) -> Result<(), Error> {
        append_audit(self.audit.as_ref(), &AuditEntry::new(action, None))
    }

    pub(crate) fn store_rows(&self) -> &dyn ArchiveStore {
        &*self.store
    }

    pub(crate) fn cipher(&self) -> &ArchiveCipher {
        &self.cipher
    }

    /// Returns the identity of the store, which is read once.
    fn identity(&self) -> Result<Vec<u8>, Error> {
        let generation = self.store.generation();
        if let Some(identity) = self.known_identity(generation) {
            return Ok(identity);
        }
        // Reading may take seconds, in which others can look.
        let identity = self.store.identity()?;
        let known = KnownIdentity { generation, identity: identity.clone() };
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(identity)
    }

    fn known_identity(&self, generation: u64) -> Option<Vec<u8>> {
        let cached = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        cached.as_ref().filter(|known| known.generation == generation).map(|known| known.identity.clone())
    }
}

fn unsupported_scheme(scheme: &str) -> Error {
    let supported = match cfg!(feature = "postgres") {
        true => "an archive is the path of a file, or a URL that begins with postgres://",
        false => "an archive is the path of a file (this build has no support for postgres://)",
    };
    Error::new(ErrorKind::InvalidInput, format!("archives at {scheme}:// are not supported; {supported}"))
}
