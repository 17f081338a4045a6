//! Pending syncs: waiting until written data survives a power loss.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::error::{Error, ErrorKind};

/// A pending sync. Dropping it waits for nothing.
///
/// Until [`wait`](SyncHandle::wait) returns, a power loss may lose the newest writes; the end of the process loses
/// nothing.
#[derive(Debug)]
pub struct SyncHandle(Receiver<Result<(), Error>>);

/// The other end of a [`SyncHandle`]. Dropping it fails the sync.
#[derive(Debug)]
pub struct SyncCompletion(SyncSender<Result<(), Error>>);

impl SyncHandle {
    /// Returns a sync and the completion that ends it.
    pub fn new() -> (SyncCompletion, Self) {
        let (sender, receiver) = sync_channel(1);
        (SyncCompletion(sender), Self(receiver))
    }

    /// Returns a sync that has ended.
    pub fn completed(result: Result<(), Error>) -> Self {
        let (completion, sync) = Self::new();
        completion.complete(result);
        sync
    }

    /// Waits until everything written before the request is on disk.
    ///
    /// # Errors
    ///
    /// If the sync failed, or the archive was closed before it ended.
    pub fn wait(self) -> Result<(), Error> {
        self.0
            .recv()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the archive was closed before the sync finished")))
    }
}

impl SyncCompletion {
    /// Ends the sync with this result.
    pub fn complete(self, result: Result<(), Error>) {
        // The caller may have stopped waiting.
        let _ = self.0.send(result);
    }
}
