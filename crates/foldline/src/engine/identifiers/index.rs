//! An index of the identifiers of a conversation: how often each occurs in the request, and whether the model used it.
//!
//! An excerpt keeps lines with identifiers that are likely to be needed again and occur nowhere else. This module only
//! counts; the passes decide. Counts are updated incrementally, so that a crease costs what it changes and not the whole
//! request.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::conversation::{CallArguments, Message, Part, PartId};
use crate::engine::argument_values::{MIN_ARGUMENT_BYTES, for_each_value};
use crate::engine::cancel::CancelFlag;
use crate::engine::identifiers::extract::{IdentifierKind, IdentifierScanner, for_each_run};
use crate::engine::identity_hasher::IdentityHasher;
use crate::engine::overlay::FoldSet;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::error::Error;
use crate::wire;

use rustc_hash::FxHasher;

/// Statistics of an identifier, in eight bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentifierStats {
    /// Occurrences in the request.
    occurrences: i32,
    /// Last message in which it was found, plus one, above the flag bits.
    last_seen_and_flags: u32,
}

const NUMBER_FLAG: u32 = 1;
const REPEATED_FLAG: u32 = 2;
const USED_BY_MODEL_FLAG: u32 = 4;
const POSSIBLE_NAME_FLAG: u32 = 8;
const FLAGS_MASK: u32 = NUMBER_FLAG | REPEATED_FLAG | USED_BY_MODEL_FLAG | POSSIBLE_NAME_FLAG;

impl IdentifierStats {
    fn new(kind: IdentifierKind) -> Self {
        let last_seen_and_flags = match kind {
            IdentifierKind::Number => NUMBER_FLAG,
            IdentifierKind::PossibleName => POSSIBLE_NAME_FLAG,
            IdentifierKind::Path | IdentifierKind::Dotted | IdentifierKind::Symbol => 0,
        };
        Self { occurrences: 0, last_seen_and_flags }
    }

    /// Records an occurrence in a message.
    fn record(&mut self, stamp: u32, used: u32) {
        let (flags, last) = (self.last_seen_and_flags & FLAGS_MASK, self.last_seen_and_flags & !FLAGS_MASK);
        let repeated = if last != 0 && last != stamp { REPEATED_FLAG } else { 0 };
        self.last_seen_and_flags = stamp | flags | repeated | used;
    }

    pub(crate) fn is_number(self) -> bool {
        self.last_seen_and_flags & NUMBER_FLAG != 0
    }

    /// Returns true if it may be English: a possible name that only one message contains.
    pub(crate) fn may_be_english(self) -> bool {
        self.last_seen_and_flags & (POSSIBLE_NAME_FLAG | REPEATED_FLAG) == POSSIBLE_NAME_FLAG
    }

    /// Returns true if it was found in more than one message.
    pub(crate) fn is_repeated(self) -> bool {
        self.last_seen_and_flags & REPEATED_FLAG != 0
    }
}

/// The number of an identifier. Its hash is looked up once, when a text is indexed; statistics are then found by
/// number in arrays that are small enough for the CPU cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentifierId(u32);

/// The identifiers of a text by line, or by other spans. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct IndexedText {
    pub(crate) kind: TextKind,
    lines: Arc<[IndexedLine]>,
    identifiers: Arc<[IdentifierId]>,
}

/// A line of an indexed text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedLine {
    start: u32,
    end: u32,
    /// End of its identifiers; they start at the end of the previous line's.
    identifiers_end: u32,
    /// True if it defines or imports something with an identifier.
    pub(crate) is_definition: bool,
}

/// A long value in the arguments of a call.
#[derive(Clone, Debug)]
pub(crate) struct LongValue {
    /// Position in the arguments, with its quotes.
    pub(crate) span: wire::ByteSpan,
    pub(crate) indexed: IndexedText,
}

