//! The rendering of a request, as Python receives it.

use foldline_embed::{JsonMessage, JsonRendering};
use pyo3::prelude::*;

/// The part of a rendering that differs from the previous one.
#[pyclass(module = "foldline._native", frozen, get_all)]
pub(crate) struct RenderedList {
    /// Position of the first of `messages`.
    first: usize,
    /// Index of the pushed message (none for a note), and its JSON unless it is unchanged.
    messages: Vec<(Option<usize>, Option<String>)>,
    creased: bool,
    tokens: u64,
    received_tokens: u64,
}

impl From<JsonRendering> for RenderedList {
    fn from(rendering: JsonRendering) -> Self {
        let message = |message| match message {
            JsonMessage::Unchanged(index) => (Some(index), None),
            JsonMessage::Edited { index, json } => (Some(index), Some(json)),
            JsonMessage::Note { json } => (None, Some(json)),
        };
        Self {
            first: rendering.first,
            messages: rendering.messages.into_iter().map(message).collect(),
            creased: rendering.creased,
            tokens: rendering.tokens,
            received_tokens: rendering.received_tokens,
        }
    }
}
