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

use super::vocabulary::has_long_run;
use super::{Counter, Estimator, Meter, Tokens, Vocabulary};

/// A counter whose counts are sums over lines.
#[derive(Clone, Copy)]
pub(super) enum Summed {
    /// In tokens.
    Exact(Vocabulary),
    /// In hundredths of a token.
    Estimate,
}

/// What each line of a text adds to its count, with its line break.
#[derive(Clone, Debug)]
pub(crate) struct LineCounts(Arc<[u16]>);

/// A line that was not counted by itself.
const UNKNOWN: u16 = u16::MAX;

impl LineCounts {
    /// What a line adds, if it is known.
    pub(crate) fn of(&self, line: usize) -> Option<u16> {
        self.0.get(line).copied().filter(|&count| count != UNKNOWN)
    }
}

/// Exact counts of lines that were made before, by their hashes, in a table of a fixed size: a newer line takes the place of
/// an older one. Nobody waits for anybody, since an entry is one number.
#[derive(Default)]
pub(super) struct KnownLines(OnceLock<Box<[AtomicU64]>>);

/// Places in the table, a quarter of a megabyte of them; a power of two. A hash tells its place by the low bits, in whose stead its
/// count is written.
const PLACES: u64 = 1 << 15;

impl KnownLines {
    /// The count of a line, made by `count` if it is not there.
    fn get_or(&self, line: &str, seed: u64, count: impl FnOnce() -> Tokens) -> Tokens {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(line.as_bytes(), seed);
        let table = self.0.get_or_init(|| (0..PLACES).map(|_| AtomicU64::new(0)).collect());
        let place = &table[(hash % PLACES) as usize];
        let known = place.load(Ordering::Relaxed);
        let (of, count_of) = (known / PLACES, known % PLACES);
        // No line has no tokens, so nothing is known where nothing was written.
        if of == hash / PLACES && count_of > 0 {
            return count_of;
        }
        let made = count();
        if made < PLACES {
            place.store(hash / PLACES * PLACES + made, Ordering::Relaxed);
        }
        made
    }
}

impl Summed {
    /// What a text adds behind a line break.
    fn grains(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimate => Estimator::hundredths_behind_a_break(text),
        }
    }

    fn tokens(self, grains: Tokens) -> Tokens {
        match self {
            Self::Exact(_) => grains,
            Self::Estimate => grains.div_ceil(100),
        }
    }

    /// What a text adds at the start.
    fn at_first(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimate => Estimator::hundredths(text),
        }
    }

    /// Whether what stands before a text, up to a line break, counts as if the text were not there.
    fn opens(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => {
                let blanks = text.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                match text.as_bytes().get(blanks) {
                    Some(b'/') => blanks > 0,
                    Some(b'!'..=b'~') => true,
                    _ => text[blanks..].chars().next().is_some_and(|first| !first.is_whitespace()),
                }
            }
            Self::Estimate => true,
        }
    }

    /// Whether the lines of a text can be added up.
    fn splits(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => !has_long_run(text),
            Self::Estimate => true,
        }
    }

    /// The count of a text, and of its lines. Counts of other vocabularies are known by other seeds.
    pub(super) fn by_lines(self, text: &str, known: &KnownLines, seed: u64) -> (Tokens, Option<LineCounts>) {
        if !self.splits(text) {
            return (self.tokens(self.at_first(text)), None);
        }
        let (sum, counts) = match self {
            Self::Exact(vocabulary) => {
                self.counted(text, |lines| known.get_or(lines, seed, || vocabulary.count(lines)))
            }
            Self::Estimate => Self::estimated(text),
        };
        (self.tokens(sum), Some(LineCounts(counts.into())))
    }

    /// The count of a text, and what each line adds; lines that are joined with the next are counted together.
    fn counted(self, text: &str, count_of: impl Fn(&str) -> Tokens) -> (Tokens, Vec<u16>) {
        let mut counts = Vec::with_capacity(text.len() / 32 + 1);
        let (mut sum, mut from, mut start) = (0, 0, 0);
        let mut rest = memchr::memchr_iter(b'\n', text.as_bytes()).map(|newline| newline + 1);
        while start < text.len() {
            let end = rest.next().unwrap_or(text.len());
            counts.push(UNKNOWN);
            let opens = end == text.len() || self.opens(&text[end..]);
            if opens {
                let count = count_of(&text[from..end]);
                sum += count;
                let alone = from == start && text.as_bytes()[end - 1] == b'\n';
                if let (true, Some(last)) = (alone, counts.last_mut()) {
                    *last = u16::try_from(count).unwrap_or(UNKNOWN);
                }
                from = end;
            }
            start = end;
        }
        (sum, counts)
    }

    /// The same for an estimate, in which every line stands alone.
    fn estimated(text: &str) -> (Tokens, Vec<u16>) {
        let weights = Estimator::hundredths_by_line(text);
        let mut counts: Vec<u16> = weights.iter().map(|&weight| u16::try_from(weight).unwrap_or(UNKNOWN)).collect();
        // At the start of a text it may count as it does nowhere else; and without a break as it does at the end alone.
        if let Some(first) = counts.first_mut() {
            *first = UNKNOWN;
        }
        if let (false, Some(last)) = (text.ends_with('\n'), counts.last_mut()) {
            *last = UNKNOWN;
        }
        (weights.iter().sum(), counts)
    }
}

