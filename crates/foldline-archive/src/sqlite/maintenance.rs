//! Background maintenance: a thread that updates the search index, so that a search rarely has much to catch up on,
//! and merges small packs. It starts after a short idle time, works in small steps, and stops between two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::sqlite::readers::ReaderPool;
use crate::sqlite::repack;
use crate::sqlite::search_index::SearchIndex;
use crate::sqlite::work_progress::WorkProgress;
use crate::sqlite::writer::WriteQueue;

/// Maintenance starts after this time without a store call, or after the maximum delay, so that it does not compete
/// with requests; searches do not wait for it.
const IDLE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct MaintenanceThread {
    signal: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MaintenanceThread {
    pub(crate) fn start(readers: Arc<ReaderPool>, index: Arc<SearchIndex>, writer: WriteQueue) -> Result<Self, Error> {
        let (signal, signals) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while signals.recv().is_ok() {
                let latest = Instant::now() + MAX_DELAY;
                while Instant::now() < latest {
                    match signals.recv_timeout(IDLE_DELAY) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Timeout) => break,
                        // Closing the archive must not wait long. If every process closes it soon, this is the only
                        // opportunity to merge small packs.
                        Err(RecvTimeoutError::Disconnected) => {
                            let _ = repack::merge_small_packs(&readers, &writer);
                            return;
                        }
                    }
                }
                // Errors are ignored here: they appear on the next search, store or verify.
                let running = || !stopped.load(Ordering::Relaxed);
                let advanced = |step| matches!(step, Ok(WorkProgress::Advanced));
                while running() {
                    // Small packs first: while other processes keep storing, the index is never complete.
                    while running() && advanced(repack::merge_small_packs(&readers, &writer)) {}
                    if !advanced(index.catch_up(&readers)) {
                        break;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("foldline-maint".into())
            .spawn(work)
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not start the maintenance thread: {error}")))?;
        Ok(Self { signal: Some(signal), stop, thread: Some(thread) })
    }

    pub(crate) fn wake(&self) {
        if let Some(signal) = &self.signal {
            // A full channel means that a signal is already pending.
            let _ = signal.try_send(());
        }
    }
}

impl Drop for MaintenanceThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.signal.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
