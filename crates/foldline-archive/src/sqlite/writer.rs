//! The writer: a thread with the only write connection, and group commits.
//!
//! A caller submits a job and waits. The thread takes all queued jobs, runs them in one transaction (each in its own
//! savepoint, so that a failing job does not affect the others), commits, and only then answers. A caller that needs
//! the data on disk also waits for a [`SyncHandle`]; the writer continues meanwhile.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::{Error, ErrorKind};
use crate::sqlite::connection::FileIdentity;
use crate::sqlite::sync::{self, SyncQueue};
use crate::sync_handle::SyncHandle;

/// Maximum number of queued jobs, and of jobs in one commit.
const MAX_QUEUED_JOBS: usize = 1024;

/// A write job. It runs inside the transaction, or receives the reason why there is none, and returns a callback for
/// its caller.
type WriteJob = Box<dyn FnOnce(Result<&Connection, Error>) -> CommitCallback + Send>;

/// Reports the result to the caller after the commit.
type CommitCallback = Box<dyn FnOnce(Result<(), Error>)>;

#[derive(Debug)]
pub(crate) struct WriterThread {
    queue: Option<WriteQueue>,
    /// The writer thread and the sync thread.
    threads: Vec<JoinHandle<()>>,
}

/// The queue of write jobs. The writer runs until the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct WriteQueue {
    jobs: SyncSender<WriteJob>,
    sync: SyncQueue,
}

