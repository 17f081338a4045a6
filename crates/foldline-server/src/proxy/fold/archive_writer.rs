//! Originals on their way to the archive: each is handed over once, before a request leaves, and nobody is answered
//! before it is on disk.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldline::{Handle, Original, OriginalStore, StoreError};
use foldline_archive::{SyncHandle, TenantArchive};

/// The originals that a conversation handed to the archive. Each handle was computed from text that the engine folded,
/// never read from a text, so that nobody can add a handle of another conversation by writing a marker.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredHandles(Arc<Mutex<HashMap<Handle, Written>>>);

/// Whether the archive is known to have an original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Yes,
    /// It was written, but the disk reported an error; it is handed over again.
    Doubtful,
}

impl StoredHandles {
    /// Returns whether this original was folded in the conversation.
    pub(crate) fn contains(&self, handle: Handle) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Returns the handles of all originals that were folded in the conversation, sorted.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let mut handles: Vec<Handle> = self.lock().keys().copied().collect();
        handles.sort_unstable();
        handles
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Handle, Written>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FromIterator<Handle> for StoredHandles {
    fn from_iter<I: IntoIterator<Item = Handle>>(handles: I) -> Self {
        Self(Arc::new(Mutex::new(handles.into_iter().map(|handle| (handle, Written::Yes)).collect())))
    }
}

/// Originals on their way to the disk. They are written before a request leaves; nobody is answered before they are on
/// disk, so that whoever has seen a marker can have its original again, after a loss of power, too.
pub(crate) struct PendingSync {
    sync: Mutex<Option<SyncHandle>>,
    stored: StoredHandles,
}

impl PendingSync {
    pub(crate) fn new(on_disk: SyncHandle, held: StoredHandles) -> Self {
        Self { sync: Mutex::new(Some(on_disk)), stored: held }
    }

    /// Waits, whoever is first. What did not come to the disk is not held: the next request hands it over again.
    pub(crate) fn wait(&self) -> Result<(), foldline_archive::Error> {
        let on_disk = self.sync.lock().unwrap_or_else(PoisonError::into_inner).take();
        let settled = on_disk.map_or(Ok(()), SyncHandle::wait);
        if settled.is_err() {
            self.stored.lock().values_mut().for_each(|written| *written = Written::Doubtful);
        }
        settled
    }
}

/// Hands originals to the archive once: a marker is carried by every later request, and its original
/// is held already. So an archive that is gone costs new folds and none of the old ones.
pub(crate) struct ArchiveWriter<'k> {
    /// None where nothing is sent, so that nothing has to be kept.
    archive: Option<&'k TenantArchive>,
    stored: &'k StoredHandles,
    /// Something was handed over.
    has_written: Cell<bool>,
}

impl<'k> ArchiveWriter<'k> {
    pub(crate) fn new(shelf: Option<&'k TenantArchive>, held: &'k StoredHandles) -> Self {
        Self { archive: shelf, stored: held, has_written: Cell::new(false) }
    }

    /// Whether something was handed over.
    pub(crate) fn has_written(&self) -> bool {
        self.has_written.get()
    }
}

impl OriginalStore for ArchiveWriter<'_> {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let fresh: Vec<Original<'_>> = {
            let held = self.stored.lock();
            let is_held = |original: &&Original<'_>| held.get(&original.handle) == Some(&Written::Yes);
            originals.iter().filter(|original| !is_held(original)).copied().collect()
        };
        if let (Some(shelf), false) = (self.archive, fresh.is_empty()) {
            shelf.store_unsynced(&fresh).map_err(|error| StoreError(error.to_string()))?;
            self.has_written.set(true);
        }
        self.stored.lock().extend(fresh.iter().map(|original| (original.handle, Written::Yes)));
        Ok(())
    }
}
