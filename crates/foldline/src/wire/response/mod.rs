//! Responses in one shape: usage, tool calls, text, reasoning, stop reason and errors, from a JSON body or a stream.
//!
//! Responses are parsed while their bytes are forwarded unchanged. A missing, new or mistyped field is therefore
//! omitted, not an error; only a body that is not a response is. No input may cause a panic.

pub(crate) mod api_error;
pub(crate) mod body;
pub(crate) mod overflow;
pub(crate) mod stop;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod usage;

pub use api_error::{ApiError, PromptAndWindow};
pub(crate) use body::without_empty_parts;
pub use body::{Response, ResponseExtent};
pub use stop::{StopInfo, StopReason};
pub use stream::{OutputPosition, StreamEvent, StreamLimits, StreamReader, StreamStep, UnreadableFrame};
pub use usage::Usage;
