//! What tokens cost when prompts are cached, and when a crease pays.
//!
//! Prices are relative: an input token that no cache knows costs 1. They come from the model table and
//! from nowhere else. Whether to crease is decided elsewhere; here is only the arithmetic.

use std::time::Duration;

use crate::measure::{ModelRow, ModelTable, Tokens};

/// Prices of one model, an input token being 1.
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
    /// A token read from the cache.
    pub read: f64,
    /// A token written to the cache.
    pub write: f64,
    /// A token of output.
    pub output: f64,
    /// Dollars per million tokens of input; zero where time is what it costs.
    pub base_usd: f64,
    /// The shortest prefix that is cached.
    pub min_prefix: Tokens,
    /// How long an unused entry lives, where the provider says so.
    pub life: Option<Duration>,
}

/// Output costs so many times the input where a table does not say.
const USUAL_OUTPUT: f64 = 5.0;
/// Tokens that a model writes to ask for an unfold.
const UNFOLD_CALL: f64 = 60.0;
/// Before the names of price tables in the model table.
const NAMED: &str = "prices:";

impl Prices {
    /// The prices of a model.
    pub fn for_model(table: &ModelTable, model: Option<&str>) -> Prices {
        Self::of_row(&table.find(model))
    }

    /// The prices of a model whose cache is written to be kept for an hour, where that is offered.
    pub fn for_hour(table: &ModelTable, model: Option<&str>) -> Option<Prices> {
        let row = table.find(model);
        let write = row.cache_write_hour?;
        Some(Prices { write, life: Some(Duration::from_secs(3_600)), ..Self::of_row(&row) })
    }

    /// The prices that a row states.
    pub fn of_row(row: &ModelRow) -> Prices {
        let output = if row.usd_in > 0.0 { row.usd_out / row.usd_in } else { USUAL_OUTPUT };
        Prices {
            read: row.cache_read,
            write: row.cache_write,
            output,
            base_usd: row.usd_in,
            min_prefix: row.min_prefix,
            life: row.cache_life,
        }
    }

    /// After how many calls it pays to rewrite old text of which the share `saved` is saved.
    pub fn break_even(&self, saved: f64) -> f64 {
        break_even(self.write / self.read, saved)
    }

    /// What one unfold costs: the context is read once more, the original is written, and the model
    /// writes the call.
    pub fn unfold(&self, context: Tokens, original: Tokens) -> f64 {
        self.read * context as f64 + self.write * original as f64 + self.output * UNFOLD_CALL
    }

    /// The price of so many tokens at base price, in dollars.
    pub fn dollars(&self, tokens: f64) -> f64 {
        tokens * self.base_usd / 1e6
    }
}

/// After how many calls it pays to rewrite a suffix, when writing costs `k` times reading and the share
/// `saved` of the suffix is saved: `(k - 1)(1 - f) / f`.
pub fn break_even(k: f64, saved: f64) -> f64 {
    if saved <= 0.0 {
        return f64::INFINITY;
    }
    ((k - 1.0) * (1.0 - saved.min(1.0)) / saved).max(0.0)
}

/// What a crease gains, in tokens at base price; it is worth it when this is above zero.
///
/// Behind the first changed byte stand `suffix` tokens, of which `saved` go away. The rest is written
/// instead of read once; in return each of the `remaining` calls reads less. `unfolds` is what the folds
/// are expected to cost by being asked back: the sum over them of chance times
/// [`Prices::unfold`].
pub fn worth(suffix: Tokens, saved: Tokens, remaining: f64, prices: &Prices, unfolds: f64) -> f64 {
    let rewritten = suffix.saturating_sub(saved) as f64;
    remaining * prices.read * saved as f64 - (prices.write - prices.read) * rewritten - unfolds
}

/// The price tables that have a name of their own, for bills that are not tied to a model:
/// `anthropic-5m`, `anthropic-1h`, `openai`, `openai-4o`, `openai-5.6`, `gemini`, `deepseek`, `local`, and
/// what a user's table adds under `prices:NAME`.
#[derive(Clone, Debug)]
pub struct PriceTable {
    rows: Vec<(String, Prices)>,
}

impl PriceTable {
    /// The named prices of a model table.
    pub fn of(table: &ModelTable) -> PriceTable {
        let named = |row: &&ModelRow| row.prefix.starts_with(NAMED);
        let entry = |row: &ModelRow| (row.prefix[NAMED.len()..].to_owned(), Prices::of_row(row));
        PriceTable { rows: table.rows().into_iter().filter(named).map(entry).collect() }
    }

    /// The prices that come with the engine.
    pub fn builtin() -> PriceTable {
        Self::of(ModelTable::builtin())
    }

    /// The prices of this name.
    pub fn get(&self, name: &str) -> Option<Prices> {
        self.rows.iter().find(|(known, _)| known == name).map(|(_, prices)| *prices)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|(name, _)| name.as_str())
    }
}
