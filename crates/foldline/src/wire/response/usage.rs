//! Token counts of a response in one shape.
//!
//! Providers report the same counts under different names, and "input" differs in meaning: Anthropic excludes cache
//! reads and writes, all others include them. Here `input` is always the whole prompt.

use serde::{Deserialize, Serialize};

/// The token counts of one response. `None` if the server does not report a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// The whole prompt, cached or not.
    pub input: u64,
    /// Prompt tokens read from the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<u64>,
    /// Prompt tokens written to the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
    /// Tokens of `cache_write` with a lifetime of one hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<u64>,
    /// The output, including reasoning.
    pub output: u64,
    /// Reasoning tokens of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// The prompt of the model's last run, if one request ran it several times (server tools, compaction). This is the
    /// fill level of the window, while `input` is what is billed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_input: Option<u64>,
}

impl Usage {
    /// Returns the prompt tokens of the model's last run.
    pub fn context_tokens(&self) -> u64 {
        self.last_input.unwrap_or(self.input)
    }

    /// Returns the sum of two rounds that a client sees as one. The context is that of the later one.
    pub fn combined_with(self, later: Usage) -> Usage {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        Usage {
            input: self.input.saturating_add(later.input),
            cache_read: sum(self.cache_read, later.cache_read),
            cache_write: sum(self.cache_write, later.cache_write),
            cache_write_1h: sum(self.cache_write_1h, later.cache_write_1h),
            output: self.output.saturating_add(later.output),
            reasoning: sum(self.reasoning, later.reasoning),
            last_input: Some(later.context_tokens()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_summed_but_context_is_of_last_round() {
        let first = Usage { input: 100, cache_read: Some(80), output: 5, ..Usage::default() };
        let second = Usage { input: 130, cache_read: Some(100), cache_write: Some(30), output: 7, ..Usage::default() };
        let sum = first.combined_with(second);
        assert_eq!((sum.input, sum.output, sum.context_tokens()), (230, 12, 130));
        assert_eq!((sum.cache_read, sum.cache_write, sum.reasoning), (Some(180), Some(30), None));
    }
}
