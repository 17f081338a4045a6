//! The token budget of a conversation: kept from request to request, and changed only if the allowed one clearly differs.

use std::sync::Arc;

use foldline::Ledger;
use foldline::tokens::Tokens;

use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_facts::SessionFacts;

/// A budget below this share of the old one counts as changed; smaller drops are calibration noise.
const BUDGET_DROP_RATIO: f64 = 0.97;
/// A budget must grow by this factor to count as changed: folds are not undone.
const BUDGET_GROWTH_RATIO: f64 = 1.5;

/// The budget of a request.
pub(crate) struct BudgetChoice {
    pub(crate) tokens: Tokens,
    /// Request point from which it applies, unless the ledger contains it already.
    pub(crate) from: Option<usize>,
    /// True if the conversation had another budget before.
    pub(crate) is_changed: bool,
}

impl BudgetChoice {
    /// Chooses the budget of a request after `len` messages: the conversation's current one, unless `allowed` clearly
    /// differs from it. `learned` is the budget after a refusal.
    pub(crate) fn new(ledger: &Ledger, len: usize, allowed: Tokens, learned: Option<Tokens>) -> Self {
        let allowed = allowed.min(learned.unwrap_or(Tokens::MAX));
        let Some((_, &current)) = ledger.budgets.last_key_value() else {
            return Self { tokens: allowed, from: Some(0), is_changed: false };
        };
        let is_refused = learned.is_some_and(|learned| learned < current);
        let ratio_changed = (allowed as f64) < current as f64 * BUDGET_DROP_RATIO
            || allowed as f64 > current as f64 * BUDGET_GROWTH_RATIO;
        match is_refused || ratio_changed {
            true => Self { tokens: allowed, from: Some(len), is_changed: true },
            false => Self { tokens: current, from: None, is_changed: false },
        }
    }
}

/// The budget of a retry after a refusal. It becomes a fact of the conversation when the retry is accepted; a retry
/// that is refused as well has no effect.
pub(crate) struct TightBudget {
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) tokens: Tokens,
}

impl TightBudget {
    /// Records that the retry was accepted.
    pub(crate) fn hold(&self) {
        self.facts.hold_budget(&self.prefixes, self.tokens);
    }
}
