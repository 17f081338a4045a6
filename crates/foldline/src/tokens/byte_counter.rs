//! The classic estimate: 3.5 bytes per token.
//!
//! Depends on no model and costs nothing. Uses integer arithmetic, so that one more byte is never fewer tokens.

use std::sync::Arc;

use crate::models::{ModelRow, ModelTable};
use crate::tokens::{CountExactness, ImageRule, Meter, TokenCounter, Tokens};

/// Ratio of the estimate: seven bytes are two tokens.
const RATIO_BYTES: Tokens = 7;
const RATIO_TOKENS: Tokens = 2;

/// A counter of bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByteCounter;

impl TokenCounter for ByteCounter {
    fn count(&self, text: &str) -> Tokens {
        (text.len() as Tokens).saturating_mul(RATIO_TOKENS).div_ceil(RATIO_BYTES)
    }

    fn exactness(&self) -> CountExactness {
        CountExactness::Estimated
    }

    fn is_monotone(&self) -> bool {
        true
    }
}

impl Meter {
    /// Returns a meter with the classic estimate, for any model: 3.5 bytes per token, 8 tokens per message, 512 per
    /// image.
    ///
    /// ```
    /// use foldline::{Message, Meter, Role};
    ///
    /// let meter = Meter::for_byte_estimate();
    /// assert_eq!(meter.text("fourteen bytes"), 4);
    /// assert_eq!(meter.message(&Message::text(Role::User, "fourteen bytes")), 4 + 8);
    /// ```
    pub fn for_byte_estimate() -> Meter {
        let row = ModelRow {
            scale: 1.0,
            images: ImageRule::Fixed(512),
            per_message: 8,
            per_request: 0,
            tool_prompt: 0,
            ..ModelTable::builtin().find(None)
        };
        Meter::for_row(row).with_counter(Arc::new(ByteCounter))
    }
}
