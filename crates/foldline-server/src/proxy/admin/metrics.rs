//! Prometheus metrics of the proxy.
//!
//! Counters and one histogram. No metric contains content or identifies a user.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The metrics and their registry.
pub(crate) struct ProxyMetrics {
    registry: Registry,
    /// Requests by dialect and outcome.
    pub(crate) requests: Family<RequestLabels, Counter>,
    /// Requests in progress.
    pub(crate) open_requests: Gauge,
    /// Bytes of request bodies in memory.
    held_body_bytes: Gauge,
    /// Requests rejected because the memory limit of request bodies was reached.
    pub(crate) rejected_bodies: Counter,
    /// Prompt tokens by stage, by our count.
    prompt_tokens: Family<StageLabels, Counter>,
    /// Tokens as reported by providers.
    pub(crate) reported_tokens: Family<TokenLabels, Counter>,
    /// Dollars saved by folding, and dollars spent on creases.
    pub(crate) saved_usd: Counter<f64, AtomicU64>,
    pub(crate) crease_cost_usd: Counter<f64, AtomicU64>,
    /// Folds by the pass that proposed them.
    pub(crate) folds: Family<PassLabels, Counter>,
    /// Creases by trigger.
    pub(crate) creases: Family<TriggerLabels, Counter>,
    /// Originals requested by models.
    pub(crate) unfolds: Family<KindLabels, Counter>,
    /// Internal errors by kind; after each the client's own request was forwarded.
    pub(crate) internal_errors: Family<KindLabels, Counter>,
    /// Folds cancelled because the client disconnected.
    pub(crate) cancelled: Counter,
    /// Prompts that did not fit and were folded again.
    pub(crate) overflows: Counter,
    /// Summaries by outcome, and their cost.
    pub(crate) summaries: Family<KindLabels, Counter>,
    pub(crate) summary_tokens: Family<TokenLabels, Counter>,
    pub(crate) summary_cost_usd: Counter<f64, AtomicU64>,
    /// Time from the end of a request body to sending it upstream.
    pub(crate) request_overhead: Histogram,
}

/// Dialect and outcome of a request.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) format: &'static str,
    /// `folded`, `unmodified` or `passthrough` (not parsed).
    pub(crate) sent: &'static str,
}

/// A direction of tokens: `input`, `output`, `cache_read` or `cache_write`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct TokenLabels {
    pub(crate) direction: &'static str,
}

/// Labels of prompt tokens.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

/// A point at which the tokens of a prompt are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenStage {
    /// The request of the client.
    Received,
    /// The request that was sent upstream.
    Sent,
    /// The request that folding would have sent, in observe mode.
    WouldSend,
}

impl TokenStage {
    fn name(self) -> &'static str {
        match self {
            TokenStage::Received => "received",
            TokenStage::Sent => "sent",
            TokenStage::WouldSend => "would_send",
        }
    }
}

/// A pass of the engine.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct PassLabels {
    pub(crate) pass: &'static str,
}

/// The trigger of a crease.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct TriggerLabels {
    pub(crate) trigger: &'static str,
}

/// A kind of event, outcome or error.
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
            rejected_bodies: Counter::default(),
            prompt_tokens: Family::default(),
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
        registry.register("requests", "Requests by dialect and outcome", metrics.requests.clone());
        registry.register("open_requests", "Requests in progress", metrics.open_requests.clone());
        registry.register("held_body_bytes", "Bytes of request bodies in memory", metrics.held_body_bytes.clone());
        registry.register(
            "rejected_bodies",
            "Requests rejected because the memory limit of request bodies was reached",
            metrics.rejected_bodies.clone(),
        );
        registry.register("prompt_tokens", "Prompt tokens by stage", metrics.prompt_tokens.clone());
        registry.register("reported_tokens", "Tokens as reported by providers", metrics.reported_tokens.clone());
        registry.register("saved_usd", "Dollars saved by folding", metrics.saved_usd.clone());
        registry.register("crease_cost_usd", "Dollars spent on creases", metrics.crease_cost_usd.clone());
        registry.register("folds", "Folds by pass", metrics.folds.clone());
        registry.register("creases", "Creases by trigger", metrics.creases.clone());
        registry.register("unfolds", "Originals requested by models", metrics.unfolds.clone());
        registry.register("internal_errors", "Internal errors by kind", metrics.internal_errors.clone());
        registry.register(
            "cancelled_folds",
            "Folds cancelled because the client disconnected",
            metrics.cancelled.clone(),
        );
        registry.register("overflows", "Prompts that did not fit and were folded again", metrics.overflows.clone());
        registry.register("summaries", "Summaries by outcome", metrics.summaries.clone());
        registry.register("summary_tokens", "Tokens spent on summaries", metrics.summary_tokens.clone());
        registry.register("summary_cost_usd", "Dollars spent on summaries", metrics.summary_cost_usd.clone());
        registry.register_with_unit(
            "request_overhead",
            "Time from the end of a request body to sending it upstream",
            Unit::Seconds,
            metrics.request_overhead.clone(),
        );
        Self { registry, ..metrics }
    }

    /// Encodes all metrics in the Prometheus text format. `held` is the current size of request bodies in bytes.
    pub(crate) fn encode(&self, held: usize) -> String {
        self.held_body_bytes.set(held as i64);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    /// Counts an internal error that did not fail its request.
    pub(crate) fn count_internal_error(&self, kind: &'static str) {
        self.internal_errors.get_or_create(&KindLabels { kind }).inc();
    }

    /// Returns the counter of prompt tokens at a stage.
    pub(crate) fn prompt_tokens(&self, stage: TokenStage) -> Counter {
        self.prompt_tokens.get_or_create(&StageLabels { stage: stage.name() }).clone()
    }

    /// Counts a request that was sent, with its overhead.
    pub(crate) fn record_request(&self, format: &'static str, sent: &'static str, overhead: Duration) {
        self.requests.get_or_create(&RequestLabels { format, sent }).inc();
        self.request_overhead.observe(overhead.as_secs_f64());
    }
}
