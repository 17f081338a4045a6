//! How many tokens a thing is, and how many may be sent.
//!
//! A [`TokenCounter`] counts text and says how far it can be trusted. A [`Meter`] counts whole messages for
//! a model, with their overhead, pictures and documents. A [`Budget`] is what is left of the window.
//!
//! Nothing here decides a fold, reads a clock or learns by itself: a [`CalibrationFit`] of reported usage is a
//! value that the caller hands in, so that the same input always gives the same count.

mod budget;
pub(crate) mod byte_counter;
pub(crate) mod calibration;
pub(crate) mod count_cache;
pub(crate) mod documents;
mod estimate;
pub(crate) mod images;
pub(crate) mod line_counts;
mod meter;
#[cfg(feature = "tokenizer-json")]
mod tokenizer_json;
pub(crate) mod tools;
mod vocabulary;

pub use crate::models::table::{ModelRow, ModelTable, ModelTableError, model_name};
pub use crate::tokens::budget::Budget;
pub use crate::tokens::calibration::{CalibratedCounter, Calibration, CalibrationFit};
pub use crate::tokens::count_cache::CountCache;
pub use crate::tokens::estimate::TokenEstimator;
pub use crate::tokens::images::{ImageRule, ImageSize};
pub(crate) use crate::tokens::line_counts::{IncrementalCount, LineCounts};
pub use crate::tokens::meter::Meter;
#[cfg(feature = "tokenizer-json")]
pub use crate::tokens::tokenizer_json::{NotATokenizer, TokenizerJson};
pub use crate::tokens::vocabulary::Vocabulary;

/// A number of tokens.
pub type Tokens = u64;

/// Counts the tokens of a text.
///
/// ```
/// use foldline::{Counter, Estimator, Exactness, Vocabulary};
///
/// let exact = Vocabulary::o200k();
/// assert_eq!(exact.count("hello world"), 2);
/// assert_eq!(exact.exactness(), Exactness::Exact);
/// assert!(Estimator.count("hello world") >= 2);
/// ```
pub trait TokenCounter: Send + Sync {
    /// The tokens of the text. Strings that spell a special token are ordinary text.
    fn count(&self, text: &str) -> Tokens;

    /// How far the count can be trusted.
    fn exactness(&self) -> CountExactness;

    /// Whether more text is never fewer tokens. Vocabularies can not promise it: the next letter may
    /// complete a word that is one token.
    fn is_monotone(&self) -> bool {
        false
    }
}

/// How far a count can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountExactness {
    /// The model's own vocabulary.
    Exact,
    /// Scaled to what the provider reported for earlier requests.
    Calibrated,
    /// A guess that leans to the high side.
    Estimated,
}
