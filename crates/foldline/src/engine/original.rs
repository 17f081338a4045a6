//! The bytes that a handle restores: those of a part, or of whole rounds.

use std::borrow::Cow;
use std::ops::Range;

use crate::conversation::{Message, Part, PartId};
use crate::engine::handle::Handle;

/// Returns the bytes that the handle of a part restores: its text, or the part as JSON if it has no text.
pub(crate) fn part_bytes<'m>(part: &'m Part<'_>) -> Cow<'m, [u8]> {
    match part {
        Part::Text { text } => Cow::Borrowed(text.as_bytes()),
        Part::Reasoning(reasoning) if reasoning.seal.is_none() => Cow::Borrowed(reasoning.text.as_bytes()),
        Part::ToolCall(call) => Cow::Borrowed(call.arguments.as_str().as_bytes()),
        part => Cow::Owned(serde_json::to_vec(part).expect("a part has a JSON form")),
    }
}

/// Returns the bytes that the handle of a part of this message restores.
pub(crate) fn bytes_of<'m>(message: &'m Message<'_>, at: PartId) -> Option<Cow<'m, [u8]>> {
    match (message.parts.get(at.part)?, at.inner) {
        (Part::ToolResult(result), Some(inner)) => result.content.get(inner).map(part_bytes),
        (part, _) => Some(part_bytes(part)),
    }
}

/// Returns the original of dropped rounds: their messages, as JSON.
pub(crate) fn rounds_bytes(rounds: &[Message<'_>]) -> Vec<u8> {
    serde_json::to_vec(rounds).expect("messages serialize to JSON")
}

/// The hash of the original of rounds, which can be continued when later rounds are added to it.
///
/// A run of dropped rounds grows with the conversation; hashing all of it at every crease would be quadratic.
#[derive(Clone, Debug)]
pub(crate) struct RoundsHash {
    /// Hash of the JSON without its closing bracket.
    hasher: blake3::Hasher,
    messages: Range<usize>,
}

impl RoundsHash {
    /// Starts the hash of rounds that begin at a message.
    pub(crate) fn starting_at(message: usize) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"[");
        Self { hasher, messages: message..message }
    }

    /// Returns the hash of the rounds up to message `end`.
    pub(crate) fn extended_to(mut self, end: usize, messages: &[Message<'_>]) -> Self {
        for message in &messages[self.messages.end..end] {
            if !self.messages.is_empty() {
                self.hasher.update(b",");
            }
            self.hasher.update(&serde_json::to_vec(message).expect("a message serializes to JSON"));
            self.messages.end += 1;
        }
        self
    }

    /// Returns the handle of the rounds.
    pub(crate) fn handle(&self) -> Handle {
        let mut whole = self.hasher.clone();
        whole.update(b"]");
        Handle::from_hash(whole.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Role;

    #[test]
    fn continued_hash_equals_that_of_the_whole_original() {
        let text = |at: usize| Message::text(Role::Assistant, format!("message {at} \"quoted\"\n").repeat(at * 40));
        let messages: Vec<Message<'_>> = (0..30).map(text).collect();
        let mut hash = RoundsHash::starting_at(3);
        for end in [4, 7, 8, 30] {
            hash = hash.extended_to(end, &messages);
            assert_eq!(hash.handle(), Handle::for_content(&rounds_bytes(&messages[3..end])));
        }
    }
}
