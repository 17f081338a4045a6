//! Prometheus metrics of the proxy.
//!
//! Counters and one histogram. No metric contains content or identifies a user.

use std::sync::atomic::AtomicU64;

use foldline::wire::Format;
use foldline_archive::store::StoreHealth;
use hyper::StatusCode;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::activity::BreakCause;

/// Prefix of all metrics.
const METRIC_PREFIX: &str = "foldline";
/// Class of errors with a status below 500.
pub(crate) const CLIENT_ERROR_CLASS: &str = "4xx";
/// Class of errors with a status of 500 and above.
pub(crate) const SERVER_ERROR_CLASS: &str = "5xx";
/// Class of requests without a response.
pub(crate) const NO_RESPONSE_CLASS: &str = "none";

/// The metrics and their registry.
pub(crate) struct ProxyMetrics {
    catalog: MetricCatalog,
    /// Requests by dialect and outcome.
    pub(crate) requests: Family<RequestLabels, Counter>,
    /// Requests in progress.
    pub(crate) open_requests: Gauge,
    /// Bytes of request bodies in memory.
    held_body_bytes: Gauge,
    /// 1 if the last call of a part of the archive got no answer.
    archive_unreachable: Family<PartLabels, Gauge>,
    /// Requests rejected because the memory limit of request bodies was reached.
    pub(crate) rejected_bodies: Counter,
    /// Prompt tokens by stage, by our count.
    prompt_tokens: Family<StageLabels, Counter>,
    /// Tokens as reported by providers.
    pub(crate) reported_tokens: Family<TokenLabels, Counter>,
    /// Dollars saved by folding, and dollars spent on creases.
    pub(crate) saved_usd: Counter<f64, AtomicU64>,
    pub(crate) crease_cost_usd: Counter<f64, AtomicU64>,
    /// The same in observe mode: what folding would have saved, and what its creases would have cost.
    pub(crate) would_save_usd: Counter<f64, AtomicU64>,
    pub(crate) would_crease_cost_usd: Counter<f64, AtomicU64>,
    /// Conversations that an upstream did not answer with success.
    pub(crate) upstream_errors: Family<ClassLabels, Counter>,
    /// Dollars spent on rounds in which models read originals, and dollars of the reported usage.
    pub(crate) unfold_cost_usd: Counter<f64, AtomicU64>,
    pub(crate) billed_usd: Counter<f64, AtomicU64>,
    /// Dollars of rewriting avoided by creases on a cold cache; part of the saved dollars.
    pub(crate) cold_avoided_usd: Counter<f64, AtomicU64>,
    /// Responses to conversations, by dialect and class of status.
    responses: Family<ResponseLabels, Counter>,
    /// Cache breaks by cause.
    cache_breaks: Family<CauseLabels, Counter>,
    /// Cache diagnostics of providers, by verdict.
    cache_verdicts: Family<VerdictLabels, Counter>,
    /// Violations of guarantees.
    violations: Family<GuaranteeLabels, Counter>,
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
    /// Requests whose history the provider stores, by the field that refers to it.
    passthrough: Family<ReasonLabels, Counter>,
    /// Continued message threads that were refused, so that the client sends its history.
    refused_threads: Counter,
    /// Prompt tokens of the rounds before the last, in which models read originals.
    pub(crate) unfold_tokens: Counter,
    /// Summaries by outcome, and their cost.
    pub(crate) summaries: Family<KindLabels, Counter>,
    pub(crate) summary_tokens: Family<TokenLabels, Counter>,
    pub(crate) summary_cost_usd: Counter<f64, AtomicU64>,
    /// Time from the end of a request body to sending it upstream.
    pub(crate) request_overhead: Histogram,
}

/// A registry that keeps the names and descriptions of its metrics, for the reference page.
struct MetricCatalog {
    registry: Registry,
    descriptions: Vec<(String, &'static str)>,
}

impl Default for MetricCatalog {
    fn default() -> Self {
        Self { registry: Registry::with_prefix(METRIC_PREFIX), descriptions: Vec::new() }
    }
}

impl MetricCatalog {
    /// Creates and registers a metric.
    fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &'static str) -> M {
        let metric = M::default();
        self.describe(name, "", help, &metric);
        self.registry.register(name, help, metric.clone());
        metric
    }

