//! The names of a conversation: how often each stands in the request, and which of them the model has used.
//!
//! An excerpt keeps the lines whose names are likely to be needed again and stand nowhere else. This
//! room only remembers; the passes judge. What stands is counted as it comes and goes, so that a crease
//! costs what it changes and not the whole request.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::content::{self, Atom, AtomKind, Kind};
use crate::conversation::{Arguments, Message, Part, PartId};
use crate::folds::Folds;
use crate::wire;

/// What is known of a name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// How often it stands in the request.
    pub(crate) standing: i32,
    /// Messages in which it stands.
    pub(crate) messages: u16,
    /// Messages in which the model used it.
    pub(crate) used: u16,
    /// The last message in which it was read, and one more.
    last: u32,
    /// Whether it is a number.
    pub(crate) is_number: bool,
}

/// A name at a place of a text. Names are numbered as they come: what is known of one is looked up by its hash once,
/// when a text is read, and stands in an array from then on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) number: u32,
    pub(crate) start: u32,
}

/// What was found in a text.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) names: Arc<[Name]>,
    pub(crate) kind: Kind,
}

/// The names of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lexicon {
    numbers: HashMap<u64, u32, BuildHasherDefault<Key>>,
    known: Vec<Known>,
    /// What was found in long results that stand as they came: every crease looks at it until they are cut.
    results: BTreeMap<PartId, Found>,
    /// Messages that were read.
    seen: usize,
}

/// The names of shorter results are found again faster than remembered.
const LONG: usize = 200;

/// A name's key is a hash already.
#[derive(Clone, Copy, Default)]
pub(crate) struct Key(u64);

impl Hasher for Key {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers")
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    /// A table takes its buckets from one end of a hash and tells neighbours apart by the other.
    fn write_u32(&mut self, key: u32) {
        self.0 = u64::from(key) | u64::from(key) << 32;
    }
}

impl Lexicon {
    /// Reads the messages that it has not read yet, as they are rendered.
    pub(crate) fn read(&mut self, messages: &[Message<'_>], folds: &Folds) {
        let mut names = Vec::new();
        for (at, message) in messages.iter().enumerate().skip(self.seen) {
            let as_came = !folds.touches(at);
            let stamp = u32::try_from(at + 1).unwrap_or(u32::MAX);
            each_text(message, at, |place, text| {
                names.clear();
                self.find(text, &mut names);
                for name in &names {
                    let known = &mut self.known[name.number as usize];
                    known.standing += i32::from(as_came);
                    if known.last != stamp {
                        known.last = stamp;
                        known.messages = known.messages.saturating_add(1);
                        known.used = known.used.saturating_add(u16::from(message.is_assistant()));
                    }
                }
                if let Some(place) = place.filter(|_| as_came && text.len() >= LONG) {
                    self.results.insert(place, Found { names: names.as_slice().into(), kind: content::kind(text) });
                }
            });
            if !as_came {
                folds.each_standing_text(at, message, |_| false, |_, text| self.count(None, text, 1));
            }
        }
        self.seen = messages.len();
    }

    /// A message has changed from one rendering to another.
    pub(crate) fn changed(&mut self, at: usize, message: &Message<'_>, from: &Folds, to: &Folds) {
        let same = |part| from.is_same(to, part);
        from.each_standing_text(at, message, same, |place, text| self.count(place, text, -1));
        to.each_standing_text(at, message, same, |place, text| self.count(place, text, 1));
        // What is cut once is seldom whole again.
        let results = self.results.range(PartId::new(at, 0)..PartId::new(at + 1, 0));
        for place in results.map(|(&place, _)| place).filter(|&place| to.rung(place).is_some()).collect::<Vec<_>>() {
            self.results.remove(&place);
        }
    }

    /// Counts the names of a text once more, or once less.
    fn count(&mut self, place: Option<PartId>, text: &str, by: i32) {
        for name in self.names(place, text).iter() {
            self.known[name.number as usize].standing += by;
        }
    }

    /// The names of a text, of which is known what is known of names. Where it is the text of a result as it came,
    /// they may be remembered.
    pub(crate) fn names(&mut self, place: Option<PartId>, text: &str) -> Arc<[Name]> {
        if let Some(found) = place.and_then(|place| self.results.get(&place)) {
            return found.names.clone();
        }
        let mut names = Vec::with_capacity(text.len() / 8);
        self.find(text, &mut names);
        names.into()
    }

    /// What the text of a result is.
    pub(crate) fn kind(&self, place: PartId, text: &str) -> Kind {
        self.results.get(&place).map_or_else(|| content::kind(text), |found| found.kind)
    }

    fn find(&mut self, text: &str, names: &mut Vec<Name>) {
        content::atoms(text, |Atom { key, kind }, place| {
            let number = *self.numbers.entry(key).or_insert_with(|| {
                self.known.push(Known { is_number: kind == AtomKind::Number, ..Known::default() });
                u32::try_from(self.known.len() - 1)
                    .expect("a conversation has fewer names than bytes, and fewer of these")
            });
            names.push(Name { number, start: u32::try_from(place.start).unwrap_or(u32::MAX) });
        });
    }

    /// How often each name stands; those that do not are left out.
    #[cfg(test)]
    pub(crate) fn standing(&self) -> BTreeMap<u64, i32> {
        let standing = self.numbers.iter().map(|(&key, &number)| (key, self.known[number as usize].standing));
        standing.filter(|&(_, count)| count != 0).collect()
    }

    pub(crate) fn get(&self, name: Name) -> Known {
        self.known[name.number as usize]
    }

    /// How many names there are.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

/// Calls `each` with every text of a message that the model can read, and with the place of a result's.
pub(crate) fn each_text(message: &Message<'_>, at: usize, mut each: impl FnMut(Option<PartId>, &str)) {
    for (index, part) in message.parts.iter().enumerate() {
        match part {
            Part::Text { text } => each(None, text),
            Part::Reasoning(it) => each(None, &it.text),
            Part::ToolCall(it) => each_value(it.arguments.as_str(), &it.arguments, |text| each(None, text)),
            Part::ToolResult(it) => {
                for (inner, part) in it.content.iter().enumerate() {
                    let place = PartId::new(at, index).inner(inner);
                    part.as_text().into_iter().for_each(|text| each(Some(place), text));
                }
            }
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
