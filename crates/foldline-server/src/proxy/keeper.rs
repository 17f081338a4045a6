//! Originals on their way to the archive: each is handed over once, before a request leaves, and nobody is answered
//! before it is on disk.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use foldline::{Handle, Keep, KeepError, Original};
use foldline_archive::{OnDisk, Shelf};

/// Handles of originals that the archive is known to hold.
pub(crate) type Held = Arc<Mutex<HashSet<Handle>>>;

/// Originals on their way to the disk. They are written before a request leaves; nobody is answered before they are on
/// disk, so that whoever has seen a marker can have its original again, after a loss of power, too.
pub(crate) struct Settling {
    on_disk: Mutex<Option<OnDisk>>,
    held: Held,
}

impl Settling {
    pub(crate) fn new(on_disk: OnDisk, held: Held) -> Self {
        Self { on_disk: Mutex::new(Some(on_disk)), held }
    }

    /// Waits, whoever is first. What did not come to the disk is not held: the next request hands it over again.
    pub(crate) fn wait(&self) -> Result<(), foldline_archive::Error> {
        let on_disk = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).take();
        let settled = on_disk.map_or(Ok(()), OnDisk::wait);
        if settled.is_err() {
            self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        settled
    }
}

/// Hands originals to the archive once: a marker is carried by every later request, and its original
/// is held already. So an archive that is gone costs new folds and none of the old ones.
pub(crate) struct Keeper<'k> {
    /// None where nothing is sent, so that nothing has to be kept.
    shelf: Option<&'k Shelf>,
    held: &'k Held,
    /// Something was handed over.
    wrote: Cell<bool>,
}

impl<'k> Keeper<'k> {
    pub(crate) fn new(shelf: Option<&'k Shelf>, held: &'k Held) -> Self {
        Self { shelf, held, wrote: Cell::new(false) }
    }

    /// Whether something was handed over.
    pub(crate) fn wrote(&self) -> bool {
        self.wrote.get()
    }
}

impl Keep for Keeper<'_> {
    fn keep(&self, originals: &[Original<'_>]) -> Result<(), KeepError> {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh: Vec<Original<'_>> = {
            let held = held();
            originals.iter().filter(|original| !held.contains(&original.handle)).copied().collect()
        };
        if let (Some(shelf), false) = (self.shelf, fresh.is_empty()) {
            shelf.write(&fresh).map_err(|error| KeepError(error.to_string()))?;
            self.wrote.set(true);
        }
        held().extend(fresh.iter().map(|original| original.handle));
        Ok(())
    }
}