    /// Registers a metric in seconds, and returns it.
    fn add_seconds<M: Metric + Clone>(&mut self, name: &str, help: &'static str, metric: M) -> M {
        self.describe(name, "_seconds", help, &metric);
        self.registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }

    fn describe(&mut self, name: &str, unit: &str, help: &'static str, metric: &impl Metric) {
        let suffix = if matches!(metric.metric_type(), MetricType::Counter) { "_total" } else { "" };
        self.descriptions.push((format!("{METRIC_PREFIX}_{name}{unit}{suffix}"), help));
    }
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

/// Dialect and class of status of a response.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResponseLabels {
    format: &'static str,
    status: &'static str,
}

/// The cause of a cache break.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

/// The cause of a cache break.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerdictLabels {
    verdict: &'static str,
}

/// A guarantee.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GuaranteeLabels {
    guarantee: &'static str,
}

/// The guarantees of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarantee {
    Fits,
    Valid,
    Stable,
    Recoverable,
}

impl Guarantee {
    /// All guarantees, in order.
    pub(crate) const ALL: [Guarantee; 4] =
        [Guarantee::Fits, Guarantee::Valid, Guarantee::Stable, Guarantee::Recoverable];

    fn name(self) -> &'static str {
        match self {
            Guarantee::Fits => "fits",
            Guarantee::Valid => "valid",
            Guarantee::Stable => "stable",
            Guarantee::Recoverable => "recoverable",
        }
    }
}

/// Kinds of internal errors.
const INTERNAL_ERROR_KINDS: [&str; 7] =
    ["archive", "cannot_fit", "fold_refused", "no_tenant", "panic", "sync_failed", "truncated_by_server"];
/// Classes of HTTP status.
const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// A kind of event, outcome or error.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct KindLabels {
    pub(crate) kind: &'static str,
}

/// A part of the archive: `database` or `objects`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PartLabels {
    part: &'static str,
}

/// The reason why a request is not folded.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The status class of a failed response: `4xx`, `5xx` or `none`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ClassLabels {
    pub(crate) class: &'static str,
}

impl ProxyMetrics {
    pub(crate) fn new() -> Self {
        let mut catalog = MetricCatalog::default();
        let metrics = Self {
            requests: catalog.add(
                "requests",
                "Requests by format and outcome: sent is folded, unmodified or passthrough (not parsed)",
            ),
            open_requests: catalog.add("open_requests", "Requests in progress"),
            held_body_bytes: catalog.add("held_body_bytes", "Bytes of request bodies in memory"),
            archive_unreachable: catalog.add(
                "archive_unreachable",
                "1 if the last call of a part of the archive got no answer; part is database or objects",
            ),
            rejected_bodies: catalog
                .add("rejected_bodies", "Requests rejected because the memory limit of request bodies was reached"),
            prompt_tokens: catalog.add(
                "prompt_tokens",
                "Prompt tokens by our count; stage is received, sent, or would_send in observe mode",
            ),
            reported_tokens: catalog.add(
                "reported_tokens",
                "Tokens as reported by providers; direction is input, output, cache_read or cache_write",
            ),
            saved_usd: catalog.add(
                "saved_usd",
                "Dollars of folded tokens at the tier really billed; models without a list price count as zero",
            ),
            crease_cost_usd: catalog.add("crease_cost_usd", "Dollars spent on creases"),
            would_save_usd: catalog.add("would_save_usd", "Dollars that folding would have saved, in observe mode"),
            would_crease_cost_usd: catalog
                .add("would_crease_cost_usd", "Dollars that creases would have cost, in observe mode"),
            upstream_errors: catalog.add(
                "upstream_errors",
                "Conversations without a successful answer of the upstream; class is 4xx, 5xx or none (no response)",
            ),
            unfold_cost_usd: catalog.add("unfold_cost_usd", "Dollars spent on unfold rounds"),
            billed_usd: catalog.add("billed_usd", "Dollars of the usage that providers report"),
            cold_avoided_usd: catalog
                .add("cold_avoided_usd", "Dollars of rewriting avoided by creases on a cold cache"),
            responses: catalog.add("responses", "Responses by dialect and class of status"),
            cache_breaks: catalog.add("cache_breaks", "Cache breaks by cause"),
            cache_verdicts: catalog.add("cache_verdicts", "Cache diagnostics of providers; verdict is kept or missed"),
            violations: catalog.add("violations", "Violations of guarantees"),
            folds: catalog.add("folds", "Folds by pass"),
            creases: catalog.add("creases", "Creases by trigger: over_budget, profitable or cold_cache"),
            unfolds: catalog.add("unfolds", "Originals requested by models; kind is served or refused"),
            internal_errors: catalog
                .add("internal_errors", "Internal errors by kind; after each the client's own request was forwarded"),
            cancelled: catalog.add("cancelled_folds", "Folds cancelled because the client disconnected"),
            overflows: catalog.add("overflows", "Prompts that did not fit and were folded again"),
            passthrough: catalog.add(
                "passthrough",
                "Requests that are not folded because the provider stores their history; reason is the field that \
                 refers to it",
            ),
            refused_threads: catalog.add(
                "refused_threads",
                "Continued message threads that were refused, so that the client sends its history",
            ),
            unfold_tokens: catalog
                .add("unfold_tokens", "Prompt tokens of unfold rounds, without the last round of each response"),
            summaries: catalog.add(
                "summaries",
                "Summaries by outcome: kind is written, exhausted, failed, aborted or nothing_to_summarize",
            ),
            summary_tokens: catalog.add("summary_tokens", "Tokens spent on summaries; direction is input or output"),
            summary_cost_usd: catalog.add("summary_cost_usd", "Dollars spent on summaries"),
            // From 0.1 ms to 3 s.
            request_overhead: catalog.add_seconds(
                "request_overhead",
                "Time from the end of a request body to sending it upstream",
                Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            ),
            catalog,
        };
        metrics.create_labels();
        metrics
    }

