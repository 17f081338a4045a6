//! The budget of a request: it stays the same while a conversation goes on, so that its prefix does.

use foldline::Ledger;
use foldline::tokens::Tokens;

/// A budget below this share of the old one counts as changed; smaller drops are calibration noise.
pub(crate) const BUDGET_DROP_RATIO: f64 = 0.97;

/// A budget must grow by this factor to count as changed: folds are not undone.
const BUDGET_GROWTH_RATIO: f64 = 1.5;

/// The budget of a request.
pub(crate) struct BudgetChoice {
    pub(crate) tokens: Tokens,
    /// Request point from which it and the decision rules apply, unless the ledger contains them already.
    pub(crate) from: Option<usize>,
    /// True if the conversation had another budget before.
    pub(crate) is_changed: bool,
}

impl BudgetChoice {
    /// Chooses the budget of a request after `len` messages: the conversation's current one, unless `allowed` is below
    /// `drop_ratio` of it or far above. `learned` is the budget after a refusal.
    pub(crate) fn new(
        ledger: &Ledger,
        len: usize,
        allowed: Tokens,
        learned: Option<Tokens>,
        drop_ratio: f64,
        rules: u64,
    ) -> Self {
        let allowed = allowed.min(learned.unwrap_or(Tokens::MAX));
        let Some((_, &current)) = ledger.budgets.last_key_value() else {
            return Self { tokens: allowed, from: Some(0), is_changed: false };
        };
        let is_refused = learned.is_some_and(|learned| learned < current);
        let ratio_changed =
            (allowed as f64) < current as f64 * drop_ratio || allowed as f64 > current as f64 * BUDGET_GROWTH_RATIO;
        match is_refused || ratio_changed {
            true => Self { tokens: allowed, from: Some(len), is_changed: true },
            false => {
                // Another version, or another policy, continues the conversation.
                let is_continued = ledger.rules.last_key_value().is_some_and(|(_, &known)| known != rules);
                Self { tokens: current, from: is_continued.then_some(len), is_changed: false }
            }
        }
    }
}
