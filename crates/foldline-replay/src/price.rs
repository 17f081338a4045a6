//! What tokens cost, relative to a plain input token.

use serde::{Deserialize, Serialize};

/// Prices relative to a plain input token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// A token that is written to the provider's cache.
    pub write: f64,
    /// A token that is read from it.
    pub read: f64,
    /// A token that the model writes.
    pub output: f64,
}

impl Default for Prices {
    /// Anthropic's cache of five minutes.
    fn default() -> Self {
        Self { write: 1.25, read: 0.1, output: 5.0 }
    }
}
