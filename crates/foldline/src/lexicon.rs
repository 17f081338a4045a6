//! The names of a conversation: which stand where, and which of them the model has used.
//!
//! An excerpt keeps the lines whose names are likely to be needed again and stand nowhere else. This
//! room only remembers; the passes judge.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::content::{self, AtomKind};
use crate::conversation::{Arguments, Message, Part};
use crate::wire;

/// What is known of a name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// Messages in which it stands.
    pub(crate) messages: u16,
    /// Messages in which the model used it.
    pub(crate) used: u16,
}

/// The names of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lexicon {
    known: HashMap<u64, Known, BuildHasherDefault<Key>>,
    /// Messages that were read.
    seen: usize,
}

/// A set of names.
pub(crate) type Names = HashSet<u64, BuildHasherDefault<Key>>;

/// A name's key is a hash already.
#[derive(Clone, Copy, Default)]
pub(crate) struct Key(u64);

impl Hasher for Key {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64")
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl Lexicon {
    /// Reads the messages that it has not read yet.
    pub(crate) fn read(&mut self, messages: &[Message<'_>]) {
        let mut here = Names::default();
        for message in &messages[self.seen..] {
            here.clear();
            each_text(message, |text| here.extend(content::atoms(text).map(|(atom, _)| atom.key)));
            for &key in &here {
                let known = self.known.entry(key).or_default();
                known.messages = known.messages.saturating_add(1);
                if message.is_assistant() {
                    known.used = known.used.saturating_add(1);
                }
            }
        }
        self.seen = messages.len();
    }

    pub(crate) fn get(&self, key: u64) -> Known {
        self.known.get(&key).copied().unwrap_or_default()
    }
}

/// The names of a text that say something: all kinds.
pub(crate) fn names(text: &str) -> impl Iterator<Item = (u64, AtomKind)> + '_ {
    content::atoms(text).map(|(atom, _)| (atom.key, atom.kind))
}

/// Calls `each` with every text of a message that the model can read.
pub(crate) fn each_text(message: &Message<'_>, mut each: impl FnMut(&str)) {
    for part in &message.parts {
        match part {
            Part::Text { text } => each(text),
            Part::Reasoning(it) => each(&it.text),
            Part::ToolCall(it) => match &it.arguments {
                Arguments::Text(text) => each(text),
                Arguments::Json(json) => each_string(json, &mut each),
            },
            Part::ToolResult(it) => it.texts().for_each(&mut each),
            _ => {}
        }
    }
}

/// Calls `each` with every string in JSON text, decoded; with the text itself when it is not JSON.
pub(crate) fn each_string(json: &str, mut each: impl FnMut(&str)) {
    let strings = wire::strings(json);
    if strings.is_empty() {
        return each(json);
    }
    strings.into_iter().filter_map(wire::Value::string).for_each(|text| each(&text));
}
