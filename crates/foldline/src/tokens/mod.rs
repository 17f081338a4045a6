//! Token counts and token budgets.
//!
//! A [`TokenCounter`] counts text and states how exact its counts are. A [`Meter`] counts whole messages for a model,
//! with their overhead, images and documents. A [`Budget`] is the part of the window that is left for the input.
//!
//! This module decides no fold, reads no clock and keeps no learned state: a [`CalibrationFit`] of reported usage is
//! a value that the caller passes in, so the same input always gives the same count.

mod budget;
pub(crate) mod byte_counter;
pub(crate) mod calibration;
pub(crate) mod count_cache;
pub(crate) mod documents;
mod estimate;
pub(crate) mod images;
pub(crate) mod incremental_count;
pub(crate) mod line_counts;
pub(crate) mod meter;
pub(crate) mod text_meter;
#[cfg(feature = "tokenizer-json")]
mod tokenizer_json;
pub(crate) mod tools;
mod vocabulary;

pub use crate::tokens::budget::Budget;
pub use crate::tokens::calibration::{CalibratedCounter, Calibration, CalibrationFit};
pub use crate::tokens::count_cache::CountCache;
pub use crate::tokens::estimate::TokenEstimator;
pub use crate::tokens::images::{ImageRule, ImageSize};
pub(crate) use crate::tokens::incremental_count::IncrementalCount;
pub(crate) use crate::tokens::line_counts::LineCounts;
pub(crate) use crate::tokens::meter::Meter;
#[cfg(feature = "tokenizer-json")]
pub use crate::tokens::tokenizer_json::{TokenizerError, TokenizerJson};
pub use crate::tokens::vocabulary::Vocabulary;

/// A number of tokens.
pub type Tokens = u64;

/// Counts the tokens of a text.
///
/// ```
/// use foldline::tokens::{CountExactness, TokenCounter, TokenEstimator, Vocabulary};
///
/// let exact = Vocabulary::o200k();
/// assert_eq!(exact.count("hello world"), 2);
/// assert_eq!(exact.exactness(), CountExactness::Exact);
/// assert!(TokenEstimator.count("hello world") >= 2);
/// ```
pub trait TokenCounter: Send + Sync {
    /// Returns the tokens of the text. Strings that spell a special token are ordinary text.
    fn count(&self, text: &str) -> Tokens;

    /// Returns the tokens of the text like [`count`](TokenCounter::count), or none if `stop` returned true meanwhile. A
    /// counter that takes long for a large text should call `stop` between pieces of it; by default it is not called.
    fn count_until(&self, text: &str, stop: &dyn Fn() -> bool) -> Option<Tokens> {
        let _ = stop;
        Some(self.count(text))
    }

    /// Returns how exact the counts are.
    fn exactness(&self) -> CountExactness;

    /// Returns true if more text is never fewer tokens. Vocabularies cannot guarantee it: the next letter may
    /// complete a word that is one token.
    fn is_monotone(&self) -> bool {
        false
    }
}

/// Exactness of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountExactness {
    /// Counted by the model's own vocabulary.
    Exact,
    /// Scaled to the usage that the provider reported for earlier requests.
    Calibrated,
    /// Estimated, with a tendency to overestimate.
    Estimated,
}
