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

use crate::{Error, ErrorKind, archive, place};

/// Pages of the log after which it is folded into the file, and after which the writer waits for that: where others write
/// all the time, there is no moment at which all of it is in the file.
const LONG: u32 = 1_000;
const TOO_LONG: u32 = 16 * LONG;

/// Waits until all that was written is on disk. Dropped, it waits for nothing.
///
/// Until then a loss of power may take what was written last; the end of the process takes nothing.
#[derive(Debug)]
pub struct OnDisk(Receiver<Result<(), Error>>);

impl OnDisk {
    /// Where nothing can be written, nothing is waited for.
    pub(crate) fn already() -> Self {
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
pub(crate) struct Disk {
    asked: SyncSender<Asked>,
    /// Pages of the log, as the writer's last commit left it.
    pub(crate) log: Arc<AtomicU32>,
}

enum Asked {
    /// To sync, and to tell.
    Sync(SyncSender<Result<(), Error>>),
    /// To look how long the log is.
    Look,
}

impl Disk {
    /// The way to the disk of the archive at this path, and what its thread does.
    pub(crate) fn of(archive: &Path) -> (Self, impl FnOnce() + Send + 'static) {
        let (asked, asking) = sync_channel(1024);
        let (log, path) = (Arc::<AtomicU32>::default(), archive.to_owned());
        let disk = Self { asked, log: log.clone() };
        (disk, move || Syncing { path, log, folding: None }.run(&asking))
    }

    /// Waits for all that is committed by now.
    pub(crate) fn settled(&self) -> OnDisk {
        let (tell, told) = sync_channel(1);
        // Where nobody is there to ask, whoever waits hears so.
        let _ = self.asked.send(Asked::Sync(tell));
        OnDisk(told)
    }

    /// The writer has committed something with this connection.
    pub(crate) fn committed(&self, connection: &Connection) {
        match self.log.load(Ordering::Relaxed) {
            // A log that can not be folded in now goes on growing; the next commit tries again.
            TOO_LONG.. => drop(fold_log(connection)),
            // When much is asked already, somebody looks anyway.
            LONG.. => drop(self.asked.try_send(Asked::Look)),
            _ => {}
        }
    }
}

struct Syncing {
    path: PathBuf,
    log: Arc<AtomicU32>,
    /// By which the log is folded into the file; none until it is long for the first time.
    folding: Option<Connection>,
}

impl Syncing {
    fn run(mut self, asking: &Receiver<Asked>) {
        while let Ok(first) = asking.recv() {
            let all = std::iter::once(first).chain(asking.try_iter());
            let waiting: Vec<_> = all
                .filter_map(|asked| match asked {
                    Asked::Sync(tell) => Some(tell),
                    Asked::Look => None,
                })
                .collect();
            if !waiting.is_empty() {
                let synced = sync(&place::beside(&self.path, "-wal"));
                // Whoever does not wait any more needs no answer.
                waiting.iter().for_each(|tell| drop(tell.send(synced.clone())));
            }
            if self.log.load(Ordering::Relaxed) >= LONG {
                // A log that could not be folded in grows until it can; the next look tries again.
                let _ = self.fold_log();
            }
        }
    }

    fn fold_log(&mut self) -> Result<(), Error> {
        let connection = match self.folding.take() {
            Some(connection) => connection,
            None => archive::open_for_writing(&self.path)?,
        };
        if fold_log(&connection)? {
            self.log.store(0, Ordering::Relaxed);
        }
        self.folding = Some(connection);
        Ok(())
    }
}

/// Copies the log into the file; says whether that was all of it, so that the writer begins it anew. Nobody waits
/// meanwhile but whoever does this.
fn fold_log(connection: &Connection) -> Result<bool, Error> {
    Ok(connection
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?))?)
}

fn sync(log: &Path) -> Result<(), Error> {
    // Whoever syncs a file syncs all that was written to it, by whomever.
    let file = File::options().append(true).open(log).map_err(|error| Error::io("open", log, &error))?;
    file.sync_data().map_err(|error| Error::io("sync", log, &error))
}