/// The index of the identifiers of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentifierIndex {
    ids: HashMap<SplitHash, IdentifierId, BuildHasherDefault<IdentityHasher>>,
    stats: Vec<IdentifierStats>,
    /// Identifiers of each run of joined words, by hash of the run, so that repeated runs are not scanned again.
    run_cache: HashMap<SplitHash, RunIdentifiers, BuildHasherDefault<IdentityHasher>>,
    /// Length and identifiers of each run that does not have exactly one.
    id_lists: Vec<IdentifierId>,
    /// Buffer for the words of a run.
    scanner: IdentifierScanner,
    /// Buffer for the runs of a text.
    run_buffer: Vec<TokenRun>,
    /// Indexed long results that are unchanged. Every crease reads them until they are cut.
    results: BTreeMap<PartId, IndexedText>,
    /// Indexed long values of unchanged JSON arguments.
    arguments: BTreeMap<PartId, Vec<LongValue>>,
    /// Number of messages indexed.
    indexed_messages: usize,
}

/// A run of joined words in a text.
#[derive(Clone, Copy, Debug)]
struct TokenRun {
    hash: u64,
    start: u32,
    end: u32,
}

/// The identifiers of a run: a single one, or a position in `id_lists`.
#[derive(Clone, Copy, Debug)]
struct RunIdentifiers(u32);

/// Flag of a run with exactly one identifier. Without it, the number is a position in `id_lists`.
const SINGLE_IDENTIFIER_FLAG: u32 = 1 << 31;

/// Minimum size of a cached result. Shorter ones are faster to index again.
const MIN_CACHED_RESULT_BYTES: usize = 200;

/// A 64-bit hash in two halves, so that a table entry takes 12 bytes instead of 16.
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

impl IndexedText {
    /// Returns the number of lines.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns all identifiers, in order.
    pub(crate) fn identifiers(&self) -> Arc<[IdentifierId]> {
        self.identifiers.clone()
    }

    /// Returns the lines, each with its identifiers.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&IndexedLine, &[IdentifierId])> {
        let mut from = 0;
        self.lines.iter().map(move |line| {
            let names = &self.identifiers[from..line.identifiers_end as usize];
            from = line.identifiers_end as usize;
            (line, names)
        })
    }
}

/// The occurrences of each identifier in one text.
#[derive(Default)]
pub(crate) struct IdentifierCounts {
    counts: Vec<u32>,
    /// Identifiers that were counted.
    identifiers: Option<Arc<[IdentifierId]>>,
}

impl IdentifierCounts {
    /// Counts the identifiers of a text, after resetting the previous counts.
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

    /// Returns the occurrences of an identifier in the text.
    pub(crate) fn times(&self, name: IdentifierId) -> u32 {
        self.counts.get(name.0 as usize).copied().unwrap_or(0)
    }
}

