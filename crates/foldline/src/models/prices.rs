//! Prices of cached prompts, and the break-even of a crease.
//!
//! Prices are relative: an uncached input token costs 1. They come only from the model table. This module contains
//! only the arithmetic; the decision to crease is made elsewhere.

use std::time::Duration;

use crate::models::{ModelRow, ModelTable};
use crate::tokens::Tokens;

/// The prices of one model, relative to an input token.
///
/// ```
/// use foldline::{ModelTable, Prices};
///
/// let prices = Prices::for_model(ModelTable::builtin(), Some("claude-opus-4-6"));
/// assert_eq!((prices.read, prices.write, prices.output), (0.1, 1.25, 5.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Prices {
    /// Price of a token read from the cache.
    pub read: f64,
    /// Price of a token written to the cache.
    pub write: f64,
    /// Price of an output token.
    pub output: f64,
    /// Dollars per million input tokens; zero for local models, whose cost is time.
    pub base_usd: f64,
    /// Length of the shortest prefix that is cached.
    pub min_prefix: Tokens,
    /// Lifetime of an unused cache entry, if the provider states it.
    pub cache_ttl: Option<Duration>,
}

/// Price of output relative to input, if the table does not state it.
const DEFAULT_OUTPUT_PRICE_RATIO: f64 = 5.0;
/// Tokens that a model writes to request an unfold.
const UNFOLD_CALL_TOKENS: f64 = 60.0;
/// Prefix of the names of price tables in the model table.
const NAMED_PRICES_PREFIX: &str = "prices:";

impl Prices {
    /// Returns the prices of a model.
    pub fn for_model(table: &ModelTable, model: Option<&str>) -> Prices {
        Self::from_row(&table.find(model))
    }

    /// Returns the prices of a model whose cache entries are kept for an hour, if that is offered.
    pub fn for_one_hour_cache(table: &ModelTable, model: Option<&str>) -> Option<Prices> {
        let row = table.find(model);
        let write = row.cache_write_hour?;
        Some(Prices { write, cache_ttl: Some(Duration::from_secs(3_600)), ..Self::from_row(&row) })
    }

    /// Returns the prices that a row states.
    pub fn from_row(row: &ModelRow) -> Prices {
        let output = if row.usd_in > 0.0 { row.usd_out / row.usd_in } else { DEFAULT_OUTPUT_PRICE_RATIO };
        Prices {
            read: row.cache_read,
            write: row.cache_write,
            output,
            base_usd: row.usd_in,
            min_prefix: row.min_prefix,
            cache_ttl: row.cache_ttl,
        }
    }

    /// Returns the number of calls after which rewriting old text pays, if the fraction `saved` of it is saved.
    pub fn break_even_calls(&self, saved: f64) -> f64 {
        break_even_calls(self.write / self.read, saved)
    }

    /// Returns the cost of a crease: the tokens that remain after the first changed byte are written instead of read.
    pub(crate) fn rewrite_cost(&self, suffix: Tokens, saved: Tokens) -> f64 {
        (self.write - self.read) * suffix.saturating_sub(saved) as f64
    }

    /// Returns the cost of one unfold: the context is read once more, the original is written, and the model writes
    /// the call.
    pub fn unfold_cost(&self, context: Tokens, original: Tokens) -> f64 {
        self.read * context as f64 + self.write * original as f64 + self.output * UNFOLD_CALL_TOKENS
    }

    /// Returns the price of `tokens` tokens at base price, in dollars.
    pub fn dollars(&self, tokens: f64) -> f64 {
        tokens * self.base_usd / 1e6
    }
}

/// Returns the number of calls after which rewriting a suffix pays, if writing costs `k` times reading and the
/// fraction `saved` (f) of the suffix is saved: `(k - 1)(1 - f) / f`.
pub fn break_even_calls(k: f64, saved: f64) -> f64 {
    if saved <= 0.0 {
        return f64::INFINITY;
    }
    ((k - 1.0) * (1.0 - saved.min(1.0)) / saved).max(0.0)
}

/// Returns the gain of a crease in tokens at base price; the crease is worth it if the gain is positive.
///
/// `suffix` tokens follow the first changed byte, and `saved` of them are removed. The rest is written once instead
/// of read; in return each of the `remaining` calls reads less. `unfolds` is the expected cost of unfolding: the sum
/// over the folds of probability times [`Prices::unfold_cost`].
pub fn crease_gain(suffix: Tokens, saved: Tokens, remaining: f64, prices: &Prices, unfolds: f64) -> f64 {
    remaining * prices.read * saved as f64 - prices.rewrite_cost(suffix, saved) - unfolds
}

/// The named price tables, for bills that are not tied to a model: `anthropic-5m`, `anthropic-1h`, `openai`,
/// `openai-4o`, `openai-5.6`, `gemini`, `deepseek`, `local`, and those that a user's table adds as `prices:NAME`.
#[derive(Clone, Debug)]
pub struct PriceTable {
    rows: Vec<(String, Prices)>,
}

impl PriceTable {
    /// Returns the named prices of a model table.
    pub fn from_models(table: &ModelTable) -> PriceTable {
        let named = |row: &&ModelRow| row.prefix.starts_with(NAMED_PRICES_PREFIX);
        let entry = |row: &ModelRow| (row.prefix[NAMED_PRICES_PREFIX.len()..].to_owned(), Prices::from_row(row));
        PriceTable { rows: table.rows().into_iter().filter(named).map(entry).collect() }
    }

