//! Sums of requests. All numbers are integers, so that sums of parts equal the whole.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::activity::cache_break::BreakCause;

/// Billionths of a dollar; negative for losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoDollars(pub i64);

impl NanoDollars {
    /// Returns the amount, rounded to billionths.
    pub fn from_dollars(dollars: f64) -> Self {
        Self((dollars * 1e9).round() as i64)
    }

    /// Returns the amount in dollars.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl AddAssign for NanoDollars {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

/// Sums of requests. The definitions of all numbers are in docs/reference/api.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityTotals {
    /// Requests that carried a conversation.
    pub requests: u64,
    /// Requests whose response reported its usage.
    pub usage_requests: u64,
    /// Requests of models with a price and with reported usage.
    pub priced_requests: u64,
    /// Prompt tokens as received, by our count.
    pub received_tokens: u64,
    /// Prompt tokens as sent, by our count.
    pub sent_tokens: u64,
    /// Prompt tokens that folding would have sent, in observe mode.
    pub would_send_tokens: u64,
    /// Prompt tokens as reported.
    pub input_tokens: u64,
    /// Of these, read from the cache.
    pub cache_read_tokens: u64,
    /// Of these, written to the cache.
    pub cache_write_tokens: u64,
    /// Output tokens as reported.
    pub output_tokens: u64,
    /// Price of the reported usage.
    pub billed: NanoDollars,
    /// Price of the folded tokens at the tier at which they would have been billed.
    pub saved: NanoDollars,
    /// Price of creases.
    pub crease: NanoDollars,
    /// Price of rounds in which models read originals.
    pub unfold: NanoDollars,
    /// Price of summaries.
    pub summary: NanoDollars,
    /// Net saving that folding would have had, in observe mode.
    pub would_net: NanoDollars,
    /// Part of `saved`: rewriting avoided by creases on a cold cache.
    pub cold_avoided: NanoDollars,
    /// Creases.
    pub creases: u64,
    /// Creases on a cold cache.
    pub cold_creases: u64,
    /// New folds.
    pub folds: u64,
    /// Originals that models requested and received.
    pub unfolds: u64,
    /// Cache breaks, by cause.
    pub breaks: [u64; BreakCause::ALL.len()],
}

impl ActivityTotals {
    /// Returns what folding saved after everything it cost.
    pub fn net(&self) -> NanoDollars {
        [self.crease, self.unfold, self.summary]
            .iter()
            .fold(self.saved, |net, cost| NanoDollars(net.0.saturating_sub(cost.0)))
    }

    /// Returns the net saving as a share of what the same requests would have cost without foldline.
    pub fn net_share(&self) -> Option<f64> {
        let without = self.billed.0.saturating_add(self.net().0);
        (without > 0).then(|| self.net().0 as f64 / without as f64)
    }

    /// Returns the prompt tokens that were neither read from nor written to the cache.
    pub fn fresh_tokens(&self) -> u64 {
        self.input_tokens.saturating_sub(self.cache_read_tokens).saturating_sub(self.cache_write_tokens)
    }

    /// Returns the unfolds per 100 folds.
    pub fn unfolds_per_100_folds(&self) -> Option<f64> {
        (self.folds > 0).then(|| 100.0 * self.unfolds as f64 / self.folds as f64)
    }

    /// Returns the totals as the API shows them.
    pub fn to_json(&self) -> Value {
        let breaks =
            BreakCause::ALL.iter().zip(self.breaks).map(|(cause, count)| (cause.name().to_owned(), json!(count)));
        let mut object: serde_json::Map<String, Value> =
            self.columns().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        object.insert("breaks".to_owned(), Value::Object(breaks.collect()));
        Value::Object(object)
    }

    /// Returns the names and values of all numbers but the cache breaks, in the order of tables.
    pub fn columns(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("requests", json!(self.requests)),
            ("usage_requests", json!(self.usage_requests)),
            ("priced_requests", json!(self.priced_requests)),
            ("received_tokens", json!(self.received_tokens)),
            ("sent_tokens", json!(self.sent_tokens)),
            ("would_send_tokens", json!(self.would_send_tokens)),
            ("input_tokens", json!(self.input_tokens)),
            ("cache_read_tokens", json!(self.cache_read_tokens)),
            ("cache_write_tokens", json!(self.cache_write_tokens)),
            ("fresh_tokens", json!(self.fresh_tokens())),
            ("output_tokens", json!(self.output_tokens)),
            ("billed_usd", json!(self.billed.dollars())),
            ("saved_usd", json!(self.saved.dollars())),
            ("crease_usd", json!(self.crease.dollars())),
            ("unfold_usd", json!(self.unfold.dollars())),
            ("summary_usd", json!(self.summary.dollars())),
            ("net_usd", json!(self.net().dollars())),
            ("net_share", json!(self.net_share())),
            ("would_net_usd", json!(self.would_net.dollars())),
            ("cold_avoided_usd", json!(self.cold_avoided.dollars())),
            ("creases", json!(self.creases)),
            ("cold_creases", json!(self.cold_creases)),
            ("folds", json!(self.folds)),
            ("unfolds", json!(self.unfolds)),
        ]
    }
}

impl AddAssign for ActivityTotals {
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        add(&mut self.requests, other.requests);
        add(&mut self.usage_requests, other.usage_requests);
        add(&mut self.priced_requests, other.priced_requests);
        add(&mut self.received_tokens, other.received_tokens);
        add(&mut self.sent_tokens, other.sent_tokens);
        add(&mut self.would_send_tokens, other.would_send_tokens);
        add(&mut self.input_tokens, other.input_tokens);
        add(&mut self.cache_read_tokens, other.cache_read_tokens);
        add(&mut self.cache_write_tokens, other.cache_write_tokens);
        add(&mut self.output_tokens, other.output_tokens);
        self.billed += other.billed;
        self.saved += other.saved;
        self.crease += other.crease;
        self.unfold += other.unfold;
        self.summary += other.summary;
        self.would_net += other.would_net;
        self.cold_avoided += other.cold_avoided;
        add(&mut self.creases, other.creases);
        add(&mut self.cold_creases, other.cold_creases);
        add(&mut self.folds, other.folds);
        add(&mut self.unfolds, other.unfolds);
        self.breaks.iter_mut().zip(other.breaks).for_each(|(sum, count)| add(sum, count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_is_saved_minus_everything_it_cost() {
        let money = NanoDollars;
        let totals = ActivityTotals {
            billed: money(800),
            saved: money(500),
            crease: money(200),
            unfold: money(80),
            summary: money(20),
            ..ActivityTotals::default()
        };
        assert_eq!(totals.net(), money(200));
        assert_eq!(totals.net_share(), Some(0.2));
        let loss = ActivityTotals { saved: money(10), crease: money(30), ..totals };
        assert_eq!(loss.net(), money(-120));
        assert_eq!(loss.to_json()["net_usd"], -1.2e-7);
    }

    #[test]
    fn sums_of_parts_equal_the_whole() {
        let part = ActivityTotals { saved: NanoDollars::from_dollars(0.1), requests: 1, ..ActivityTotals::default() };
        let mut whole = ActivityTotals::default();
        (0..10).for_each(|_| whole += part);
        assert_eq!((whole.saved.dollars(), whole.requests), (1.0, 10));
        assert_eq!(ActivityTotals::default().net_share(), None);
    }
}
