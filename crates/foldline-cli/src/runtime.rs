//! The runtime of a process that serves requests, and its timely end, even if work is still running.

use std::io;
use std::time::Duration;

use foldline_archive::Archive;
use tokio::runtime::Runtime;

/// Time after which an idle thread for folds ends. A counter caches words per thread, and an agent's turns are
/// usually further apart than the default of ten seconds: then each turn would start a thread and build its tables,
/// almost a third of the instructions of a turn (docs/measurements/proxy-overhead.md).
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Time for canceled folds to end and for the archive to close, after the last request. Together with the drain time
/// of responses it stays within the 30 seconds after which service managers kill a process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Creates the runtime.
pub(crate) fn build() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().thread_keep_alive(IDLE_THREAD_TIMEOUT).build()
}

/// Shuts down a runtime and closes the archive. Work that exceeds the timeout is abandoned; an archive that
/// was not closed is complete nevertheless.
pub(crate) fn end(runtime: Runtime, archive: Option<Archive>) {
    // Closing waits for the disk, so it runs on a thread that can be abandoned.
    runtime.spawn_blocking(move || drop(archive));
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn busy_thread_does_not_delay_shutdown() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (started, starting) = mpsc::channel();
        runtime.spawn_blocking(move || {
            started.send(()).unwrap();
            thread::sleep(Duration::from_secs(60));
        });
        starting.recv().unwrap();
        let began = Instant::now();
        end(runtime, None);
        assert!(began.elapsed() < CLOSE_TIMEOUT + Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
