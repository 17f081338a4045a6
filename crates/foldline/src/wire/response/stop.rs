//! Stop reasons, normalized across providers.

use serde::{Deserialize, Serialize};

/// The stop reason of a response.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StopInfo {
    /// The normalized reason.
    pub reason: StopReason,
    /// The provider's own value.
    pub raw: String,
}

/// Stop reasons, normalized across providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The turn is complete.
    EndTurn,
    /// The model waits for the results of its calls.
    ToolUse,
    /// The output token limit was reached.
    MaxTokens,
    /// A stop sequence was generated.
    StopSequence,
    /// The model refused, or a filter stopped it.
    Refused,
    /// A round of server tools ended; the client must send the turn back.
    Paused,
    /// The context window was full.
    ContextFull,
    /// The provider compacted the conversation and stopped.
    Compacted,
    /// A reason unknown to this version.
    Other,
}

impl StopReason {
    fn from_raw(raw: &str) -> Self {
        match raw {
            "end_turn" | "stop" | "completed" | "eos_token" | "eos" => StopReason::EndTurn,
            "tool_use" | "tool_calls" | "function_call" => StopReason::ToolUse,
            "max_tokens" | "length" | "max_output_tokens" => StopReason::MaxTokens,
            "stop_sequence" => StopReason::StopSequence,
            "refusal" | "content_filter" | "sensitive" => StopReason::Refused,
            "pause_turn" => StopReason::Paused,
            "model_context_window_exceeded" | "model_length" => StopReason::ContextFull,
            "compaction" => StopReason::Compacted,
            _ => StopReason::Other,
        }
    }
}

impl StopInfo {
    pub(crate) fn from_raw(raw: &str) -> Self {
        StopInfo { reason: StopReason::from_raw(raw), raw: raw.to_owned() }
    }

    /// Corrects servers that report the end of the turn although calls are pending.
    pub(crate) fn corrected_for_calls(mut self, any: bool) -> Self {
        if any && self.reason == StopReason::EndTurn {
            self.reason = StopReason::ToolUse;
        }
        self
    }
}
