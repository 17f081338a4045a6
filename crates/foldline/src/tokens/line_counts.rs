//! What each line of a text adds to its count, so that a text of some of its lines need not be counted again.
//!
//! A vocabulary splits text into words before it makes tokens of them, and no word goes on behind a line break, but for a
//! few: what follows must not be blank, and not begin with a slash. So the count of a text is the sum of the counts of
//! its lines, with their breaks, wherever such a line follows. The estimate walks on from the same state behind
//! every break. Sums are exact, or not made.
//!
//! A quarter of what tools print is lines that were printed before, and exact counts are dear: so they are remembered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::tokens::vocabulary::has_long_run;
use crate::tokens::{Meter, TokenCounter, TokenEstimator, Tokens, Vocabulary};

/// A counter whose counts are sums over lines.
#[derive(Clone, Copy)]
pub(crate) enum LineCounter {
    /// In tokens.
    Exact(Vocabulary),
    /// In hundredths of a token.
    Estimated,
}

/// What each line of a text adds to its count, with its line break.
#[derive(Clone, Debug)]
pub(crate) struct LineCounts(Arc<[u16]>);

/// A line that was not counted by itself.
const UNKNOWN_COUNT: u16 = u16::MAX;

impl LineCounts {
    /// What a line adds, if it is known.
    pub(crate) fn get(&self, line: usize) -> Option<u16> {
        self.0.get(line).copied().filter(|&count| count != UNKNOWN_COUNT)
    }
}

/// Exact counts of lines that were made before, by their hashes, in a table of a fixed size: a newer line takes the place of
/// an older one. Nobody waits for anybody, since an entry is one number.
#[derive(Default)]
pub(crate) struct LineCountCache(OnceLock<Box<[AtomicU64]>>);

/// Places in the table, a quarter of a megabyte of them; a power of two. A hash tells its place by the low bits, in whose stead its
/// count is written.
const CACHE_SLOTS: u64 = 1 << 15;

impl LineCountCache {
    /// The count of a line, made by `count` if it is not there.
    fn get_or_count(&self, line: &str, seed: u64, count: impl FnOnce() -> Tokens) -> Tokens {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(line.as_bytes(), seed);
        let table = self.0.get_or_init(|| (0..CACHE_SLOTS).map(|_| AtomicU64::new(0)).collect());
        let place = &table[(hash % CACHE_SLOTS) as usize];
        let known = place.load(Ordering::Relaxed);
        let (of, count_of) = (known / CACHE_SLOTS, known % CACHE_SLOTS);
        // No line has no tokens, so nothing is known where nothing was written.
        if of == hash / CACHE_SLOTS && count_of > 0 {
            return count_of;
        }
        let made = count();
        if made < CACHE_SLOTS {
            place.store(hash / CACHE_SLOTS * CACHE_SLOTS + made, Ordering::Relaxed);
        }
        made
    }
}

