//! Token counts per line, so that a text assembled from some of its lines need not be counted again.
//!
//! A vocabulary splits text into words before it forms tokens, and no word continues after a line break, with few
//! exceptions: the next line must not be blank and must not begin with a slash. So the count of a text is the sum of
//! the counts of its lines, with their breaks, wherever such a line follows. The estimator is in the same state after
//! every break. Sums are exact or not computed.
//!
//! A quarter of all tool output is lines that were printed before, and exact counts are expensive, so they are
//! cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::tokens::vocabulary::has_long_run;
use crate::tokens::{Meter, TokenCounter, TokenEstimator, Tokens, Vocabulary};

/// A counter whose counts are sums over lines.
#[derive(Clone, Copy)]
pub(crate) enum LineCounter {
    /// Counts in tokens.
    Exact(Vocabulary),
    /// Counts in hundredths of a token.
    Estimated,
}

/// The count of each line of a text, including its line break.
#[derive(Clone, Debug)]
pub(crate) struct LineCounts(Arc<[u16]>);

/// Marks a line that was not counted separately.
const UNKNOWN_COUNT: u16 = u16::MAX;

impl LineCounts {
    /// Returns the count of a line, if it is known.
    pub(crate) fn get(&self, line: usize) -> Option<u16> {
        self.0.get(line).copied().filter(|&count| count != UNKNOWN_COUNT)
    }
}

/// A cache of exact counts of lines, by hash, in a table of fixed size: a newer line replaces an older one.
/// Lock-free, since an entry is one number.
#[derive(Default)]
pub(crate) struct LineCountCache(OnceLock<Box<[AtomicU64]>>);

/// Number of slots (256 KiB); a power of two. The low bits of a hash select the slot and are replaced by the count in
/// the stored value.
const CACHE_SLOTS: u64 = 1 << 15;

impl LineCountCache {
    /// Returns the count of a line, computed by `count` if it is missing.
    fn get_or_count(&self, line: &str, seed: u64, count: impl FnOnce() -> Tokens) -> Tokens {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(line.as_bytes(), seed);
        let table = self.0.get_or_init(|| (0..CACHE_SLOTS).map(|_| AtomicU64::new(0)).collect());
        let slot = &table[(hash % CACHE_SLOTS) as usize];
        let stored = slot.load(Ordering::Relaxed);
        let (stored_hash, stored_count) = (stored / CACHE_SLOTS, stored % CACHE_SLOTS);
        // A count is never zero, so zero marks an empty slot.
        if stored_hash == hash / CACHE_SLOTS && stored_count > 0 {
            return stored_count;
        }
        let counted = count();
        if counted < CACHE_SLOTS {
            slot.store(hash / CACHE_SLOTS * CACHE_SLOTS + counted, Ordering::Relaxed);
        }
        counted
    }
}

