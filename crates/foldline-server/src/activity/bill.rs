//! Dollars of one request: what was billed, what folding saved at the tier really billed, and what it cost.
//!
//! Folded tokens are priced as they would have been billed without folding: at the read price if the provider's cache
//! was warm, otherwise at the price of new text. Our counts are scaled to the provider's count of the same prompt.

use std::time::Duration;

use foldline::Prices;
use foldline::engine::Trigger;
use foldline::tokens::Tokens;
use foldline::wire::Usage;
use serde::{Deserialize, Serialize};

use crate::activity::totals::NanoDollars;

/// Largest plausible factor between the provider's count of a prompt and ours.
const MAX_COUNT_RATIO: f64 = 3.0;

/// The facts about a request from which its dollars are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BillFacts {
    pub(crate) prices: Prices,
    /// Price of a token written to a cache of one hour, relative to an input token.
    pub(crate) hour_write: f64,
    pub(crate) usage: Usage,
    /// Prompt tokens as sent upstream, by our count.
    pub(crate) prompt_tokens: Tokens,
    /// Tokens that folding removed, and those that it had removed in the previous request of the session.
    pub(crate) folded_tokens: Tokens,
    pub(crate) folded_before: Tokens,
    /// Time since the previous request of the session; none for the first.
    pub(crate) elapsed: Option<Duration>,
    pub(crate) crease: Option<CreaseFacts>,
    pub(crate) summary: NanoDollars,
}

/// A crease of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreaseFacts {
    pub(crate) trigger: Trigger,
    /// Tokens that are sent again after the first changed byte.
    pub(crate) rewritten_tokens: Tokens,
}

/// Dollars of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestBill {
    /// Price of the reported usage.
    pub billed: NanoDollars,
    /// Price of the folded tokens at the tier at which they would have been billed.
    pub saved: NanoDollars,
    /// Price of the crease.
    pub crease: NanoDollars,
    /// Price of rounds in which the model read originals.
    pub unfold: NanoDollars,
    /// Price of summaries.
    pub summary: NanoDollars,
    /// Part of `saved`: rewriting avoided by a crease on a cold cache.
    pub cold_avoided: NanoDollars,
}

impl RequestBill {
    /// Returns what folding saved in this request after what it cost.
    pub fn net(&self) -> NanoDollars {
        NanoDollars(self.saved.0 - self.crease.0 - self.unfold.0 - self.summary.0)
    }
}

impl BillFacts {
    /// Returns the dollars of the request.
    pub(crate) fn bill(&self) -> RequestBill {
        let Self { prices, usage, .. } = self;
        let dollars = |tokens: f64| NanoDollars::from_dollars(prices.dollars(tokens));
        let scale = self.count_ratio();
        let (new_price, prefix_price) = (self.new_price(), self.prefix_price());
        let (folded, before) = (self.folded_tokens as f64 * scale, self.folded_before as f64 * scale);
        let carried = folded.min(before);
        let added = folded - carried;
        // Text that is folded at a crease had been sent before; text that is folded at ingest never was.
        let added_price = if self.crease.is_some() { prefix_price } else { new_price };
        let rewritten = self.crease.map_or(0.0, |crease| crease.rewritten_tokens as f64 * scale);
        let is_warm = prefix_price < new_price;
        RequestBill {
            billed: dollars(self.input_price() + usage.output as f64 * prices.output),
            saved: dollars(carried * prefix_price + added * added_price),
            crease: dollars(if is_warm { rewritten * (new_price - prefix_price) } else { 0.0 }),
            unfold: dollars(self.input_price() * self.earlier_rounds_share()),
            summary: self.summary,
            cold_avoided: dollars(if is_warm || self.crease.is_none() { 0.0 } else { added * added_price }),
        }
    }

    /// Returns the price of the reported prompt tokens, relative to an input token.
    fn input_price(&self) -> f64 {
        let Self { prices, usage, hour_write, .. } = self;
        let (read, write) = (usage.cache_read.unwrap_or(0), usage.cache_write.unwrap_or(0));
        let hour = usage.cache_write_1h.unwrap_or(0).min(write);
        let fresh = usage.input.saturating_sub(read + write);
        fresh as f64 + read as f64 * prices.read + (write - hour) as f64 * prices.write + hour as f64 * hour_write
    }

    /// Returns the share of the prompt tokens that belong to rounds before the last.
    fn earlier_rounds_share(&self) -> f64 {
        let earlier = self.usage.input.saturating_sub(self.usage.context_tokens());
        if self.usage.last_input.is_some() && self.usage.input > 0 {
            earlier as f64 / self.usage.input as f64
        } else {
            0.0
        }
    }

    /// Returns the provider's count of the prompt divided by ours.
    fn count_ratio(&self) -> f64 {
        let ratio = self.usage.context_tokens() as f64 / self.prompt_tokens.max(1) as f64;
        if (1.0 / MAX_COUNT_RATIO..=MAX_COUNT_RATIO).contains(&ratio) { ratio } else { 1.0 }
    }

    /// Returns the relative price of text that was not sent before.
    fn new_price(&self) -> f64 {
        match self.usage.cache_write {
            Some(written) if written > 0 && self.usage.cache_write_1h.unwrap_or(0) * 2 > written => self.hour_write,
            Some(written) if written > 0 => self.prices.write,
            _ => 1.0,
        }
    }

