//! Progress events of a summary, for a progress bar or a log.
//!
//! Events contain numbers and tool names, never contents. They are delivered by a plain call: a listener that could
//! block must put them into a channel and drop what does not fit, as [`forward_events`] does.

use std::sync::mpsc::SyncSender;

use foldline::Tokens;
use serde::Serialize;

use crate::limits::LimitKind;

/// A progress event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "progress", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProgressEvent {
    /// The text was split into rows.
    Read {
        /// Number of rows.
        rows: usize,
        /// Number of tokens, by the root model's meter.
        tokens: Tokens,
    },
    /// The root model is called.
    Turn {
        /// The number of the turn, counted from 1.
        turn: usize,
        /// The maximum number of turns.
        of: usize,
        /// Tokens of the request.
        context: Tokens,
    },
    /// The root model viewed a part of the text.
    Viewed {
        /// The tool that it used.
        tool: &'static str,
        /// Tokens that it was shown.
        shown: Tokens,
    },
    /// The sub-model is called.
    SubCall {
        /// The first row.
        first: usize,
        /// The last row.
        last: usize,
        /// Tokens of the request.
        context: Tokens,
    },
    /// A call failed and is retried.
    Retried {
        /// The reason.
        why: String,
    },
    /// The submitted summary was rejected.
    Refused {
        /// The reason.
        why: String,
    },
    /// The summarizer finished.
    Ended(SummaryOutcome),
}

/// The outcome of a summarizer run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SummaryOutcome {
    /// The model submitted a summary that passed the gate.
    Converged,
    /// A limit was reached first.
    Exhausted(LimitKind),
    /// The model could not be called; the reason.
    Failed(String),
    /// The caller aborted the run.
    Aborted,
}

/// Receives progress events. It must not block.
pub type ProgressListener<'l> = &'l (dyn Fn(ProgressEvent) + Send + Sync);

/// Returns a listener that puts events into a channel and drops those that do not fit: a slow or missing reader never
/// blocks the work.
///
/// ```
/// use foldline_summarize::{ProgressEvent, SummaryOutcome, forward_events};
///
/// let (sender, receiver) = std::sync::mpsc::sync_channel(1);
/// let listener = forward_events(sender);
/// listener(ProgressEvent::Ended(SummaryOutcome::Converged));
/// listener(ProgressEvent::Ended(SummaryOutcome::Aborted));
/// assert_eq!(receiver.try_iter().count(), 1);
/// ```
pub fn forward_events<E: Send>(sender: SyncSender<E>) -> impl Fn(E) + Send + Sync {
    move |event| {
        let _ = sender.try_send(event);
    }
}
