//! How many tokens a thing is, and how many may be sent.
//!
//! A [`TokenCounter`] counts text and says how far it can be trusted. A [`Meter`] counts whole messages for
//! a model, with their overhead, pictures and documents. A [`Budget`] is what is left of the window.
//!
//! Nothing here decides a fold, reads a clock or learns by itself: a [`CalibrationFit`] of reported usage is a
//! value that the caller hands in, so that the same input always gives the same count.

mod budget;
mod bytes;
mod cache;
mod calibrate;
mod document;
mod estimate;
mod image;
mod lines;
mod meter;
mod models;
#[cfg(feature = "tokenizer-json")]
mod tokenizer_json;
mod tool;
mod vocabulary;

pub use budget::Budget;
pub use cache::CountCache;
pub use calibrate::{CalibratedCounter, Calibration, CalibrationFit};
pub use estimate::TokenEstimator;
pub use image::{ImageRule, ImageSize};
pub(crate) use lines::{IncrementalCount, LineCounts};
pub use meter::Meter;
pub use models::{ModelRow, ModelTable, ModelTableError, model_name};
#[cfg(feature = "tokenizer-json")]
pub use tokenizer_json::{NotATokenizer, TokenizerJson};
pub use vocabulary::Vocabulary;

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
