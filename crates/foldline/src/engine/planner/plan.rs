//! The result of planning: the folds of one crease, and whether they are worth it.

use std::collections::BTreeSet;

use crate::engine::options::FoldOptions;
use crate::engine::overlay::FoldSet;
use crate::engine::state::totals::MessageTokens;
use crate::tokens::Tokens;

/// The planned folds of a crease.
pub(crate) struct CreasePlan {
    pub(crate) folds: FoldSet,
    /// Tokens of the messages that change, afterwards; those of a note are counted with the message after it.
    pub(crate) message_tokens: MessageTokens,
    /// Messages whose rendering changes.
    pub(crate) touched_messages: BTreeSet<usize>,
    pub(crate) saved_tokens: Tokens,
    /// Tokens after the first changed byte that had been sent, before the change.
    pub(crate) suffix_tokens: Tokens,
    /// First changed message.
    pub(crate) first_message: usize,
    /// Expected gain over the rest of the session at base price, beyond the policy's `min_gain_ratio` times the cost.
    pub(crate) expected_gain: f64,
}

impl CreasePlan {
    /// Returns the number of further calls after which the crease would be profitable, at least one. Each call made
    /// raises the number of calls expected.
    pub(crate) fn calls_until_profitable(&self, options: &FoldOptions) -> u32 {
        let policy = &options.policy;
        let gain_per_call =
            policy.remaining_ratio / policy.min_gain_ratio * options.prices.read * self.saved_tokens as f64;
        (-self.expected_gain / gain_per_call).ceil().max(1.0) as u32
    }
}