    /// Returns the built-in prices.
    pub fn builtin() -> PriceTable {
        Self::from_models(ModelTable::builtin())
    }

    /// Returns the prices of this name.
    pub fn get(&self, name: &str) -> Option<Prices> {
        self.rows.iter().find(|(known, _)| known == name).map(|(_, prices)| *prices)
    }

    /// Returns the names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(name: &str) -> Prices {
        PriceTable::builtin().get(name).unwrap()
    }

    #[test]
    fn builtin_price_tables_exist() {
        let table = PriceTable::builtin();
        let names: Vec<&str> = table.names().collect();
        assert_eq!(
            names,
            ["anthropic-1h", "anthropic-5m", "deepseek", "gemini", "local", "openai", "openai-4o", "openai-5.6"]
        );
        let write_and_read = |name| (named(name).write, named(name).read);
        assert_eq!(write_and_read("anthropic-5m"), (1.25, 0.1));
        assert_eq!(write_and_read("anthropic-1h"), (2.0, 0.1));
        assert_eq!(write_and_read("openai"), (1.0, 0.1));
        assert_eq!(write_and_read("openai-4o"), (1.0, 0.5));
        assert_eq!(write_and_read("openai-5.6"), (1.25, 0.1));
        assert_eq!(write_and_read("gemini"), (1.0, 0.1));
        assert_eq!(write_and_read("deepseek"), (1.0, 0.02));
        assert_eq!(named("anthropic-1h").cache_ttl, Some(Duration::from_secs(3_600)));
        assert_eq!((named("local").cache_ttl, named("local").base_usd), (None, 0.0));
        assert_eq!(table.get("free"), None);
    }

    #[test]
    fn models_have_their_own_prices() {
        let read = |model| Prices::for_model(ModelTable::builtin(), Some(model)).read;
        assert_eq!((read("claude-opus-5-5"), read("claude-fable-5-1"), read("claude-sonnet-5-5")), (0.05, 0.025, 0.05));
        assert_eq!((read("gpt-5.5"), read("gpt-4.1"), read("gpt-4o")), (0.1, 0.25, 0.5));
        let hour = Prices::for_one_hour_cache(ModelTable::builtin(), Some("claude-opus-4-6")).unwrap();
        assert_eq!(hour.write, 2.0);
        assert_eq!(Prices::for_one_hour_cache(ModelTable::builtin(), Some("gpt-5")), None);
    }

    #[test]
    fn overlay_changes_and_adds_prices() {
        let table = ModelTable::builtin().overlay("prefix,cache_read\nprices:openai,0.2\nprices:mine,0.3\n").unwrap();
        let prices = PriceTable::from_models(&table);
        assert_eq!(prices.get("openai"), Some(Prices { read: 0.2, ..named("openai") }));
        assert_eq!(prices.get("mine").unwrap().read, 0.3);
    }

    /// Number of calls after which rewriting old text pays, as published for writes at 12.5 times the price of reads.
    #[test]
    fn break_even_table() {
        let calls = |share| named("anthropic-5m").break_even_calls(share);
        for (share, expected) in [(0.1, 103.5), (0.3, 26.8), (0.5, 11.5), (0.9, 1.28)] {
            assert!((calls(share) - expected).abs() < 0.05, "{share}: {}", calls(share));
        }
        assert_eq!((calls(1.0), calls(0.0)), (0.0, f64::INFINITY));
        assert_eq!(break_even_calls(1.0, 0.5), 0.0);
    }

    #[test]
    fn unfold_costs_a_read_a_write_and_a_call() {
        let cost = named("anthropic-5m").unfold_cost(10_000, 1_000);
        assert!((cost - (1_000.0 + 1_250.0 + 300.0)).abs() < 1e-9, "{cost}");
        assert!((named("anthropic-5m").dollars(1e6) - 5.0).abs() < 1e-9);
    }

    proptest! {
        /// A crease is worth it exactly from the break-even on.
        #[test]
        fn gain_is_zero_at_break_even(suffix in 1_000..1_000_000_u64, percent in 1..100_u64) {
            let prices = named("anthropic-5m");
            let saved = suffix * percent / 100;
            let calls = prices.break_even_calls(saved as f64 / suffix as f64);
            prop_assert!(crease_gain(suffix, saved, calls + 0.1, &prices, 0.0) > 0.0);
            prop_assert!(crease_gain(suffix, saved, calls - 0.1, &prices, 0.0) < 0.0);
            // Expected unfolds reduce the gain.
            let gain = crease_gain(suffix, saved, calls + 0.1, &prices, 0.0);
            prop_assert!(crease_gain(suffix, saved, calls + 0.1, &prices, gain * 1.01) < 0.0);
        }

        #[test]
        fn gain_is_finite_for_any_input(suffix: u64, saved: u64, remaining in 0.0..1e9) {
            for name in PriceTable::builtin().names() {
                prop_assert!(crease_gain(suffix, saved, remaining, &named(name), 0.0).is_finite());
            }
        }
    }
}
