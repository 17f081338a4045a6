//! A user's own tokenizer, from the `tokenizer.json` of an open model.

use crate::tokens::{CountExactness, TokenCounter, TokenEstimator, Tokens};

/// A counter by a `tokenizer.json` (cargo feature `tokenizer-json`). The caller guarantees that it belongs to the
/// model, so its counts are exact.
pub struct TokenizerJson {
    tokenizer: tokenizers::Tokenizer,
}

/// An error for bytes that are not a readable `tokenizer.json`.
#[derive(Debug)]
pub struct TokenizerError {
    problem: String,
}

impl TokenizerJson {
    /// Parses the content of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a `tokenizer.json` that the `tokenizers` crate can read.
    pub fn new(json: impl AsRef<[u8]>) -> Result<TokenizerJson, TokenizerError> {
        let invalid = |problem: tokenizers::Error| TokenizerError { problem: problem.to_string() };
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(invalid)?;
        // The file may enable truncation or padding, which would change the count.
        tokenizer.with_truncation(None).map_err(invalid)?;
        tokenizer.with_padding(None);
        tokenizer.set_encode_special_tokens(true);
        Ok(TokenizerJson { tokenizer })
    }
}

impl TokenCounter for TokenizerJson {
    fn count(&self, text: &str) -> Tokens {
        match self.tokenizer.encode_fast(text, false) {
            Ok(encoding) => encoding.len() as Tokens,
            // A vocabulary without an unknown token can fail; an estimate is better than none.
            Err(_) => TokenEstimator.count(text),
        }
    }

    fn exactness(&self) -> CountExactness {
        CountExactness::Exact
    }
}

impl std::fmt::Debug for TokenizerJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenizerJson").finish_non_exhaustive()
    }
}

impl std::fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot read tokenizer.json: {}; use the file of that name from the model's repository", self.problem)
    }
}

impl std::error::Error for TokenizerError {}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = r#"{
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "added_tokens": [{"id": 0, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "WordLevel", "vocab": {"<eos>": 0, "?": 1, "fold": 2, "unfold": 3, "<": 4, "eos": 5, ">": 6}, "unk_token": "?"}
    }"#;

    #[test]
    fn special_tokens_are_counted_as_text() {
        let counter = TokenizerJson::new(WORDS).unwrap();
        assert_eq!(counter.count("fold unfold fold other"), 4);
        assert_eq!(counter.count("fold <eos>"), 4);
        assert_eq!(counter.exactness(), CountExactness::Exact);
    }

    #[test]
    fn invalid_file_is_rejected_with_advice() {
        let error = TokenizerJson::new("{}").unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}
