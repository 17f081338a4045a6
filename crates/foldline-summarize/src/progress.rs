//! What happens while a summary is written, for whoever shows a bar or writes a log.
//!
//! Events carry numbers and names of tools, never contents. They are handed out by a plain call: a listener that could
//! block must put them into a channel and drop what does not fit, as [`forward`] does.

use std::sync::mpsc::SyncSender;

use foldline::Tokens;
use serde::Serialize;

use crate::limits::LimitKind;

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "progress", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProgressEvent {
    /// The text was walked through.
    Read {
        /// Its rows.
        rows: usize,
        /// Its tokens, by the root model's count.
        tokens: Tokens,
    },
    /// The root model is asked.
    Turn {
        /// Which turn, the first being 1.
        turn: usize,
        /// How many there may be.
        of: usize,
        /// Tokens of the question.
        context: Tokens,
    },
    /// The root model looked at the text.
    Viewed {
        /// By which tool.
        tool: &'static str,
        /// Tokens that it was shown.
        shown: Tokens,
    },
    /// The sub-model is asked.
    SubCall {
        /// From this row.
        first: usize,
        /// To this one.
        last: usize,
        /// Tokens of the question.
        context: Tokens,
    },
    /// A call failed and is tried again.
    Retried {
        /// Why.
        why: String,
    },
    /// What the model handed in was refused.
    Refused {
        /// Why.
        why: String,
    },
    /// The end.
    Ended(SummaryOutcome),
}

/// How the writing of a summary ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SummaryOutcome {
    /// The model handed in a summary that passed the gate.
    Converged,
    /// A limit was reached before.
    Exhausted(LimitKind),
    /// The model could not be asked; why.
    Failed(String),
    /// The caller did not want it any more.
    Aborted,
}

/// Hears of progress. It must not block.
pub type ProgressListener<'l> = &'l (dyn Fn(ProgressEvent) + Send + Sync);

/// A listener that puts events into a channel and lets go of those that do not fit: a reader that is slow, or gone,
/// never holds up the work.
///
/// ```
/// use foldline_summarize::{Outcome, Progress, forward};
///
/// let (sender, receiver) = std::sync::mpsc::sync_channel(1);
/// let listener = forward(sender);
/// listener(Progress::Ended(Outcome::Converged));
/// listener(Progress::Ended(Outcome::Aborted));
/// assert_eq!(receiver.try_iter().count(), 1);
/// ```
pub fn forward_events<E: Send>(sender: SyncSender<E>) -> impl Fn(E) + Send + Sync {
    move |event| {
        let _ = sender.try_send(event);
    }
}
