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
pub(crate) struct ProxyMetrics {
    registry: Registry,
    /// Requests by dialect and by what became of them.
    pub(crate) requests: Family<RequestLabels, Counter>,
    /// Requests that are being answered now.
    pub(crate) open_requests: Gauge,
    /// Bytes of request bodies that are held now.
    held_body_bytes: Gauge,
    /// Requests that found no room for their body.
    pub(crate) refused_bodies: Counter,
    /// Tokens of prompts as they came, and as they were sent.
    pub(crate) received_tokens: Counter,
    pub(crate) sent_tokens: Counter,
    /// Tokens that folding would have sent, where it is only observed.
    pub(crate) would_send_tokens: Counter,
    /// What providers reported.
    pub(crate) reported_tokens: Family<TokenLabels, Counter>,
    /// Dollars that were not spent on what was folded, and that creases cost.
    pub(crate) saved_usd: Counter<f64, AtomicU64>,
    pub(crate) crease_cost_usd: Counter<f64, AtomicU64>,
    /// Folds by the pass that proposed them.
    pub(crate) folds: Family<PassLabels, Counter>,
    /// Creases by their reason.
    pub(crate) creases: Family<TriggerLabels, Counter>,
    /// Originals that models asked for.
    pub(crate) unfolds: Family<KindLabels, Counter>,
    /// Faults by kind: each left a request as it was.
    pub(crate) internal_errors: Family<KindLabels, Counter>,
    /// Folds that were cancelled because the client had left.
    pub(crate) cancelled: Counter,
    /// Prompts that did not fit and were folded again.
    pub(crate) overflows: Counter,
    /// Summaries by how their writing ended, and what it cost.
    pub(crate) summaries: Family<KindLabels, Counter>,
    pub(crate) summary_tokens: Family<TokenLabels, Counter>,
    pub(crate) summary_cost_usd: Counter<f64, AtomicU64>,
    /// Time between the end of a request's body and its being sent on.
    pub(crate) request_overhead: Histogram,
}

/// What became of a request.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) format: &'static str,
    /// `folded`, `as_came` or `passed` (never looked at).
    pub(crate) sent: &'static str,
}

/// A direction of tokens.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct TokenLabels {
    pub(crate) direction: &'static str,
}

/// A pass of the engine.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct PassLabels {
    pub(crate) pass: &'static str,
}

/// Why a crease was made.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct TriggerLabels {
    pub(crate) trigger: String,
}

/// A kind of something.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct KindLabels {
    pub(crate) kind: &'static str,
}

impl ProxyMetrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("foldline");
        let metrics = Self {
            requests: Family::default(),
            open_requests: Gauge::default(),
            held_body_bytes: Gauge::default(),
            refused_bodies: Counter::default(),
            received_tokens: Counter::default(),
            sent_tokens: Counter::default(),
            would_send_tokens: Counter::default(),
            reported_tokens: Family::default(),
            saved_usd: Counter::default(),
            crease_cost_usd: Counter::default(),
            folds: Family::default(),
            creases: Family::default(),
            unfolds: Family::default(),
            internal_errors: Family::default(),
            cancelled: Counter::default(),
            overflows: Counter::default(),
            summaries: Family::default(),
            summary_tokens: Family::default(),
            summary_cost_usd: Counter::default(),
            // From 0.1 ms to 3 s.
            request_overhead: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests by dialect and what was sent", metrics.requests.clone());
        registry.register("open_requests", "Requests that are being answered", metrics.open_requests.clone());
        registry.register("held_body_bytes", "Bytes of request bodies that are held", metrics.held_body_bytes.clone());
        registry.register(
            "refused_bodies",
            "Requests that found no room for their body",
            metrics.refused_bodies.clone(),
        );
        registry.register("raw_tokens", "Tokens of prompts as they came", metrics.received_tokens.clone());
        registry.register("sent_tokens", "Tokens of prompts as they were sent", metrics.sent_tokens.clone());
        let observed = metrics.would_send_tokens.clone();
        registry.register("observed_tokens", "Tokens that folding would have sent, in observe mode", observed);
        registry.register("reported_tokens", "Tokens as providers reported them", metrics.reported_tokens.clone());
        registry.register("bill_saved_usd", "Dollars not spent on what was folded", metrics.saved_usd.clone());
        registry.register("bill_spent_usd", "Dollars spent on creases", metrics.crease_cost_usd.clone());
        registry.register("folds", "Folds by pass", metrics.folds.clone());
        registry.register("creases", "Creases by reason", metrics.creases.clone());
        registry.register("unfolds", "Originals asked for by models", metrics.unfolds.clone());
        registry.register("faults", "Faults by kind", metrics.internal_errors.clone());
        registry.register("cancelled_folds", "Folds cancelled because the client left", metrics.cancelled.clone());
        registry.register("overflows", "Prompts that did not fit and were folded again", metrics.overflows.clone());
        registry.register("summaries", "Summaries by how their writing ended", metrics.summaries.clone());
        registry.register("summary_tokens", "Tokens spent on summaries", metrics.summary_tokens.clone());
        registry.register("bill_summaries_usd", "Dollars spent on summaries", metrics.summary_cost_usd.clone());
        let added = metrics.request_overhead.clone();
        registry.register_with_unit("added_latency", "Time added before a request is sent on", Unit::Seconds, added);
        Self { registry, ..metrics }
    }

    /// All of it in the format that Prometheus reads, with the bytes of bodies that are held now.
    pub(crate) fn encode(&self, held: usize) -> String {
        self.held_body_bytes.set(held as i64);
        let mut text = String::new();
        // Writing to a string can not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    /// A fault of ours that cost nobody a request.
    pub(crate) fn count_internal_error(&self, kind: &'static str) {
        self.internal_errors.get_or_create(&KindLabels { kind }).inc();
    }

    /// A request was sent on, in this form, so long after it had come.
    pub(crate) fn record_request(&self, format: &'static str, sent: &'static str, added: Duration) {
        self.requests.get_or_create(&RequestLabels { format, sent }).inc();
        self.request_overhead.observe(added.as_secs_f64());
    }
}
