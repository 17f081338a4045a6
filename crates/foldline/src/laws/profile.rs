//! Which laws apply: the format, the model and the server select them from the one table.
//!
//! Facts about models come from the table of models; nothing here knows a model by its name.

use std::fmt;

use super::law::{LAW_TABLE, Law, LawScope};
use crate::tokens::{ModelRow, ModelTable};
use crate::wire::{Format, Request};

/// The laws that a request must keep.
///
/// ```
/// use foldline::laws::{Law, Profile, Server};
/// use foldline::wire::Format;
///
/// let newest = Profile::of(Format::Anthropic, Some("claude-fable-5-2"));
/// assert!(newest.signs_history());
/// assert!(newest.has(Law::NoPrefill));
///
/// let local = Profile::of(Format::OpenAiChat, Some("qwen3.5")).served_by(Server::Local);
/// assert!(local.has(Law::Alternation));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LawProfile {
    format: Format,
    /// One bit a law.
    laws: u128,
    signs_history: bool,
    /// Mistral's models, which Mistral's tokenizers serve.
    is_mistral: bool,
    /// The most images that the model's window allows.
    pub(crate) max_images: usize,
}

/// Who answers the request, when it is not the provider for whom the format was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerKind {
    /// llama.cpp's server: what it refuses itself, whatever the model's template says.
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// Mistral's API.
    Mistral,
    /// Any server that renders the messages by a template of unknown strictness (llama.cpp, LM Studio,
    /// Ollama): what all known templates accept.
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

impl LawProfile {
    /// The laws for a model of this name, by the built-in table of models.
    pub fn for_model(format: Format, model: Option<&str>) -> Self {
        Self::for_row(format, &ModelTable::builtin().find(model))
    }

    /// The laws for the model that the request names.
    pub fn for_request(request: &Request<'_>) -> Self {
        Self::for_model(request.format(), request.conversation().model.as_deref())
    }

    /// The laws for a model of which this is known.
    pub fn for_row(format: Format, row: &ModelRow) -> Self {
        let mut profile = LawProfile {
            format,
            laws: 0,
            signs_history: row.signed_history,
            is_mistral: row.provider == "mistral",
            max_images: match format {
                Format::Anthropic if row.window <= 200_000 => 100,
                Format::Anthropic => 600,
                Format::OpenAiChat | Format::OpenAiResponses => 1_500,
            },
        };
        profile.add_matching(|home, id| match home {
            LawScope::Format(of) => of == format,
            LawScope::OpenAi(of) => of == format && row.provider == "openai",
            LawScope::Model(of) => of == format && row.laws.iter().any(|named| named == id),
            LawScope::SignedHistory(of) => of == format && row.signed_history,
            LawScope::Server(ServerKind::Mistral, of) => of == format && row.provider == "mistral",
            LawScope::Server(..) | LawScope::RewrittenRequest(_) => false,
        });
        profile
    }

    /// The laws of any local server behind a chat template: the safe form.
    pub fn for_chat_template(format: Format) -> Self {
        Self::for_model(format, None).served_by(ServerKind::ChatTemplate)
    }

    /// The same laws and those of a server.
    pub fn served_by(mut self, server: ServerKind) -> Self {
        let (format, of_mistral) = (self.format, self.is_mistral);
        self.add_matching(|home, _| home == LawScope::Server(server, format));
        if server == ServerKind::Vllm && !of_mistral {
            return self.without(Law::CallIdSuffixUnique);
        }
        self
    }

    /// The same laws and those between a client's request and a rewritten one.
    pub(crate) fn with_rewrite_laws(mut self) -> Self {
        let format = self.format;
        self.add_matching(|home, _| home == LawScope::RewrittenRequest(format));
        self
    }

    /// The same laws but one, for a server that is known not to have it, or a caller that breaks it
    /// knowingly.
    pub fn without(mut self, law: Law) -> Self {
        self.laws &= !law_bit(law);
        self
    }

    /// The same laws and one more.
    pub fn with(mut self, law: Law) -> Self {
        self.laws |= law_bit(law);
        self
    }

    /// Whether a law applies.
    pub fn has(&self, law: Law) -> bool {
        self.laws & law_bit(law) != 0
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether the provider binds thinking to all that stood before it, so that an edit of history
    /// makes the thinking behind it invalid (A3.6).
    pub fn signs_history(&self) -> bool {
        self.signs_history
    }

    fn add_matching(&mut self, lives: impl Fn(LawScope, &str) -> bool) {
        for entry in LAW_TABLE {
            if entry.scopes.iter().any(|(home, id)| lives(*home, id)) {
                self.laws |= law_bit(entry.law);
            }
        }
    }
}

fn law_bit(law: Law) -> u128 {
    1 << law as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_fit_the_bitset_and_model_ids_are_known() {
        assert!(LAW_TABLE.len() <= 128);
        let of_models: Vec<&str> = LAW_TABLE
            .iter()
            .flat_map(|entry| entry.scopes)
            .filter(|(home, _)| matches!(home, LawScope::Model(_)))
            .map(|(_, id)| *id)
            .collect();
        for row in ModelTable::builtin().rows() {
            for id in &row.laws {
                assert!(of_models.contains(&id.as_str()), "{}: no law of models has the id {id}", row.prefix);
            }
        }
    }

    #[test]
    fn models_select_their_laws() {
        let of = |model| LawProfile::for_model(Format::Anthropic, Some(model));
        assert!(of("claude-sonnet-4-6-20260201").has(Law::NoPrefill));
        assert!(!of("claude-sonnet-4-5").has(Law::NoPrefill));
        assert!(of("claude-sonnet-4-5").has(Law::NoAdaptiveThinking));
        assert!(of("claude-opus-4-8").has(Law::NoManualThinking));
        assert!(!of("claude-opus-4-8").has(Law::NoSystemMessage));
        assert!(of("claude-sonnet-5").has(Law::NoSystemMessage));
        assert!(!of("claude-sonnet-5-5").has(Law::NoSystemMessage));
        assert!(of("claude-opus-5-5").has(Law::NoForcedTool));
        assert!(of("claude-opus-5-5").signs_history());
        assert!(!of("claude-opus-5").signs_history());
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("gemini-3-pro-preview")).has(Law::ThoughtSignature));
        assert!(!LawProfile::for_model(Format::OpenAiChat, Some("gemini-2.5-pro")).has(Law::ThoughtSignature));
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("kimi-k2-thinking")).has(Law::ReasoningReturned));
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("mistral-large-2512")).has(Law::CallIdNineCharacters));
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("gpt-5.2")).has(Law::ToolCount));
        assert!(!LawProfile::for_model(Format::OpenAiChat, Some("qwen3-32b")).has(Law::ToolCount));
    }
}
