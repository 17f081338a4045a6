//! foldline keeps an LLM agent's conversation inside its model's window at the lowest bill, by
//! folding old parts into short markers that can be unfolded again byte for byte.
//!
//! This crate is the engine: it does no IO, reads no clock and no environment, and gives the same
//! plan for the same input.

mod conversation;
pub(crate) mod engine;
mod error;
mod event;
pub mod laws;
pub(crate) mod models;
pub mod strategies;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub(crate) mod tokens;
pub mod transcript;
pub mod wire;

pub use crate::conversation::text::LazyText;
pub use crate::engine::apply::{FoldedRequest, apply, apply_from};
pub use crate::engine::archive::{Original, OriginalStore, StoreError};
pub use crate::engine::cancel::CancelFlag;
pub use crate::engine::handle::{Handle, HandleParseError};
pub use crate::engine::options::{FoldOptions, Ledger, PinRules, ReasoningRetention};
pub use crate::engine::planner::{Stage, Trigger};
pub use crate::engine::policy::{CreaseMode, Policy};
pub use crate::engine::rendering::{FoldStats, FoldedConversation};
pub use crate::engine::session::{FoldSession, RenderedMessage};
pub use crate::engine::state::{Crease, FoldState, fold, resume};
pub use crate::engine::summary::PrefixSummary;
pub use crate::engine::tool_action::{ActionKind, ToolAction};
pub use crate::engine::{marker, text_kind};
pub use crate::models::prices::{PriceTable, Prices, break_even_calls, crease_gain};
pub use crate::tokens::{
    Budget, CalibratedCounter, Calibration, CalibrationFit, CountCache, CountExactness, ImageRule, ImageSize, Meter,
    ModelRow, ModelTable, ModelTableError, TokenCounter, TokenEstimator, Tokens, Vocabulary, model_name,
};
#[cfg(feature = "tokenizer-json")]
pub use crate::tokens::{NotATokenizer, TokenizerJson};
pub use conversation::{
    CallArguments, Conversation, FilePart, ImagePart, MediaSource, Message, OpaqueBlock, Part, PartId, ReasoningPart,
    Role, ToolCall, ToolDefinition, ToolResult,
};
pub use error::{Error, ErrorKind};
pub use event::{EventListener, FoldEvent};
