//! The names of a conversation: how often each stands in the request, and which of them the model has used.
//!
//! An excerpt keeps the lines whose names are likely to be needed again and stand nowhere else. This
//! room only remembers; the passes judge. What stands is counted as it comes and goes, so that a crease
//! costs what it changes and not the whole request.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::content;
use crate::conversation::{Arguments, Message, Part};
use crate::folds::Folds;
use crate::wire;

/// What is known of a name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// Messages in which it stands.
    pub(crate) messages: u16,
    /// Messages in which the model used it.
    pub(crate) used: u16,
    /// How often it stands in the request.
    pub(crate) standing: u32,
}

/// The names of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lexicon {
    known: ByName<Known>,
    /// Messages that were read.
    seen: usize,
}

/// Something of each name.
pub(crate) type ByName<T> = HashMap<u64, T, BuildHasherDefault<Key>>;

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
    /// Reads the messages that it has not read yet, as they are rendered.
    pub(crate) fn read(&mut self, messages: &[Message<'_>], folds: &Folds) {
        let mut here: HashSet<u64, BuildHasherDefault<Key>> = HashSet::default();
        for (at, message) in messages.iter().enumerate().skip(self.seen) {
            let as_came = !folds.touches(at);
            here.clear();
            each_text(message, |text| {
                content::atoms(text, |atom, _| {
                    let known = self.known.entry(atom.key).or_default();
                    known.standing += u32::from(as_came);
                    if here.insert(atom.key) {
                        known.messages = known.messages.saturating_add(1);
                        known.used = known.used.saturating_add(u16::from(message.is_assistant()));
                    }
                });
            });
            if !as_came {
                folds.each_standing_text(at, message, |_| false, |text| self.count(text, 1));
            }
        }
        self.seen = messages.len();
    }

    /// A message has changed from one rendering to another.
    pub(crate) fn changed(&mut self, at: usize, message: &Message<'_>, from: &Folds, to: &Folds) {
        from.each_standing_text(at, message, |_| false, |text| self.count(text, u32::MAX));
        to.each_standing_text(at, message, |_| false, |text| self.count(text, 1));
    }

    /// Counts the names of a text; the largest number counts backwards.
    fn count(&mut self, text: &str, by: u32) {
        content::atoms(text, |atom, _| {
            let known = self.known.entry(atom.key).or_default();
            known.standing = known.standing.wrapping_add(by);
        });
    }

    pub(crate) fn get(&self, key: u64) -> Known {
        self.known.get(&key).copied().unwrap_or_default()
    }
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
