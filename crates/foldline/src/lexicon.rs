//! The names of a conversation: how often each stands in the request, and which of them the model has used.
//!
//! An excerpt keeps the lines whose names are likely to be needed again and stand nowhere else. This
//! room only remembers; the passes judge. What stands is counted as it comes and goes, so that a crease
//! costs what it changes and not the whole request.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::atom::{AtomKind, Words, each_run};
use crate::cancel::CancelFlag;
use crate::content::{self, Kind};
use crate::conversation::{Arguments, Message, Part, PartId};
use crate::error::Error;
use crate::folds::Folds;
use crate::pass::arguments;
use crate::wire;

use rustc_hash::FxHasher;

/// What is known of a name, in eight bytes: one look at memory tells all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// How often it stands in the request.
    standing: i32,
    /// The last message in which it was read, and one more; below it the three bits that follow.
    last: u32,
}

const IS_NUMBER: u32 = 1;
const AGAIN: u32 = 2;
const USED: u32 = 4;
const BITS: u32 = IS_NUMBER | AGAIN | USED;

impl Known {
    fn new(kind: AtomKind) -> Self {
        Self { standing: 0, last: if kind == AtomKind::Number { IS_NUMBER } else { 0 } }
    }

    /// It was read in a message.
    fn note(&mut self, stamp: u32, used: u32) {
        let (bits, last) = (self.last & BITS, self.last & !BITS);
        let again = if last != 0 && last != stamp { AGAIN } else { 0 };
        self.last = stamp | bits | again | used;
    }

    pub(crate) fn is_number(self) -> bool {
        self.last & IS_NUMBER != 0
    }

    /// Whether it was read in more than one message.
    pub(crate) fn again(self) -> bool {
        self.last & AGAIN != 0
    }
}

/// A name, by the number that it was given when it first came: what is known of it is looked up by its hash once, when a
/// text is read, and stands in arrays from then on, which are small enough to stay near the processor.
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
    /// Whether it defines or imports something that has a name.
    pub(crate) defines: bool,
}

/// A long value in the arguments of a call.
#[derive(Clone, Debug)]
pub(crate) struct LongValue {
    /// Where it stands in them, with its quotes.
    pub(crate) span: wire::Span,
    pub(crate) found: Found,
}

/// The names of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lexicon {
    numbers: HashMap<Halves, Name, BuildHasherDefault<Key>>,
    known: Vec<Known>,
    /// The names in each run of joined words that has come, by its hash: what comes again is not read again.
    runs: HashMap<Halves, InRun, BuildHasherDefault<Key>>,
    /// How many names, and then these, for runs with more than one or none.
    lists: Vec<Name>,
    /// Memory for the words of a run, and for the runs of a text.
    words: Words,
    in_text: Vec<Run>,
    /// What was found in long results that stand as they came: every crease looks at it until they are cut.
    results: BTreeMap<PartId, Found>,
    /// The same of long arguments that are JSON, for each of their long values.
    arguments: BTreeMap<PartId, Vec<LongValue>>,
    /// Messages that were read.
    seen: usize,
}

/// Words that are joined, in a text.
#[derive(Clone, Copy, Debug)]
struct Run {
    hash: u64,
    start: u32,
    end: u32,
}

/// The names in a run.
#[derive(Clone, Copy, Debug)]
struct InRun(u32);

/// The run is one name. Without this bit the number is where the names are listed.
const ONE: u32 = 1 << 31;

/// The names of shorter results are found again faster than remembered.
const LONG: usize = 200;

/// The hash of a name, in halves: so it takes twelve bytes of the table with its number, and not sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Halves([u32; 2]);

impl Halves {
    fn of(key: u64) -> Self {
        Self([key as u32, (key >> 32) as u32])
    }

    fn key(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }
}

