//! Disk syncs: a thread that syncs the writer's log and checkpoints it.
//!
//! Committed data survives the end of this process; synced data also survives a crash of the machine. A sync is slow,
//! so all callers that wait at the same time share one, and the writer waits for none. Nothing is decided or read
//! here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rusqlite::Connection;

use crate::error::{Error, ErrorKind};
use crate::permissions;
use crate::sqlite::connection::{self, FileIdentity};
use crate::sync_handle::{SyncCompletion, SyncHandle};

/// Number of log pages at which the sync thread checkpoints, and at which the writer waits for the checkpoint: with
/// other processes writing continuously, there may be no moment at which the log is fully copied.
const CHECKPOINT_PAGES: u32 = 1_000;
const BLOCKING_CHECKPOINT_PAGES: u32 = 16 * CHECKPOINT_PAGES;

/// The queue of sync requests. The thread runs until the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct SyncQueue {
    requests: SyncSender<SyncRequest>,
    /// Pages in the log after the writer's last commit.
    pub(crate) wal_pages: Arc<AtomicU32>,
}

enum SyncRequest {
    /// Sync and report the result.
    Sync(SyncCompletion),
    /// Check the length of the log.
    Checkpoint,
}

impl SyncQueue {
    /// Creates the queue of the archive at this path, which is this file, and the body of its thread.
    pub(crate) fn new(archive: &Path, file: Option<FileIdentity>) -> (Self, impl FnOnce() + Send + 'static) {
        let (requests, receiver) = sync_channel(1024);
        let (wal_pages, path) = (Arc::<AtomicU32>::default(), archive.to_owned());
        let queue = Self { requests, wal_pages: wal_pages.clone() };
        (queue, move || {
            let worker = SyncWorker { path, file, wal_pages, checkpoint_connection: None, has_failed: false };
            worker.run(&receiver);
        })
    }

    /// Requests a sync of everything committed so far.
    pub(crate) fn request_sync(&self) -> SyncHandle {
        let (completion, sync) = SyncHandle::new();
        // If the thread has ended, the dropped completion makes `wait` return an error.
        let _ = self.requests.send(SyncRequest::Sync(completion));
        sync
    }

    /// Checkpoints the log if it is long; the writer calls this after each commit.
    pub(crate) fn after_commit(&self, connection: &Connection) {
        match self.wal_pages.load(Ordering::Relaxed) {
            // If the checkpoint fails, the log keeps growing; the next commit retries.
            BLOCKING_CHECKPOINT_PAGES.. => drop(checkpoint_wal(connection)),
            // A full queue means that the thread is about to check anyway.
            CHECKPOINT_PAGES.. => drop(self.requests.try_send(SyncRequest::Checkpoint)),
            _ => {}
        }
    }
}

struct SyncWorker {
    path: PathBuf,
    file: Option<FileIdentity>,
    wal_pages: Arc<AtomicU32>,
    /// Connection for checkpoints; opened when the log is long for the first time.
    checkpoint_connection: Option<Connection>,
    /// True after a failed sync: the system may have dropped the pages that it could not write, and report success for
    /// the next sync of the same file. Copying the log into the file writes them again.
    has_failed: bool,
}

impl SyncWorker {
    fn run(mut self, requests: &Receiver<SyncRequest>) {
        while let Ok(first) = requests.recv() {
            let all = std::iter::once(first).chain(requests.try_iter());
            let waiting: Vec<_> = all
                .filter_map(|request| match request {
                    SyncRequest::Sync(completion) => Some(completion),
                    SyncRequest::Checkpoint => None,
                })
                .collect();
            if !waiting.is_empty() {
                let synced = self.sync_wal().and_then(|()| self.recover());
                self.has_failed |= synced.is_err();
                waiting.into_iter().for_each(|completion| completion.complete(synced.clone()));
            }
            // After the file was removed, another connection would open another file.
            if self.wal_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES && self.is_current() {
                // If the checkpoint fails, the log keeps growing; the next request retries.
                let _ = self.checkpoint_wal();
            }
        }
    }

    fn is_current(&self) -> bool {
        FileIdentity::read(&self.path) == self.file
    }

    /// Syncs the log. Fails if the path no longer names the open file, because then the data is lost with the process.
    fn sync_wal(&self) -> Result<(), Error> {
        let log = permissions::sibling_path(&self.path, "-wal");
        // A sync of a file covers everything written to it, by any process.
        let file = File::options().append(true).open(&log).map_err(|error| Error::io("open", &log, &error));
        let synced = file.and_then(|file| file.sync_data().map_err(|error| Error::io("sync", &log, &error)));
        if self.is_current() { synced } else { Err(connection::replaced_error(&self.path)) }
    }

    /// Writes everything to disk again after a failed sync.
    fn recover(&mut self) -> Result<(), Error> {
        if self.has_failed {
            if !self.checkpoint_wal()? {
                let message =
                    "the disk failed, and a reader prevents that the archive's log is written again; retry later";
                return Err(Error::new(ErrorKind::Busy, message));
            }
            self.has_failed = false;
        }
        Ok(())
    }

    /// Returns true if the whole log was copied.
    fn checkpoint_wal(&mut self) -> Result<bool, Error> {
        let connection = match self.checkpoint_connection.take() {
            Some(connection) => connection,
            None => connection::open_for_writing(&self.path)?,
        };
        let is_complete = checkpoint_wal(&connection)?;
        if is_complete {
            self.wal_pages.store(0, Ordering::Relaxed);
        }
        self.checkpoint_connection = Some(connection);
        Ok(is_complete)
    }
}

/// Copies the log into the file; returns true if all of it was copied, so that the writer restarts the log. Blocks
/// only the calling thread.
pub(crate) fn checkpoint_wal(connection: &Connection) -> Result<bool, Error> {
    Ok(connection
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?))?)
}

/// Copies the log into the file and empties it, so that deleted texts are in neither. Waits for readers, and fails if one
/// of them needs the log for longer.
pub(crate) fn truncate_wal(connection: &Connection) -> Result<(), Error> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
    if is_busy {
        let message = "the data is deleted, but its bytes are still in the archive's files, because another process is \
             reading them; repeat the command";
        return Err(Error::new(ErrorKind::Busy, message));
    }
    Ok(())
}
