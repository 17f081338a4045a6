//! foldline keeps an LLM agent's conversation inside its model's window at the lowest bill, by
//! folding old parts into short markers that can be unfolded again byte for byte.
//!
//! This crate is the engine: it does no IO, reads no clock and no environment, and gives the same
//! plan for the same input.

mod conversation;
mod error;
mod handle;
mod keep;
pub mod laws;
mod measure;
mod price;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transcript;
pub mod wire;

pub use conversation::{
    Arguments, Conversation, File, Image, Message, Opaque, Part, PartId, Reasoning, Role, Source, Tool, ToolCall,
    ToolResult,
};
pub use error::{Error, ErrorKind};
pub use handle::{Handle, NotAHandle};
pub use keep::{Keep, KeepError, Original};
pub use measure::{
    Budget, Calibrated, Calibration, CountCache, Counter, Estimator, Exactness, Fit, ImageRule, ImageSize, Meter,
    ModelRow, ModelTable, TableError, Tokens, Vocabulary,
};
pub use price::{PriceTable, Prices, break_even, worth};
