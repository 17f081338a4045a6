//! The provider-neutral conversation: messages of parts, rounds, request points.
//!
//! All modules after the wire formats use only these types. Short values are borrowed from the request body where
//! possible (`Cow`) and long texts are decoded on first use ([`LazyText`]), so a 4 MB body is not copied to be read.
//! Owned and with serde, the same types serve a Rust agent as its message type.
//!
//! This module knows no provider, counts no tokens and decides no folds.

pub(crate) mod message;
pub(crate) mod text;
pub(crate) mod title;

pub use crate::conversation::message::{
    CallArguments, FilePart, ImagePart, MediaSource, OpaqueBlock, OwnedConversation, OwnedMessage, PartId,
    ReasoningPart, ToolCall, ToolDefinition, ToolResult,
};
pub(crate) use crate::conversation::message::{Conversation, Message, Part, Role, answers_system_note};
pub use crate::conversation::text::LazyText;
pub use crate::conversation::title::task_title;
