//! The names of a conversation: how often each stands in the request, and which of them the model has used.
//!
//! An excerpt keeps the lines whose names are likely to be needed again and stand nowhere else. This
//! room only remembers; the passes judge. What stands is counted as it comes and goes, so that a crease
//! costs what it changes and not the whole request.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::conversation::{CallArguments, Message, Part, PartId};
use crate::engine::cancel::CancelFlag;
use crate::engine::identifiers::extract::{IdentifierKind, IdentifierScanner, for_each_run};
use crate::engine::overlay::FoldSet;
use crate::engine::passes::arguments;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::error::Error;
use crate::wire;

use rustc_hash::FxHasher;

/// What is known of a name, in eight bytes: one look at memory tells all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentifierStats {
    /// How often it stands in the request.
    occurrences: i32,
    /// The last message in which it was read, and one more; below it the three bits that follow.
    last_seen_and_flags: u32,
}

const NUMBER_FLAG: u32 = 1;
const REPEATED_FLAG: u32 = 2;
const USED_BY_MODEL_FLAG: u32 = 4;
const FLAGS_MASK: u32 = NUMBER_FLAG | REPEATED_FLAG | USED_BY_MODEL_FLAG;

impl IdentifierStats {
    fn new(kind: IdentifierKind) -> Self {
        Self { occurrences: 0, last_seen_and_flags: if kind == IdentifierKind::Number { NUMBER_FLAG } else { 0 } }
    }

    /// It was read in a message.
    fn record(&mut self, stamp: u32, used: u32) {
        let (bits, last) = (self.last_seen_and_flags & FLAGS_MASK, self.last_seen_and_flags & !FLAGS_MASK);
        let again = if last != 0 && last != stamp { REPEATED_FLAG } else { 0 };
        self.last_seen_and_flags = stamp | bits | again | used;
    }

    pub(crate) fn is_number(self) -> bool {
        self.last_seen_and_flags & NUMBER_FLAG != 0
    }

    /// Whether it was read in more than one message.
    pub(crate) fn is_repeated(self) -> bool {
        self.last_seen_and_flags & REPEATED_FLAG != 0
    }
}

/// A name, by the number that it was given when it first came: what is known of it is looked up by its hash once, when a
/// text is read, and stands in arrays from then on, which are small enough to stay near the processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentifierId(u32);

/// A text by its lines, or by other spans of it, and the names in them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct IndexedText {
    pub(crate) kind: TextKind,
    lines: Arc<[IndexedLine]>,
    identifiers: Arc<[IdentifierId]>,
}

/// A line in a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedLine {
    start: u32,
    end: u32,
    /// Where its names end; they begin where those of the line before it end.
    identifiers_end: u32,
    /// Whether it defines or imports something that has a name.
    pub(crate) is_definition: bool,
}

/// A long value in the arguments of a call.
#[derive(Clone, Debug)]
pub(crate) struct LongValue {
    /// Where it stands in them, with its quotes.
    pub(crate) span: wire::ByteSpan,
    pub(crate) indexed: IndexedText,
}

/// The names of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentifierIndex {
    ids: HashMap<SplitHash, IdentifierId, BuildHasherDefault<IdentityHasher>>,
    stats: Vec<IdentifierStats>,
    /// The names in each run of joined words that has come, by its hash: what comes again is not read again.
    run_cache: HashMap<SplitHash, RunIdentifiers, BuildHasherDefault<IdentityHasher>>,
    /// How many names, and then these, for runs with more than one or none.
    id_lists: Vec<IdentifierId>,
    /// Memory for the words of a run, and for the runs of a text.
    scanner: IdentifierScanner,
    run_buffer: Vec<TokenRun>,
    /// What was found in long results that stand as they came: every crease looks at it until they are cut.
    results: BTreeMap<PartId, IndexedText>,
    /// The same of long arguments that are JSON, for each of their long values.
    arguments: BTreeMap<PartId, Vec<LongValue>>,
    /// Messages that were read.
    indexed_messages: usize,
}

/// Words that are joined, in a text.
#[derive(Clone, Copy, Debug)]
struct TokenRun {
    hash: u64,
    start: u32,
    end: u32,
}

