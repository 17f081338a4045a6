//! What happened, for whoever wants to know: a callback, a channel, an archive.
//!
//! Events carry numbers and places, never contents. They are handed out by a plain function call on
//! the engine's thread; a listener that could block must put them into a channel of its own that
//! does not.

use serde::Serialize;

use crate::measure::Tokens;
use crate::plan::{Reason, Rung};

/// Something happened to a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A request has more tokens than the budget, or a crease is due.
    Started {
        /// Tokens of the request as it came.
        before: Tokens,
        /// Tokens that it may have.
        budget: Tokens,
    },
    /// At a request point folds were decided.
    Creased {
        /// Which request point.
        at: usize,
        /// Why.
        reason: Reason,
        /// Tokens that went away.
        saved: Tokens,
        /// What writing the rest again costs, in tokens at base price.
        price: Tokens,
    },
    /// The request goes out folded.
    Completed {
        /// The deepest rung that was spent.
        strategy: Rung,
        /// Tokens of the request as it came.
        before: Tokens,
        /// Tokens that are sent.
        after: Tokens,
        /// Tokens that it may have.
        budget: Tokens,
    },
    /// Whole rounds were dropped.
    Truncated {
        /// Tokens that went away with them.
        dropped: Tokens,
        /// The handle under which they can be asked for, when an archive has them.
        archived: Option<crate::Handle>,
    },
    /// A fold was not made, or not sent.
    Refused {
        /// Why.
        why: String,
    },
    /// The request can not fit, or a fault of ours left it as it came.
    Failed {
        /// Why.
        why: String,
    },
}

/// Hears of events. It must not block.
pub type Listener<'l> = &'l dyn Fn(Event);
