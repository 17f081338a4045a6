//! Events of a session that is brought into its window.
//!
//! A trace is `Started`, optionally `Truncated`, and then exactly one of `Completed` and `Failed`, even if the
//! future is dropped midway. Events contain numbers and never contents.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldline::Handle;
use foldline::tokens::Tokens;
use serde::{Deserialize, Serialize};

use crate::progress::{ForwardedEvent, ProgressEvent};

/// The strategy by which a session was brought into its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// The id of a trace: unique across processes, ascending within one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceId(u128);

impl TraceId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // The standard library's hasher has random keys in every process.
        static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
        Self(u128::from(*PROCESS) << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl FromStr for TraceId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl TryFrom<String> for TraceId {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TraceId> for String {
    fn from(id: TraceId) -> Self {
        id.to_string()
    }
}

/// The state of a session after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureFallback {
    /// The session is unchanged; the caller may send it as it is, or not at all.
    Unchanged,
}

/// An event; all events of one call have the same trace id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CascadeEvent {
    /// The trace id of the call.
    pub trace: TraceId,
    /// The step.
    #[serde(flatten)]
    pub step: CascadeStep,
}

/// A step of the cascade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        reason: Cow<'static, str>,
    },
    /// Progress of the summarizer.
    Progress(ProgressEvent),
    /// Whole rounds were dropped without a summary, or texts were cut.
    Truncated {
        /// Tokens that were dropped.
        dropped: Tokens,
        /// The handle of the dropped messages, if a store holds them.
        archived: Option<Handle>,
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
        /// The handle of the dropped messages, if a store holds them.
        archived: Option<Handle>,
    },
    /// The session is unchanged.
    Failed {
        /// The reason.
        why: String,
        /// The fallback that was used.
        fallback: FailureFallback,
        /// Tokens before.
        before: Tokens,
        /// Tokens after: as many as before.
        after: Tokens,
        /// The budget in tokens.
        budget: Tokens,
        /// Number of unchanged messages: all of them.
        kept: usize,
    },
}

impl CascadeEvent {
    /// Returns true for the last event of a trace.
    pub fn is_terminal(&self) -> bool {
        matches!(self.step, CascadeStep::Completed { .. } | CascadeStep::Failed { .. })
    }
}

impl ForwardedEvent for CascadeEvent {
    fn is_terminal(&self) -> bool {
        CascadeEvent::is_terminal(self)
    }
}

/// Receives events. It must not block.
pub type CascadeListener<'l> = &'l (dyn Fn(CascadeEvent) + Send + Sync);

/// The trace of one call. Dropping it before its end emits a failure.
pub(crate) struct CascadeTrace<'l> {
    id: TraceId,
    listener: CascadeListener<'l>,
    before: Tokens,
    budget: Tokens,
    message_count: usize,
    is_ended: bool,
}

impl<'l> CascadeTrace<'l> {
    pub(crate) fn start(before: Tokens, budget: Tokens, message_count: usize, listener: CascadeListener<'l>) -> Self {
        let trace = Self { id: TraceId::next(), listener, before, budget, message_count, is_ended: false };
        trace.emit(CascadeStep::Started { before, budget, reason: "above the budget".into() });
        trace
    }

    pub(crate) fn emit(&self, step: CascadeStep) {
        (self.listener)(CascadeEvent { trace: self.id, step });
    }

    pub(crate) fn complete(mut self, strategy: EnforceStrategy, after: Tokens, kept: usize, archived: Option<Handle>) {
        self.is_ended = true;
        self.emit(CascadeStep::Completed { strategy, before: self.before, after, budget: self.budget, kept, archived });
    }

    pub(crate) fn fail(mut self, why: &str) {
        self.is_ended = true;
        self.emit_failure(why);
    }

    fn emit_failure(&self, why: &str) {
        self.emit(CascadeStep::Failed {
            why: why.to_owned(),
            fallback: FailureFallback::Unchanged,
            before: self.before,
            after: self.before,
            budget: self.budget,
            kept: self.message_count,
        });
    }
}

impl Drop for CascadeTrace<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.emit_failure("aborted before the end");
        }
    }
}
