//! Events of a session that is brought into its window.
//!
//! A trace is `Started`, optionally `Truncated`, and then exactly one of `Completed` and `Failed`, even if the
//! future is dropped midway. Events contain numbers and never contents.

use std::sync::atomic::{AtomicU64, Ordering};

use foldline::{Handle, Tokens};
use serde::Serialize;

use crate::progress::ProgressEvent;

/// The strategy by which a session was brought into its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EnforceStrategy {
    /// A prepared summary.
    Prepared,
    /// A summary by a model.
    ModelSummary,
    /// The highest ranking passages, by code.
    Excerpt,
    /// Only the newest messages and the user's texts are left.
    Truncate,
}

/// An event; all events of one call have the same trace id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CascadeEvent {
    /// The trace id of the call.
    pub trace: u64,
    /// The step.
    #[serde(flatten)]
    pub step: CascadeStep,
}

/// A step of the cascade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CascadeStep {
    /// The session exceeds its budget.
    Started {
        /// Its tokens.
        before: Tokens,
        /// The budget in tokens.
        budget: Tokens,
        /// The reason.
        reason: &'static str,
    },
    /// Progress of the summarizer.
    Progress(ProgressEvent),
    /// Whole rounds were dropped without a summary, or texts were cut.
    Truncated {
        /// Tokens that were dropped.
        dropped: Tokens,
        /// The handle of the dropped messages.
        archived: Handle,
    },
    /// The session fits.
    Completed {
        /// The strategy.
        strategy: EnforceStrategy,
        /// Tokens before.
        before: Tokens,
        /// Tokens after.
        after: Tokens,
        /// The budget in tokens.
        budget: Tokens,
        /// Number of unchanged messages.
        kept: usize,
        /// The handle of the dropped messages.
        archived: Handle,
    },
    /// The session is unchanged.
    Failed {
        /// The reason.
        why: String,
        /// Tokens before and after.
        before: Tokens,
        /// The budget in tokens.
        budget: Tokens,
    },
}

/// Receives events. It must not block.
pub type CascadeListener<'l> = &'l (dyn Fn(CascadeEvent) + Send + Sync);

/// The trace of one call. Dropping it before its end emits a failure.
pub(crate) struct CascadeTrace<'l> {
    pub(crate) id: u64,
    listener: CascadeListener<'l>,
    before: Tokens,
    budget: Tokens,
    is_ended: bool,
}

impl<'l> CascadeTrace<'l> {
    pub(crate) fn start(before: Tokens, budget: Tokens, listener: CascadeListener<'l>) -> Self {
        static NEXT_TRACE_ID: AtomicU64 = AtomicU64::new(1);
        let trace =
            Self { id: NEXT_TRACE_ID.fetch_add(1, Ordering::Relaxed), listener, before, budget, is_ended: false };
        trace.emit(CascadeStep::Started { before, budget, reason: "above the budget" });
        trace
    }

    pub(crate) fn emit(&self, step: CascadeStep) {
        (self.listener)(CascadeEvent { trace: self.id, step });
    }

    pub(crate) fn complete(mut self, strategy: EnforceStrategy, after: Tokens, kept: usize, archived: Handle) {
        self.is_ended = true;
        self.emit(CascadeStep::Completed { strategy, before: self.before, after, budget: self.budget, kept, archived });
    }

    pub(crate) fn fail(mut self, why: &str) {
        self.is_ended = true;
        self.emit(CascadeStep::Failed { why: why.to_owned(), before: self.before, budget: self.budget });
    }
}

impl Drop for CascadeTrace<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            let why = "aborted before the end".to_owned();
            self.emit(CascadeStep::Failed { why, before: self.before, budget: self.budget });
        }
    }
}
