//! Readiness: whether the archive's database answers, asked at most once a second.

use std::time::{Duration, Instant};

use foldline_archive::Archive;
use tokio::sync::Mutex;

/// Time for which an answer of the database is used again.
const ANSWER_LIFETIME: Duration = Duration::from_secs(1);

/// The last answer of the archive's database.
#[derive(Default)]
pub(crate) struct ReadinessProbe {
    last: Mutex<Option<(Instant, bool)>>,
}

impl ReadinessProbe {
    /// Returns true if the archive's database answers. Concurrent callers share one question.
    pub(crate) async fn is_reachable(&self, archive: Option<&Archive>) -> bool {
        let Some(archive) = archive.cloned() else { return true };
        let mut last = self.last.lock().await;
        if let Some((at, is_reachable)) = *last
            && at.elapsed() < ANSWER_LIFETIME
        {
            return is_reachable;
        }
        let is_reachable = match tokio::task::spawn_blocking(move || archive.ping()).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "not ready: the archive is not reachable");
                false
            }
            Err(_) => false,
        };
        *last = Some((Instant::now(), is_reachable));
        is_reachable
    }
}