/// The names in a run.
#[derive(Clone, Copy, Debug)]
struct RunIdentifiers(u32);

/// The run is one name. Without this bit the number is where the names are listed.
const SINGLE_IDENTIFIER_FLAG: u32 = 1 << 31;

/// The names of shorter results are found again faster than remembered.
const MIN_CACHED_RESULT_BYTES: usize = 200;

/// The hash of a name, in halves: so it takes twelve bytes of the table with its number, and not sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SplitHash([u32; 2]);

impl SplitHash {
    fn new(key: u64) -> Self {
        Self([key as u32, (key >> 32) as u32])
    }

    fn joined(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }
}

impl std::hash::Hash for SplitHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.joined());
    }
}

/// A name's key is a hash already.
#[derive(Clone, Copy, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
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

impl IndexedText {
    /// How many lines there are.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// All names, in order.
    pub(crate) fn identifiers(&self) -> Arc<[IdentifierId]> {
        self.identifiers.clone()
    }

    /// The lines, each with its names.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&IndexedLine, &[IdentifierId])> {
        let mut from = 0;
        self.lines.iter().map(move |line| {
            let names = &self.identifiers[from..line.identifiers_end as usize];
            from = line.identifiers_end as usize;
            (line, names)
        })
    }
}

/// How often each name comes in one text.
#[derive(Default)]
pub(crate) struct IdentifierCounts {
    counts: Vec<u32>,
    /// The names that were counted.
    identifiers: Option<Arc<[IdentifierId]>>,
}

impl IdentifierCounts {
    /// Counts the names of a text, and forgets those of the one before.
    pub(crate) fn count(&mut self, found: &IndexedText) {
        for name in self.identifiers.take().iter().flat_map(|names| names.iter()) {
            self.counts[name.0 as usize] = 0;
        }
        for name in found.identifiers.iter() {
            let at = name.0 as usize;
            if at >= self.counts.len() {
                self.counts.resize(at + 1, 0);
            }
            self.counts[at] += 1;
        }
        self.identifiers = Some(found.identifiers.clone());
    }

    /// How often a name comes in it.
    pub(crate) fn times(&self, name: IdentifierId) -> u32 {
        self.counts.get(name.0 as usize).copied().unwrap_or(0)
    }
}

