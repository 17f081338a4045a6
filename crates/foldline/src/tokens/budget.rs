//! The number of input tokens that may be sent.
//!
//! All arithmetic saturates: a reserve above the window leaves an empty budget, never a panic or a huge number.

use serde::{Deserialize, Serialize};

use crate::models::ModelRow;
use crate::tokens::{Meter, Tokens};

/// The part of a window that is left for the input.
///
/// ```
/// use foldline::{Meter, ModelTable};
/// use foldline::tokens::Budget;
///
/// let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
/// let budget = Budget::for_model(meter.row(), Some(4_096), &meter);
/// assert_eq!((budget.window, budget.reserve), (128_000, 4_096));
/// assert_eq!(budget.tokens, 128_000 - 4_096 - budget.margin);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Tokens of input and output together.
    pub window: Tokens,
    /// Tokens reserved for the answer.
    pub reserve: Tokens,
    /// Tokens reserved because the count may be too low.
    pub margin: Tokens,
    /// Tokens that the input may have, by our count.
    pub tokens: Tokens,
}

impl Budget {
    /// Reserve for the answer if the request sets no limit for it.
    pub const DEFAULT_RESERVE_TOKENS: Tokens = 8_192;

    /// Returns the budget of a request to the model of this row. The reserve is the output limit of the request, up
    /// to half of the window; without one it is [`Budget::DEFAULT_RESERVE_TOKENS`], up to a quarter of the window. It
    /// never exceeds the model's own output limit.
    pub fn for_model(row: &ModelRow, max_output: Option<Tokens>, meter: &Meter) -> Budget {
        let reserve = match max_output {
            Some(requested) => requested.min(row.window / 2),
            None => Self::DEFAULT_RESERVE_TOKENS.min(row.window / 4),
        };
        let reserve = if row.max_output > 0 { reserve.min(row.max_output) } else { reserve };
        Self::capped(row.window, row.max_input, reserve, meter)
    }

    /// Returns the budget for a window that the server reported or the user set.
    pub fn for_window(window: Tokens, reserve: Tokens, meter: &Meter) -> Budget {
        Self::capped(window, None, reserve, meter)
    }

    fn capped(window: Tokens, max_input: Option<Tokens>, reserve: Tokens, meter: &Meter) -> Budget {
        let room = window.saturating_sub(reserve).min(max_input.unwrap_or(Tokens::MAX));
        let margin = meter.margin(room).min(room);
        Budget { window, reserve, margin, tokens: room - margin }
    }

    /// Returns the budget of the classic projection: the window minus the answer (default 2048) and a safety margin
    /// of 512.
    pub fn for_projection(window: Tokens, max_output: Option<Tokens>) -> Budget {
        let reserve = max_output.unwrap_or(2_048);
        let tokens = window.saturating_sub(reserve).saturating_sub(512);
        Budget { window, reserve, margin: 512, tokens }
    }

    /// Returns the budget, lowered to the input limit of a model if the model has one below it.
    #[must_use]
    pub fn within_input_limit(self, row: &ModelRow) -> Budget {
        Budget { tokens: self.tokens.min(row.max_input.unwrap_or(Tokens::MAX)), ..self }
    }

    /// Returns the budget of the classic cascade: nine tenths of the window after an answer of 8192 and 2048 more.
    pub fn for_cascade(window: Tokens) -> Budget {
        let reserve = 8_192;
        let room = window.saturating_sub(reserve).saturating_sub(2_048);
        let tokens = room / 10 * 9 + room % 10 * 9 / 10;
        Budget { window, reserve, margin: window.saturating_sub(reserve) - tokens, tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelTable;
    use proptest::prelude::*;

    fn meter(model: &str) -> Meter {
        Meter::for_model(ModelTable::builtin(), Some(model))
    }

    fn for_model(model: &str, max_output: Option<Tokens>) -> Budget {
        let meter = meter(model);
        Budget::for_model(meter.row(), max_output, &meter)
    }

    #[test]
    fn input_cap_applies_in_addition_to_the_window() {
        let budget = for_model("gpt-5", Some(1_000));
        assert_eq!((budget.window, budget.reserve), (400_000, 1_000));
        assert_eq!(budget.tokens + budget.margin, 272_000);
    }

    #[test]
    fn reserve_leaves_room_for_input() {
        assert_eq!(for_model("claude-opus-4-6", None).reserve, Budget::DEFAULT_RESERVE_TOKENS);
        assert_eq!(for_model("gpt-4", None).reserve, 2_048);
        assert_eq!(for_model("gpt-4", Some(8_192)).reserve, 4_096);
        assert_eq!(for_model("gpt-4o", Some(Tokens::MAX)).reserve, 16_384);
    }

    #[test]
    fn estimate_needs_more_margin_than_a_vocabulary() {
        let (exact, estimated) = (for_model("gpt-4o", None), for_model("command-r-plus", None));
        assert_eq!(exact.window, estimated.window);
        assert!(exact.margin * 10 < estimated.margin, "{exact:?} {estimated:?}");
    }

    #[test]
    fn classic_budgets() {
        assert_eq!(Budget::for_projection(32_768, None).tokens, 32_768 - 2_048 - 512);
        assert_eq!(Budget::for_projection(32_768, Some(4_096)).tokens, 32_768 - 4_096 - 512);
        assert_eq!(Budget::for_projection(1_000, None).tokens, 0);
        assert_eq!(Budget::for_cascade(128_000).tokens, (128_000 - 8_192 - 2_048) * 9 / 10);
        assert_eq!(Budget::for_cascade(9_000).tokens, 0);
    }

    proptest! {
        /// Any input: no panic, at most the window, and the parts add up to at most the window.
        #[test]
        fn budgets_saturate(
            window in prop_oneof![any::<Tokens>(), 0..10_000_u64, Just(Tokens::MAX)],
            max_input in prop::option::of(any::<Tokens>()),
            requested in prop::option::of(prop_oneof![any::<Tokens>(), 0..10_000_u64, Just(Tokens::MAX)]),
            estimated: bool,
        ) {
            let meter = meter(if estimated { "unheard-of" } else { "gpt-4o" });
            let row = ModelRow { window, max_input, ..meter.row().clone() };
            let reserve = requested.unwrap_or_default();
            for budget in [
                Budget::for_model(&row, requested, &meter),
                Budget::for_window(window, reserve, &meter),
                Budget::for_projection(window, requested),
                Budget::for_cascade(window),
            ] {
                prop_assert!(budget.tokens <= window, "{budget:?}");
                prop_assert!(budget.tokens == 0 || budget.tokens + budget.margin <= window - budget.reserve, "{budget:?}");
            }
            prop_assert!(Budget::for_model(&row, requested, &meter).tokens <= max_input.unwrap_or(window));
        }
    }
}
