//! The archive as a whole: one store, opened with its key.
//!
//! Nothing here returns an original. Originals are read only through a [`TenantArchive`], which belongs to one
//! namespace, so no call can read across namespaces.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::encryption::{ArchiveCipher, ArchiveKey};
use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::sqlite::SqliteStore;
use crate::store::ArchiveStore;
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

    /// Opens the archive at this path.
    ///
    /// # Errors
    ///
    /// The same as for [`Archive::open`], if the key is wrong, and if the path is a URL.
    pub fn open_with(path: impl AsRef<Path>, options: ArchiveOptions) -> Result<Self, Error> {
        reject_url(path.as_ref())?;
        let cipher = ArchiveCipher::new(options.key)?;
        let is_writable = options.access == AccessMode::ReadWrite;
        let store = SqliteStore::open(path.as_ref(), cipher.clone(), is_writable)?;
        Ok(Self::with_store(Arc::new(store), cipher))
    }

    fn with_store(store: Arc<dyn ArchiveStore>, cipher: ArchiveCipher) -> Self {
        Self { store, cipher, identity: Arc::default() }
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
        let name = blake3::keyed_hash(&self.cipher.credential_key(&self.identity()?), credential).to_hex();
        Namespace::new(format!("key-{}", &name[..32]))
    }

    /// Returns the part of the archive that belongs to a namespace.
    pub fn tenant(&self, namespace: &Namespace) -> TenantArchive {
        TenantArchive::new(self.store.clone(), &self.cipher, namespace.clone())
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
        let mut cached = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cached.as_ref().filter(|known| known.generation == generation) {
            return Ok(known.identity.clone());
        }
        let identity = self.store.identity()?;
        *cached = Some(KnownIdentity { generation, identity: identity.clone() });
        Ok(identity)
    }
}

/// Rejects a URL, which would become a folder that is named like its scheme.
fn reject_url(path: &Path) -> Result<(), Error> {
    let Some((scheme, _)) = path.to_str().and_then(|path| path.split_once("://")) else { return Ok(()) };
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if scheme.is_empty() || !scheme.chars().all(is_scheme) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("archives at {scheme}:// are not supported; an archive is the path of a file"),
    ))
}
