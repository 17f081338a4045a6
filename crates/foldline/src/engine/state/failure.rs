//! The last plan that could not fit, so that a conversation that cannot fit is not planned from the start again.

use crate::conversation::PartId;
use crate::error::Error;
use crate::tokens::Tokens;

/// A plan that could not fit.
#[derive(Clone, Debug)]
pub(crate) struct FailedPlan {
    /// Last request point that could not fit.
    pub(crate) request_point: usize,
    /// Error of that request.
    pub(crate) error: Error,
    /// Tokens of all messages as received, when the plan was made.
    pub(crate) raw: Tokens,
    /// Tokens of the messages with all folds of the plan.
    pub(crate) left: Tokens,
    /// Tokens of messages outside of rounds with all folds of the plan, without the newest user message. No later plan has
    /// fewer of them, because such messages are never dropped.
    pub(crate) permanent: Tokens,
    /// True if the error was reported to the caller. An error of a past request point is not; the first error that is
    /// reported states the exact floor.
    pub(crate) is_reported: bool,
    /// Largest part of the plan.
    pub(crate) largest: Option<(PartId, Tokens)>,
}

/// Share of the tokens of a failed plan by which a conversation may grow before it is planned again.
const MAX_GROWTH_DIVISOR: Tokens = 8;

impl FailedPlan {
    /// Returns an upper bound of the tokens that a plan would leave for `raw` tokens of messages, of which no plan removes
    /// `fixed`, if no plan can fit into `budget` and the bound is close.
    pub(crate) fn bound_for(&self, raw: Tokens, fixed: Tokens, budget: Tokens) -> Option<Tokens> {
        let added = raw.saturating_sub(self.raw);
        (self.permanent.max(fixed) > budget && added <= self.left / MAX_GROWTH_DIVISOR).then_some(self.left + added)
    }
}
