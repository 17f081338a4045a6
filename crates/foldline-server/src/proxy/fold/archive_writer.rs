//! Writing originals to the archive: each is written once, before its request is sent, and synced to disk before the
//! client gets the response.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldline::engine::StoreError;
use foldline::{Handle, Original, OriginalStore};
use foldline_archive::{SyncHandle, TenantArchive};

/// The originals that a conversation wrote to the archive. Handles are computed from text that the engine folded and
/// never parsed from text, so a forged marker cannot add a handle of another conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredHandles(Arc<Mutex<WrittenOriginals>>);

#[derive(Debug, Default)]
struct WrittenOriginals {
    handles: HashMap<Handle, Written>,
    /// The generation of the archive that has them; `None` before the first write.
    generation: Option<u64>,
    /// True if a sync failed since the conversation was last folded from its start.
    is_unsynced: bool,
}

/// Write state of an original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// The text with this hash was written. Another text may have the same handle.
    Yes(blake3::Hash),
    /// Not known to be in the archive, because the sync failed, the archive was lost, or the handle is from the ledger;
    /// it is written again.
    Doubtful,
}

impl StoredHandles {
    /// Returns true if this original was folded in the conversation.
    pub(crate) fn contains(&self, handle: Handle) -> bool {
        self.lock().handles.contains_key(&handle)
    }

    /// Returns the handles of all originals that were folded in the conversation, sorted.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let mut handles: Vec<Handle> = self.lock().handles.keys().copied().collect();
        handles.sort_unstable();
        handles
    }

    /// Returns false if the originals may not be in the archive: it was lost and opened again since they were written, or
    /// a sync failed. They are written again, and for that the conversation must be folded from its start.
    pub(crate) fn is_in(&self, archive: &TenantArchive) -> bool {
        self.lock().continue_in(archive.generation())
    }

    fn lock(&self) -> MutexGuard<'_, WrittenOriginals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WrittenOriginals {
    /// Continues in this generation of the archive. Returns false if the originals may not be in it.
    fn continue_in(&mut self, generation: u64) -> bool {
        let is_unsynced = std::mem::take(&mut self.is_unsynced);
        let is_same = !is_unsynced && self.generation.is_none_or(|before| before == generation);
        self.generation = Some(generation);
        if !is_same {
            self.doubt_all();
        }
        is_same
    }

    fn doubt_all(&mut self) {
        self.handles.values_mut().for_each(|written| *written = Written::Doubtful);
    }
}

impl FromIterator<Handle> for StoredHandles {
    fn from_iter<I: IntoIterator<Item = Handle>>(handles: I) -> Self {
        let handles = handles.into_iter().map(|handle| (handle, Written::Doubtful)).collect();
        Self(Arc::new(Mutex::new(WrittenOriginals { handles, ..WrittenOriginals::default() })))
    }
}

/// Originals on their way to disk. They are written before the request is sent and synced before the client gets the
/// response, so that the original of every delivered marker survives a power failure.
pub(crate) struct PendingSync {
    sync: Mutex<Option<SyncHandle>>,
    stored: StoredHandles,
}

impl PendingSync {
    pub(crate) fn new(sync: SyncHandle, stored: StoredHandles) -> Self {
        Self { sync: Mutex::new(Some(sync)), stored }
    }

    /// Waits for the sync; only the first caller waits. After a failure the next request writes the originals again.
    pub(crate) fn wait(&self) -> Result<(), foldline_archive::Error> {
        let sync = self.sync.lock().unwrap_or_else(PoisonError::into_inner).take();
        let synced = sync.map_or(Ok(()), SyncHandle::wait);
        if synced.is_err() {
            self.stored.lock().is_unsynced = true;
        }
        synced
    }
}

/// Writes originals to the archive once. Every later request carries the same marker, whose original is stored
/// already; so a failed archive prevents new folds but keeps the old ones.
pub(crate) struct ArchiveWriter<'k> {
    /// None in observe mode: nothing folded is sent, so nothing has to be stored.
    archive: Option<&'k TenantArchive>,
    stored: &'k StoredHandles,
    /// Reason why nothing new is written.
    refusal: Option<String>,
    /// True after the first write.
    has_written: Cell<bool>,
}

impl<'k> ArchiveWriter<'k> {
    pub(crate) fn new(archive: Option<&'k TenantArchive>, stored: &'k StoredHandles) -> Self {
        Self { archive, stored, refusal: None, has_written: Cell::new(false) }
    }

    /// Refuses to write, for this reason. Originals that were written before stay.
    pub(crate) fn refusing(self, reason: Option<String>) -> Self {
        Self { refusal: reason, ..self }
    }

    /// Returns true if something was written.
    pub(crate) fn has_written(&self) -> bool {
        self.has_written.get()
    }
}

impl OriginalStore for ArchiveWriter<'_> {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        match self.store_accepted(originals)?.len() {
            0 => Ok(()),
            refused => Err(StoreError(format!("the archive refused {refused} of them"))),
        }
    }

    fn store_accepted(&self, originals: &[Original<'_>]) -> Result<Vec<usize>, StoreError> {
        let hashes: Vec<blake3::Hash> = originals.iter().map(|original| blake3::hash(original.bytes)).collect();
        let is_fresh: Vec<usize> = {
            let stored = self.stored.lock();
            let written = |index: &usize| stored.handles.get(&originals[*index].handle);
            (0..originals.len()).filter(|index| written(index) != Some(&Written::Yes(hashes[*index]))).collect()
        };
        let fresh: Vec<Original<'_>> = is_fresh.iter().map(|index| originals[*index]).collect();
        let mut refused = Vec::new();
        if let (Some(reason), false) = (&self.refusal, fresh.is_empty()) {
            return Err(StoreError(reason.clone()));
        }
        if let (Some(archive), false) = (self.archive, fresh.is_empty()) {
            let counts = archive.store_unsynced(&fresh).map_err(|error| StoreError(error.to_string()))?;
            self.has_written.set(true);
            refused.extend(counts.refused.into_iter().map(|refused| is_fresh[refused.index]));
        }
        let is_refused: HashSet<usize> = refused.iter().copied().collect();
        let written = is_fresh.into_iter().filter(|index| !is_refused.contains(index));
        let written = written.map(|index| (originals[index].handle, Written::Yes(hashes[index])));
        self.stored.lock().handles.extend(written);
        Ok(refused)
    }
}
