//! What happened, for whoever wants to know: a callback, a channel, an archive.
//!
//! Events carry numbers and places, never contents. They are handed out by a plain function call on
//! the engine's thread; a listener that could block must put them into a channel of its own that
//! does not.

use serde::Serialize;

use crate::engine::planner::{Stage, Trigger};
use crate::tokens::Tokens;

/// Something happened to a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FoldEvent {
    /// A request has more tokens than the budget, or a crease is due.
    Started {
        /// Tokens of the request as it came.
        received_tokens: Tokens,
        /// Tokens that it may have.
        budget: Tokens,
    },
    /// At a request point folds were decided.
    Creased {
        /// Which request point.
        request_point: usize,
        /// Why.
        trigger: Trigger,
        /// Tokens that went away.
        saved_tokens: Tokens,
        /// What writing the rest again costs, in tokens at base price.
        rewrite_cost: Tokens,
    },
    /// The request goes out folded.
    Completed {
        /// The deepest rung that was spent.
        stage: Stage,
        /// Tokens of the request as it came.
        received_tokens: Tokens,
        /// Tokens that are sent.
        sent_tokens: Tokens,
        /// Tokens that it may have.
        budget: Tokens,
    },
    /// Whole rounds were dropped.
    Truncated {
        /// Tokens that went away with them.
        dropped_tokens: Tokens,
        /// The handle under which they can be asked for, when an archive has them.
        handle: Option<crate::Handle>,
    },
    /// A fold was not made, or not sent.
    Refused {
        /// Why.
        reason: String,
    },
    /// The request can not fit, or a fault of ours left it as it came.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Hears of events. It must not block.
pub type EventListener<'l> = &'l dyn Fn(FoldEvent);
