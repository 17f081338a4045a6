//! The one writer: a thread with the only writing connection, and group commits.
//!
//! Whoever wants to write hands over a piece of work and waits. The thread takes all that has
//! arrived, does it in one transaction (each piece in a savepoint of its own, so that a bad one
//! does not spoil the others), commits, and only then answers. What is committed is written; who wants it on disk waits
//! for [`Disk`] beside, and the writer goes on.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::sqlite::sync::{SyncHandle, SyncQueue};
use crate::{Error, ErrorKind};

/// How many pieces of work may wait, and how many one commit takes at most.
const MAX_QUEUED_JOBS: usize = 1024;

/// A piece of work. It runs inside the transaction, or hears why there is none, and gives back how to
/// tell its caller.
type WriteJob = Box<dyn FnOnce(Result<&Connection, Error>) -> CommitCallback + Send>;

/// Tells the caller how the work went, once it is known how the commit went.
type CommitCallback = Box<dyn FnOnce(Result<(), Error>)>;

#[derive(Debug)]
pub(crate) struct WriterThread {
    queue: Option<WriteQueue>,
    /// What writes, and what syncs.
    threads: Vec<JoinHandle<()>>,
}

/// Where work is handed over. The writer goes on until the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct WriteQueue {
    jobs: SyncSender<WriteJob>,
    sync: SyncQueue,
}

impl WriterThread {
    pub(crate) fn start(mut connection: Connection, path: &Path) -> Result<Self, Error> {
        let (work, waiting) = sync_channel(MAX_QUEUED_JOBS);
        let (disk, syncing) = SyncQueue::new(path);
        let log = disk.wal_pages.clone();
        connection.wal_hook(Some(move |_: &mut _, pages| {
            log.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let beside = disk.clone();
        let writing = spawn_thread("foldline-archive", move || run_writer(&connection, &waiting, &beside))?;
        let threads = vec![writing, spawn_thread("foldline-disk", syncing)?];
        Ok(Self { queue: Some(WriteQueue { jobs: work, sync: disk }), threads })
    }

    /// Where work is handed over.
    pub(crate) fn queue(&self) -> &WriteQueue {
        self.queue.as_ref().expect("it is there until the writer is dropped")
    }
}

impl WriteQueue {
    /// Does the work in a transaction and waits until it is on disk.
    pub(crate) fn write_durably<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.write(work)?;
        self.request_sync().wait()?;
        Ok(done)
    }

    /// Waits for the disk, for all that is written by now.
    pub(crate) fn request_sync(&self) -> SyncHandle {
        self.sync.request_sync()
    }

    /// Does the work in a transaction and waits until it is written.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        let work: WriteJob = Box::new(move |connection| {
            let outcome = connection.and_then(|connection| in_savepoint(connection, work));
            Box::new(move |committed| {
                // The caller may have been dropped meanwhile; the work is done all the same.
                let _ = answer.send(committed.and(outcome));
            })
        });
        self.jobs.send(work).map_err(|_| stopped_error())?;
        answered.recv().map_err(|_| stopped_error())?
    }

    /// Does the work some time soon, without waiting for it. When too much is waiting already the
    /// work is dropped, so this is for what will be said again, such as that a marker is still in use.
    pub(crate) fn enqueue(&self, work: impl FnOnce(&Connection) -> Result<(), Error> + Send + 'static) {
        let work: WriteJob = Box::new(move |connection| {
            let _ = connection.and_then(|connection| in_savepoint(connection, work));
            Box::new(|_| ())
        });
        match self.jobs.try_send(work) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

impl Drop for WriterThread {
    /// Finishes what was handed over, then closes the connection.
    fn drop(&mut self) {
        drop(self.queue.take());
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.map_err(|error| Error::new(ErrorKind::Io, format!("could not start a thread of the archive: {error}")))
}

fn stopped_error() -> Error {
    Error::new(ErrorKind::Io, "the archive's writer has stopped")
}

fn run_writer(connection: &Connection, queue: &Receiver<WriteJob>, disk: &SyncQueue) {
    let mut company = WriterContention::default();
    while let Ok(first) = queue.recv() {
        let mut batch = std::iter::once(first).chain(queue.try_iter().take(MAX_QUEUED_JOBS - 1)).peekable();
        while batch.peek().is_some() {
            commit_batch(connection, &mut batch, &mut company);
            disk.after_commit(connection);
            company.yield_to_others();
        }
    }
}

/// Whether another process writes to the same file. SQLite has no queue for writers: one that goes
/// on without a pause starves the other. So whoever had to wait pauses for a while after each commit.
#[derive(Default)]
struct WriterContention {
    until: Option<Instant>,
}

impl WriterContention {
    /// A wait longer than this was for another process.
    const CONTENTION_WAIT: Duration = Duration::from_millis(1);
    /// Long enough for one that looks every millisecond.
    const YIELD_DELAY: Duration = Duration::from_millis(2);
    /// How long the other is expected to stay.
    const CONTENTION_MEMORY: Duration = Duration::from_secs(2);

    fn record_wait(&mut self, since: Instant) {
        if since.elapsed() > Self::CONTENTION_WAIT {
            self.until = Some(Instant::now() + Self::CONTENTION_MEMORY);
        }
    }

    fn yield_to_others(&self) {
        if self.until.is_some_and(|until| Instant::now() < until) {
            std::thread::sleep(Self::YIELD_DELAY);
        }
    }
}

/// Commits as much of the batch as one transaction takes: all of it, unless the database gave the
/// transaction up halfway (a full disk does that). The rest is then tried in another.
fn commit_batch(connection: &Connection, batch: &mut impl Iterator<Item = WriteJob>, company: &mut WriterContention) {
    let asked = Instant::now();
    if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE").map_err(Error::from) {
        // The next in line would wait for the same lock in vain, so all of them hear of it.
        batch.for_each(|work| work(Err(error.clone()))(Ok(())));
        return;
    }
    company.record_wait(asked);
    let mut told: Vec<CommitCallback> = Vec::new();
    for work in batch {
        told.push(work(Ok(connection)));
        if connection.is_autocommit() {
            let lost = "the database gave up the transaction, most likely because the disk is full";
            let lost = Error::new(ErrorKind::DiskFull, lost);
            told.into_iter().for_each(|tell| tell(Err(lost.clone())));
            return;
        }
    }
    let committed = connection.execute_batch("COMMIT").map_err(Error::from);
    if committed.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    told.into_iter().for_each(|tell| tell(committed.clone()));
}

fn in_savepoint<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
    connection.execute_batch("SAVEPOINT work")?;
    let outcome = work(connection);
    match &outcome {
        Ok(_) => connection.execute_batch("RELEASE work")?,
        Err(_) if connection.is_autocommit() => {}
        Err(_) => connection.execute_batch("ROLLBACK TO work; RELEASE work")?,
    }
    outcome
}
