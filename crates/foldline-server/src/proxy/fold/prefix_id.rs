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
pub(crate) struct PrefixHashes {
    /// By how many messages they have.
    hashes: Vec<u128>,
    /// The beginning up to the first word of the user.
    root_len: usize,
}

impl PrefixHashes {
    /// Of a conversation between an owner and a model, told by `between`. Who serves the model does not
    /// matter: a server may move.
    pub(crate) fn for_conversation(between: &[&str], conversation: &Conversation<'_>) -> Self {
        let messages = &conversation.messages;
        let mut said = PrefixHasher::default();
        between.iter().for_each(|text| said.write(text));
        let mut beginnings = Vec::with_capacity(messages.len() + 1);
        beginnings.push(said.hasher.digest128());
        for message in messages {
            said.write_message(message);
            beginnings.push(said.hasher.digest128());
        }
        let first = messages.iter().position(|message| message.role == Role::User);
        Self { hashes: beginnings, root_len: first.map_or(messages.len(), |at| at + 1) }
    }

    /// Of a conversation that the provider holds, which is known by the id of an answer in it.
    pub(crate) fn for_response_id(between: &[&str], id: &str) -> Self {
        let mut said = PrefixHasher::default();
        between.iter().chain(&["answer", id]).for_each(|text| said.write(text));
        Self { hashes: vec![said.hasher.digest128()], root_len: 0 }
    }

    /// How many messages the conversation has.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len() - 1
    }

    /// The hash of the first so many messages.
    pub(crate) fn prefix(&self, messages: usize) -> u128 {
        self.hashes[messages]
    }

    /// The hash of all messages.
    pub(crate) fn full(&self) -> u128 {
        self.hashes[self.len()]
    }

    /// All beginnings, the longest first.
    pub(crate) fn longest_first(&self) -> impl Iterator<Item = (usize, u128)> + '_ {
        self.hashes.iter().copied().enumerate().rev()
    }

    /// What all turns of the conversation have in common.
    pub(crate) fn root(&self) -> u128 {
        self.hashes[self.root_len]
    }
}

/// What was said so far.
#[derive(Default)]
struct PrefixHasher {
    hasher: Xxh3,
    /// For texts that a body writes in other ways than most: all of the history passes here at every turn, and hardly
    /// any of it has to be decoded.
    scratch: String,
}

impl PrefixHasher {
    fn write(&mut self, text: &str) {
        hash_text(&mut self.hasher, text);
    }

    fn write_text(&mut self, text: &LazyText<'_>) {
        hash_text(&mut self.hasher, text.json_literal(&mut self.scratch));
    }

    fn write_message(&mut self, message: &Message<'_>) {
        self.hasher.update(&[0xff, message.role as u8]);
        message.parts.iter().for_each(|part| self.write_part(part));
    }

    fn write_part(&mut self, part: &Part<'_>) {
        match part {
            Part::Text { text } => {
                self.hasher.update(&[1]);
                self.write_text(text);
            }
            Part::Reasoning(it) => {
                self.hasher.update(&[2]);
                self.write_text(&it.text);
                self.write(it.seal.as_deref().unwrap_or_default());
            }
            Part::ToolCall(it) => {
                self.hasher.update(&[3]);
                self.write(&it.id);
                self.write(&it.name);
                match &it.arguments {
                    CallArguments::Json(text) | CallArguments::Text(text) => self.write_text(text),
                }
            }
            Part::ToolResult(it) => {
                self.hasher.update(&[4, u8::from(it.is_error)]);
                self.write(&it.call_id);
                it.content.iter().for_each(|part| self.write_part(part));
                self.hasher.update(&[0xfe]);
            }
            Part::Image(it) => {
                self.hasher.update(&[5]);
                self.write_source(&it.source);
            }
            Part::File(it) => {
                self.hasher.update(&[6]);
                self.write(it.name.as_deref().unwrap_or_default());
                self.write_source(&it.source);
            }
            Part::Opaque(it) => {
                self.hasher.update(&[7]);
                self.write(&it.raw);
            }
            _ => self.hasher.update(&[8]),
        }
    }

    fn write_source(&mut self, source: &MediaSource<'_>) {
        match source {
            // Pictures are large.
            MediaSource::Base64(it) => {
                self.hasher.update(&[1]);
                self.write(it);
            }
            // Its JSON tells every other kind apart, those of later versions too.
            other => {
                self.hasher.update(&[2]);
                self.write(&serde_json::to_string(other).unwrap_or_default());
            }
        }
    }
}

fn hash_text(hash: &mut Xxh3, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::wire::{Format, Request};

    fn prefixes(body: &str) -> PrefixHashes {
        PrefixHashes::for_conversation(
            &["me"],
            Request::parse(Format::Anthropic, body.as_bytes()).unwrap().conversation(),
        )
    }

    /// Claude Code moves its marks to the newest message each turn; that is no other conversation.
    #[test]
    fn prefix_hash_ignores_cache_marks_and_whitespace() {
        let before = prefixes(
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]}"#,
        );
        let after = prefixes(
            r#"{"messages":[ {"content":[{"text":"h\u0069","type":"text"}],"role":"user"},{"role":"assistant","content":"yes?"}]}"#,
        );
        assert_eq!(before.full(), after.prefix(1));
        assert_eq!(before.root(), after.root());
        assert_ne!(before.full(), after.full());
    }

    /// Clients escape as they like, and our own copy of a conversation has no escapes at all.
    #[test]
    fn prefix_hash_ignores_json_escapes() {
        let body = |text: &str| {
            format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{text}"}},{{"type":"image","source":{{"type":"base64","data":"AAAA"}}}}]}}]}}"#
            )
        };
        let plain = body(r#"one\n \"two\"/é \\u0041"#);
        let odd = body(r#"o\u006ee\u000a \u0022two\"\/\u00e9 \u005cu0041"#);
        assert_eq!(prefixes(&plain).full(), prefixes(&odd).full());
        let request = Request::parse(Format::Anthropic, odd.as_bytes()).unwrap();
        let ours = request.conversation().clone().into_owned();
        assert_eq!(PrefixHashes::for_conversation(&["me"], &ours).full(), prefixes(&plain).full());
        assert_ne!(prefixes(&body(r"one\t")).full(), prefixes(&body(r"one\n")).full());
    }

    #[test]
    fn roles_and_part_boundaries_change_the_prefix_hash() {
        let one = r#"{"messages":[{"role":"user","content":"ab"}]}"#;
        for other in [
            r#"{"messages":[{"role":"assistant","content":"ab"}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#,
        ] {
            assert_ne!(prefixes(one).full(), prefixes(other).full(), "{other}");
        }
    }
}
