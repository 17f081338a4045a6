//! The log formats that can be read.

use std::fmt;

use crate::wire;

/// The supported log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogFormat {
    /// Session files of Claude Code, `~/.claude/projects/*/*.jsonl`.
    ClaudeCode,
    /// Rollout files of Codex, `~/.codex/sessions/**/rollout-*.jsonl`.
    Codex,
    /// `events.jsonl` of the Copilot CLI.
    Copilot,
    /// Chats of the Gemini CLI, as one document or as lines.
    Gemini,
    /// Session files of pi.
    Pi,
    /// Trajectories of SWE-agent, `*.traj`.
    SweAgent,
    /// Events of OpenHands: a list, or the output of an evaluation; both generations of the format.
    OpenHands,
    /// Logs of Inspect, as JSON.
    Inspect,
    /// OpenInference traces as trees of spans.
    OpenInference,
    /// Messages or request bodies of OpenAI Chat Completions.
    OpenAiChat,
    /// Items or request bodies of OpenAI Responses.
    OpenAiResponses,
    /// Messages or request bodies of Anthropic Messages.
    Anthropic,
    /// One conversation per line with its origin: `id`, `source`, `messages` and more.
    Record,
}

impl LogFormat {
    /// All formats.
    pub const ALL: [LogFormat; 13] = [
        LogFormat::ClaudeCode,
        LogFormat::Codex,
        LogFormat::Copilot,
        LogFormat::Gemini,
        LogFormat::Pi,
        LogFormat::SweAgent,
        LogFormat::OpenHands,
        LogFormat::Inspect,
        LogFormat::OpenInference,
        LogFormat::OpenAiChat,
        LogFormat::OpenAiResponses,
        LogFormat::Anthropic,
        LogFormat::Record,
    ];

    /// Returns the name used in flags and tables.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::ClaudeCode => "claude-code",
            LogFormat::Codex => "codex",
            LogFormat::Copilot => "copilot",
            LogFormat::Gemini => "gemini",
            LogFormat::Pi => "pi",
            LogFormat::SweAgent => "swe-agent",
            LogFormat::OpenHands => "openhands",
            LogFormat::Inspect => "inspect",
            LogFormat::OpenInference => "openinference",
            LogFormat::OpenAiChat => "openai-chat",
            LogFormat::OpenAiResponses => "openai-responses",
            LogFormat::Anthropic => "anthropic",
            LogFormat::Record => "record",
        }
    }

    /// Returns the wire format whose message structure the conversations have. Logs of clients that use
    /// another API get the structure of Chat Completions.
    pub fn wire_format(self) -> wire::Format {
        match self {
            LogFormat::ClaudeCode | LogFormat::Anthropic => wire::Format::Anthropic,
            LogFormat::Codex | LogFormat::OpenAiResponses => wire::Format::OpenAiResponses,
            _ => wire::Format::OpenAiChat,
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
