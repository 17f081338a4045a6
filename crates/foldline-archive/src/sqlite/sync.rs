//! The way to the disk: a thread that syncs what the writer has written, and keeps its log short.
//!
//! What is committed is written: it survives the end of this process, however it ends. What is synced survives the end of
//! the machine, too. A sync takes long, and whoever waits for one shares it with all who came meanwhile; the
//! writer waits for none. Nothing is decided here, and nothing is read.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rusqlite::Connection;

use crate::{Error, ErrorKind, archive, permissions};

/// Pages of the log after which it is folded into the file, and after which the writer waits for that: where others write
/// all the time, there is no moment at which all of it is in the file.
const CHECKPOINT_PAGES: u32 = 1_000;
const BLOCKING_CHECKPOINT_PAGES: u32 = 16 * CHECKPOINT_PAGES;

/// Waits until all that was written is on disk. Dropped, it waits for nothing.
///
/// Until then a loss of power may take what was written last; the end of the process takes nothing.
#[derive(Debug)]
pub struct SyncHandle(Receiver<Result<(), Error>>);

impl SyncHandle {
    /// Where nothing can be written, nothing is waited for.
    pub(crate) fn completed() -> Self {
        let (tell, told) = sync_channel(1);
        let _ = tell.send(Ok(()));
        Self(told)
    }

    /// Waits.
    pub fn wait(self) -> Result<(), Error> {
        self.0.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the archive was closed before it was on disk")))
    }
}

/// Where a sync is asked for. The thread goes on until the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct SyncQueue {
    requests: SyncSender<SyncRequest>,
    /// Pages of the log, as the writer's last commit left it.
    pub(crate) wal_pages: Arc<AtomicU32>,
}

enum SyncRequest {
    /// To sync, and to tell.
    Sync(SyncSender<Result<(), Error>>),
    /// To look how long the log is.
    Checkpoint,
}

impl SyncQueue {
    /// The way to the disk of the archive at this path, and what its thread does.
    pub(crate) fn new(archive: &Path) -> (Self, impl FnOnce() + Send + 'static) {
        let (asked, asking) = sync_channel(1024);
        let (log, path) = (Arc::<AtomicU32>::default(), archive.to_owned());
        let disk = Self { requests: asked, wal_pages: log.clone() };
        (disk, move || SyncWorker { path, wal_pages: log, checkpoint_connection: None }.run(&asking))
    }

    /// Waits for all that is committed by now.
    pub(crate) fn request_sync(&self) -> SyncHandle {
        let (tell, told) = sync_channel(1);
        // Where nobody is there to ask, whoever waits hears so.
        let _ = self.requests.send(SyncRequest::Sync(tell));
        SyncHandle(told)
    }

    /// The writer has committed something with this connection.
    pub(crate) fn after_commit(&self, connection: &Connection) {
        match self.wal_pages.load(Ordering::Relaxed) {
            // A log that can not be folded in now goes on growing; the next commit tries again.
            BLOCKING_CHECKPOINT_PAGES.. => drop(checkpoint_wal(connection)),
            // When much is asked already, somebody looks anyway.
            CHECKPOINT_PAGES.. => drop(self.requests.try_send(SyncRequest::Checkpoint)),
            _ => {}
        }
    }
}

struct SyncWorker {
    path: PathBuf,
    wal_pages: Arc<AtomicU32>,
    /// By which the log is folded into the file; none until it is long for the first time.
    checkpoint_connection: Option<Connection>,
}

impl SyncWorker {
    fn run(mut self, asking: &Receiver<SyncRequest>) {
        while let Ok(first) = asking.recv() {
            let all = std::iter::once(first).chain(asking.try_iter());
            let waiting: Vec<_> = all
                .filter_map(|asked| match asked {
                    SyncRequest::Sync(tell) => Some(tell),
                    SyncRequest::Checkpoint => None,
                })
                .collect();
            if !waiting.is_empty() {
                let synced = sync_wal(&permissions::sibling_path(&self.path, "-wal"));
                // Whoever does not wait any more needs no answer.
                waiting.iter().for_each(|tell| drop(tell.send(synced.clone())));
            }
            if self.wal_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES {
                // A log that could not be folded in grows until it can; the next look tries again.
                let _ = self.checkpoint_wal();
            }
        }
    }

    fn checkpoint_wal(&mut self) -> Result<(), Error> {
        let connection = match self.checkpoint_connection.take() {
            Some(connection) => connection,
            None => archive::open_for_writing(&self.path)?,
        };
        if checkpoint_wal(&connection)? {
            self.wal_pages.store(0, Ordering::Relaxed);
        }
        self.checkpoint_connection = Some(connection);
        Ok(())
    }
}

/// Copies the log into the file; says whether that was all of it, so that the writer begins it anew. Nobody waits
/// meanwhile but whoever does this.
fn checkpoint_wal(connection: &Connection) -> Result<bool, Error> {
    Ok(connection
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?))?)
}

fn sync_wal(log: &Path) -> Result<(), Error> {
    // Whoever syncs a file syncs all that was written to it, by whomever.
    let file = File::options().append(true).open(log).map_err(|error| Error::io("open", log, &error))?;
    file.sync_data().map_err(|error| Error::io("sync", log, &error))
}
