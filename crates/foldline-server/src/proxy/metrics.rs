//! What the proxy did, in numbers, for Prometheus.
//!
//! Counters and one histogram; nothing in them tells what a conversation is about or whose it is.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    /// Requests by dialect and by what became of them.
    pub(crate) requests: Family<Outcome, Counter>,
    /// Requests that are being answered now.
    pub(crate) open: Gauge,
    /// Bytes of request bodies that are held now.
    held: Gauge,
    /// Requests that found no room for their body.
    pub(crate) refused: Counter,
    /// Tokens of prompts as they came, and as they were sent.
    pub(crate) raw_tokens: Counter,
    pub(crate) sent_tokens: Counter,
    /// Tokens that folding would have sent, where it is only observed.
    pub(crate) observed_tokens: Counter,
    /// What providers reported.
    pub(crate) usage: Family<Direction, Counter>,
    /// Dollars that were not spent on what was folded, and that creases cost.
    pub(crate) saved: Counter<f64, AtomicU64>,
    pub(crate) spent: Counter<f64, AtomicU64>,
    /// Folds by the pass that proposed them.
    pub(crate) folds: Family<Pass, Counter>,
    /// Creases by their reason.
    pub(crate) creases: Family<Reason, Counter>,
    /// Originals that models asked for.
    pub(crate) unfolds: Family<Kind, Counter>,
    /// Faults by kind: each left a request as it was.
    pub(crate) faults: Family<Kind, Counter>,
    /// Folds that were cancelled because the client had left.
    pub(crate) cancelled: Counter,
    /// Prompts that did not fit and were folded again.
    pub(crate) overflows: Counter,
    /// Summaries by how their writing ended, and what it cost.
    pub(crate) summaries: Family<Kind, Counter>,
    pub(crate) summary_tokens: Family<Direction, Counter>,
    pub(crate) summary_spent: Counter<f64, AtomicU64>,
    /// Time between the end of a request's body and its being sent on.
    pub(crate) added: Histogram,
}

/// What became of a request.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Outcome {
    pub(crate) format: &'static str,
    /// `folded`, `as_came` or `passed` (never looked at).
    pub(crate) sent: &'static str,
}

/// A direction of tokens.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Direction {
    pub(crate) of: &'static str,
}

/// A pass of the engine.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Pass {
    pub(crate) pass: &'static str,
}

/// Why a crease was made.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Reason {
    pub(crate) reason: String,
}

/// A kind of something.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Kind {
    pub(crate) kind: &'static str,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("foldline");
        let metrics = Self {
            requests: Family::default(),
            open: Gauge::default(),
            held: Gauge::default(),
            refused: Counter::default(),
            raw_tokens: Counter::default(),
            sent_tokens: Counter::default(),
            observed_tokens: Counter::default(),
            usage: Family::default(),
            saved: Counter::default(),
            spent: Counter::default(),
            folds: Family::default(),
            creases: Family::default(),
            unfolds: Family::default(),
            faults: Family::default(),
            cancelled: Counter::default(),
            overflows: Counter::default(),
            summaries: Family::default(),
            summary_tokens: Family::default(),
            summary_spent: Counter::default(),
            // From 0.1 ms to 3 s.
            added: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests by dialect and what was sent", metrics.requests.clone());
        registry.register("open_requests", "Requests that are being answered", metrics.open.clone());
        registry.register("held_body_bytes", "Bytes of request bodies that are held", metrics.held.clone());
        registry.register("refused_bodies", "Requests that found no room for their body", metrics.refused.clone());
        registry.register("raw_tokens", "Tokens of prompts as they came", metrics.raw_tokens.clone());
        registry.register("sent_tokens", "Tokens of prompts as they were sent", metrics.sent_tokens.clone());
        let observed = metrics.observed_tokens.clone();
        registry.register("observed_tokens", "Tokens that folding would have sent, in observe mode", observed);
        registry.register("reported_tokens", "Tokens as providers reported them", metrics.usage.clone());
        registry.register("bill_saved_usd", "Dollars not spent on what was folded", metrics.saved.clone());
        registry.register("bill_spent_usd", "Dollars spent on creases", metrics.spent.clone());
        registry.register("folds", "Folds by pass", metrics.folds.clone());
        registry.register("creases", "Creases by reason", metrics.creases.clone());
        registry.register("unfolds", "Originals asked for by models", metrics.unfolds.clone());
        registry.register("faults", "Faults by kind", metrics.faults.clone());
        registry.register("cancelled_folds", "Folds cancelled because the client left", metrics.cancelled.clone());
        registry.register("overflows", "Prompts that did not fit and were folded again", metrics.overflows.clone());
        registry.register("summaries", "Summaries by how their writing ended", metrics.summaries.clone());
        registry.register("summary_tokens", "Tokens spent on summaries", metrics.summary_tokens.clone());
        registry.register("bill_summaries_usd", "Dollars spent on summaries", metrics.summary_spent.clone());
        let added = metrics.added.clone();
        registry.register_with_unit("added_latency", "Time added before a request is sent on", Unit::Seconds, added);
        Self { registry, ..metrics }
    }

    /// All of it in the format that Prometheus reads, with the bytes of bodies that are held now.
    pub(crate) fn text(&self, held: usize) -> String {
        self.held.set(held as i64);
        let mut text = String::new();
        // Writing to a string can not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    /// A fault of ours that cost nobody a request.
    pub(crate) fn fault(&self, kind: &'static str) {
        self.faults.get_or_create(&Kind { kind }).inc();
    }

    /// A request was sent on, in this form, so long after it had come.
    pub(crate) fn sent(&self, format: &'static str, sent: &'static str, added: Duration) {
        self.requests.get_or_create(&Outcome { format, sent }).inc();
        self.added.observe(added.as_secs_f64());
    }
}
