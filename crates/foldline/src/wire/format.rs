//! Identifiers of the dialects. The table in `dialect` has everything else that distinguishes them.

use serde::{Deserialize, Serialize};

/// A provider's wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// OpenAI Chat Completions, and the many servers that implement it.
    #[serde(rename = "openai-chat")]
    OpenAiChat,
    /// OpenAI Responses.
    #[serde(rename = "openai-responses")]
    OpenAiResponses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini `generateContent`.
    Gemini,
    /// Ollama `/api/chat`.
    Ollama,
    /// Amazon Bedrock `converse`.
    Converse,
}
