//! What happens to a session that is brought into its window.
//!
//! A trace is `Started`, maybe `Truncated`, and then exactly one of `Completed` and `Failed`, also when the
//! future is dropped on the way. Events carry numbers and never contents.

use std::sync::atomic::{AtomicU64, Ordering};

use foldline::{Handle, Tokens};
use serde::Serialize;

use crate::progress::ProgressEvent;

/// By what a session was brought into its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EnforceStrategy {
    /// A summary that was prepared before.
    Prepared,
    /// A summary by a model.
    ModelSummary,
    /// The highest ranking passages, by code.
    Excerpt,
    /// Only the newest messages and the words of users are left.
    Truncate,
}

/// Something happened; all events of one call have the same trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CascadeEvent {
    /// Which call.
    pub trace: u64,
    /// What happened.
    #[serde(flatten)]
    pub step: CascadeStep,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CascadeStep {
    /// The session is above its budget.
    Started {
        /// Its tokens.
        before: Tokens,
        /// Tokens that it may have.
        budget: Tokens,
        /// Why something is done.
        reason: &'static str,
    },
    /// The summariser works.
    Progress(ProgressEvent),
    /// Whole rounds were dropped without a summary, or texts were cut.
    Truncated {
        /// Tokens that went.
        dropped: Tokens,
        /// The address of what went.
        archived: Handle,
    },
    /// The session fits.
    Completed {
        /// By what.
        strategy: EnforceStrategy,
        /// Tokens before.
        before: Tokens,
        /// Tokens after.
        after: Tokens,
        /// Tokens that it may have.
        budget: Tokens,
        /// Messages that stayed as they were.
        kept: usize,
        /// The address of what went.
        archived: Handle,
    },
    /// The session is as it was before.
    Failed {
        /// Why.
        why: String,
        /// Tokens before, and still.
        before: Tokens,
        /// Tokens that it may have.
        budget: Tokens,
    },
}

/// Hears of events. It must not block.
pub type CascadeListener<'l> = &'l (dyn Fn(CascadeEvent) + Send + Sync);

/// The trace of one call. Dropped before its end, it tells that.
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
            let why = "given up before the end".to_owned();
            self.emit(CascadeStep::Failed { why, before: self.before, budget: self.budget });
        }
    }
}
