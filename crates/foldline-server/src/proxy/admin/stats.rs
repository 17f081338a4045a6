//! What a proxy did so far, for whoever started it.

use std::sync::Arc;

use foldline::Tokens;
use foldline::wire::Format;

use crate::proxy::admin::metrics::{KindLabels, ProxyMetrics, RequestLabels};
use crate::proxy::downstream::listener::AppState;

/// What a proxy did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ProxyStats {
    /// Requests that carried a conversation.
    pub requests: u64,
    /// Tokens of their prompts as they came.
    pub received_tokens: Tokens,
    /// Tokens of their prompts as they were sent.
    pub sent_tokens: Tokens,
    /// Tokens that folding would have sent, where it was only observed.
    pub would_send_tokens: Tokens,
    /// Dollars that were not spent on what was folded.
    pub saved_usd: f64,
    /// Dollars that creases cost.
    pub crease_cost_usd: f64,
    /// Originals that models asked for and got.
    pub unfolds: u64,
}

/// A look at a proxy that goes on while it runs, and after.
#[derive(Clone)]
pub struct StatsHandle(pub(crate) Arc<AppState>);

impl StatsHandle {
    /// What the proxy did so far.
    pub fn snapshot(&self) -> ProxyStats {
        let metrics = &self.0.metrics;
        ProxyStats {
            requests: conversation_requests(metrics),
            received_tokens: metrics.received_tokens.get(),
            sent_tokens: metrics.sent_tokens.get(),
            would_send_tokens: metrics.would_send_tokens.get(),
            saved_usd: metrics.saved_usd.get(),
            crease_cost_usd: metrics.crease_cost_usd.get(),
            unfolds: metrics.unfolds.get(&KindLabels { kind: "served" }).map_or(0, |it| it.get()),
        }
    }
}

fn conversation_requests(metrics: &ProxyMetrics) -> u64 {
    let formats = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];
    let outcomes = formats.iter().flat_map(|format| {
        let format = format.name();
        ["as_came", "folded"].map(|sent| RequestLabels { format, sent })
    });
    outcomes.filter_map(|outcome| metrics.requests.get(&outcome).map(|it| it.get())).sum()
}