    /// Returns the relative price at which the folded tokens would have been billed.
    fn prefix_price(&self) -> f64 {
        let Self { prices, usage, elapsed, crease, .. } = self;
        let is_expired = match (elapsed, prices.cache_ttl) {
            (None, _) => true,
            (Some(elapsed), Some(ttl)) => *elapsed > ttl,
            (Some(_), None) => false,
        };
        let is_cold_crease = crease.is_some_and(|crease| crease.trigger == Trigger::ColdCache);
        let was_read = match usage.cache_read {
            Some(read) => read > 0 || crease.is_some() && !is_expired && !is_cold_crease,
            None => !is_expired,
        };
        if was_read && !is_cold_crease { prices.read.min(self.new_price()) } else { self.new_price() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::models::PriceTable;

    fn usage(input: u64, read: u64, write: u64, output: u64) -> Usage {
        serde_json::from_value(serde_json::json!({
            "input": input, "cache_read": read, "cache_write": write, "output": output
        }))
        .unwrap()
    }

    /// Input at $5 per million, read at 0.1, write at 1.25, output at 5.
    fn facts(usage: Usage) -> BillFacts {
        BillFacts {
            prices: PriceTable::builtin().get("anthropic-5m").unwrap(),
            hour_write: 2.0,
            usage,
            prompt_tokens: usage.input,
            folded_tokens: 0,
            folded_before: 0,
            elapsed: Some(Duration::from_secs(10)),
            crease: None,
            summary: NanoDollars(0),
        }
    }

    const CREASE: CreaseFacts = CreaseFacts { trigger: Trigger::OverBudget, rewritten_tokens: 20_000 };

    fn micros(amount: NanoDollars) -> i64 {
        amount.0 / 1_000
    }

    #[test]
    fn usage_is_billed_by_tier() {
        let bill = facts(usage(100_000, 80_000, 15_000, 1_000)).bill();
        // 5,000 fresh + 8,000 + 18,750 + 5,000 output, at $5 per million.
        assert_eq!(micros(bill.billed), 183_750);
        assert_eq!((bill.saved, bill.net()), (NanoDollars(0), NanoDollars(0)));
    }

    #[test]
    fn folded_tokens_are_worth_the_read_price_while_the_cache_is_warm() {
        let warm = BillFacts { folded_tokens: 40_000, folded_before: 40_000, ..facts(usage(50_000, 45_000, 5_000, 0)) };
        assert_eq!(micros(warm.bill().saved), 20_000);
        assert_eq!(micros(warm.bill().net()), 20_000);
    }

    #[test]
    fn folded_tokens_are_worth_the_write_price_on_a_cold_cache() {
        let cold = BillFacts { folded_tokens: 40_000, folded_before: 40_000, ..facts(usage(50_000, 0, 50_000, 0)) };
        assert_eq!(micros(cold.bill().saved), 250_000);
    }

    #[test]
    fn text_folded_before_it_was_sent_is_worth_the_price_of_new_text() {
        let ingest = BillFacts { folded_tokens: 1_000, ..facts(usage(50_000, 45_000, 5_000, 0)) };
        assert_eq!(micros(ingest.bill().saved), 6_250);
    }

    #[test]
    fn crease_on_a_warm_cache_pays_for_the_rewritten_suffix() {
        let forced = BillFacts { folded_tokens: 40_000, crease: Some(CREASE), ..facts(usage(50_000, 0, 50_000, 0)) };
        let bill = forced.bill();
        // Saved: 40,000 at 0.1. Crease: 20,000 at 1.25 - 0.1.
        assert_eq!((micros(bill.saved), micros(bill.crease)), (20_000, 115_000));
        assert_eq!(micros(bill.net()), -95_000, "a loss is shown as a loss");
        assert_eq!(bill.cold_avoided, NanoDollars(0));
    }

    #[test]
    fn crease_on_a_cold_cache_is_free_and_avoids_writing() {
        let crease = CreaseFacts { trigger: Trigger::ColdCache, ..CREASE };
        let cold = BillFacts {
            folded_tokens: 40_000,
            crease: Some(crease),
            elapsed: Some(Duration::from_secs(3_000)),
            ..facts(usage(50_000, 0, 50_000, 0))
        };
        let bill = cold.bill();
        assert_eq!((micros(bill.saved), micros(bill.cold_avoided), bill.crease.0), (250_000, 250_000, 0));
    }

    #[test]
    fn our_counts_are_scaled_to_those_of_the_provider() {
        let scaled = BillFacts {
            prompt_tokens: 25_000,
            folded_tokens: 20_000,
            folded_before: 20_000,
            ..facts(usage(50_000, 45_000, 5_000, 0))
        };
        assert_eq!(micros(scaled.bill().saved), 20_000);
        let implausible = BillFacts { prompt_tokens: 10, ..scaled };
        assert_eq!(micros(implausible.bill().saved), 10_000);
    }

    #[test]
    fn rounds_before_the_last_are_the_price_of_unfolds() {
        let rounds = Usage::default().combined_with(usage(50_000, 50_000, 0, 0));
        let two = usage(50_000, 50_000, 0, 0).combined_with(usage(50_000, 50_000, 0, 0));
        assert_eq!(facts(rounds).bill().unfold, NanoDollars(0));
        assert_eq!(micros(facts(two).bill().unfold), 25_000);
    }

    #[test]
    fn hour_cache_has_its_own_write_price() {
        let mut hour = usage(10_000, 0, 10_000, 0);
        hour.cache_write_1h = Some(10_000);
        assert_eq!(micros(facts(hour).bill().billed), 100_000);
    }
}
