//! What other policies would have done with recorded sessions.
//!
//! The proxy stores no request bodies, so the sessions come from the logs that agents keep on this machine. Reading and
//! replaying them is the caller's part ([`PolicyReplay`]); here is the state of the one comparison that runs at a time.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

/// Replays recorded sessions of this machine under several policies.
pub trait PolicyReplay: Debug + Send + Sync {
    /// Replays the newest sessions. Called on a blocking thread.
    ///
    /// # Errors
    ///
    /// A sentence for the user: why nothing was compared.
    fn compare(&self) -> Result<PolicyReport, String>;
}

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    /// Number of sessions.
    pub sessions: usize,
    /// One row per policy.
    pub rows: Vec<PolicyRow>,
}

/// The numbers of a policy. Costs and tokens are shares of no compaction.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyRow {
    /// Name of the policy.
    pub policy: String,
    /// True if it is the policy of this proxy.
    pub is_current: bool,
    /// Input tokens.
    pub tokens: f64,
    /// Cost.
    pub cost: f64,
    /// Cost including retries.
    pub cost_with_retries: f64,
    /// Share of the needed context that was kept.
    pub needed_context_kept: f64,
}

/// The comparison of a proxy.
pub(crate) struct PolicyComparison {
    replay: Option<Arc<dyn PolicyReplay>>,
    progress: Mutex<ComparisonProgress>,
}

#[derive(Clone)]
enum ComparisonProgress {
    Idle,
    Running,
    Done(PolicyReport),
    Failed(String),
}

/// Commands that compare policies in detail.
const COMMANDS: [&str; 2] =
    ["foldline replay ~/.claude/projects --html report.html", "foldline replay ~/.codex/sessions --html report.html"];

impl PolicyComparison {
    /// Creates a comparison; without `replay` there is none.
    pub(crate) fn new(replay: Option<Arc<dyn PolicyReplay>>) -> Self {
        Self { replay, progress: Mutex::new(ComparisonProgress::Idle) }
    }

    /// Starts a comparison on a blocking thread, unless one is running or the proxy has none.
    pub(crate) fn start(self: &Arc<Self>) {
        let Some(replay) = self.replay.clone() else { return };
        let mut progress = self.progress();
        if matches!(*progress, ComparisonProgress::Running) {
            return;
        }
        *progress = ComparisonProgress::Running;
        drop(progress);
        let comparison = self.clone();
        tokio::spawn(async move {
            let compared = tokio::task::spawn_blocking(move || replay.compare()).await;
            *comparison.progress() = match compared {
                Ok(Ok(report)) => ComparisonProgress::Done(report),
                Ok(Err(reason)) => ComparisonProgress::Failed(reason),
                Err(_) => ComparisonProgress::Failed("the replay failed; the log has the reason".into()),
            };
        });
    }

    /// Returns the answer of `policies`.
    pub(crate) fn answer(&self) -> Value {
        let (state, reason, report) = match (&self.replay, self.progress().clone()) {
            (None, _) => ("unavailable", UNAVAILABLE.to_owned(), None),
            (_, ComparisonProgress::Idle) => ("ready", READY.to_owned(), None),
            (_, ComparisonProgress::Running) => ("running", String::new(), None),
            (_, ComparisonProgress::Failed(reason)) => ("ready", reason, None),
            (_, ComparisonProgress::Done(report)) => ("done", DETAILS.to_owned(), Some(report)),
        };
        json!({
            "state": state,
            "reason": reason,
            "commands": if state == "running" { &[][..] } else { &COMMANDS[..] },
            "sessions": report.as_ref().map_or(0, |report| report.sessions),
            "rows": report.map(|report| report.rows).unwrap_or_default(),
        })
    }

    fn progress(&self) -> MutexGuard<'_, ComparisonProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const UNAVAILABLE: &str = "The proxy does not store request bodies, so it cannot run them again, and a proxy with several \
                           users does not read the logs of one of them. On the machine of an agent, its logs can be \
                           replayed under every policy:";
const READY: &str = "The proxy does not store request bodies, so it cannot run them again. The logs that agents keep on \
                     this machine can be replayed under every policy, here with the newest sessions, or in detail:";
const DETAILS: &str = "In detail, with every session and what would have been missed:";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct OneRow;

    impl PolicyReplay for OneRow {
        fn compare(&self) -> Result<PolicyReport, String> {
            let row = PolicyRow {
                policy: "tight".into(),
                is_current: true,
                tokens: 0.3,
                cost: 0.5,
                cost_with_retries: 0.6,
                needed_context_kept: 0.9,
            };
            Ok(PolicyReport { sessions: 4, rows: vec![row] })
        }
    }

    #[tokio::test]
    async fn comparison_runs_once_and_keeps_its_result() {
        let comparison = Arc::new(PolicyComparison::new(Some(Arc::new(OneRow))));
        assert_eq!(comparison.answer()["state"], "ready");
        comparison.start();
        comparison.start();
        while comparison.answer()["state"] == "running" {
            tokio::task::yield_now().await;
        }
        let answer = comparison.answer();
        assert_eq!((&answer["state"], &answer["sessions"]), (&json!("done"), &json!(4)));
        assert_eq!(answer["rows"][0]["cost_with_retries"], 0.6);
    }

    #[tokio::test]
    async fn proxy_without_recordings_gives_the_reason() {
        let comparison = Arc::new(PolicyComparison::new(None));
        comparison.start();
        assert_eq!(comparison.answer()["state"], "unavailable");
    }
}