impl WriterThread {
    pub(crate) fn start(mut connection: Connection, path: &Path, file: Option<FileIdentity>) -> Result<Self, Error> {
        let (jobs, receiver) = sync_channel(MAX_QUEUED_JOBS);
        let (sync, run_sync) = SyncQueue::new(path, file);
        let wal_pages = sync.wal_pages.clone();
        connection.wal_hook(Some(move |_: &mut _, pages| {
            wal_pages.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let writer_sync = sync.clone();
        let writer = spawn_thread("foldline-writer", move || run_writer(&connection, &receiver, &writer_sync))?;
        let threads = vec![writer, spawn_thread("foldline-sync", run_sync)?];
        Ok(Self { queue: Some(WriteQueue { jobs, sync }), threads })
    }

    /// Returns the write queue.
    pub(crate) fn queue(&self) -> &WriteQueue {
        self.queue.as_ref().expect("the queue exists until the writer is dropped")
    }
}

impl WriteQueue {
    /// Runs a job in a transaction and waits until it is on disk.
    pub(crate) fn write_durably<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.write(job)?;
        self.request_sync().wait()?;
        Ok(done)
    }

    /// Requests a sync of everything written so far.
    pub(crate) fn request_sync(&self) -> SyncHandle {
        self.sync.request_sync()
    }

    /// Runs a job in a transaction and waits until it is committed.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        let job: WriteJob = Box::new(move |connection| {
            let outcome = connection.and_then(|connection| in_savepoint(connection, job));
            Box::new(move |committed| {
                // The caller may be gone; the job is done nevertheless.
                let _ = answer.send(committed.and(outcome));
            })
        });
        self.jobs.send(job).map_err(|_| stopped_error())?;
        answered.recv().map_err(|_| stopped_error())?
    }

    /// Waits until the jobs that were queued before are committed or dropped, at most this long. Returns false if it was
    /// too short.
    pub(crate) fn flush(&self, limit: Duration) -> Result<bool, Error> {
        let (answer, answered) = sync_channel(1);
        let job: WriteJob = Box::new(move |_| {
            Box::new(move |_| {
                // The caller may have stopped waiting.
                let _ = answer.send(());
            })
        });
        let deadline = Instant::now() + limit;
        let mut job = Some(job);
        while let Some(queued) = job.take() {
            match self.jobs.try_send(queued) {
                Ok(()) => {}
                Err(TrySendError::Disconnected(_)) => return Err(stopped_error()),
                Err(TrySendError::Full(_)) if Instant::now() >= deadline => return Ok(false),
                Err(TrySendError::Full(rejected)) => {
                    std::thread::sleep(Duration::from_millis(1));
                    job = Some(rejected);
                }
            }
        }
        Ok(answered.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok())
    }

    /// Queues a job without waiting for it. A full queue drops the job, so this is only for writes that are repeated
    /// later, such as touching a marker.
    pub(crate) fn enqueue(&self, job: impl FnOnce(&Connection) -> Result<(), Error> + Send + 'static) {
        let job: WriteJob = Box::new(move |connection| {
            let _ = connection.and_then(|connection| in_savepoint(connection, job));
            Box::new(|_| ())
        });
        match self.jobs.try_send(job) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

impl Drop for WriterThread {
    /// Finishes the queued jobs, then closes the connection.
    fn drop(&mut self) {
        drop(self.queue.take());
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn spawn_thread(name: &str, job: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let started = std::thread::Builder::new().name(name.into()).spawn(job);
    started.map_err(|error| Error::new(ErrorKind::Io, format!("could not start the thread {name}: {error}")))
}

fn stopped_error() -> Error {
    Error::new(ErrorKind::Io, "the archive's writer thread has stopped")
}

fn run_writer(connection: &Connection, queue: &Receiver<WriteJob>, sync: &SyncQueue) {
    let mut contention = WriterContention::default();
    while let Ok(first) = queue.recv() {
        let mut batch = std::iter::once(first).chain(queue.try_iter().take(MAX_QUEUED_JOBS - 1)).peekable();
        while batch.peek().is_some() {
            commit_batch(connection, &mut batch, &mut contention);
            sync.after_commit(connection);
            contention.yield_to_others();
        }
    }
    // Closing the connection does this too, unless the file was moved.
    let _ = sync::checkpoint_wal(connection);
}

/// Contention with another process that writes to the same file. SQLite does not queue writers: one that never pauses
/// starves the others. Therefore a writer that had to wait pauses after each commit for a while.
#[derive(Default)]
struct WriterContention {
    until: Option<Instant>,
}

impl WriterContention {
    /// A longer wait was caused by another process.
    const CONTENTION_WAIT: Duration = Duration::from_millis(1);
    /// Pause after a commit; long enough for a process that polls every millisecond.
    const YIELD_DELAY: Duration = Duration::from_millis(2);
    /// Time for which contention is assumed to last.
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

/// Commits as many jobs of the batch as one transaction takes: all of them, unless the database aborted the
/// transaction halfway (a full disk does that). The rest is retried in another transaction.
fn commit_batch(
    connection: &Connection,
    batch: &mut impl Iterator<Item = WriteJob>,
    contention: &mut WriterContention,
) {
    let started = Instant::now();
    if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE").map_err(Error::from) {
        // The other jobs would wait for the same lock, so all of them get the error.
        batch.for_each(|job| job(Err(error.clone()))(Ok(())));
        return;
    }
    contention.record_wait(started);
    let mut callbacks: Vec<CommitCallback> = Vec::new();
    for job in batch {
        callbacks.push(job(Ok(connection)));
        if connection.is_autocommit() {
            let lost = "the database aborted the transaction, probably because the disk is full";
            let lost = Error::new(ErrorKind::DiskFull, lost);
            callbacks.into_iter().for_each(|callback| callback(Err(lost.clone())));
            return;
        }
    }
    let committed = connection.execute_batch("COMMIT").map_err(Error::from);
    if committed.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    callbacks.into_iter().for_each(|callback| callback(committed.clone()));
}

fn in_savepoint<T>(connection: &Connection, job: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
    connection.execute_batch("SAVEPOINT work")?;
    let outcome = job(connection);
    match &outcome {
        Ok(_) => connection.execute_batch("RELEASE work")?,
        Err(_) if connection.is_autocommit() => {}
        Err(_) => connection.execute_batch("ROLLBACK TO work; RELEASE work")?,
    }
    outcome
}