impl LineCounter {
    /// What a text adds behind a line break.
    fn units_after_newline(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimated => TokenEstimator::hundredths_after_newline(text),
        }
    }

    fn to_tokens(self, grains: Tokens) -> Tokens {
        match self {
            Self::Exact(_) => grains,
            Self::Estimated => grains.div_ceil(100),
        }
    }

    /// What a text adds at the start.
    fn units_at_start(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimated => TokenEstimator::hundredths(text),
        }
    }

    /// Whether what stands before a text, up to a line break, counts as if the text were not there.
    fn starts_new_token(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => {
                let blanks = text.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                match text.as_bytes().get(blanks) {
                    Some(b'/') => blanks > 0,
                    Some(b'!'..=b'~') => true,
                    _ => text[blanks..].chars().next().is_some_and(|first| !first.is_whitespace()),
                }
            }
            Self::Estimated => true,
        }
    }

    /// Whether the lines of a text can be added up.
    fn is_additive(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => !has_long_run(text),
            Self::Estimated => true,
        }
    }

    /// The count of a text, and of its lines. Counts of other vocabularies are known by other seeds.
    pub(crate) fn count_by_lines(self, text: &str, known: &LineCountCache, seed: u64) -> (Tokens, Option<LineCounts>) {
        if !self.is_additive(text) {
            return (self.to_tokens(self.units_at_start(text)), None);
        }
        let (sum, counts) = match self {
            Self::Exact(vocabulary) => {
                self.exact_lines(text, |lines| known.get_or_count(lines, seed, || vocabulary.count(lines)))
            }
            Self::Estimated => Self::estimated_lines(text),
        };
        (self.to_tokens(sum), Some(LineCounts(counts.into())))
    }

    /// The count of a text, and what each line adds; lines that are joined with the next are counted together.
    fn exact_lines(self, text: &str, count_of: impl Fn(&str) -> Tokens) -> (Tokens, Vec<u16>) {
        let mut counts = Vec::with_capacity(text.len() / 32 + 1);
        let (mut sum, mut from, mut start) = (0, 0, 0);
        let mut rest = memchr::memchr_iter(b'\n', text.as_bytes()).map(|newline| newline + 1);
        while start < text.len() {
            let end = rest.next().unwrap_or(text.len());
            counts.push(UNKNOWN_COUNT);
            let opens = end == text.len() || self.starts_new_token(&text[end..]);
            if opens {
                let count = count_of(&text[from..end]);
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

    /// The same for an estimate, in which every line stands alone.
    fn estimated_lines(text: &str) -> (Tokens, Vec<u16>) {
        let weights = TokenEstimator::hundredths_by_line(text);
        let mut counts: Vec<u16> =
            weights.iter().map(|&weight| u16::try_from(weight).unwrap_or(UNKNOWN_COUNT)).collect();
        // At the start of a text it may count as it does nowhere else; and without a break as it does at the end alone.
        if let Some(first) = counts.first_mut() {
            *first = UNKNOWN_COUNT;
        }
        if let (false, Some(last)) = (text.ends_with('\n'), counts.last_mut()) {
            *last = UNKNOWN_COUNT;
        }
        (weights.iter().sum(), counts)
    }
}

/// Adds up the count of a text while it is put together from lines.
pub(crate) struct IncrementalCount<'m> {
    meter: &'m Meter,
    counter: Option<LineCounter>,
    units: Tokens,
    /// What is not added yet begins here; and the last line, with what it adds if it can be added.
    counted_until: usize,
    last_line: (usize, Option<u16>),
}

impl<'m> IncrementalCount<'m> {
    pub(crate) fn new(meter: &'m Meter) -> Self {
        Self { meter, counter: meter.line_counter(), units: 0, counted_until: 0, last_line: (0, None) }
    }

    /// Takes note of a line that comes next, behind a line break, and of what it adds if that is known.
    pub(crate) fn add_line(&mut self, before: &str, line: &str, count: Option<u16>) {
        let Some(summed) = self.counter else { return };
        let opens = summed.starts_new_token(line);
        if let (true, (start, Some(count))) = (opens, self.last_line) {
            self.add_text(summed, &before[..start]);
            self.units += Tokens::from(count);
            self.counted_until = before.len();
        }
        self.last_line = (before.len(), count.filter(|_| opens));
    }

    fn add_text(&mut self, summed: LineCounter, text: &str) {
        if self.counted_until < text.len() {
            let rest = &text[self.counted_until..];
            self.units +=
                if self.counted_until == 0 { summed.units_at_start(rest) } else { summed.units_after_newline(rest) };
        }
    }

    /// The count of the whole text.
    pub(crate) fn finish(mut self, text: &str) -> Tokens {
        match self.counter {
            Some(summed) if self.counted_until > 0 && summed.is_additive(text) => {
                self.add_text(summed, text);
                self.meter.scaled(summed.to_tokens(self.units))
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

    /// Lines as tools print them, and such as are joined with the line before them: blank, behind a slash, with odd blanks.
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

        /// A text counted by its lines is as many tokens as the text, and so is any choice of its lines.
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

    /// Whatever takes its place, a line has its own count; and where nothing does, it is counted once for each vocabulary.
    #[test]
    fn line_is_counted_once_per_vocabulary() {
        let known = LineCountCache::default();
        let lines: Vec<String> = (0..3 * CACHE_SLOTS).map(|number| format!("line {number}")).collect();
        for line in lines.iter().chain(&lines) {
            assert_eq!(known.get_or_count(line, 1, || line.len() as Tokens), line.len() as Tokens);
        }
        let last = &lines[lines.len() - 1];
        assert_eq!(known.get_or_count(last, 1, || unreachable!("it was the last to be counted")), last.len() as Tokens);
        assert_eq!(known.get_or_count(last, 2, || 7), 7);
        // A count that is too large is made again.
        assert_eq!(known.get_or_count("long", 1, || CACHE_SLOTS), CACHE_SLOTS);
        assert_eq!(known.get_or_count("long", 1, || CACHE_SLOTS + 1), CACHE_SLOTS + 1);
    }

    /// Where a run is so long that it is counted in chunks, nothing is added up.
    #[test]
    fn text_with_a_long_run_is_not_split() {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let text = format!("before\n{}x\nbehind\n", " ".repeat(9_000));
        let (tokens, counts) = meter.text_and_line_counts(&text, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        assert_eq!(tokens, Meter::for_row(meter.row().clone()).text(&text));
        assert!(counts.is_none());
    }
}