impl LineCounter {
    /// Returns the count of a text after a line break.
    fn units_after_newline(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimated => TokenEstimator::hundredths_after_newline(text),
        }
    }

    fn to_tokens(self, units: Tokens) -> Tokens {
        match self {
            Self::Exact(_) => units,
            Self::Estimated => units.div_ceil(100),
        }
    }

    /// Returns the count of a text at the start.
    fn units_at_start(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimated => TokenEstimator::hundredths(text),
        }
    }

    /// Returns true if the text before this one, up to a line break, counts the same without it.
    fn starts_new_token(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => {
                let indent = text.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                match text.as_bytes().get(indent) {
                    Some(b'/') => indent > 0,
                    Some(b'!'..=b'~') => true,
                    _ => text[indent..].chars().next().is_some_and(|first| !first.is_whitespace()),
                }
            }
            Self::Estimated => true,
        }
    }

    /// Returns true if the counts of the lines of a text add up.
    fn is_additive(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => !has_long_run(text),
            Self::Estimated => true,
        }
    }

    /// Returns the count of a text and of its lines. `seed` separates the counts of different vocabularies.
    pub(crate) fn count_by_lines(self, text: &str, cache: &LineCountCache, seed: u64) -> (Tokens, Option<LineCounts>) {
        if !self.is_additive(text) {
            return (self.to_tokens(self.units_at_start(text)), None);
        }
        let (sum, counts) = match self {
            Self::Exact(vocabulary) => {
                self.exact_lines(text, |lines| cache.get_or_count(lines, seed, || vocabulary.count(lines)))
            }
            Self::Estimated => Self::estimated_lines(text),
        };
        (self.to_tokens(sum), Some(LineCounts(counts.into())))
    }

    /// Returns the count of a text and of each line; lines that are joined with the next are counted together.
    fn exact_lines(self, text: &str, count_lines: impl Fn(&str) -> Tokens) -> (Tokens, Vec<u16>) {
        let mut counts = Vec::with_capacity(text.len() / 32 + 1);
        let (mut sum, mut from, mut start) = (0, 0, 0);
        let mut rest = memchr::memchr_iter(b'\n', text.as_bytes()).map(|newline| newline + 1);
        while start < text.len() {
            let end = rest.next().unwrap_or(text.len());
            counts.push(UNKNOWN_COUNT);
            let starts_new = end == text.len() || self.starts_new_token(&text[end..]);
            if starts_new {
                let count = count_lines(&text[from..end]);
                sum += count;
                let alone = from == start && text.as_bytes()[end - 1] == b'\n';
                if let (true, Some(last)) = (alone, counts.last_mut()) {
                    *last = u16::try_from(count).unwrap_or(UNKNOWN_COUNT);
                }
                from = end;
            }
            start = end;
        }
        (sum, counts)
    }

    /// Returns the estimate of a text and of each line; lines are independent.
    fn estimated_lines(text: &str) -> (Tokens, Vec<u16>) {
        let weights = TokenEstimator::hundredths_by_line(text);
        let mut counts: Vec<u16> =
            weights.iter().map(|&weight| u16::try_from(weight).unwrap_or(UNKNOWN_COUNT)).collect();
        // The first line may count differently at the start of a text, and a last line without a break differently
        // elsewhere.
        if let Some(first) = counts.first_mut() {
            *first = UNKNOWN_COUNT;
        }
        if let (false, Some(last)) = (text.ends_with('\n'), counts.last_mut()) {
            *last = UNKNOWN_COUNT;
        }
        (weights.iter().sum(), counts)
    }
}

/// Adds up the count of a text while it is assembled from lines.
pub(crate) struct IncrementalCount<'m> {
    meter: &'m Meter,
    counter: Option<LineCounter>,
    units: Tokens,
    /// Start of the text that is not counted yet.
    counted_until: usize,
    /// Start of the last line, and its count if it can be added.
    last_line: (usize, Option<u16>),
}

impl<'m> IncrementalCount<'m> {
    pub(crate) fn new(meter: &'m Meter) -> Self {
        Self { meter, counter: meter.line_counter(), units: 0, counted_until: 0, last_line: (0, None) }
    }

    /// Records the next line, which follows a line break, with its count if it is known.
    pub(crate) fn add_line(&mut self, before: &str, line: &str, count: Option<u16>) {
        let Some(counter) = self.counter else { return };
        let starts_new = counter.starts_new_token(line);
        if let (true, (start, Some(count))) = (starts_new, self.last_line) {
            self.add_text(counter, &before[..start]);
            self.units += Tokens::from(count);
            self.counted_until = before.len();
        }
        self.last_line = (before.len(), count.filter(|_| starts_new));
    }

    fn add_text(&mut self, counter: LineCounter, text: &str) {
        if self.counted_until < text.len() {
            let rest = &text[self.counted_until..];
            self.units +=
                if self.counted_until == 0 { counter.units_at_start(rest) } else { counter.units_after_newline(rest) };
        }
    }

