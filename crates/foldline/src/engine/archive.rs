//! The interface between the engine and an archive.
//!
//! The engine does no IO. It passes each original to an [`OriginalStore`] before the original leaves a request, and
//! sends the fold only if the store returns `Ok`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::handle::Handle;

/// A durable store of originals.
///
/// ```
/// use std::cell::RefCell;
/// use std::collections::BTreeMap;
///
/// use foldline::{Handle, Original, OriginalStore};
/// use foldline::engine::StoreError;
///
/// /// Keeps originals by handle; a real store writes them to a disk or a database.
/// #[derive(Default)]
/// struct MapStore(RefCell<BTreeMap<Handle, Vec<u8>>>);
///
/// impl OriginalStore for MapStore {
///     fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
///         self.0.borrow_mut().extend(originals.iter().map(|it| (it.handle, it.bytes.to_vec())));
///         Ok(())
///     }
/// }
///
/// let store = MapStore::default();
/// store.store(&[Original::new(Handle::for_content(b"x"), b"x")])?;
/// assert_eq!(store.0.borrow().len(), 1);
/// # Ok::<(), foldline::engine::StoreError>(())
/// ```
pub trait OriginalStore {
    /// Stores these originals durably. After `Ok`, each of them survives a crash and resolves by its handle.
    ///
    /// # Errors
    ///
    /// If any original could not be stored; then none of them may be assumed to be stored.
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError>;

    /// Stores these originals like [`store`](OriginalStore::store), and returns the indices of those that are refused
    /// while the others are stored: the handle of one may belong to another text. A refused original stays in the
    /// request.
    ///
    /// # Errors
    ///
    /// If nothing could be stored.
    fn store_accepted(&self, originals: &[Original<'_>]) -> Result<Vec<usize>, StoreError> {
        self.store(originals).map(|()| Vec::new())
    }
}

/// A store in memory: for a single process, and for tests.
///
/// ```
/// use foldline::{Handle, MemoryStore, Original, OriginalStore};
///
/// let store = MemoryStore::default();
/// let handle = Handle::for_content(b"fn main() {}");
/// let original = Original::new(handle, b"fn main() {}");
/// store.store(&[original])?;
/// assert_eq!(store.get(handle).as_deref(), Some(&b"fn main() {}"[..]));
/// # Ok::<(), foldline::engine::StoreError>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryStore {
    originals: Mutex<HashMap<Handle, Arc<[u8]>>>,
}

impl MemoryStore {
    /// Returns the original of a handle.
    pub fn get(&self, handle: Handle) -> Option<Arc<[u8]>> {
        self.lock().get(&handle).cloned()
    }

    /// Returns the number of originals.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns true if there are no originals.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Handle, Arc<[u8]>>> {
        // Insertion is the only change, so the map is complete even after a panic.
        self.originals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OriginalStore for MemoryStore {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let mut stored = self.lock();
        for original in originals {
            let known = stored.entry(original.handle).or_insert_with(|| original.bytes.into());
            if **known != *original.bytes {
                return Err(StoreError(format!("the handle {} belongs to another original", original.handle)));
            }
        }
        Ok(())
    }
}

/// An original that is about to leave a request, with its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// Content address.
    pub handle: Handle,
    /// Content.
    pub bytes: &'a [u8],
    /// Tool that produced it, if any.
    pub tool: Option<&'a str>,
    /// Target of the tool call: a path, a command, a query.
    pub arguments: Option<&'a str>,
    /// Index of its message in the conversation.
    pub message: usize,
    /// Tokens by the counter in use.
    pub tokens: u64,
}

impl<'a> Original<'a> {
    /// Creates an original without metadata.
    pub fn new(handle: Handle, bytes: &'a [u8]) -> Self {
        Self { handle, bytes, tool: None, arguments: None, message: 0, tokens: 0 }
    }
}

/// The error of a store. The request must be sent without these folds, or without handles.
#[derive(Clone, Debug)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "originals could not be kept: {}", self.0)
    }
}

impl std::error::Error for StoreError {}