    /// Creates the counters of all known labels, so that every family is present from the start.
    fn create_labels(&self) {
        for kind in INTERNAL_ERROR_KINDS {
            let _ = self.internal_errors.get_or_create(&KindLabels { kind });
        }
        for guarantee in Guarantee::ALL {
            let _ = self.violations.get_or_create(&GuaranteeLabels { guarantee: guarantee.name() });
        }
        for cause in BreakCause::ALL {
            let _ = self.cache_breaks.get_or_create(&CauseLabels { cause: cause.name() });
        }
        for verdict in ["kept", "missed"] {
            let _ = self.cache_verdicts.get_or_create(&VerdictLabels { verdict });
        }
        for trigger in ["over_budget", "profitable", "cold_cache"] {
            let _ = self.creases.get_or_create(&TriggerLabels { trigger });
        }
        for stage in [TokenStage::Received, TokenStage::Sent, TokenStage::WouldSend] {
            self.prompt_tokens(stage);
        }
        for direction in ["input", "output", "cache_read", "cache_write"] {
            let _ = self.reported_tokens.get_or_create(&TokenLabels { direction });
        }
        for kind in ["served", "refused"] {
            let _ = self.unfolds.get_or_create(&KindLabels { kind });
        }
        for format in Format::all().map(Format::name) {
            for sent in ["unmodified", "folded"] {
                let _ = self.requests.get_or_create(&RequestLabels { format, sent });
            }
            for status in STATUS_CLASSES {
                let _ = self.responses.get_or_create(&ResponseLabels { format, status });
            }
        }
    }

    /// Counts a request that is not folded because the provider stores its history. Returns how many there were before.
    pub(crate) fn count_passthrough(&self, reason: &'static str) -> u64 {
        self.passthrough.get_or_create(&ReasonLabels { reason }).inc()
    }

    /// Counts and, the first time, logs a continued thread that is refused.
    pub(crate) fn count_refused_thread(&self) {
        if self.refused_threads.inc() == 0 {
            tracing::info!(
                "message threads are refused, so that clients send their history; --threads pass allows them"
            );
        }
    }

    /// Returns the number of requests that carried a conversation.
    pub(crate) fn conversation_requests(&self) -> u64 {
        let formats = Format::all().map(Format::name);
        let outcomes = formats.flat_map(|format| ["unmodified", "folded"].map(|sent| RequestLabels { format, sent }));
        outcomes.filter_map(|outcome| self.requests.get(&outcome).map(|it| it.get())).sum()
    }

