//! Statistics of the strategies, as values to log, store or send.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::laws::RepairCounts;

/// Statistics of one strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrategyStats {
    /// Number of parts that were shortened or removed.
    pub hits: usize,
    /// Bytes of text that were removed.
    pub bytes_saved: usize,
}

impl StrategyStats {
    pub(crate) fn record(&mut self, bytes_saved: usize) {
        self.hits += 1;
        self.bytes_saved += bytes_saved;
    }
}

/// Statistics of [`apply_all`](crate::strategies::apply_all()) per strategy. Displayed as one line for a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CombinedStats {
    /// Removed reasoning.
    pub thinking: StrategyStats,
    /// Messages dropped from the middle.
    pub middle: StrategyStats,
    /// Repeated results.
    pub outputs: StrategyStats,
    /// Repeated calls.
    pub calls: StrategyStats,
    /// Long old results.
    pub snippets: StrategyStats,
    /// Low-entropy prose.
    pub prose: StrategyStats,
    /// Repairs of calls and results.
    pub repairs: RepairCounts,
}

impl CombinedStats {
    /// Returns true if nothing was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the bytes that all strategies saved together.
    pub fn bytes_saved(&self) -> usize {
        self.per_strategy().iter().map(|(_, stats)| stats.bytes_saved).sum()
    }

    /// Logs the statistics as one `tracing` event at level info, unless nothing was changed.
    pub(crate) fn log(&self) {
        if !self.is_empty() {
            tracing::info!(
                target: "foldline::strategies",
                bytes_saved = self.bytes_saved(),
                thinking = self.thinking.hits,
                middle = self.middle.hits,
                outputs = self.outputs.hits,
                calls = self.calls.hits,
                snippets = self.snippets.hits,
                prose = self.prose.hits,
                repairs = self.repairs.total(),
                "messages shortened"
            );
        }
    }

    fn per_strategy(&self) -> [(&'static str, StrategyStats); 6] {
        [
            ("thinking", self.thinking),
            ("middle", self.middle),
            ("outputs", self.outputs),
            ("calls", self.calls),
            ("snippets", self.snippets),
            ("prose", self.prose),
        ]
    }
}

impl fmt::Display for CombinedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes saved", self.bytes_saved())?;
        for (name, stats) in self.per_strategy().into_iter().filter(|(_, stats)| stats.hits > 0) {
            write!(f, ", {name} {} ({} bytes)", stats.hits, stats.bytes_saved)?;
        }
        match self.repairs.total() {
            0 => Ok(()),
            repairs => write!(f, ", {repairs} repairs"),
        }
    }
}
