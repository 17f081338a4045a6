//! What a conversation is known by: the hashes of its beginnings.
//!
//! A client sends the whole conversation at every turn. Hashing every beginning of it, from one message
//! to all, finds what is remembered of an earlier turn without any id of the client's, and can not
//! mistake one conversation for another. What moves from turn to turn without meaning anything (marks of
//! the cache, white space, order of keys) is not hashed.

use foldline::{Arguments, Conversation, Message, Part, Role, Source};
use xxhash_rust::xxh3::Xxh3;

/// The hashes of all beginnings of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// By how many messages they have.
    beginnings: Vec<u128>,
    /// The beginning up to the first word of the user.
    first_said: usize,
}

impl Lineage {
    /// Of a conversation between an owner and a model, told by `between`. Who serves the model does not
    /// matter: a server may move.
    pub(crate) fn of(between: &[&str], conversation: &Conversation<'_>) -> Self {
        let messages = &conversation.messages;
        let mut hash = Xxh3::new();
        between.iter().for_each(|text| put(&mut hash, text));
        let mut beginnings = Vec::with_capacity(messages.len() + 1);
        beginnings.push(hash.digest128());
        for message in messages {
            put_message(&mut hash, message);
            beginnings.push(hash.digest128());
        }
        let said = messages.iter().position(|message| message.role == Role::User);
        Self { beginnings, first_said: said.map_or(messages.len(), |at| at + 1) }
    }

    /// Of a conversation that the provider holds, which is known by the id of an answer in it.
    pub(crate) fn of_answer(between: &[&str], id: &str) -> Self {
        let mut hash = Xxh3::new();
        between.iter().chain(&["answer", id]).for_each(|text| put(&mut hash, text));
        Self { beginnings: vec![hash.digest128()], first_said: 0 }
    }

    /// How many messages the conversation has.
    pub(crate) fn len(&self) -> usize {
        self.beginnings.len() - 1
    }

    /// The hash of the first so many messages.
    pub(crate) fn beginning(&self, messages: usize) -> u128 {
        self.beginnings[messages]
    }

    /// The hash of all messages.
    pub(crate) fn whole(&self) -> u128 {
        self.beginnings[self.len()]
    }

    /// All beginnings, the longest first.
    pub(crate) fn longest_first(&self) -> impl Iterator<Item = (usize, u128)> + '_ {
        self.beginnings.iter().copied().enumerate().rev()
    }

    /// What all turns of the conversation have in common.
    pub(crate) fn root(&self) -> u128 {
        self.beginnings[self.first_said]
    }
}

fn put(hash: &mut Xxh3, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

fn put_message(hash: &mut Xxh3, message: &Message<'_>) {
    hash.update(&[0xff, message.role as u8]);
    message.parts.iter().for_each(|part| put_part(hash, part));
}

fn put_part(hash: &mut Xxh3, part: &Part<'_>) {
    match part {
        Part::Text { text } => {
            hash.update(&[1]);
            put(hash, text);
        }
        Part::Reasoning(it) => {
            hash.update(&[2]);
            put(hash, &it.text);
            put(hash, it.seal.as_deref().unwrap_or_default());
        }
        Part::ToolCall(it) => {
            hash.update(&[3]);
            put(hash, &it.id);
            put(hash, &it.name);
            match &it.arguments {
                Arguments::Json(text) | Arguments::Text(text) => put(hash, text),
            }
        }
        Part::ToolResult(it) => {
            hash.update(&[4, u8::from(it.is_error)]);
            put(hash, &it.call_id);
            it.content.iter().for_each(|part| put_part(hash, part));
            hash.update(&[0xfe]);
        }
        Part::Image(it) => {
            hash.update(&[5]);
            put_source(hash, &it.source);
        }
        Part::File(it) => {
            hash.update(&[6]);
            put(hash, it.name.as_deref().unwrap_or_default());
            put_source(hash, &it.source);
        }
        Part::Opaque(it) => {
            hash.update(&[7]);
            put(hash, &it.raw);
        }
        _ => hash.update(&[8]),
    }
}

fn put_source(hash: &mut Xxh3, source: &Source<'_>) {
    // Its JSON tells every kind of source apart, those of later versions too.
    put(hash, &serde_json::to_string(source).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::wire::{Format, Request};

    fn lineage(body: &str) -> Lineage {
        Lineage::of(&["me"], Request::parse(Format::Anthropic, body.as_bytes()).unwrap().conversation())
    }

    /// Claude Code moves its marks to the newest message each turn; that is no other conversation.
    #[test]
    fn a_conversation_is_known_again_when_marks_and_spaces_move() {
        let before = lineage(
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]}"#,
        );
        let after = lineage(
            r#"{"messages":[ {"content":[{"text":"h\u0069","type":"text"}],"role":"user"},{"role":"assistant","content":"yes?"}]}"#,
        );
        assert_eq!(before.whole(), after.beginning(1));
        assert_eq!(before.root(), after.root());
        assert_ne!(before.whole(), after.whole());
    }

    #[test]
    fn what_is_said_by_another_or_in_other_pieces_is_another_conversation() {
        let one = r#"{"messages":[{"role":"user","content":"ab"}]}"#;
        for other in [
            r#"{"messages":[{"role":"assistant","content":"ab"}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#,
        ] {
            assert_ne!(lineage(one).whole(), lineage(other).whole(), "{other}");
        }
    }
}
