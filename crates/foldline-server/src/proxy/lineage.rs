//! What a conversation is known by: the hashes of its beginnings.
//!
//! A client sends the whole conversation at every turn. Hashing every beginning of it, from one message
//! to all, finds what is remembered of an earlier turn without any id of the client's, and can not
//! mistake one conversation for another. What moves from turn to turn without meaning anything (marks of
//! the cache, white space, order of keys) is not hashed.

use foldline::{CallArguments, Conversation, LazyText, MediaSource, Message, Part, Role};
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
        let mut said = Said::default();
        between.iter().for_each(|text| said.put(text));
        let mut beginnings = Vec::with_capacity(messages.len() + 1);
        beginnings.push(said.hash.digest128());
        for message in messages {
            said.put_message(message);
            beginnings.push(said.hash.digest128());
        }
        let first = messages.iter().position(|message| message.role == Role::User);
        Self { beginnings, first_said: first.map_or(messages.len(), |at| at + 1) }
    }

    /// Of a conversation that the provider holds, which is known by the id of an answer in it.
    pub(crate) fn of_answer(between: &[&str], id: &str) -> Self {
        let mut said = Said::default();
        between.iter().chain(&["answer", id]).for_each(|text| said.put(text));
        Self { beginnings: vec![said.hash.digest128()], first_said: 0 }
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

/// What was said so far.
#[derive(Default)]
struct Said {
    hash: Xxh3,
    /// For texts that a body writes in other ways than most: all of the history passes here at every turn, and hardly
    /// any of it has to be decoded.
    room: String,
}

impl Said {
    fn put(&mut self, text: &str) {
        put(&mut self.hash, text);
    }

    fn put_text(&mut self, text: &LazyText<'_>) {
        put(&mut self.hash, text.json_literal(&mut self.room));
    }

    fn put_message(&mut self, message: &Message<'_>) {
        self.hash.update(&[0xff, message.role as u8]);
        message.parts.iter().for_each(|part| self.put_part(part));
    }

    fn put_part(&mut self, part: &Part<'_>) {
        match part {
            Part::Text { text } => {
                self.hash.update(&[1]);
                self.put_text(text);
            }
            Part::Reasoning(it) => {
                self.hash.update(&[2]);
                self.put_text(&it.text);
                self.put(it.seal.as_deref().unwrap_or_default());
            }
            Part::ToolCall(it) => {
                self.hash.update(&[3]);
                self.put(&it.id);
                self.put(&it.name);
                match &it.arguments {
                    CallArguments::Json(text) | CallArguments::Text(text) => self.put_text(text),
                }
            }
            Part::ToolResult(it) => {
                self.hash.update(&[4, u8::from(it.is_error)]);
                self.put(&it.call_id);
                it.content.iter().for_each(|part| self.put_part(part));
                self.hash.update(&[0xfe]);
            }
            Part::Image(it) => {
                self.hash.update(&[5]);
                self.put_source(&it.source);
            }
            Part::File(it) => {
                self.hash.update(&[6]);
                self.put(it.name.as_deref().unwrap_or_default());
                self.put_source(&it.source);
            }
            Part::Opaque(it) => {
                self.hash.update(&[7]);
                self.put(&it.raw);
            }
            _ => self.hash.update(&[8]),
        }
    }

    fn put_source(&mut self, source: &MediaSource<'_>) {
        match source {
            // Pictures are large.
            MediaSource::Base64(it) => {
                self.hash.update(&[1]);
                self.put(it);
            }
            // Its JSON tells every other kind apart, those of later versions too.
            other => {
                self.hash.update(&[2]);
                self.put(&serde_json::to_string(other).unwrap_or_default());
            }
        }
    }
}

fn put(hash: &mut Xxh3, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
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

    /// Clients escape as they like, and our own copy of a conversation has no escapes at all.
    #[test]
    fn a_conversation_is_known_again_however_its_texts_are_written() {
        let body = |text: &str| {
            format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{text}"}},{{"type":"image","source":{{"type":"base64","data":"AAAA"}}}}]}}]}}"#
            )
        };
        let plain = body(r#"one\n \"two\"/é \\u0041"#);
        let odd = body(r#"o\u006ee\u000a \u0022two\"\/\u00e9 \u005cu0041"#);
        assert_eq!(lineage(&plain).whole(), lineage(&odd).whole());
        let request = Request::parse(Format::Anthropic, odd.as_bytes()).unwrap();
        let ours = request.conversation().clone().into_owned();
        assert_eq!(Lineage::of(&["me"], &ours).whole(), lineage(&plain).whole());
        assert_ne!(lineage(&body(r"one\t")).whole(), lineage(&body(r"one\n")).whole());
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
