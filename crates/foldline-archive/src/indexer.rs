//! A thread that keeps the search index near the archive, so that a search seldom has much to catch
//! up on. It waits a little after each keep, works in small steps, and stops between two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::index::Step;
use crate::store::Store;
use crate::{Error, ErrorKind};

/// How long it lets keeps gather before it takes them in.
const REST: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Indexer {
    bell: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Indexer {
    pub(crate) fn start(store: Arc<Store>) -> Result<Self, Error> {
        let (bell, rung) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while rung.recv().is_ok() {
                let until = Instant::now() + REST;
                while let Some(left) = until.checked_duration_since(Instant::now()) {
                    // Whoever closes the archive meanwhile is not kept waiting.
                    if rung.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                }
                // A fault shows when somebody searches; until then the index may lag.
                while !stopped.load(Ordering::Relaxed) && matches!(store.index.catch_up(&store), Ok(Step::Forward)) {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("foldline-index".into())
            .spawn(work)
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not start the archive's indexer: {error}")))?;
        Ok(Self { bell: Some(bell), stop, thread: Some(thread) })
    }

    pub(crate) fn wake(&self) {
        if let Some(bell) = &self.bell {
            // When it has been rung already, that is enough.
            let _ = bell.try_send(());
        }
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.bell.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
