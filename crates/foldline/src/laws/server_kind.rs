//! Servers with rules of their own.

use std::fmt;

/// The server that handles the request, when it is not the provider that defined the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerKind {
    /// llama.cpp's server: its own rules, independent of the model's template.
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// Mistral's API.
    Mistral,
    /// Any server that renders the messages with a template of unknown strictness (llama.cpp, LM Studio,
    /// Ollama): only requests that all known templates accept.
    ChatTemplate,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerKind::LlamaCpp => "llama.cpp",
            ServerKind::Vllm => "vLLM",
            ServerKind::Mistral => "Mistral",
            ServerKind::ChatTemplate => "chat templates",
        })
    }
}
