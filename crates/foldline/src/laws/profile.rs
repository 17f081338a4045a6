//! Which laws apply: the format, the model and the server select them from the one table.
//!
//! Facts about models come from the table of models; nothing here knows a model by its name.

use std::fmt;

use super::law::{Home, Law, TABLE};
use crate::measure::{ModelRow, ModelTable};
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
pub struct Profile {
    format: Format,
    /// One bit a law.
    laws: u128,
    signs_history: bool,
    /// Mistral's models, which Mistral's tokenizers serve.
    of_mistral: bool,
    /// The most images that the model's window allows.
    pub(super) most_images: usize,
}

/// Who answers the request, when it is not the provider for whom the format was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Server {
    /// llama.cpp's server: what it refuses itself, whatever the model's template says.
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// Mistral's API.
    Mistral,
    /// Any server that renders the messages by a template of unknown strictness (llama.cpp, LM Studio,
    /// Ollama): what all known templates accept.
    Local,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Server::LlamaCpp => "llama.cpp",
            Server::Vllm => "vLLM",
            Server::Mistral => "Mistral",
            Server::Local => "chat templates",
        })
    }
}

impl Profile {
    /// The laws for a model of this name, by the built-in table of models.
    pub fn of(format: Format, model: Option<&str>) -> Self {
        Self::of_row(format, &ModelTable::builtin().find(model))
    }

    /// The laws for the model that the request names.
    pub fn of_request(request: &Request<'_>) -> Self {
        Self::of(request.format(), request.conversation().model.as_deref())
    }

    /// The laws for a model of which this is known.
    pub fn of_row(format: Format, row: &ModelRow) -> Self {
        let mut profile = Profile {
            format,
            laws: 0,
            signs_history: row.signed_history,
            of_mistral: row.provider == "mistral",
            most_images: match format {
                Format::Anthropic if row.window <= 200_000 => 100,
                Format::Anthropic => 600,
                Format::OpenAiChat | Format::OpenAiResponses => 1_500,
            },
        };
        profile.select(|home, id| match home {
            Home::Format(of) => of == format,
            Home::OpenAi(of) => of == format && row.provider == "openai",
            Home::Model(of) => of == format && row.laws.iter().any(|named| named == id),
            Home::Signed(of) => of == format && row.signed_history,
            Home::Server(Server::Mistral, of) => of == format && row.provider == "mistral",
            Home::Server(..) | Home::Rewriting(_) => false,
        });
        profile
    }

    /// The laws of any local server behind a chat template: the safe form.
    pub fn local(format: Format) -> Self {
        Self::of(format, None).served_by(Server::Local)
    }

    /// The same laws and those of a server.
    pub fn served_by(mut self, server: Server) -> Self {
        let (format, of_mistral) = (self.format, self.of_mistral);
        self.select(|home, _| home == Home::Server(server, format));
        if server == Server::Vllm && !of_mistral {
            return self.without(Law::CallIdTail);
        }
        self
    }

    /// The same laws and those between a client's request and a rewritten one.
    pub(super) fn of_rewriting(mut self) -> Self {
        let format = self.format;
        self.select(|home, _| home == Home::Rewriting(format));
        self
    }

    /// The same laws but one, for a server that is known not to have it, or a caller that breaks it
    /// knowingly.
    pub fn without(mut self, law: Law) -> Self {
        self.laws &= !bit(law);
        self
    }

    /// The same laws and one more.
    pub fn with(mut self, law: Law) -> Self {
        self.laws |= bit(law);
        self
    }

    /// Whether a law applies.
    pub fn has(&self, law: Law) -> bool {
        self.laws & bit(law) != 0
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

    fn select(&mut self, lives: impl Fn(Home, &str) -> bool) {
        for entry in TABLE {
            if entry.homes.iter().any(|(home, id)| lives(*home, id)) {
                self.laws |= bit(entry.law);
            }
        }
    }
}

fn bit(law: Law) -> u128 {
    1 << law as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_law_has_its_own_bit_and_every_id_of_the_model_table_a_law() {
        assert!(TABLE.len() <= 128);
        let of_models: Vec<&str> = TABLE
            .iter()
            .flat_map(|entry| entry.homes)
            .filter(|(home, _)| matches!(home, Home::Model(_)))
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
        let of = |model| Profile::of(Format::Anthropic, Some(model));
        assert!(of("claude-sonnet-4-6-20260201").has(Law::NoPrefill));
        assert!(!of("claude-sonnet-4-5").has(Law::NoPrefill));
        assert!(of("claude-sonnet-4-5").has(Law::NoAdaptiveThinking));
        assert!(of("claude-opus-4-8").has(Law::NoManualThinking));
        assert!(!of("claude-opus-4-8").has(Law::NoSystemInside));
        assert!(of("claude-sonnet-5").has(Law::NoSystemInside));
        assert!(!of("claude-sonnet-5-5").has(Law::NoSystemInside));
        assert!(of("claude-opus-5-5").has(Law::NoForce));
        assert!(of("claude-opus-5-5").signs_history());
        assert!(!of("claude-opus-5").signs_history());
        assert!(Profile::of(Format::OpenAiChat, Some("gemini-3-pro-preview")).has(Law::ThoughtSignature));
        assert!(!Profile::of(Format::OpenAiChat, Some("gemini-2.5-pro")).has(Law::ThoughtSignature));
        assert!(Profile::of(Format::OpenAiChat, Some("kimi-k2-thinking")).has(Law::ReasoningBack));
        assert!(Profile::of(Format::OpenAiChat, Some("mistral-large-2512")).has(Law::CallIdNine));
        assert!(Profile::of(Format::OpenAiChat, Some("gpt-5.2")).has(Law::ToolCount));
        assert!(!Profile::of(Format::OpenAiChat, Some("qwen3-32b")).has(Law::ToolCount));
    }
}
