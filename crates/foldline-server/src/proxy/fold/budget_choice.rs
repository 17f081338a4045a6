//! The budget of a request: it stays the same while a conversation goes on, so that its prefix does.

use foldline::Ledger;
use foldline::tokens::Tokens;

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
    /// Chooses the budget of a request after `len` messages: the conversation's current one, unless `allowed` is below
    /// `drop_ratio` of it or far above. `learned` is the budget after a refusal.
    pub(crate) fn new(ledger: &Ledger, len: usize, allowed: Tokens, learned: Option<Tokens>, drop_ratio: f64) -> Self {
        let allowed = allowed.min(learned.unwrap_or(Tokens::MAX));
        let Some((_, &current)) = ledger.budgets.last_key_value() else {
            return Self { tokens: allowed, from: Some(0), is_changed: false };
        };
        let is_refused = learned.is_some_and(|learned| learned < current);
        let ratio_changed =
            (allowed as f64) < current as f64 * drop_ratio || allowed as f64 > current as f64 * BUDGET_GROWTH_RATIO;
        match is_refused || ratio_changed {
            true => Self { tokens: allowed, from: Some(len), is_changed: true },
            false => Self { tokens: current, from: None, is_changed: false },
        }
    }
}
