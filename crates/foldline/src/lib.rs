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

pub use apply::{Applied, apply, apply_from};
pub use cancel::CancelFlag;
pub use conversation::{
    Arguments, Conversation, File, Image, Message, Opaque, Part, PartId, Reasoning, Role, Source, Tool, ToolCall,
    ToolResult,
};
pub use deed::{Act, Deed};
pub use error::{Error, ErrorKind};
pub use event::{Event, Listener};
pub use fold::{Crease, State, fold, resume};
pub use folded::{Explained, Folded};
pub use folder::{Folder, Sent};
pub use handle::{Handle, NotAHandle};
pub use keep::{Keep, KeepError, Original};
pub use measure::{
    Budget, Calibrated, Calibration, CountCache, Counter, Estimator, Exactness, Fit, ImageRule, ImageSize, Meter,
    ModelRow, ModelTable, TableError, Tokens, Vocabulary, model_name,
};
#[cfg(feature = "tokenizer-json")]
pub use measure::{NotATokenizer, TokenizerJson};
pub use plan::{Reason, Rung};
pub use policy::{Creases, Policy};
pub use price::{PriceTable, Prices, break_even, worth};
pub use setup::{Ledger, Pins, Setup, Thoughts};
pub use summarised::Summarised;
pub use text::Text;
