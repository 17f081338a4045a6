//! Fold events, for logs, metrics and the journal.
//!
//! Events carry numbers and positions, never contents. The engine calls the listener on its own thread,
//! so a listener must not block; a slow consumer needs a non-blocking channel.

use serde::{Deserialize, Serialize};

use crate::engine::crease::Trigger;
use crate::engine::stage::Stage;
use crate::tokens::Tokens;

/// An event in the folding of one request.
///
/// ```
/// use std::cell::RefCell;
///
/// use foldline::wire::{Format, Request};
/// use foldline::{FoldEvent, FoldOptions, Ledger, apply};
///
/// let mut messages = vec![r#"{"role":"user","content":"read it"}"#.to_owned()];
/// for at in 0..40 {
///     let call = format!(r#"{{"id":"c{at}","type":"function","function":{{"name":"read","arguments":"{{}}"}}}}"#);
///     messages.push(format!(r#"{{"role":"assistant","tool_calls":[{call}]}}"#));
///     let text = format!("line {at} of the file\\n").repeat(30);
///     messages.push(format!(r#"{{"role":"tool","tool_call_id":"c{at}","content":"{text}"}}"#));
/// }
/// let body = format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(","));
/// let request = Request::parse(Format::OpenAiChat, body.as_bytes())?;
/// let mut options = FoldOptions::for_model("gpt-4o", 3_000);
/// options.handles = false; // nothing is stored
///
/// let events = RefCell::new(Vec::new());
/// apply(&request, &options, &Ledger::default(), None, &|event| events.borrow_mut().push(event))?;
/// assert!(matches!(events.borrow().last(), Some(FoldEvent::Completed { sent_tokens: ..=3_000, .. })));
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FoldEvent {
    /// The rendering of a request contains folds.
    Started {
        /// Tokens of the original request.
        received_tokens: Tokens,
        /// Budget in tokens.
        budget: Tokens,
    },
    /// New folds were decided at this request.
    Creased {
        /// Request point of the crease.
        request_point: usize,
        /// Reason for the crease.
        trigger: Trigger,
        /// Tokens removed.
        saved_tokens: Tokens,
        /// Cost of writing the changed suffix to the provider's cache again, in tokens at base price.
        rewrite_cost: Tokens,
    },
    /// The folded request is ready to send.
    Completed {
        /// Deepest stage used.
        stage: Stage,
        /// Tokens of the original request.
        received_tokens: Tokens,
        /// Tokens of the folded request.
        sent_tokens: Tokens,
        /// Budget in tokens.
        budget: Tokens,
    },
    /// Whole rounds were dropped.
    Truncated {
        /// Tokens of the dropped rounds.
        dropped_tokens: Tokens,
        /// Handle of the dropped rounds, if an archive holds them.
        handle: Option<crate::Handle>,
    },
    /// A fold was not made, or was made and not sent.
    Refused {
        /// Cause, for people.
        reason: String,
    },
    /// The request cannot fit, or an internal failure left it unchanged.
    Failed {
        /// Cause, for people.
        reason: String,
    },
}

/// A callback that receives events. It must not block.
pub type EventListener<'l> = &'l dyn Fn(FoldEvent);
