//! A crease: a request at which new folds are decided, so that the cached prefix is rewritten from the first changed byte.
//!
//! Records only; nothing is decided here.

use serde::{Deserialize, Serialize};

use crate::tokens::Tokens;

/// A crease and its cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Crease {
    /// Request point of the crease.
    pub request_point: usize,
    /// Reason for the crease.
    pub trigger: Trigger,
    /// Tokens removed.
    pub saved_tokens: Tokens,
    /// Tokens after the first changed byte that had been sent, before the change. The rest of them is written to the
    /// provider's cache again.
    pub suffix_tokens: Tokens,
    /// Cost of writing them again, in tokens at base price.
    pub rewrite_cost: Tokens,
    /// First changed message of the conversation.
    pub first_message: usize,
}

/// The reason for a crease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Trigger {
    /// The request was above the trigger ratio of the budget.
    OverBudget,
    /// The expected savings exceed the cost.
    Profitable,
    /// The provider's cache is cold: rewriting costs nothing extra.
    ColdCache,
}
