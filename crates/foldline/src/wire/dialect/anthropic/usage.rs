//! Token counts of Anthropic Messages.

use crate::wire::json::scan::JsonObject;
use crate::wire::response::Usage;

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
