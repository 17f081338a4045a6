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

/// Largest count that is believed; no window or output is near it.
const MAX_PLAUSIBLE_TOKENS: u64 = 1 << 32;

impl Usage {
    /// Returns the counts, each cut to a plausible size, so that sums over many responses do not overflow.
    pub(crate) fn bounded(self) -> Usage {
        let bounded = |count: u64| count.min(MAX_PLAUSIBLE_TOKENS);
        Usage {
            input: bounded(self.input),
            cache_read: self.cache_read.map(bounded),
            cache_write: self.cache_write.map(bounded),
            cache_write_1h: self.cache_write_1h.map(bounded),
            output: bounded(self.output),
            reasoning: self.reasoning.map(bounded),
            last_input: self.last_input.map(bounded),
        }
    }

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
    use crate::wire::{Format, Response, StreamReader};

    #[test]
    fn implausible_counts_are_cut() {
        let body = br#"{"choices":[{"message":{"role":"assistant","content":"a"}}],"usage":{
            "prompt_tokens":18446744073709551615,"completion_tokens":18446744073709551615}}"#;
        let usage = Response::parse(Format::OpenAiChat, body).unwrap().usage.unwrap();
        assert_eq!((usage.input, usage.output), (MAX_PLAUSIBLE_TOKENS, MAX_PLAUSIBLE_TOKENS));
        let mut reader = StreamReader::new(Format::OpenAiChat);
        let event =
            [b"data: ", &body.iter().copied().filter(|byte| *byte != b'\n').collect::<Vec<_>>()[..], b"\n\n"].concat();
        let mut rest = &event[..];
        while reader.next(&mut rest).is_some() {}
        assert_eq!(reader.finish().usage.unwrap().input, MAX_PLAUSIBLE_TOKENS);
    }

    #[test]
    fn usage_is_summed_but_context_is_of_last_round() {
        let first = Usage { input: 100, cache_read: Some(80), output: 5, ..Usage::default() };
        let second = Usage { input: 130, cache_read: Some(100), cache_write: Some(30), output: 7, ..Usage::default() };
        let sum = first.combined_with(second);
        assert_eq!((sum.input, sum.output, sum.context_tokens()), (230, 12, 130));
        assert_eq!((sum.cache_read, sum.cache_write, sum.reasoning), (Some(180), Some(30), None));
    }
}
