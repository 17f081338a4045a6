//! What a proxy did so far, for whoever started it.

use std::sync::Arc;

use foldline::Tokens;
use foldline::wire::Format;

use super::metrics::{Kind, Metrics, Outcome};
use super::server::Shared;

/// What a proxy did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Tally {
    /// Requests that carried a conversation.
    pub requests: u64,
    /// Tokens of their prompts as they came.
    pub raw: Tokens,
    /// Tokens of their prompts as they were sent.
    pub sent: Tokens,
    /// Tokens that folding would have sent, where it was only observed.
    pub observed: Tokens,
    /// Dollars that were not spent on what was folded.
    pub saved: f64,
    /// Dollars that creases cost.
    pub spent: f64,
    /// Originals that models asked for and got.
    pub unfolds: u64,
}

/// A look at a proxy that goes on while it runs, and after.
#[derive(Clone)]
pub struct Watch(pub(crate) Arc<Shared>);

impl Watch {
    /// What the proxy did so far.
    pub fn tally(&self) -> Tally {
        let metrics = &self.0.metrics;
        Tally {
            requests: requests(metrics),
            raw: metrics.raw_tokens.get(),
            sent: metrics.sent_tokens.get(),
            observed: metrics.observed_tokens.get(),
            saved: metrics.saved.get(),
            spent: metrics.spent.get(),
            unfolds: metrics.unfolds.get(&Kind { kind: "served" }).map_or(0, |it| it.get()),
        }
    }
}

fn requests(metrics: &Metrics) -> u64 {
    let formats = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];
    let outcomes = formats.iter().flat_map(|format| {
        let format = format.name();
        ["as_came", "folded"].map(|sent| Outcome { format, sent })
    });
    outcomes.filter_map(|outcome| metrics.requests.get(&outcome).map(|it| it.get())).sum()
}
