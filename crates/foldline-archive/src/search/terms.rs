//! The terms of a query, as a search index looks them up.

use crate::search::tokenize::SearchWord;

/// A word of a query: it matches an original that contains the whole word, or all its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchTerms {
    /// The whole word, unless it is too long to be indexed.
    pub whole: Option<String>,
    /// Its pieces; empty if it has none.
    pub pieces: Vec<String>,
}

impl From<&SearchWord> for SearchTerms {
    fn from(word: &SearchWord) -> Self {
        Self { whole: word.whole().map(str::to_owned), pieces: word.pieces().map(str::to_owned).collect() }
    }
}
