//! The names of a conversation: how often each stands in the request, and which of them the model has used.
//!
//! An excerpt keeps the lines whose names are likely to be needed again and stand nowhere else. This
//! room only remembers; the passes judge. What stands is counted as it comes and goes, so that a crease
//! costs what it changes and not the whole request.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
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

/// A name, by the number that it was given when it first came: what is known of it is looked up by its hash once, when a
/// text is read, and stands in an array from then on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(u32);

/// A text by its lines, or by other spans of it, and the names in them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    lines: Arc<[Line]>,
    names: Arc<[Name]>,
}

/// A line in a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    start: u32,
    end: u32,
    /// Where its names end; they begin where those of the line before it end.
    names: u32,
    /// Whether it defines or imports something.
    pub(crate) defines: bool,
}

/// The names of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lexicon {
    numbers: HashMap<u64, Name, BuildHasherDefault<Key>>,
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

impl Found {
    /// How many lines there are.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The lines, each with its names.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&Line, &[Name])> {
        let mut from = 0;
        self.lines.iter().map(move |line| {
            let names = &self.names[from..line.names as usize];
            from = line.names as usize;
            (line, names)
        })
    }
}

impl Line {
    /// What it says in the text in which it was found.
    pub(crate) fn of<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl Lexicon {
    /// Reads the messages that it has not read yet, as they are rendered.
    pub(crate) fn read(&mut self, messages: &[Message<'_>], folds: &Folds) {
        let mut names = Vec::new();
        for (at, message) in messages.iter().enumerate().skip(self.seen) {
            let as_came = !folds.touches(at);
            let stamp = small(at + 1);
            let is_assistant = message.is_assistant();
            each_text(message, at, |place, text| match place.filter(|_| as_came && text.len() >= LONG) {
                Some(place) => {
                    let found = self.find(text);
                    self.note(&found.names, stamp, as_came, is_assistant);
                    self.results.insert(place, found);
                }
                None => {
                    names.clear();
                    self.name(text, &mut names);
                    self.note(&names, stamp, as_came, is_assistant);
                }
            });
            if !as_came {
                folds.each_standing_text(at, message, |_| false, |_, text| self.count_text(None, text, 1));
            }
        }
        self.seen = messages.len();
    }

    /// Takes note of the names of a message, which may stand as it came.
    fn note(&mut self, names: &[Name], stamp: u32, as_came: bool, is_assistant: bool) {
        for &Name(number) in names {
            let known = &mut self.known[number as usize];
            known.standing += i32::from(as_came);
            if known.last != stamp {
                known.last = stamp;
                known.messages = known.messages.saturating_add(1);
                known.used = known.used.saturating_add(u16::from(is_assistant));
            }
        }
    }

    /// A message has changed from one rendering to another.
    pub(crate) fn changed(&mut self, at: usize, message: &Message<'_>, from: &Folds, to: &Folds) {
        let same = |part| from.is_same(to, part);
        from.each_standing_text(at, message, same, |place, text| self.count_text(place, text, -1));
        to.each_standing_text(at, message, same, |place, text| self.count_text(place, text, 1));
        // What is cut once is seldom whole again.
        let results = self.results.range(PartId::new(at, 0)..PartId::new(at + 1, 0));
        for place in results.map(|(&place, _)| place).filter(|&place| to.rung(place).is_some()).collect::<Vec<_>>() {
            self.results.remove(&place);
        }
    }

    fn count_text(&mut self, place: Option<PartId>, text: &str, by: i32) {
        let names = self.names(place, text);
        self.count(&names, by);
    }

    /// Counts names once more, or once less.
    pub(crate) fn count(&mut self, names: &[Name], by: i32) {
        for name in names {
            self.known[name.0 as usize].standing += by;
        }
    }

    /// The names of a text. Where it is the text of a result as it came, they may be remembered.
    pub(crate) fn names(&mut self, place: Option<PartId>, text: &str) -> Arc<[Name]> {
        if let Some(found) = place.and_then(|place| self.results.get(&place)) {
            return found.names.clone();
        }
        let mut names = Vec::with_capacity(text.len() / 8);
        self.name(text, &mut names);
        names.into()
    }

    /// What is found in the text of a result.
    pub(crate) fn found(&mut self, place: PartId, text: &str) -> Found {
        self.results.get(&place).cloned().unwrap_or_else(|| self.find(text))
    }

    /// What is found in a text, line by line.
    pub(crate) fn find(&mut self, text: &str) -> Found {
        self.find_in(text, content::kind(text), content::each_line(text))
    }

    /// What is found in some spans of a text. They must not begin or end inside of a name.
    pub(crate) fn find_in(&mut self, text: &str, kind: Kind, spans: impl Iterator<Item = Range<usize>>) -> Found {
        let mut lines = Vec::with_capacity(text.len() / 32 + 1);
        let mut names = Vec::with_capacity(text.len() / 8);
        for Range { start, end } in spans {
            let line = &text[start..end];
            self.name(line, &mut names);
            let defines = content::is_definition(line);
            lines.push(Line { start: small(start), end: small(end), names: small(names.len()), defines });
        }
        Found { kind, lines: lines.into(), names: names.into() }
    }

    /// The names of a text, in order.
    fn name(&mut self, text: &str, names: &mut Vec<Name>) {
        content::atoms(text, |Atom { key, kind }, _| {
            names.push(*self.numbers.entry(key).or_insert_with(|| {
                self.known.push(Known { is_number: kind == AtomKind::Number, ..Known::default() });
                Name(small(self.known.len() - 1))
            }));
        });
    }

    /// How often each name stands; those that do not are left out.
    #[cfg(test)]
    pub(crate) fn standing(&self) -> BTreeMap<u64, i32> {
        let standing = self.numbers.iter().map(|(&key, &Name(number))| (key, self.known[number as usize].standing));
        standing.filter(|&(_, count)| count != 0).collect()
    }

    /// What is known of a name.
    pub(crate) fn known(&mut self, name: Name) -> &mut Known {
        &mut self.known[name.0 as usize]
    }
}

/// A count of messages, names or bytes: no conversation has four thousand million of them.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
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
