//! Token counts of a response in one shape.
//!
//! Providers report the same counts under different names, and "input" differs in meaning: Anthropic excludes cache
//! reads and writes, all others include them. Here `input` is always the whole prompt.

use serde::{Deserialize, Serialize};

use crate::wire::json::scan::JsonObject;

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

    /// Reads Chat Completions counts from a chunk or a body: `usage`, Moonshot's usage inside the first choice, or
    /// llama.cpp's `timings`.
    pub(crate) fn from_chat(body: &JsonObject<'_>) -> Option<Usage> {
        let cached = body.u64(&["timings", "cache_n"]);
        let in_choice = || body.elements("choices").first().and_then(|choice| choice.object("usage"));
        let counts = body.object("usage").or_else(in_choice).and_then(|usage| Self::from_chat_counts(&usage, cached));
        let timed = || {
            Some(Usage {
                input: body.u64(&["timings", "prompt_n"])?.saturating_add(cached.unwrap_or(0)),
                cache_read: cached,
                output: body.u64(&["timings", "predicted_n"]).unwrap_or(0),
                ..Usage::default()
            })
        };
        counts.or_else(timed)
    }

    fn from_chat_counts(usage: &JsonObject<'_>, cached: Option<u64>) -> Option<Usage> {
        let either = |paths: &[&[&str]]| paths.iter().find_map(|path| usage.u64(path));
        let missed_and_hit =
            || Some(usage.u64(&["prompt_cache_miss_tokens"])?.saturating_add(usage.u64(&["prompt_cache_hit_tokens"])?));
        let input = either(&[&["prompt_tokens"], &["input_tokens"]]).or_else(missed_and_hit)?;
        let reasoning = usage.u64(&["completion_tokens_details", "reasoning_tokens"]);
        let output = either(&[&["completion_tokens"], &["output_tokens"]]).unwrap_or(0);
        // xAI excludes reasoning from the completion count, but not from the total.
        let with_reasoning = output.saturating_add(reasoning.unwrap_or(0));
        let apart = usage.u64(&["total_tokens"]) == Some(input.saturating_add(with_reasoning));
        Some(Usage {
            input,
            cache_read: either(&[
                &["prompt_tokens_details", "cached_tokens"],
                &["prompt_cache_hit_tokens"],
                &["cached_tokens"],
                &["cache_read_input_tokens"],
            ])
            .or(cached),
            cache_write: either(&[
                &["prompt_tokens_details", "cache_write_tokens"],
                &["prompt_tokens_details", "created_cache_tokens"],
                &["cache_creation_input_tokens"],
            ]),
            output: if apart { with_reasoning } else { output },
            reasoning,
            ..Usage::default()
        })
    }

    /// Reads the `usage` of a Responses response.
    pub(crate) fn from_responses(response: &JsonObject<'_>) -> Option<Usage> {
        let usage = response.object("usage")?;
        Some(Usage {
            input: usage.u64(&["input_tokens"])?,
            cache_read: usage.u64(&["input_tokens_details", "cached_tokens"]),
            cache_write: usage.u64(&["input_tokens_details", "cache_write_tokens"]),
            output: usage.u64(&["output_tokens"]).unwrap_or(0),
            reasoning: usage.u64(&["output_tokens_details", "reasoning_tokens"]),
            ..Usage::default()
        })
    }
}

/// Anthropic's counts. They are cumulative: a later count overwrites, and a count that an event omits keeps its value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnthropicUsage {
    input: Option<u64>,
    read: Option<u64>,
    write: Option<u64>,
    write_1h: Option<u64>,
    output: Option<u64>,
    thinking: Option<u64>,
    last_input: Option<u64>,
}

impl AnthropicUsage {
    pub(crate) fn update(&mut self, usage: &JsonObject<'_>) {
        let later = AnthropicUsage {
            input: usage.u64(&["input_tokens"]),
            read: usage.u64(&["cache_read_input_tokens"]),
            write: usage.u64(&["cache_creation_input_tokens"]),
            write_1h: usage.u64(&["cache_creation", "ephemeral_1h_input_tokens"]),
            output: usage.u64(&["output_tokens"]),
            thinking: usage.u64(&["output_tokens_details", "thinking_tokens"]),
            last_input: last_iteration_input(usage),
        };
        *self = AnthropicUsage {
            input: later.input.or(self.input),
            read: later.read.or(self.read),
            write: later.write.or(self.write),
            write_1h: later.write_1h.or(self.write_1h),
            output: later.output.or(self.output),
            thinking: later.thinking.or(self.thinking),
            last_input: later.last_input.or(self.last_input),
        };
    }

    /// Returns `None` until the prompt was counted: llama.cpp may omit that event, and a prompt of zero tokens would
    /// look like one that was silently truncated.
    pub(crate) fn to_usage(self) -> Option<Usage> {
        self.input?;
        Some(Usage {
            input: [self.input, self.read, self.write].into_iter().flatten().fold(0, u64::saturating_add),
            cache_read: self.read,
            cache_write: self.write,
            cache_write_1h: self.write_1h,
            output: self.output.unwrap_or(0),
            reasoning: self.thinking,
            last_input: self.last_input,
        })
    }
}

/// Returns the prompt of the last iteration in which the model answered.
fn last_iteration_input(usage: &JsonObject<'_>) -> Option<u64> {
    let iterations = usage.elements("iterations");
    let answer = iterations.iter().rev().find(|iteration| iteration.string("type").as_deref() == Some("message"))?;
    ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
        .iter()
        .filter_map(|key| answer.u64(&[key]))
        .reduce(u64::saturating_add)
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
