//! Hashes by which rendered messages are compared, and the byte form behind them.
//!
//! Every engine renders nearly every message at every call, so the hash reads texts where they are: writing
//! each message as JSON to hash it took a twelfth of a replay.

use foldline::conversation::CallArguments;
use foldline::{Message, Part};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Returns a hash that two messages share if their byte forms are equal.
pub(crate) fn message_hash(message: &Message<'_>) -> u64 {
    let mut hash = ChainedHash(message.parts.len() as u64);
    hash.add_json(&message.role);
    message.parts.iter().for_each(|part| hash.add_part(part));
    hash.0
}

/// Returns the byte form of a message, of which the common beginning of two messages is measured. Any fixed form gives
/// the same prefix except for a few bytes.
pub(crate) fn canonical_bytes(message: &Message<'_>) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is plain data")
}

/// A hash of a sequence of texts. Each text is hashed with the hash of those before it as its seed, so texts
/// that are split differently have different hashes.
struct ChainedHash(u64);

impl ChainedHash {
    fn add(&mut self, text: &str) {
        self.0 = xxh3_64_with_seed(text.as_bytes(), self.0);
    }

    fn add_optional(&mut self, text: Option<&str>) {
        self.add(if text.is_some() { "1" } else { "0" });
        text.into_iter().for_each(|text| self.add(text));
    }

    fn add_json(&mut self, value: &impl serde::Serialize) {
        self.add(&serde_json::to_string(value).expect("a message is plain data"));
    }

    fn add_part(&mut self, part: &Part<'_>) {
        match part {
            Part::Text { text } => {
                self.add("text");
                self.add(text);
            }
            Part::Reasoning(reasoning) => {
                self.add(if reasoning.redacted { "redacted reasoning" } else { "reasoning" });
                self.add(&reasoning.text);
                self.add_optional(reasoning.seal.as_deref());
            }
            Part::ToolCall(call) => {
                self.add(&call.id);
                self.add(&call.name);
                match &call.arguments {
                    CallArguments::Json(json) => {
                        self.add("call");
                        self.add(json);
                    }
                    CallArguments::Text(text) => {
                        self.add("text call");
                        self.add(text);
                    }
                }
                self.add_optional(call.signature.as_deref());
            }
            Part::ToolResult(result) => {
                self.add(if result.is_error { "error result" } else { "result" });
                self.add(&result.call_id);
                result.content.iter().for_each(|part| self.add_part(part));
                self.add("end");
            }
            other => self.add_json(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::Role;
    use foldline::conversation::{ReasoningPart, ToolResult};

    /// Messages that differ anywhere differ in their hash, as in their byte form.
    #[test]
    fn hash_differs_where_the_byte_form_does() {
        let result = |content: Vec<Part<'static>>, is_error| {
            Part::ToolResult(ToolResult { call_id: "c".into(), content, is_error })
        };
        let reasoning = |seal: Option<&'static str>, redacted| {
            Part::Reasoning(ReasoningPart { text: "t".into(), seal: seal.map(Into::into), redacted })
        };
        let parts: Vec<Vec<Part<'static>>> = vec![
            vec![],
            vec![Part::text("")],
            vec![Part::text("a")],
            vec![Part::text("a"), Part::text("b")],
            vec![Part::text("ab")],
            vec![Part::text("b"), Part::text("a")],
            vec![reasoning(None, false)],
            vec![reasoning(Some(""), false)],
            vec![reasoning(Some("s"), false)],
            vec![reasoning(Some("s"), true)],
            vec![Part::call("c", "read", "{}")],
            vec![Part::call("c", "read", "{ }")],
            vec![Part::call("cr", "ead", "{}")],
            vec![result(vec![], false)],
            vec![result(vec![], true)],
            vec![result(vec![Part::text("a")], false)],
            vec![result(vec![], false), Part::text("a")],
            vec![Part::Image(Default::default())],
        ];
        let messages =
            parts.iter().flat_map(|parts| [Role::User, Role::Assistant].map(|role| Message::new(role, parts.clone())));
        let messages: Vec<Message<'static>> = messages.collect();
        for (at, message) in messages.iter().enumerate() {
            for (other_at, other) in messages.iter().enumerate() {
                let equal = canonical_bytes(message) == canonical_bytes(other);
                assert_eq!(equal, at == other_at);
                assert_eq!(message_hash(message) == message_hash(other), equal, "{message:?} {other:?}");
            }
        }
    }
}
