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
    GeminiCli,
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
    /// Messages or request bodies of a dialect.
    Bodies(wire::Format),
    /// One conversation per line with its origin: `id`, `source`, `messages` and more.
    Record,
}

impl LogFormat {
    /// Returns all formats.
    pub fn all() -> impl Iterator<Item = LogFormat> {
        let logs = [
            LogFormat::ClaudeCode,
            LogFormat::Codex,
            LogFormat::Copilot,
            LogFormat::GeminiCli,
            LogFormat::Pi,
            LogFormat::SweAgent,
            LogFormat::OpenHands,
            LogFormat::Inspect,
            LogFormat::OpenInference,
        ];
        logs.into_iter().chain(wire::Format::all().map(LogFormat::Bodies)).chain([LogFormat::Record])
    }

    /// Returns the name used in flags and tables.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::ClaudeCode => "claude-code",
            LogFormat::Codex => "codex",
            LogFormat::Copilot => "copilot",
            LogFormat::GeminiCli => "gemini-cli",
            LogFormat::Pi => "pi",
            LogFormat::SweAgent => "swe-agent",
            LogFormat::OpenHands => "openhands",
            LogFormat::Inspect => "inspect",
            LogFormat::OpenInference => "openinference",
            LogFormat::Bodies(format) => format.name(),
            LogFormat::Record => "record",
        }
    }

    /// Returns the wire format whose message structure the conversations have. Logs of clients that use
    /// another API get the structure of Chat Completions.
    pub fn wire_format(self) -> wire::Format {
        match self {
            LogFormat::ClaudeCode => wire::Format::Anthropic,
            LogFormat::Codex => wire::Format::OpenAiResponses,
            LogFormat::Bodies(format) => format,
            _ => wire::Format::OpenAiChat,
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
