//! The laws that apply to a request, selected from the table by format, model and server.
//!
//! Facts about models come from the model table; this file contains no model names.

use crate::laws::law::{LAW_TABLE, Law, LawScope};
use crate::laws::server_kind::ServerKind;
use crate::models::{ModelRow, ModelTable};
use crate::wire::rules::DialectRules;
use crate::wire::{Format, Request};

/// The laws that apply to a request.
///
/// ```
/// use foldline::laws::{Law, LawProfile, ServerKind};
/// use foldline::wire::Format;
///
/// let newest = LawProfile::for_model(Format::Anthropic, Some("claude-fable-5-2"));
/// assert!(newest.signs_history());
/// assert!(newest.has(Law::NoPrefill));
///
/// let local = LawProfile::for_model(Format::OpenAiChat, Some("qwen3.5")).served_by(ServerKind::ChatTemplate);
/// assert!(local.has(Law::Alternation));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LawProfile {
    format: Format,
    /// One bit for each law.
    laws: u128,
    signs_history: bool,
    /// True for Mistral's models, which use Mistral's tokenizers.
    is_mistral: bool,
    /// Largest number of images that the model's window allows.
    pub(crate) max_images: usize,
}

impl LawProfile {
    /// Creates the profile of a model name, using the built-in model table.
    pub fn for_model(format: Format, model: Option<&str>) -> Self {
        Self::for_row(format, &ModelTable::builtin().find(model))
    }

    /// Creates the profile of the model that the request names, and of the API version if the body has it.
    pub fn for_request(request: &Request<'_>) -> Self {
        let profile = Self::for_model(request.format(), request.conversation().model.as_deref());
        match request.top_level().string("anthropic_version") {
            Some(version) => profile.with_api_version(&version),
            None => profile,
        }
    }

    /// Creates the profile of a row of the model table.
    pub fn for_row(format: Format, row: &ModelRow) -> Self {
        let mut profile = LawProfile {
            format,
            laws: 0,
            signs_history: row.signed_history,
            is_mistral: row.provider == "mistral",
            max_images: (format.dialect().rules.max_images)(row.window),
        };
        profile.add_matching(|scope, id| match scope {
            LawScope::Format(other) => other == format,
            LawScope::OpenAi(other) => other == format && row.provider == "openai",
            LawScope::Model(other) => other == format && row.laws.iter().any(|listed| listed == id),
            LawScope::SignedHistory(other) => other == format && row.signed_history,
            LawScope::Server(ServerKind::Mistral, other) => other == format && row.provider == "mistral",
            LawScope::Server(..) | LawScope::ApiVersion(..) | LawScope::RewrittenRequest(_) => false,
        });
        profile
    }

    /// Creates the strictest profile: that of a local server with an unknown chat template.
    pub fn for_chat_template(format: Format) -> Self {
        Self::for_model(format, None).served_by(ServerKind::ChatTemplate)
    }

    /// Adds the laws of a server.
    pub fn served_by(mut self, server: ServerKind) -> Self {
        let (format, is_mistral) = (self.format, self.is_mistral);
        self.add_matching(|scope, _| scope == LawScope::Server(server, format));
        if server == ServerKind::Vllm && !is_mistral {
            return self.without(Law::CallIdSuffixUnique);
        }
        self
    }

    /// Adds the laws of an API version, such as `2026-10-21`, that a header or the body of the request states. A version
    /// of another host (`bedrock-2023-05-31`) counts by its date.
    pub fn with_api_version(mut self, version: &str) -> Self {
        let format = self.format;
        let date = version.trim_start_matches(|c: char| !c.is_ascii_digit());
        self.add_matching(
            |scope, _| matches!(scope, LawScope::ApiVersion(other, since) if other == format && date >= since),
        );
        self
    }

    /// Adds the laws that compare a rewritten request with the client's.
    pub(crate) fn with_rewrite_laws(mut self) -> Self {
        let format = self.format;
        self.add_matching(|scope, _| scope == LawScope::RewrittenRequest(format));
        self
    }

    /// Removes a law, for a server that is known not to enforce it or a caller that breaks it
    /// deliberately.
    pub fn without(mut self, law: Law) -> Self {
        self.laws &= !law_bit(law);
        self
    }

    /// Adds a law.
    pub fn with(mut self, law: Law) -> Self {
        self.laws |= law_bit(law);
        self
    }

    /// Returns true if the law applies.
    pub fn has(&self, law: Law) -> bool {
        self.laws & law_bit(law) != 0
    }

    /// Returns the format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the facts about the dialect that checks depend on.
    pub(crate) fn rules(&self) -> &'static DialectRules {
        &self.format.dialect().rules
    }

    /// Returns true if the provider binds thinking to everything before it, so that an edit of the
    /// history invalidates the thinking after it (A3.6).
    pub fn signs_history(&self) -> bool {
        self.signs_history
    }

    fn add_matching(&mut self, applies: impl Fn(LawScope, &str) -> bool) {
        for entry in LAW_TABLE {
            if entry.scopes.iter().any(|(scope, id)| applies(*scope, id)) {
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
        let model_law_ids: Vec<&str> = LAW_TABLE
            .iter()
            .flat_map(|entry| entry.scopes)
            .filter(|(scope, _)| matches!(scope, LawScope::Model(_)))
            .map(|(_, id)| *id)
            .collect();
        for row in ModelTable::builtin().rows() {
            for id in &row.laws {
                assert!(model_law_ids.contains(&id.as_str()), "{}: no model law has the id {id}", row.prefix);
            }
        }
    }

    #[test]
    fn models_select_their_laws() {
        let claude = |model| LawProfile::for_model(Format::Anthropic, Some(model));
        assert!(claude("claude-sonnet-4-6-20260201").has(Law::NoPrefill));
        assert!(!claude("claude-sonnet-4-5").has(Law::NoPrefill));
        assert!(claude("claude-sonnet-4-5").has(Law::NoAdaptiveThinking));
        assert!(claude("claude-opus-4-8").has(Law::NoManualThinking));
        assert!(!claude("claude-opus-4-8").has(Law::NoSystemMessage));
        assert!(claude("claude-sonnet-5").has(Law::NoSystemMessage));
        assert!(!claude("claude-sonnet-5-5").has(Law::NoSystemMessage));
        assert!(claude("claude-opus-5-5").has(Law::NoForcedTool));
        assert!(claude("claude-opus-5-5").signs_history());
        assert!(!claude("claude-opus-5").signs_history());
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("gemini-3-pro-preview")).has(Law::ThoughtSignature));
        assert!(!LawProfile::for_model(Format::OpenAiChat, Some("gemini-2.5-pro")).has(Law::ThoughtSignature));
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("kimi-k2-thinking")).has(Law::ReasoningReturned));
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("mistral-large-2512")).has(Law::CallIdNineCharacters));
        assert!(LawProfile::for_model(Format::OpenAiChat, Some("gpt-5.2")).has(Law::ToolCount));
        assert!(!LawProfile::for_model(Format::OpenAiChat, Some("qwen3-32b")).has(Law::ToolCount));
    }
}