impl IndexedLine {
    /// Returns the line's content in the text that was indexed.
    pub(crate) fn text_in<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl IdentifierIndex {
    /// Indexes the rendering of the messages that are not indexed yet. `kind_of` returns the kind of a result's text if
    /// it is already known.
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
            let is_unchanged = !folds.touches(at);
            let stamp = saturating_u32(at + 1) << FLAGS_MASK.count_ones();
            let used = if message.is_assistant() { USED_BY_MODEL_FLAG } else { 0 };
            for_each_text(message, at, |source, text| {
                let names = match source {
                    TextOrigin::Result(place) if is_unchanged && text.len() >= MIN_CACHED_RESULT_BYTES => {
                        let kind = kind_of(place).unwrap_or_else(|| text_kind::detect_kind(text));
                        let found = self.index_spans(text, kind, text_kind::iter_line_ranges(text));
                        self.results.insert(place, found.clone());
                        found.identifiers
                    }
                    TextOrigin::ArgumentValue(place, span) if is_unchanged => {
                        if text.len() < MIN_ARGUMENT_BYTES {
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
                    let stats = &mut self.stats[name.0 as usize];
                    stats.record(stamp, used);
                    stats.occurrences += i32::from(is_unchanged);
                }
            });
            if !is_unchanged {
                folds.for_each_rendered_text(at, message, |_| false, |_, text| self.count_text(None, text, 1));
            }
        }
        self.indexed_messages = messages.len();
        Ok(())
    }

    /// Drops everything that can be computed again, so that the state of an idle session is small.
    pub(crate) fn release_caches(&mut self) {
        let (ids, stats) = (std::mem::take(&mut self.ids), std::mem::take(&mut self.stats));
        *self = Self { ids, stats, indexed_messages: self.indexed_messages, ..Self::default() };
    }

    /// Updates the counts for a message whose rendering changed.
    pub(crate) fn update_message(&mut self, at: usize, message: &Message<'_>, from: &FoldSet, to: &FoldSet) {
        let same = |part| from.is_same_part(to, part);
        from.for_each_rendered_text(at, message, same, |place, text| self.count_text(place, text, -1));
        to.for_each_rendered_text(at, message, same, |place, text| self.count_text(place, text, 1));
        // A result that was cut is rarely whole again.
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

    /// Adds `by` to the occurrences of identifiers.
    pub(crate) fn add_occurrences(&mut self, names: &[IdentifierId], by: i32) {
        for name in names {
            self.stats[name.0 as usize].occurrences += by;
        }
    }

    /// Returns the identifiers of a text. `place` is the position of an unchanged result, which may be cached.
    pub(crate) fn identifiers(&mut self, place: Option<PartId>, text: &str) -> Arc<[IdentifierId]> {
        if let Some(found) = place.and_then(|place| self.results.get(&place)) {
            return found.identifiers.clone();
        }
        self.extract_identifiers(text)
    }

    /// Returns the long values in the unchanged arguments of a call, if cached.
    pub(crate) fn long_values(&self, place: PartId) -> Option<&[LongValue]> {
        self.arguments.get(&place).map(Vec::as_slice)
    }

    /// Returns the index of a result's text, from the cache if possible.
    pub(crate) fn indexed_result(&mut self, place: PartId, text: &str) -> IndexedText {
        self.results.get(&place).cloned().unwrap_or_else(|| self.index_text(text))
    }

    /// Indexes a text by line.
    pub(crate) fn index_text(&mut self, text: &str) -> IndexedText {
        self.index_spans(text, text_kind::detect_kind(text), text_kind::iter_line_ranges(text))
    }

    /// Indexes spans of a text. No span may start or end inside an identifier.
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
            IndexedLine {
                start: saturating_u32(start),
                end: saturating_u32(end),
                identifiers_end: saturating_u32(names.len()),
                is_definition: has_names && text_kind::is_definition(&text[start..end]),
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

    /// Returns the identifiers of a text, in order.
    fn extract_identifiers(&mut self, text: &str) -> Arc<[IdentifierId]> {
        let mut names = Vec::with_capacity(text.len() / 16);
        let runs = self.find_runs(text);
        runs.iter().for_each(|run| self.push_run_identifiers(run, text, &mut names));
        self.run_buffer = runs;
        names.into()
    }

    /// Returns the runs of a text that may contain identifiers. All runs are found before any is looked up, so that the
    /// CPU can overlap the memory accesses of the lookups, which dominate the time.
    fn find_runs(&mut self, text: &str) -> Vec<TokenRun> {
        let mut runs = std::mem::take(&mut self.run_buffer);
        runs.clear();
        let bytes = text.as_bytes();
        // No identifier is shorter than three bytes.
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

    /// Appends the identifiers of a run to `names`.
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
                let (ids, stats) = (&mut self.ids, &mut self.stats);
                self.scanner.for_each_identifier(&text[run.start as usize..run.end as usize], |identifier, _| {
                    names.push(*ids.entry(SplitHash::new(identifier.hash)).or_insert_with(|| {
                        stats.push(IdentifierStats::new(identifier.kind));
                        IdentifierId(saturating_u32(stats.len() - 1))
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

    /// Returns the occurrences of each identifier, without those that do not occur.
    #[cfg(test)]
    pub(crate) fn occurrences(&self) -> BTreeMap<u64, i32> {
        let all = self
            .ids
            .iter()
            .map(|(hash, &IdentifierId(number))| (hash.joined(), self.stats[number as usize].occurrences));
        all.filter(|&(_, count)| count != 0).collect()
    }

    /// Adds one occurrence to each identifier that does not occur, and calls `each` with it. Returns true if the model has
    /// used any of the identifiers.
    pub(crate) fn add_missing(
        &mut self,
        names: &[IdentifierId],
        mut each: impl FnMut(IdentifierId, IdentifierStats),
    ) -> bool {
        let mut flags = 0;
        for &name in names {
            let stats = &mut self.stats[name.0 as usize];
            flags |= stats.last_seen_and_flags;
            if stats.occurrences <= 0 {
                stats.occurrences += 1;
                each(name, *stats);
            }
        }
        flags & USED_BY_MODEL_FLAG != 0
    }
}

/// Hashes a run. The hash is computed for every run and never leaves the process, so a fast one is sufficient.
fn hash_run(run: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(run);
    hasher.finish()
}

/// Converts a count of messages, identifiers or bytes, which is always below 4 billion.
fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The origin of a text.
pub(crate) enum TextOrigin {
    Result(PartId),
    /// A value in long JSON arguments, and its position in them.
    ArgumentValue(PartId, wire::ByteSpan),
    Other,
}

/// Calls `each` with every text of a message that the model can read, and its origin.
pub(crate) fn for_each_text(message: &Message<'_>, at: usize, mut each: impl FnMut(TextOrigin, &str)) {
    for (index, part) in message.parts.iter().enumerate() {
        match part {
            Part::Text { text } => each(TextOrigin::Other, text),
            Part::Reasoning(reasoning) => each(TextOrigin::Other, &reasoning.text),
            Part::ToolCall(call) => {
                let place = PartId::new(at, index);
                let strings = match &call.arguments {
                    CallArguments::Json(json) if json.len() >= MIN_ARGUMENT_BYTES => wire::string_values(json),
                    _ => Vec::new(),
                };
                for value in &strings {
                    value
                        .string()
                        .into_iter()
                        .for_each(|text| each(TextOrigin::ArgumentValue(place, value.span), &text));
                }
                if strings.is_empty() {
                    for_each_value(call.arguments.as_str(), &call.arguments, |text| each(TextOrigin::Other, text));
                }
            }
            Part::ToolResult(result) => {
                for (inner, part) in result.content.iter().enumerate() {
                    let place = PartId::new(at, index).inner(inner);
                    part.as_text().into_iter().for_each(|text| each(TextOrigin::Result(place), text));
                }
            }
            _ => {}
        }
    }
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
        let (mut index, mut counts) = (IdentifierIndex::default(), IdentifierCounts::default());
        let [first, second] = ["read_all(read_all)\nopen_it", "open_it"].map(|text| index.index_text(text));
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

        /// Incremental counts equal the counts of a fresh index of the rendering.
        #[test]
        fn occurrences_equal_a_fresh_index(sample in samples(), share in 0.05..1.0) {
            let request = sample.request();
            let conversation = request.conversation();
            let (table, model) = (ModelTable::builtin(), Some("claude-opus-4-6"));
            let meter = Meter::for_model(table, model);
            let budget = (meter.conversation(conversation) as f64 * share) as u64;
            let options = FoldOptions::new(meter, Prices::for_model(table, model), budget).with_overhead_of(conversation);
            let Ok(folded) = fold(conversation, &options, &Ledger::default()) else { return Ok(()) };
            let mut state = folded.into_state();
            state.identifiers.index_messages(&conversation.messages, &state.folds, &CancelFlag::default(), |_| None).unwrap();
            let mut fresh = IdentifierIndex::default();
            fresh.index_messages(&conversation.messages, &state.folds, &CancelFlag::default(), |_| None).unwrap();
            prop_assert_eq!(state.identifiers.occurrences(), fresh.occurrences());
        }
    }
}
