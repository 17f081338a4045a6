//! Progress events of a summary, for a progress bar or a log.
//!
//! Events contain numbers and tool names, never contents. They are delivered by a plain call: a listener that could
//! block must put them into a channel and drop what does not fit, as [`forward_events`] does; only the last event of a
//! run is never dropped.

use std::borrow::Cow;
use std::sync::mpsc;

use foldline::tokens::Tokens;
use serde::{Deserialize, Serialize};

use crate::limits::LimitKind;

/// A progress event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        tool: Cow<'static, str>,
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
    Ended {
        /// The outcome.
        outcome: SummaryOutcome,
        /// The author of the summary: code, if the model did not converge.
        author: SummaryAuthor,
    },
}

/// The author of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryAuthor {
    /// The model; its text passed the gate.
    Model,
    /// Code: see [`extract_facts`](crate::extract_facts).
    Code,
}

/// The outcome of a summarizer run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// An event that can be forwarded to a channel.
pub trait ForwardedEvent: Send + 'static {
    /// Returns true for the last event of a run, which must not be lost.
    fn is_terminal(&self) -> bool;
}

impl ForwardedEvent for ProgressEvent {
    fn is_terminal(&self) -> bool {
        matches!(self, ProgressEvent::Ended { .. })
    }
}

/// The sending half of a channel: of the standard library or of tokio, bounded or not.
pub trait EventSender<E>: Send + Sync + 'static {
    /// Sends an event without waiting; returns it if the channel is full.
    ///
    /// # Errors
    ///
    /// The event, if the channel is full. An event for a closed channel is dropped.
    fn try_forward(&self, event: E) -> Result<(), E>;

    /// Sends an event once there is room, without blocking the caller.
    fn forward_later(&self, event: E);
}

impl<E: Send + 'static> EventSender<E> for mpsc::SyncSender<E> {
    fn try_forward(&self, event: E) -> Result<(), E> {
        match self.try_send(event) {
            Err(mpsc::TrySendError::Full(event)) => Err(event),
            Ok(()) | Err(mpsc::TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    fn forward_later(&self, event: E) {
        let sender = self.clone();
        std::thread::spawn(move || sender.send(event));
    }
}

impl<E: Send + 'static> EventSender<E> for mpsc::Sender<E> {
    fn try_forward(&self, event: E) -> Result<(), E> {
        // An unbounded channel is never full.
        let _ = self.send(event);
        Ok(())
    }

    fn forward_later(&self, event: E) {
        let _ = self.send(event);
    }
}

impl<E: Send + 'static> EventSender<E> for tokio::sync::mpsc::Sender<E> {
    fn try_forward(&self, event: E) -> Result<(), E> {
        match self.try_send(event) {
            Err(tokio::sync::mpsc::error::TrySendError::Full(event)) => Err(event),
            Ok(()) | Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    fn forward_later(&self, event: E) {
        let sender = self.clone();
        std::thread::spawn(move || sender.blocking_send(event));
    }
}

impl<E: Send + 'static> EventSender<E> for tokio::sync::mpsc::UnboundedSender<E> {
    fn try_forward(&self, event: E) -> Result<(), E> {
        let _ = self.send(event);
        Ok(())
    }

    fn forward_later(&self, event: E) {
        let _ = self.send(event);
    }
}

/// Returns a listener that puts events into a channel of the standard library or of tokio and drops those that do not
/// fit: a slow or missing reader never blocks the work. The last event of a run is not dropped; it waits, on a thread
/// of its own, until there is room or the reader is gone.
///
/// ```
/// use foldline_summarize::{ProgressEvent, SummaryAuthor, SummaryOutcome, forward_events};
///
/// let (sender, receiver) = std::sync::mpsc::sync_channel(1);
/// let listener = forward_events(sender);
/// for turn in 1..=3 {
///     listener(ProgressEvent::Turn { turn, of: 3, context: 100 });
/// }
/// listener(ProgressEvent::Ended { outcome: SummaryOutcome::Converged, author: SummaryAuthor::Model });
/// drop(listener);
/// let received: Vec<ProgressEvent> = receiver.into_iter().collect();
/// assert!(matches!(received[..], [ProgressEvent::Turn { turn: 1, .. }, ProgressEvent::Ended { .. }]));
/// ```
pub fn forward_events<E: ForwardedEvent>(sender: impl EventSender<E>) -> impl Fn(E) + Send + Sync {
    move |event| {
        if let Err(event) = sender.try_forward(event)
            && event.is_terminal()
        {
            sender.forward_later(event);
        }
    }
}