/// Adds up the count of a text while it is put together from lines.
pub(crate) struct Tally<'m> {
    meter: &'m Meter,
    summed: Option<Summed>,
    grains: Tokens,
    /// What is not added yet begins here; and the last line, with what it adds if it can be added.
    from: usize,
    last: (usize, Option<u16>),
}

impl<'m> Tally<'m> {
    pub(crate) fn new(meter: &'m Meter) -> Self {
        Self { meter, summed: meter.summed(), grains: 0, from: 0, last: (0, None) }
    }

    /// Takes note of a line that comes next, behind a line break, and of what it adds if that is known.
    pub(crate) fn line(&mut self, before: &str, line: &str, count: Option<u16>) {
        let Some(summed) = self.summed else { return };
        let opens = summed.opens(line);
        if let (true, (start, Some(count))) = (opens, self.last) {
            self.add(summed, &before[..start]);
            self.grains += Tokens::from(count);
            self.from = before.len();
        }
        self.last = (before.len(), count.filter(|_| opens));
    }

    fn add(&mut self, summed: Summed, text: &str) {
        if self.from < text.len() {
            let rest = &text[self.from..];
            self.grains += if self.from == 0 { summed.at_first(rest) } else { summed.grains(rest) };
        }
    }

    /// The count of the whole text.
    pub(crate) fn of(mut self, text: &str) -> Tokens {
        match self.summed {
            Some(summed) if self.from > 0 && summed.splits(text) => {
                self.add(summed, text);
                self.meter.scaled(summed.tokens(self.grains))
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
        fn lines_add_up(lines in lines(), ends: bool, kept in prop::collection::vec(any::<bool>(), 24), gaps: bool) {
            let text = lines.join("\n") + if ends { "\n" } else { "" };
            for meter in meters() {
                let (tokens, counts) = meter.by_lines(&text, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
                prop_assert_eq!(tokens, Meter::for_row(meter.row().clone()).text(&text));
                let Some(counts) = counts else { continue };
                let mut tally = Tally::new(&meter);
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
                        tally.line(&out, &gap, None);
                        out.push_str(&gap);
                    }
                    left_out = 0;
                    out.push('\n');
                    tally.line(&out, line, counts.of(number));
                    out.push_str(line);
                }
                prop_assert_eq!(tally.of(&out), meter.text(&out), "{:?}", out);
            }
        }
    }

    /// Whatever takes its place, a line has its own count; and where nothing does, it is counted once for each vocabulary.
    #[test]
    fn a_line_is_counted_once_and_never_for_another() {
        let known = KnownLines::default();
        let lines: Vec<String> = (0..3 * PLACES).map(|number| format!("line {number}")).collect();
        for line in lines.iter().chain(&lines) {
            assert_eq!(known.get_or(line, 1, || line.len() as Tokens), line.len() as Tokens);
        }
        let last = &lines[lines.len() - 1];
        assert_eq!(known.get_or(last, 1, || unreachable!("it was the last to be counted")), last.len() as Tokens);
        assert_eq!(known.get_or(last, 2, || 7), 7);
        // A count that is too large is made again.
        assert_eq!(known.get_or("long", 1, || PLACES), PLACES);
        assert_eq!(known.get_or("long", 1, || PLACES + 1), PLACES + 1);
    }

    /// Where a run is so long that it is counted in chunks, nothing is added up.
    #[test]
    fn a_long_run_is_not_split() {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let text = format!("before\n{}x\nbehind\n", " ".repeat(9_000));
        let (tokens, counts) = meter.by_lines(&text, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        assert_eq!(tokens, Meter::for_row(meter.row().clone()).text(&text));
        assert!(counts.is_none());
    }
}
