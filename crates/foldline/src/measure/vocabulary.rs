//! Exact counts, by the vocabularies that are built in.
//!
//! A vocabulary is a provider's published table of tokens. None is known for Claude, so nothing here
//! counts Claude exactly, and nothing may say so.

use super::{Counter, Exactness, Tokens};

/// A model's own vocabulary.
///
/// OpenAI's, Qwen's and Mistral's are built in; more come with the cargo features `vocab-llama3`,
/// `vocab-deepseek`, `vocab-kimi`, `vocab-glm` and `vocab-minimax`.
#[derive(Clone, Copy)]
pub struct Vocabulary {
    name: &'static str,
    bpe: &'static tiktoken::CoreBpe,
}

/// Names in the model table, and how the tokenizer calls them.
const NAMES: &[(&str, &str)] = &[
    ("o200k", "o200k_base"),
    ("cl100k", "cl100k_base"),
    ("qwen2", "qwen2"),
    ("mistral", "mistral_v3"),
    ("llama3", "llama3"),
    ("deepseek", "deepseek_v3"),
    ("kimi", "kimi_k2"),
    ("glm", "glm4"),
    ("minimax", "minimax_m2"),
];

impl Vocabulary {
    /// The vocabulary of this name in the model table, if it is built in.
    pub fn named(name: &str) -> Option<Vocabulary> {
        let &(name, encoding) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(Vocabulary { name, bpe: tiktoken::get_encoding(encoding)? })
    }

    /// OpenAI's since GPT-4o.
    pub fn o200k() -> Vocabulary {
        Self::named("o200k").expect("o200k is always built in")
    }

    /// OpenAI's of GPT-4 and GPT-3.5.
    pub fn cl100k() -> Vocabulary {
        Self::named("cl100k").expect("cl100k is always built in")
    }

    /// Its name in the model table.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Counter for Vocabulary {
    fn count(&self, text: &str) -> Tokens {
        self.bpe.count(text) as Tokens
    }

    fn exactness(&self) -> Exactness {
        Exactness::Exact
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Vocabulary").field(&self.name).finish()
    }
}
