//! foldline keeps an LLM agent's conversation inside its model's window at the lowest bill, by
//! folding old parts into short markers that can be unfolded again byte for byte.
//!
//! This crate is the engine: it does no IO, reads no clock and no environment, and gives the same
//! plan for the same input.

mod apply;
mod atom;
mod cancel;
pub mod chunk;
pub mod classic;
mod clock;
pub mod content;
mod conversation;
mod deed;
mod error;
mod event;
mod fold;
mod folded;
mod folder;
mod folds;
mod handle;
mod keep;
pub mod laws;
mod lexicon;
mod literal;
pub mod marker;
mod measure;
mod outdated;
mod pass;
mod piece;
mod plan;
mod policy;
mod price;
#[cfg(test)]
mod promises;
mod setup;
mod summarised;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
pub mod transcript;
#[cfg(test)]
mod traps;
pub mod wire;

pub use apply::{FoldedRequest, apply, apply_from};
pub use cancel::CancelFlag;
pub use conversation::{
    CallArguments, Conversation, FilePart, ImagePart, MediaSource, Message, OpaqueBlock, Part, PartId, ReasoningPart,
    Role, ToolCall, ToolDefinition, ToolResult,
};
pub use deed::{ActionKind, ToolAction};
pub use error::{Error, ErrorKind};
pub use event::{EventListener, FoldEvent};
pub use fold::{Crease, FoldState, fold, resume};
pub use folded::{FoldStats, FoldedConversation};
pub use folder::{FoldSession, RenderedMessage};
pub use handle::{Handle, HandleParseError};
pub use keep::{Original, OriginalStore, StoreError};
pub use measure::{
    Budget, CalibratedCounter, Calibration, CalibrationFit, CountCache, CountExactness, ImageRule, ImageSize, Meter,
    ModelRow, ModelTable, ModelTableError, TokenCounter, TokenEstimator, Tokens, Vocabulary, model_name,
};
#[cfg(feature = "tokenizer-json")]
pub use measure::{NotATokenizer, TokenizerJson};
pub use plan::{Stage, Trigger};
pub use policy::{CreaseMode, Policy};
pub use price::{PriceTable, Prices, break_even_calls, crease_gain};
pub use setup::{FoldOptions, Ledger, PinRules, ReasoningRetention};
pub use summarised::PrefixSummary;
pub use text::LazyText;
