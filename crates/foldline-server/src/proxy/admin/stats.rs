//! Statistics of a running proxy, for the program that started it.

use std::sync::Arc;

use foldline::Tokens;
use foldline::wire::Format;

use crate::proxy::admin::metrics::{KindLabels, ProxyMetrics, RequestLabels, TokenStage};
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
    /// Originals that models requested and received.
    pub unfolds: u64,
}

/// A handle to the statistics of a proxy, valid while it runs and afterwards.
#[derive(Clone)]
pub struct StatsHandle(pub(crate) Arc<AppState>);

impl StatsHandle {
    /// Returns the totals so far.
    pub fn snapshot(&self) -> ProxyStats {
        let metrics = &self.0.metrics;
        ProxyStats {
            requests: conversation_requests(metrics),
            received_tokens: metrics.prompt_tokens(TokenStage::Received).get(),
            sent_tokens: metrics.prompt_tokens(TokenStage::Sent).get(),
            would_send_tokens: metrics.prompt_tokens(TokenStage::WouldSend).get(),
            saved_usd: metrics.saved_usd.get(),
            crease_cost_usd: metrics.crease_cost_usd.get(),
            unfolds: metrics.unfolds.get(&KindLabels { kind: "served" }).map_or(0, |count| count.get()),
        }
    }
}

fn conversation_requests(metrics: &ProxyMetrics) -> u64 {
    let formats = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];
    let outcomes = formats.iter().flat_map(|format| {
        let format = format.name();
        ["unmodified", "folded"].map(|sent| RequestLabels { format, sent })
    });
    outcomes.filter_map(|outcome| metrics.requests.get(&outcome).map(|it| it.get())).sum()
}