    /// Returns the internal errors that have occurred, by kind.
    pub(crate) fn internal_error_counts(&self) -> Vec<(&'static str, u64)> {
        let count = |kind| self.internal_errors.get_or_create(&KindLabels { kind }).get();
        INTERNAL_ERROR_KINDS.iter().map(|kind| (*kind, count(kind))).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the violations of each guarantee, in the order of [`Guarantee::ALL`].
    pub(crate) fn violations(&self) -> [u64; 4] {
        let errors = |kinds: &[&'static str]| -> u64 {
            kinds.iter().map(|kind| self.internal_errors.get_or_create(&KindLabels { kind }).get()).sum()
        };
        Guarantee::ALL.map(|guarantee| {
            let counted = self.violations.get_or_create(&GuaranteeLabels { guarantee: guarantee.name() }).get();
            counted
                + match guarantee {
                    Guarantee::Fits => errors(&["cannot_fit"]),
                    Guarantee::Recoverable => errors(&["sync_failed"]),
                    Guarantee::Valid | Guarantee::Stable => 0,
                }
        })
    }

    /// Counts a violation of a guarantee.
    pub(crate) fn count_violation(&self, guarantee: Guarantee) {
        self.violations.get_or_create(&GuaranteeLabels { guarantee: guarantee.name() }).inc();
    }

    /// Counts the verdict of a provider on its cache.
    pub(crate) fn record_verdict(&self, verdict: &'static str) {
        self.cache_verdicts.get_or_create(&VerdictLabels { verdict }).inc();
    }

    /// Counts a cache break.
    pub(crate) fn record_cache_break(&self, cause: &'static str) {
        self.cache_breaks.get_or_create(&CauseLabels { cause }).inc();
    }

    /// Counts the response to a conversation.
    pub(crate) fn record_response(&self, format: &'static str, status: u16) {
        self.responses.get_or_create(&ResponseLabels { format, status: status_class(status) }).inc();
    }

    /// Returns the exported names and the descriptions of all metrics.
    pub(crate) fn descriptions(&self) -> &[(String, &'static str)] {
        &self.catalog.descriptions
    }

    /// Encodes all metrics in the Prometheus text format. `held` is the current size of request bodies in bytes, `health` that
    /// of the archive.
    pub(crate) fn encode(&self, held: usize, health: Option<&StoreHealth>) -> String {
        self.held_body_bytes.set(held as i64);
        let database = health.map(|health| ("database", &health.outage));
        let objects = health.and_then(|health| Some(("objects", &health.objects.as_ref()?.outage)));
        for (part, outage) in database.into_iter().chain(objects) {
            self.archive_unreachable.get_or_create(&PartLabels { part }).set(i64::from(outage.is_some()));
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.catalog.registry);
        text
    }

    /// Counts an internal error that did not fail its request.
    pub(crate) fn count_internal_error(&self, kind: &'static str) {
        self.internal_errors.get_or_create(&KindLabels { kind }).inc();
    }

    /// Counts a conversation that an upstream refused, failed or did not answer.
    pub(crate) fn count_upstream_error(&self, status: Option<StatusCode>) {
        self.upstream_errors.get_or_create(&ClassLabels { class: error_class(status) }).inc();
    }

    /// Returns the number of upstream errors of a class.
    pub(crate) fn upstream_errors(&self, class: &'static str) -> u64 {
        self.upstream_errors.get(&ClassLabels { class }).map_or(0, |count| count.get())
    }

    /// Returns the counter of prompt tokens at a stage.
    pub(crate) fn prompt_tokens(&self, stage: TokenStage) -> Counter {
        self.prompt_tokens.get_or_create(&StageLabels { stage: stage.name() }).clone()
    }

    /// Counts a request that was sent.
    pub(crate) fn count_request(&self, format: &'static str, sent: &'static str) {
        self.requests.get_or_create(&RequestLabels { format, sent }).inc();
    }
}

fn status_class(status: u16) -> &'static str {
    STATUS_CLASSES[usize::from(status / 100).clamp(1, 5) - 1]
}

fn error_class(status: Option<StatusCode>) -> &'static str {
    match status {
        Some(status) if status.is_server_error() => SERVER_ERROR_CLASS,
        Some(_) => CLIENT_ERROR_CLASS,
        None => NO_RESPONSE_CLASS,
    }
}
