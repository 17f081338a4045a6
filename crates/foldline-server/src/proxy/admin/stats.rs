//! Statistics of a running proxy, for the program that started it.

use std::fmt;
use std::sync::Arc;

use foldline::tokens::Tokens;

use crate::proxy::admin::metrics::{
    CLIENT_ERROR_CLASS, KindLabels, NO_RESPONSE_CLASS, ProxyMetrics, SERVER_ERROR_CLASS, TokenStage,
};
use crate::proxy::state::AppState;

/// Totals since the proxy was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ProxyStats {
    /// Requests that carried a conversation.
    pub requests: u64,
    /// Prompt tokens as received.
    pub received_tokens: Tokens,
    /// Prompt tokens as sent.
    pub sent_tokens: Tokens,
    /// Prompt tokens that folding would have sent, in observe mode.
    pub would_send_tokens: Tokens,
    /// Dollars saved by folding.
    pub saved_usd: f64,
    /// Dollars spent on creases.
    pub crease_cost_usd: f64,
    /// Dollars that folding would have saved, in observe mode.
    pub would_save_usd: f64,
    /// Dollars that creases would have cost, in observe mode.
    pub would_crease_cost_usd: f64,
    /// Dollars spent on rounds in which models read originals.
    pub unfold_cost_usd: f64,
    /// Dollars spent on summaries.
    pub summary_cost_usd: f64,
    /// Originals that models requested and received.
    pub unfolds: u64,
    /// Prompt tokens of the rounds in which they did, without the last round of each response.
    pub unfold_tokens: Tokens,
    /// Requests that an upstream did not answer with success.
    pub upstream_errors: UpstreamErrors,
}

/// Requests that an upstream did not answer with success, by the kind of failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamErrors {
    /// Responses with a status below 500.
    pub client: u64,
    /// Responses with a status of 500 and above.
    pub server: u64,
    /// Requests without a response.
    pub no_response: u64,
}

impl UpstreamErrors {
    /// Returns the number of all errors.
    pub fn total(&self) -> u64 {
        self.client + self.server + self.no_response
    }
}

/// A handle to the statistics of a proxy, valid while it runs and afterwards.
#[derive(Clone)]
pub struct StatsHandle(pub(crate) Arc<AppState>);

impl fmt::Debug for StatsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatsHandle").field(&self.snapshot()).finish()
    }
}

impl ProxyStats {
    /// Returns what folding saved after everything it cost, in dollars.
    pub fn net_usd(&self) -> f64 {
        self.saved_usd - self.crease_cost_usd - self.unfold_cost_usd - self.summary_cost_usd
    }
}

impl StatsHandle {
    /// Returns the totals so far.
    pub fn snapshot(&self) -> ProxyStats {
        let metrics = &self.0.metrics;
        ProxyStats {
            requests: metrics.conversation_requests(),
            received_tokens: metrics.prompt_tokens(TokenStage::Received).get(),
            sent_tokens: metrics.prompt_tokens(TokenStage::Sent).get(),
            would_send_tokens: metrics.prompt_tokens(TokenStage::WouldSend).get(),
            saved_usd: metrics.saved_usd.get(),
            crease_cost_usd: metrics.crease_cost_usd.get(),
            would_save_usd: metrics.would_save_usd.get(),
            would_crease_cost_usd: metrics.would_crease_cost_usd.get(),
            upstream_errors: upstream_errors(metrics),
            unfold_cost_usd: metrics.unfold_cost_usd.get(),
            summary_cost_usd: metrics.summary_cost_usd.get(),
            unfold_tokens: metrics.unfold_tokens.get(),
            unfolds: metrics.unfolds.get(&KindLabels { kind: "served" }).map_or(0, |count| count.get()),
        }
    }
}

/// Returns the upstream errors so far.
pub(crate) fn upstream_errors(metrics: &ProxyMetrics) -> UpstreamErrors {
    UpstreamErrors {
        client: metrics.upstream_errors(CLIENT_ERROR_CLASS),
        server: metrics.upstream_errors(SERVER_ERROR_CLASS),
        no_response: metrics.upstream_errors(NO_RESPONSE_CLASS),
    }
}
