//! Identifies a conversation by the hashes of its prefixes.
//!
//! A client sends the whole conversation with every request. Hashing every prefix, from no message to all, finds the
//! state of an earlier request without a client-supplied id and cannot confuse two conversations. Differences without
//! meaning (cache marks, white space, key order) are not hashed.

use foldline::conversation::{CallArguments, LazyText, MediaSource};
use foldline::wire::Request;
use foldline::{Conversation, Message, Part, Role};
use xxhash_rust::xxh3::Xxh3;

use crate::proxy::lru_map::map_key;

/// The hashes of all prefixes of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixHashes {
    /// Indexed by number of messages.
    hashes: Vec<u128>,
    /// Number of messages up to and including the first user message.
    root_len: usize,
    /// Number of messages of the request before, which the last assistant turn answers.
    previous_len: Option<usize>,
    /// The tenant. The hashes are fast and not secure: another tenant could make a conversation with the same ones.
    owner: u128,
}

impl PrefixHashes {
    /// Hashes a conversation within a scope (tenant and model). The upstream is not part of the scope: a server may move.
    pub(crate) fn for_conversation(scope: &[&str], conversation: &Conversation<'_>) -> Self {
        let messages = &conversation.messages;
        let mut hasher = PrefixHasher::default();
        scope.iter().for_each(|text| hasher.write(text));
        let mut hashes = Vec::with_capacity(messages.len() + 1);
        hashes.push(hasher.hasher.digest128());
        for message in messages {
            hasher.write_message(message);
            hashes.push(hasher.hasher.digest128());
        }
        let has_turns = !messages.first().is_some_and(Message::has_results);
        let root_len = root_len(messages);
        let previous_len = conversation.request_points().into_iter().rev().find(|&at| at < messages.len());
        // Results without turns grow by one or more; a request before the newest is the best guess.
        let (root_len, previous_len) = match has_turns {
            true => (root_len, previous_len),
            false => (1, messages.len().checked_sub(1)),
        };
        Self { hashes, root_len, previous_len, owner: owner(scope) }
    }

    /// Returns a hash that all requests of a conversation have in common, whatever its tenant and model are.
    pub(crate) fn conversation_root(conversation: &Conversation<'_>) -> u128 {
        PrefixHasher::default().hash_messages(&conversation.messages[..root_len(&conversation.messages)])
    }

    /// Hashes the conversation of a request, or the id of the stored response that it continues.
    pub(crate) fn for_request(scope: &[&str], request: &Request<'_>) -> Self {
        match request.previous_response_id() {
            Some(id) => Self::for_response_id(scope, &id),
            None => Self::for_conversation(scope, request.conversation()),
        }
    }

    /// Returns the hash of a conversation that the provider stores, known by the id of one of its responses.
    pub(crate) fn for_response_id(scope: &[&str], id: &str) -> Self {
        let mut hasher = PrefixHasher::default();
        scope.iter().chain(&["answer", id]).for_each(|text| hasher.write(text));
        Self { hashes: vec![hasher.hasher.digest128()], root_len: 0, previous_len: None, owner: owner(scope) }
    }

    #[cfg(test)]
    pub(crate) fn with_owner(self, owner: u128) -> Self {
        Self { owner, ..self }
    }

    /// Returns the tenant of the conversation, as a secure hash of its name.
    pub(crate) fn owner(&self) -> u128 {
        self.owner
    }

    /// Returns the number of messages.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len() - 1
    }

    /// Returns the hash of the first `messages` messages.
    pub(crate) fn prefix(&self, messages: usize) -> u128 {
        self.hashes[messages]
    }

    /// Returns the hash of all messages.
    pub(crate) fn full(&self) -> u128 {
        self.hashes[self.len()]
    }

    /// Returns the hash of the messages of the request before; `None` if there is none.
    pub(crate) fn previous_request(&self) -> Option<u128> {
        self.previous_len.map(|messages| self.hashes[messages])
    }

    /// Returns the lengths and hashes of all prefixes, longest first.
    pub(crate) fn longest_first(&self) -> impl Iterator<Item = (usize, u128)> + '_ {
        self.hashes.iter().copied().enumerate().rev()
    }

    /// Returns the hash that all requests of the conversation have in common.
    pub(crate) fn root(&self) -> u128 {
        self.hashes[self.root_len]
    }
}

/// Returns the number of messages up to and including the first user message.
fn root_len(messages: &[Message<'_>]) -> usize {
    let first = messages.iter().position(|message| message.role == Role::User);
    first.map_or(messages.len(), |at| at + 1)
}

fn owner(scope: &[&str]) -> u128 {
    map_key(scope.first().copied().unwrap_or_default().as_bytes())
}

/// A hash of the messages so far.
#[derive(Default)]
struct PrefixHasher {
    hasher: Xxh3,
    /// Buffer for texts with unusual JSON escapes: the whole history is hashed with every request, and hardly any of it
    /// has to be decoded.
    scratch: String,
}

impl PrefixHasher {
    fn write(&mut self, text: &str) {
        hash_text(&mut self.hasher, text);
    }

    fn write_text(&mut self, text: &LazyText<'_>) {
        hash_text(&mut self.hasher, text.json_literal(&mut self.scratch));
    }

    fn hash_messages(mut self, messages: &[Message<'_>]) -> u128 {
        messages.iter().for_each(|message| self.write_message(message));
        self.hasher.digest128()
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
            Part::Reasoning(reasoning) => {
                self.hasher.update(&[2]);
                self.write_text(&reasoning.text);
                self.write(reasoning.seal.as_deref().unwrap_or_default());
            }
            Part::ToolCall(call) => {
                self.hasher.update(&[3]);
                self.write(&call.id);
                self.write(&call.name);
                match &call.arguments {
                    CallArguments::Json(text) | CallArguments::Text(text) => self.write_text(text),
                }
            }
            Part::ToolResult(result) => {
                self.hasher.update(&[4, u8::from(result.is_error)]);
                self.write(&result.call_id);
                result.content.iter().for_each(|part| self.write_part(part));
                self.hasher.update(&[0xfe]);
            }
            Part::Image(image) => {
                self.hasher.update(&[5]);
                self.write_source(&image.source);
            }
            Part::File(file) => {
                self.hasher.update(&[6]);
                self.write(file.name.as_deref().unwrap_or_default());
                self.write_source(&file.source);
            }
            Part::Opaque(opaque) => {
                self.hasher.update(&[7]);
                self.write(&opaque.raw);
            }
            _ => self.hasher.update(&[8]),
        }
    }

    fn write_source(&mut self, source: &MediaSource<'_>) {
        match source {
            // Images are large.
            MediaSource::Base64(data) => {
                self.hasher.update(&[1]);
                self.write(data);
            }
            // The JSON of other kinds is unambiguous, including kinds of later versions.
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

    /// Claude Code moves its cache marks to the newest message each turn; the conversation is the same.
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

    /// Clients escape in different ways, and an owned conversation has no escapes at all.
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
        let owned = request.conversation().clone().into_owned();
        assert_eq!(PrefixHashes::for_conversation(&["me"], &owned).full(), prefixes(&plain).full());
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
