//! The rendering of a request, as Python receives it.

use foldline_embed::{JsonMessage, JsonRendering};
use pyo3::prelude::*;

/// Index of the caller's message (none for a note), and its JSON unless it is unchanged.
pub(crate) type MessageFields = (Option<usize>, Option<String>);

/// Converts a message.
pub(crate) fn message_fields(message: JsonMessage) -> MessageFields {
    match message {
        JsonMessage::Unchanged(index) => (Some(index), None),
        JsonMessage::Edited { index, json } => (Some(index), Some(json)),
        JsonMessage::Note { json } => (None, Some(json)),
    }
}

/// The part of a rendering that differs from the previous one.
#[pyclass(module = "foldline._native", frozen, get_all)]
pub(crate) struct RenderedList {
    /// Position of the first of `messages`.
    first: usize,
    messages: Vec<MessageFields>,
    creased: bool,
    tokens: u64,
    received_tokens: u64,
}

impl From<JsonRendering> for RenderedList {
    fn from(rendering: JsonRendering) -> Self {
        Self {
            first: rendering.first,
            messages: rendering.messages.into_iter().map(message_fields).collect(),
            creased: rendering.creased,
            tokens: rendering.tokens,
            received_tokens: rendering.received_tokens,
        }
    }
}
