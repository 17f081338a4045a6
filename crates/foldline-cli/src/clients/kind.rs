//! The clients that foldline knows by name.

use std::ffi::OsStr;
use std::path::Path;

use clap::ValueEnum;

/// Variables that keep Claude Code's behavior at another address of Anthropic's API: its full context window, and
/// tool search. They are true only if the upstream is Anthropic's own.
pub(crate) const OFFICIAL_UPSTREAM_VARIABLES: [(&str, &str); 2] =
    [("_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL", "1"), ("ENABLE_TOOL_SEARCH", "true")];

/// Variables for all other upstreams. Claude Code begins its instructions with a checksum of the request, which only
/// Anthropic removes from the prompt: elsewhere no prompt would begin like the previous one, and nothing be cached.
pub(crate) const OTHER_UPSTREAM_VARIABLES: [(&str, &str); 1] = [("CLAUDE_CODE_ATTRIBUTION_HEADER", "0")];

/// Returns the variables of Claude Code for an upstream.
pub(crate) fn claude_variables(is_official: bool) -> &'static [(&'static str, &'static str)] {
    if is_official { &OFFICIAL_UPSTREAM_VARIABLES } else { &OTHER_UPSTREAM_VARIABLES }
}

/// A client with settings of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientKind {
    Claude,
    Codex,
    Opencode,
    Cline,
    Pi,
    Gemini,
    Aider,
}

impl ClientKind {
    pub(crate) const ALL: [Self; 7] =
        [Self::Claude, Self::Codex, Self::Opencode, Self::Cline, Self::Pi, Self::Gemini, Self::Aider];

    /// Returns the client that a program is, by its file name.
    pub(crate) fn from_program(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_stem().and_then(OsStr::to_str)?;
        Self::ALL.into_iter().find(|kind| kind.command() == name)
    }

    /// Returns the name of its command.
    pub(crate) fn command(self) -> &'static str {
        match self {
            ClientKind::Claude => "claude",
            ClientKind::Codex => "codex",
            ClientKind::Opencode => "opencode",
            ClientKind::Cline => "cline",
            ClientKind::Pi => "pi",
            ClientKind::Gemini => "gemini",
            ClientKind::Aider => "aider",
        }
    }

    /// Returns its name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            ClientKind::Claude => "Claude Code",
            ClientKind::Codex => "Codex",
            ClientKind::Opencode => "opencode",
            ClientKind::Cline => "Cline",
            ClientKind::Pi => "pi",
            ClientKind::Gemini => "Gemini CLI",
            ClientKind::Aider => "aider",
        }
    }
}
