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
    pub(crate) standing: i32,
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
                    known.standing += i32::from(as_came);
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
        from.each_standing_text(at, message, |_| false, |text| self.count(text, -1));
        to.each_standing_text(at, message, |_| false, |text| self.count(text, 1));
    }

    /// Counts the names of a text once more, or once less.
    fn count(&mut self, text: &str, by: i32) {
        content::atoms(text, |atom, _| self.known.entry(atom.key).or_default().standing += by);
    }

    /// How often each name stands; those that do not are left out.
    #[cfg(test)]
    pub(crate) fn standing(&self) -> std::collections::BTreeMap<u64, i32> {
        let standing = self.known.iter().map(|(&key, known)| (key, known.standing));
        standing.filter(|&(_, count)| count != 0).collect()
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
            Part::ToolCall(it) => each_value(it.arguments.as_str(), &it.arguments, &mut each),
            Part::ToolResult(it) => it.texts().for_each(&mut each),
            _ => {}
        }
    }
}

/// Calls `each` with every value in arguments that are written as those of a call are: JSON, or a text.
pub(crate) fn each_value(arguments: &str, as_those: &Arguments<'_>, mut each: impl FnMut(&str)) {
    match as_those {
        Arguments::Text(_) => each(arguments),
        Arguments::Json(_) => each_string(arguments, each),
    }
}

/// Calls `each` with every string in JSON text, decoded; with the text itself when it is not JSON.
fn each_string(json: &str, mut each: impl FnMut(&str)) {
    let strings = wire::strings(json);
    if strings.is_empty() {
        return each(json);
    }
    strings.into_iter().filter_map(wire::Value::string).for_each(|text| each(&text));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::samples;
    use crate::{Ledger, Meter, ModelTable, Prices, Setup, fold};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// After all that came and was folded, each name is counted as often as it stands in the rendering.
        #[test]
        fn what_stands_is_counted_as_it_comes_and_goes(sample in samples(), share in 0.05..1.0) {
            let request = sample.request();
            let conversation = request.conversation();
            let (table, model) = (ModelTable::builtin(), Some("claude-opus-4-6"));
            let meter = Meter::for_model(table, model);
            let budget = (meter.conversation(conversation) as f64 * share) as u64;
            let setup = Setup::new(meter, Prices::for_model(table, model), budget).beside(conversation);
            let Ok(folded) = fold(conversation, &setup, &Ledger::default()) else { return Ok(()) };
            let mut state = folded.into_state();
            state.lexicon.read(&conversation.messages, &state.folds);
            let mut anew = Lexicon::default();
            anew.read(&conversation.messages, &state.folds);
            prop_assert_eq!(state.lexicon.standing(), anew.standing());
        }
    }
}
