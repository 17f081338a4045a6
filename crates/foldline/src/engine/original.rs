//! The bytes that a handle restores: those of a part, or of whole rounds.

use std::borrow::Cow;
use std::ops::Range;

use crate::conversation::{Message, Part};

/// Returns the bytes that the handle of a part restores: its text, or the part as JSON if it has no text.
pub(crate) fn part_bytes<'m>(part: &'m Part<'_>) -> Cow<'m, [u8]> {
    match part {
        Part::Text { text } => Cow::Borrowed(text.as_bytes()),
        Part::Reasoning(reasoning) if reasoning.seal.is_none() => Cow::Borrowed(reasoning.text.as_bytes()),
        Part::ToolCall(call) => Cow::Borrowed(call.arguments.as_str().as_bytes()),
        part => Cow::Owned(serde_json::to_vec(part).expect("a part has a JSON form")),
    }
}

/// Returns the original that the handle of these rounds resolves to: their messages, as JSON.
pub(crate) fn rounds_bytes(messages: &[Message<'_>], rounds: &[Range<usize>]) -> Vec<u8> {
    let messages: Vec<_> = rounds.iter().flat_map(|round| &messages[round.clone()]).collect();
    serde_json::to_vec(&messages).expect("messages serialize to JSON")
}