    /// Returns the count of the whole text.
    pub(crate) fn finish(mut self, text: &str) -> Tokens {
        match self.counter {
            Some(counter) if self.counted_until > 0 && counter.is_additive(text) => {
                self.add_text(counter, text);
                self.meter.scaled(counter.to_tokens(self.units))
            }
            _ => self.meter.text(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ModelTable;

    fn meters() -> Vec<Meter> {
        ["gpt-4o", "gpt-4", "qwen3-32b", "mistral-large", "claude-opus-4-6", "claude-opus-4-7"]
            .map(|model| Meter::for_model(ModelTable::builtin(), Some(model)))
            .into()
    }

    /// Lines as tools print them, and lines that are joined with the previous one: blank, after a slash, with unusual
    /// spaces.
    fn lines() -> impl Strategy<Value = Vec<String>> {
        let line = prop_oneof![
            "[ \t]{0,6}[a-zA-Z_(){};.'/ 0-9]{0,24}",
            "[ \t]{0,3}",
            "/{1,2}[a-z ]{0,8}",
            "[ \t\r\u{b}\u{c}\u{85}\u{a0}\u{2028}\u{3000}]{0,4}[a-z;]{0,4}\r?",
            "\\PC{0,12}",
            "[折叠旧的部分，。あいう]{0,8}",
        ];
        prop::collection::vec(line, 0..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// The count by lines equals the count of the text, for any choice of its lines.
        #[test]
        fn line_counts_add_up(lines in lines(), ends: bool, kept in prop::collection::vec(any::<bool>(), 24), gaps: bool) {
            let text = lines.join("\n") + if ends { "\n" } else { "" };
            for meter in meters() {
                let (tokens, counts) = meter.text_and_line_counts(&text, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
                prop_assert_eq!(tokens, Meter::for_row(meter.row().clone()).text(&text));
                let Some(counts) = counts else { continue };
                let mut tally = IncrementalCount::new(&meter);
                let mut out = "[folded: some of these lines]".to_owned();
                let mut left_out = 0;
                for (number, (line, kept)) in lines.iter().zip(&kept).enumerate() {
                    if !kept {
                        left_out += 1;
                        continue;
                    }
                    if left_out > 0 && gaps {
                        let gap = format!("[+{left_out}]");
                        out.push('\n');
                        tally.add_line(&out, &gap, None);
                        out.push_str(&gap);
                    }
                    left_out = 0;
                    out.push('\n');
                    tally.add_line(&out, line, counts.get(number));
                    out.push_str(line);
                }
                prop_assert_eq!(tally.finish(&out), meter.text(&out), "{:?}", out);
            }
        }
    }

    /// A line keeps its own count whatever replaces it, and is counted once per vocabulary.
    #[test]
    fn line_is_counted_once_per_vocabulary() {
        let cache = LineCountCache::default();
        let lines: Vec<String> = (0..3 * CACHE_SLOTS).map(|number| format!("line {number}")).collect();
        for line in lines.iter().chain(&lines) {
            assert_eq!(cache.get_or_count(line, 1, || line.len() as Tokens), line.len() as Tokens);
        }
        let last = &lines[lines.len() - 1];
        assert_eq!(cache.get_or_count(last, 1, || unreachable!("the last line is cached")), last.len() as Tokens);
        assert_eq!(cache.get_or_count(last, 2, || 7), 7);
        // A count that is too large to store is computed again.
        assert_eq!(cache.get_or_count("long", 1, || CACHE_SLOTS), CACHE_SLOTS);
        assert_eq!(cache.get_or_count("long", 1, || CACHE_SLOTS + 1), CACHE_SLOTS + 1);
    }

    /// Counts are not added up where a run is so long that it is counted in chunks.
    #[test]
    fn text_with_a_long_run_is_not_split() {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let text = format!("before\n{}x\nafter\n", " ".repeat(9_000));
        let (tokens, counts) = meter.text_and_line_counts(&text, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        assert_eq!(tokens, Meter::for_row(meter.row().clone()).text(&text));
        assert!(counts.is_none());
    }
}
