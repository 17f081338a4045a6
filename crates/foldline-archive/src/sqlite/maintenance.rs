//! The keeper: a thread that keeps the house while nobody waits for it. It brings the search index up to
//! date, so that a search seldom has much to catch up on, and packs small packs together. It rests a
//! little after each keep, works in small steps, and stops between two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::originals::repack;
use crate::sqlite::store::SqliteStore;
use crate::sqlite::writer::WriteQueue;
use crate::{Error, ErrorKind};

/// It begins when nobody has kept anything for so long, and after so long at the latest: whoever keeps has requests to
/// answer, and whoever searches does not wait for it.
const IDLE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// How far a piece of its work went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkProgress {
    /// Something was done; there may be more.
    Advanced,
    /// There was nothing to do.
    Idle,
}

#[derive(Debug)]
pub(crate) struct MaintenanceThread {
    signal: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MaintenanceThread {
    pub(crate) fn start(store: Arc<SqliteStore>, writer: WriteQueue) -> Result<Self, Error> {
        let (bell, rung) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while rung.recv().is_ok() {
                let latest = Instant::now() + MAX_DELAY;
                while Instant::now() < latest {
                    match rung.recv_timeout(IDLE_DELAY) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Timeout) => break,
                        // Whoever closes the archive meanwhile is not kept waiting for long. Where every process
                        // closes it soon, this is the only time at which small packs can move together.
                        Err(RecvTimeoutError::Disconnected) => {
                            let _ = repack::merge_small_packs(&store, &writer);
                            return;
                        }
                    }
                }
                // A fault shows when somebody searches, keeps or verifies; until then the house may wait.
                let goes_on = || !stopped.load(Ordering::Relaxed);
                let forward = |step| matches!(step, Ok(WorkProgress::Advanced));
                while goes_on() {
                    // Small packs come first: where others keep all the time, the index is never done.
                    while goes_on() && forward(repack::merge_small_packs(&store, &writer)) {}
                    if !forward(store.index.catch_up(&store)) {
                        break;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("foldline-keeper".into())
            .spawn(work)
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not start the archive's keeper: {error}")))?;
        Ok(Self { signal: Some(bell), stop, thread: Some(thread) })
    }

    pub(crate) fn wake(&self) {
        if let Some(bell) = &self.signal {
            // When it has been rung already, that is enough.
            let _ = bell.try_send(());
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