impl std::hash::Hash for Halves {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key());
    }
}

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

    /// All names, in order.
    pub(crate) fn names(&self) -> Arc<[Name]> {
        self.names.clone()
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

/// How often each name comes in one text.
#[derive(Default)]
pub(crate) struct NameCounts {
    times: Vec<u32>,
    /// The names that were counted.
    names: Option<Arc<[Name]>>,
}

impl NameCounts {
    /// Counts the names of a text, and forgets those of the one before.
    pub(crate) fn count(&mut self, found: &Found) {
        for name in self.names.take().iter().flat_map(|names| names.iter()) {
            self.times[name.0 as usize] = 0;
        }
        for name in found.names.iter() {
            let at = name.0 as usize;
            if at >= self.times.len() {
                self.times.resize(at + 1, 0);
            }
            self.times[at] += 1;
        }
        self.names = Some(found.names.clone());
    }

    /// How often a name comes in it.
    pub(crate) fn times(&self, name: Name) -> u32 {
        self.times.get(name.0 as usize).copied().unwrap_or(0)
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
    /// Reads the messages that it has not read yet, as they are rendered, until it is cancelled. What a result is may be
    /// known.
    pub(crate) fn read(
        &mut self,
        messages: &[Message<'_>],
        folds: &Folds,
        cancel: &CancelFlag,
        kind_of: impl Fn(PartId) -> Option<Kind>,
    ) -> Result<(), Error> {
        for (at, message) in messages.iter().enumerate().skip(self.seen) {
            self.seen = at;
            cancel.check()?;
            let as_came = !folds.touches(at);
            let stamp = small(at + 1) << BITS.count_ones();
            // Whether the model has used it.
            let used = if message.is_assistant() { USED } else { 0 };
            each_text(message, at, |source, text| {
                let names = match source {
                    Source::Result(place) if as_came && text.len() >= LONG => {
                        let kind = kind_of(place).unwrap_or_else(|| content::kind(text));
                        let found = self.find_in(text, kind, content::each_line(text));
                        self.results.insert(place, found.clone());
                        found.names
                    }
                    Source::Value(place, span) if as_came => {
                        if text.len() < arguments::SHORTEST {
                            self.arguments.entry(place).or_default();
                            self.name(text)
                        } else {
                            let found = self.find(text);
                            self.arguments.entry(place).or_default().push(LongValue { span, found: found.clone() });
                            found.names
                        }
                    }
                    _ => self.name(text),
                };
                for name in names.iter() {
                    let known = &mut self.known[name.0 as usize];
                    known.note(stamp, used);
                    known.standing += i32::from(as_came);
                }
            });
            if !as_came {
                folds.each_standing_text(at, message, |_| false, |_, text| self.count_text(None, text, 1));
            }
        }
        self.seen = messages.len();
        Ok(())
    }

    /// Lets go of all that can be found again, so that what waits for the next turn of a session is small.
    pub(crate) fn rest(&mut self) {
        let (numbers, known) = (std::mem::take(&mut self.numbers), std::mem::take(&mut self.known));
        *self = Self { numbers, known, seen: self.seen, ..Self::default() };
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
        for place in to.of_message(at) {
            self.arguments.remove(&place);
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
        self.name(text)
    }

    /// The long values in the arguments of a call that stand as they came, if they are remembered.
    pub(crate) fn values(&self, place: PartId) -> Option<&[LongValue]> {
        self.arguments.get(&place).map(Vec::as_slice)
    }

    /// What is found in the text of a result.
    pub(crate) fn found(&mut self, place: PartId, text: &str) -> Found {
        self.results.get(&place).cloned().unwrap_or_else(|| self.find(text))
    }

    /// What is found in a text, line by line.
    pub(crate) fn find(&mut self, text: &str) -> Found {
        self.find_in(text, content::kind(text), content::each_line(text))
    }

    /// What is found in some spans of a text, none of which begins or ends inside of a name.
    pub(crate) fn find_in(&mut self, text: &str, kind: Kind, spans: impl Iterator<Item = Range<usize>>) -> Found {
        let mut lines = Vec::with_capacity(text.len() / 32 + 1);
        let mut names = Vec::with_capacity(text.len() / 16);
        let mut spans = spans.peekable();
        let line = |Range { start, end }: Range<usize>, lines: &[Line], names: &[Name]| {
            let has_names = names.len() > lines.last().map_or(0, |before| before.names as usize);
            let defines = has_names && content::is_definition(&text[start..end]);
            Line { start: small(start), end: small(end), names: small(names.len()), defines }
        };
        let runs = self.runs_of(text);
        for run in &runs {
            while let Some(span) = spans.next_if(|span| span.end <= run.start as usize) {
                lines.push(line(span, &lines, &names));
            }
            if spans.peek().is_some_and(|span| span.start <= run.start as usize) {
                self.name_run(run, text, &mut names);
            }
        }
        self.in_text = runs;
        for span in spans {
            lines.push(line(span, &lines, &names));
        }
        Found { kind, lines: lines.into(), names: names.into() }
    }

    /// The names of a text, in order.
    fn name(&mut self, text: &str) -> Arc<[Name]> {
        let mut names = Vec::with_capacity(text.len() / 16);
        let runs = self.runs_of(text);
        runs.iter().for_each(|run| self.name_run(run, text, &mut names));
        self.in_text = runs;
        names.into()
    }

    /// The runs of a text in which there may be names. All of them are found before any is looked up: most of the time
    /// goes into waiting for memory, and the processor waits for several at once.
    fn runs_of(&mut self, text: &str) -> Vec<Run> {
        let mut runs = std::mem::take(&mut self.in_text);
        runs.clear();
        let bytes = text.as_bytes();
        // No name is shorter than three bytes.
        each_run(bytes, |run| {
            if run.len() > 2 {
                runs.push(Run { hash: hash_of(&bytes[run.clone()]), start: small(run.start), end: small(run.end) });
            }
        });
        runs
    }

    /// The names in a run of joined words.
    fn name_run(&mut self, run: &Run, text: &str, names: &mut Vec<Name>) {
        let key = Halves::of(run.hash);
        match self.runs.get(&key) {
            Some(&InRun(one)) if one & ONE != 0 => names.push(Name(one & !ONE)),
            Some(&InRun(at)) => {
                let Name(count) = self.lists[at as usize];
                let list = &self.lists[at as usize + 1..at as usize + 1 + count as usize];
                list.iter().for_each(|&name| names.push(name));
            }
            None => {
                let from = names.len();
                let (numbers, known) = (&mut self.numbers, &mut self.known);
                self.words.atoms(&text[run.start as usize..run.end as usize], |atom, _| {
                    names.push(*numbers.entry(Halves::of(atom.key)).or_insert_with(|| {
                        known.push(Known::new(atom.kind));
                        Name(small(known.len() - 1))
                    }));
                });
                let in_run = match names[from..] {
                    [Name(name)] => InRun(name | ONE),
                    ref list => {
                        let at = small(self.lists.len());
                        self.lists.push(Name(small(list.len())));
                        self.lists.extend_from_slice(list);
                        InRun(at)
                    }
                };
                self.runs.insert(key, in_run);
            }
        }
    }

    /// How often each name stands; those that do not are left out.
    #[cfg(test)]
    pub(crate) fn standing(&self) -> BTreeMap<u64, i32> {
        let standing =
            self.numbers.iter().map(|(hash, &Name(number))| (hash.key(), self.known[number as usize].standing));
        standing.filter(|&(_, count)| count != 0).collect()
    }

    /// Lets those names stand once that do not stand, and calls `each` with them. Gives whether the model has used any
    /// of the names.
    pub(crate) fn raise(&mut self, names: &[Name], mut each: impl FnMut(Name, Known)) -> bool {
        let mut bits = 0;
        for &name in names {
            let known = &mut self.known[name.0 as usize];
            bits |= known.last;
            if known.standing <= 0 {
                known.standing += 1;
                each(name, *known);
            }
        }
        bits & USED != 0
    }
}

/// The hash of a run. It is asked of every run and never told to anybody, so a quick one is good enough.
fn hash_of(run: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(run);
    hasher.finish()
}

/// A count of messages, names or bytes: no conversation has four thousand million of them.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Where a text comes from.
pub(crate) enum Source {
    Result(PartId),
    /// The arguments of a call, if these are JSON and long, and the place of the value in them.
    Value(PartId, wire::Span),
    Other,
}

/// Calls `each` with every text of a message that the model can read, and with where it comes from.
pub(crate) fn each_text(message: &Message<'_>, at: usize, mut each: impl FnMut(Source, &str)) {
    for (index, part) in message.parts.iter().enumerate() {
        match part {
            Part::Text { text } => each(Source::Other, text),
            Part::Reasoning(it) => each(Source::Other, &it.text),
            Part::ToolCall(it) => {
                let place = PartId::new(at, index);
                let strings = match &it.arguments {
                    Arguments::Json(json) if json.len() >= arguments::SHORTEST => wire::strings(json),
                    _ => Vec::new(),
                };
                for value in &strings {
                    value.string().into_iter().for_each(|text| each(Source::Value(place, value.span), &text));
                }
                if strings.is_empty() {
                    each_value(it.arguments.as_str(), &it.arguments, |text| each(Source::Other, text));
                }
            }
            Part::ToolResult(it) => {
                for (inner, part) in it.content.iter().enumerate() {
                    let place = PartId::new(at, index).inner(inner);
                    part.as_text().into_iter().for_each(|text| each(Source::Result(place), text));
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

    #[test]
    fn names_are_counted_in_one_text() {
        let (mut lexicon, mut counts) = (Lexicon::default(), NameCounts::default());
        let [first, second] = ["read_all(read_all)\nopen_it", "open_it"].map(|text| lexicon.find(text));
        let times =
            |counts: &NameCounts, found: &Found| found.names.iter().map(|&name| counts.times(name)).collect::<Vec<_>>();
        counts.count(&first);
        assert_eq!(times(&counts, &first), [2, 2, 1]);
        counts.count(&second);
        assert_eq!(times(&counts, &first), [0, 0, 1]);
    }

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
            state.lexicon.read(&conversation.messages, &state.folds, &CancelFlag::default(), |_| None).unwrap();
            let mut anew = Lexicon::default();
            anew.read(&conversation.messages, &state.folds, &CancelFlag::default(), |_| None).unwrap();
            prop_assert_eq!(state.lexicon.standing(), anew.standing());
        }
    }
}
