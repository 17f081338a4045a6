//! The number of client connections, limited so that file descriptors remain for the upstream connections that their
//! requests need.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// File descriptors for everything that is not a connection: archive, log, listener, runtime.
const RESERVED_FILES: u64 = 64;
/// Connections that are accepted whatever the limit on file descriptors.
const MIN_CONNECTIONS: u64 = 16;

/// A limit on client connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimit {
    permits: Arc<Semaphore>,
}

impl ConnectionLimit {
    /// Returns the limit for this process.
    pub(crate) fn for_process() -> Self {
        let limit = max_connections(open_file_limit());
        Self { permits: Arc::new(Semaphore::new(limit)) }
    }

    /// Waits until another connection may be accepted. The permit belongs to the connection.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        if self.permits.available_permits() == 0 {
            tracing::warn!("limit on connections reached; waiting (raise the limit on open files)");
        }
        self.permits.clone().acquire_owned().await.ok()
    }
}

/// Returns the most client connections with this limit on open files: each may need an upstream connection.
fn max_connections(open_files: Option<u64>) -> usize {
    let connections = open_files.map_or(u64::MAX, |files| files.saturating_sub(RESERVED_FILES) / 2);
    usize::try_from(connections.max(MIN_CONNECTIONS)).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

#[cfg(unix)]
fn open_file_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(unix))]
fn open_file_limit() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_open_files_remain_for_upstreams() {
        assert_eq!(max_connections(Some(1024)), 480);
        assert_eq!(max_connections(Some(32)), 16);
        assert_eq!(max_connections(None), Semaphore::MAX_PERMITS);
        assert_eq!(max_connections(Some(u64::MAX)), Semaphore::MAX_PERMITS);
    }
}