impl IndexedLine {
    /// What it says in the text in which it was found.
    pub(crate) fn text_in<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl IdentifierIndex {
    /// Reads the messages that it has not read yet, as they are rendered, until it is cancelled. What a result is may be
    /// known.
    pub(crate) fn index_messages(
        &mut self,
        messages: &[Message<'_>],
        folds: &FoldSet,
        cancel: &CancelFlag,
        kind_of: impl Fn(PartId) -> Option<TextKind>,
    ) -> Result<(), Error> {
        for (at, message) in messages.iter().enumerate().skip(self.indexed_messages) {
            self.indexed_messages = at;
            cancel.check()?;
            let as_came = !folds.touches(at);
            let stamp = saturating_u32(at + 1) << FLAGS_MASK.count_ones();
            // Whether the model has used it.
            let used = if message.is_assistant() { USED_BY_MODEL_FLAG } else { 0 };
            for_each_text(message, at, |source, text| {
                let names = match source {
                    TextOrigin::Result(place) if as_came && text.len() >= MIN_CACHED_RESULT_BYTES => {
                        let kind = kind_of(place).unwrap_or_else(|| text_kind::detect_kind(text));
                        let found = self.index_spans(text, kind, text_kind::iter_line_ranges(text));
                        self.results.insert(place, found.clone());
                        found.identifiers
                    }
                    TextOrigin::ArgumentValue(place, span) if as_came => {
                        if text.len() < arguments::MIN_ARGUMENT_BYTES {
                            self.arguments.entry(place).or_default();
                            self.extract_identifiers(text)
                        } else {
                            let found = self.index_text(text);
                            self.arguments.entry(place).or_default().push(LongValue { span, indexed: found.clone() });
                            found.identifiers
                        }
                    }
                    _ => self.extract_identifiers(text),
                };
                for name in names.iter() {
                    let known = &mut self.stats[name.0 as usize];
                    known.record(stamp, used);
                    known.occurrences += i32::from(as_came);
                }
            });
            if !as_came {
                folds.for_each_rendered_text(at, message, |_| false, |_, text| self.count_text(None, text, 1));
            }
        }
        self.indexed_messages = messages.len();
        Ok(())
    }

    /// Lets go of all that can be found again, so that what waits for the next turn of a session is small.
    pub(crate) fn release_caches(&mut self) {
        let (numbers, known) = (std::mem::take(&mut self.ids), std::mem::take(&mut self.stats));
        *self = Self { ids: numbers, stats: known, indexed_messages: self.indexed_messages, ..Self::default() };
    }

    /// A message has changed from one rendering to another.
    pub(crate) fn update_message(&mut self, at: usize, message: &Message<'_>, from: &FoldSet, to: &FoldSet) {
        let same = |part| from.is_same_part(to, part);
        from.for_each_rendered_text(at, message, same, |place, text| self.count_text(place, text, -1));
        to.for_each_rendered_text(at, message, same, |place, text| self.count_text(place, text, 1));
        // What is cut once is seldom whole again.
        let results = self.results.range(PartId::new(at, 0)..PartId::new(at + 1, 0));
        for place in results.map(|(&place, _)| place).filter(|&place| to.stage(place).is_some()).collect::<Vec<_>>() {
            self.results.remove(&place);
        }
        for place in to.parts_of_message(at) {
            self.arguments.remove(&place);
        }
    }

    fn count_text(&mut self, place: Option<PartId>, text: &str, by: i32) {
        let names = self.identifiers(place, text);
        self.add_occurrences(&names, by);
    }

    /// Counts names once more, or once less.
    pub(crate) fn add_occurrences(&mut self, names: &[IdentifierId], by: i32) {
        for name in names {
            self.stats[name.0 as usize].occurrences += by;
        }
    }

    /// The names of a text. Where it is the text of a result as it came, they may be remembered.
    pub(crate) fn identifiers(&mut self, place: Option<PartId>, text: &str) -> Arc<[IdentifierId]> {
        if let Some(found) = place.and_then(|place| self.results.get(&place)) {
            return found.identifiers.clone();
        }
        self.extract_identifiers(text)
    }

    /// The long values in the arguments of a call that stand as they came, if they are remembered.
    pub(crate) fn long_values(&self, place: PartId) -> Option<&[LongValue]> {
        self.arguments.get(&place).map(Vec::as_slice)
    }

    /// What is found in the text of a result.
    pub(crate) fn indexed_result(&mut self, place: PartId, text: &str) -> IndexedText {
        self.results.get(&place).cloned().unwrap_or_else(|| self.index_text(text))
    }

    /// What is found in a text, line by line.
    pub(crate) fn index_text(&mut self, text: &str) -> IndexedText {
        self.index_spans(text, text_kind::detect_kind(text), text_kind::iter_line_ranges(text))
    }

    /// What is found in some spans of a text, none of which begins or ends inside of a name.
    pub(crate) fn index_spans(
        &mut self,
        text: &str,
        kind: TextKind,
        spans: impl Iterator<Item = Range<usize>>,
    ) -> IndexedText {
        let mut lines = Vec::with_capacity(text.len() / 32 + 1);
        let mut names = Vec::with_capacity(text.len() / 16);
        let mut spans = spans.peekable();
        let line = |Range { start, end }: Range<usize>, lines: &[IndexedLine], names: &[IdentifierId]| {
            let has_names = names.len() > lines.last().map_or(0, |before| before.identifiers_end as usize);
            let defines = has_names && text_kind::is_definition(&text[start..end]);
            IndexedLine {
                start: saturating_u32(start),
                end: saturating_u32(end),
                identifiers_end: saturating_u32(names.len()),
                is_definition: defines,
            }
        };
        let runs = self.find_runs(text);
        for run in &runs {
            while let Some(span) = spans.next_if(|span| span.end <= run.start as usize) {
                lines.push(line(span, &lines, &names));
            }
            if spans.peek().is_some_and(|span| span.start <= run.start as usize) {
                self.push_run_identifiers(run, text, &mut names);
            }
        }
        self.run_buffer = runs;
        for span in spans {
            lines.push(line(span, &lines, &names));
        }
        IndexedText { kind, lines: lines.into(), identifiers: names.into() }
    }

    /// The names of a text, in order.
    fn extract_identifiers(&mut self, text: &str) -> Arc<[IdentifierId]> {
        let mut names = Vec::with_capacity(text.len() / 16);
        let runs = self.find_runs(text);
        runs.iter().for_each(|run| self.push_run_identifiers(run, text, &mut names));
        self.run_buffer = runs;
        names.into()
    }

    /// The runs of a text in which there may be names. All of them are found before any is looked up: most of the time
    /// goes into waiting for memory, and the processor waits for several at once.
    fn find_runs(&mut self, text: &str) -> Vec<TokenRun> {
        let mut runs = std::mem::take(&mut self.run_buffer);
        runs.clear();
        let bytes = text.as_bytes();
        // No name is shorter than three bytes.
        for_each_run(bytes, |run| {
            if run.len() > 2 {
                runs.push(TokenRun {
                    hash: hash_run(&bytes[run.clone()]),
                    start: saturating_u32(run.start),
                    end: saturating_u32(run.end),
                });
            }
        });
        runs
    }

    /// The names in a run of joined words.
    fn push_run_identifiers(&mut self, run: &TokenRun, text: &str, names: &mut Vec<IdentifierId>) {
        let key = SplitHash::new(run.hash);
        match self.run_cache.get(&key) {
            Some(&RunIdentifiers(one)) if one & SINGLE_IDENTIFIER_FLAG != 0 => {
                names.push(IdentifierId(one & !SINGLE_IDENTIFIER_FLAG))
            }
            Some(&RunIdentifiers(at)) => {
                let IdentifierId(count) = self.id_lists[at as usize];
                let list = &self.id_lists[at as usize + 1..at as usize + 1 + count as usize];
                list.iter().for_each(|&name| names.push(name));
            }
            None => {
                let from = names.len();
                let (numbers, known) = (&mut self.ids, &mut self.stats);
                self.scanner.for_each_identifier(&text[run.start as usize..run.end as usize], |atom, _| {
                    names.push(*numbers.entry(SplitHash::new(atom.hash)).or_insert_with(|| {
                        known.push(IdentifierStats::new(atom.kind));
                        IdentifierId(saturating_u32(known.len() - 1))
                    }));
                });
                let in_run = match names[from..] {
                    [IdentifierId(name)] => RunIdentifiers(name | SINGLE_IDENTIFIER_FLAG),
                    ref list => {
                        let at = saturating_u32(self.id_lists.len());
                        self.id_lists.push(IdentifierId(saturating_u32(list.len())));
                        self.id_lists.extend_from_slice(list);
                        RunIdentifiers(at)
                    }
                };
                self.run_cache.insert(key, in_run);
            }
        }
    }

    /// How often each name stands; those that do not are left out.
    #[cfg(test)]
    pub(crate) fn occurrences(&self) -> BTreeMap<u64, i32> {
        let standing = self
            .ids
            .iter()
            .map(|(hash, &IdentifierId(number))| (hash.joined(), self.stats[number as usize].occurrences));
        standing.filter(|&(_, count)| count != 0).collect()
    }

    /// Lets those names stand once that do not stand, and calls `each` with them. Gives whether the model has used any
    /// of the names.
    pub(crate) fn add_missing(
        &mut self,
        names: &[IdentifierId],
        mut each: impl FnMut(IdentifierId, IdentifierStats),
    ) -> bool {
        let mut bits = 0;
        for &name in names {
            let known = &mut self.stats[name.0 as usize];
            bits |= known.last_seen_and_flags;
            if known.occurrences <= 0 {
                known.occurrences += 1;
                each(name, *known);
            }
        }
        bits & USED_BY_MODEL_FLAG != 0
    }
}

/// The hash of a run. It is asked of every run and never told to anybody, so a quick one is good enough.
fn hash_run(run: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(run);
    hasher.finish()
}

/// A count of messages, names or bytes: no conversation has four thousand million of them.
fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Where a text comes from.
pub(crate) enum TextOrigin {
    Result(PartId),
    /// The arguments of a call, if these are JSON and long, and the place of the value in them.
    ArgumentValue(PartId, wire::ByteSpan),
    Other,
}

/// Calls `each` with every text of a message that the model can read, and with where it comes from.
pub(crate) fn for_each_text(message: &Message<'_>, at: usize, mut each: impl FnMut(TextOrigin, &str)) {
    for (index, part) in message.parts.iter().enumerate() {
        match part {
            Part::Text { text } => each(TextOrigin::Other, text),
            Part::Reasoning(it) => each(TextOrigin::Other, &it.text),
            Part::ToolCall(it) => {
                let place = PartId::new(at, index);
                let strings = match &it.arguments {
                    CallArguments::Json(json) if json.len() >= arguments::MIN_ARGUMENT_BYTES => {
                        wire::string_values(json)
                    }
                    _ => Vec::new(),
                };
                for value in &strings {
                    value
                        .string()
                        .into_iter()
                        .for_each(|text| each(TextOrigin::ArgumentValue(place, value.span), &text));
                }
                if strings.is_empty() {
                    for_each_value(it.arguments.as_str(), &it.arguments, |text| each(TextOrigin::Other, text));
                }
            }
            Part::ToolResult(it) => {
                for (inner, part) in it.content.iter().enumerate() {
                    let place = PartId::new(at, index).inner(inner);
                    part.as_text().into_iter().for_each(|text| each(TextOrigin::Result(place), text));
                }
            }
            _ => {}
        }
    }
}

/// Calls `each` with every value in arguments that are written as those of a call are: JSON, or a text.
pub(crate) fn for_each_value(arguments: &str, as_those: &CallArguments<'_>, mut each: impl FnMut(&str)) {
    match as_those {
        CallArguments::Text(_) => each(arguments),
        CallArguments::Json(_) => for_each_string(arguments, each),
    }
}

/// Calls `each` with every string in JSON text, decoded; with the text itself when it is not JSON.
fn for_each_string(json: &str, mut each: impl FnMut(&str)) {
    let strings = wire::string_values(json);
    if strings.is_empty() {
        return each(json);
    }
    strings.into_iter().filter_map(wire::JsonValue::string).for_each(|text| each(&text));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fold;
    use crate::testing::samples;
    use crate::{FoldOptions, Ledger, Meter, ModelTable, Prices};

    #[test]
    fn identifiers_are_counted_per_text() {
        let (mut lexicon, mut counts) = (IdentifierIndex::default(), IdentifierCounts::default());
        let [first, second] = ["read_all(read_all)\nopen_it", "open_it"].map(|text| lexicon.index_text(text));
        let times = |counts: &IdentifierCounts, found: &IndexedText| {
            found.identifiers.iter().map(|&name| counts.times(name)).collect::<Vec<_>>()
        };
        counts.count(&first);
        assert_eq!(times(&counts, &first), [2, 2, 1]);
        counts.count(&second);
        assert_eq!(times(&counts, &first), [0, 0, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// After all that came and was folded, each name is counted as often as it stands in the rendering.
        #[test]
        fn occurrences_equal_a_fresh_index(sample in samples(), share in 0.05..1.0) {
            let request = sample.request();
            let conversation = request.conversation();
            let (table, model) = (ModelTable::builtin(), Some("claude-opus-4-6"));
            let meter = Meter::for_model(table, model);
            let budget = (meter.conversation(conversation) as f64 * share) as u64;
            let setup = FoldOptions::new(meter, Prices::for_model(table, model), budget).with_overhead_of(conversation);
            let Ok(folded) = fold(conversation, &setup, &Ledger::default()) else { return Ok(()) };
            let mut state = folded.into_state();
            state.identifiers.index_messages(&conversation.messages, &state.folds, &CancelFlag::default(), |_| None).unwrap();
            let mut anew = IdentifierIndex::default();
            anew.index_messages(&conversation.messages, &state.folds, &CancelFlag::default(), |_| None).unwrap();
            prop_assert_eq!(state.identifiers.occurrences(), anew.occurrences());
        }
    }
}
