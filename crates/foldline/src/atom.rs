//! The names in a text: paths, identifiers, numbers.
//!
//! What later actions refer to is a name, so a text is worth keeping for the names in it. Nothing here knows what a
//! name means, or where else it stands. Every byte of a conversation comes through here: it is read once.

use std::ops::Range;

/// A name that stands in a text: what later actions refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom {
    /// Hash of its bytes.
    pub key: u64,
    /// What kind of name it is.
    pub kind: AtomKind,
}

/// The kinds of names, from the most to the least telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AtomKind {
    /// `src/main.rs`
    Path,
    /// `config.window`
    Dotted,
    /// `read_file`, `readFile`, `utf8`
    Identifier,
    /// `4096`
    Number,
}

/// Calls `visit` with every name in a text, in order, and with its place. Plain words are none: they say nothing about
/// where they come from. A path and a dotted name come whole and then in pieces, since either may be said alone.
///
/// ```
/// let mut names = Vec::new();
/// let text = "see src/read_file.rs, then 4096";
/// foldline::content::atoms(text, |_, place| names.push(&text[place]));
/// assert_eq!(names, ["src/read_file.rs", "read_file.rs", "read_file", "4096"]);
/// ```
pub fn atoms(text: &str, visit: impl FnMut(Atom, Range<usize>)) {
    Words::default().atoms(text, visit);
}

/// The words of a name, in memory that can be used for the names of many texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words(Vec<Word>);

impl Words {
    /// Does what [`atoms`] does.
    pub(crate) fn atoms(&mut self, text: &str, mut visit: impl FnMut(Atom, Range<usize>)) {
        let Self(words) = self;
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if class(bytes, at) & WORD == 0 {
                at += 1;
                continue;
            }
            let first = Word::at(bytes, at);
            at = first.end;
            words.clear();
            // A token is words and what joins them; what follows the last of them is none of it.
            let (mut made_of, mut joined_by) = (first.made_of, 0);
            while class(bytes, at) & JOIN != 0 {
                joined_by |= class(bytes, at);
                at += 1;
                if class(bytes, at) & WORD != 0 {
                    if words.is_empty() {
                        words.push(first);
                    }
                    let word = Word::at(bytes, at);
                    at = word.end;
                    made_of |= word.made_of | joined_by;
                    words.push(word);
                }
            }
            if words.is_empty() {
                first.say(bytes, &mut visit);
            } else {
                in_token(bytes, words, made_of, &mut visit);
            }
        }
    }
}

/// Calls `visit` with every run of words and joins in which there may be a name; in all other text there is none.
///
/// Sixty-four bytes are looked at together, so that plain words, which most text consists of, cost nothing by themselves.
pub(crate) fn each_run(bytes: &[u8], mut visit: impl FnMut(Range<usize>)) {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut last = [0; 64];
        let block = rest.first_chunk().unwrap_or_else(|| {
            last[..rest.len()].copy_from_slice(rest);
            &last
        });
        let Signs { runs, mut telling } = Signs::of(block);
        // A run that goes on behind the block is looked at again, from its start; one without an end byte by byte.
        let open = runs.leading_ones();
        if open == 64 {
            let length = rest.iter().position(|&byte| CLASS[byte as usize] == 0).unwrap_or(rest.len());
            visit(trimmed(bytes, at..at + length));
            at += length;
            continue;
        }
        let closed = u64::MAX >> open;
        telling &= closed;
        while telling != 0 {
            let inside = telling.trailing_zeros();
            let end = inside + (!runs >> inside).trailing_zeros();
            let start = 64 - (!runs & !(u64::MAX << inside)).leading_zeros();
            visit(trimmed(bytes, at + start as usize..at + end as usize));
            telling &= u64::MAX << end;
        }
        at += 64 - open as usize;
    }
}

/// A run without joins at its ends.
fn trimmed(bytes: &[u8], run: Range<usize>) -> Range<usize> {
    let Range { mut start, mut end } = run;
    while start < end && class(bytes, start) & JOIN != 0 {
        start += 1;
    }
    while start < end && class(bytes, end - 1) & JOIN != 0 {
        end -= 1;
    }
    start..end
}

/// What is known of sixty-four bytes, a bit each.
struct Signs {
    /// Bytes of words, and what joins them.
    runs: u64,
    /// Bytes without which a run has no name: digits, bars, humps, and what follows a join.
    telling: u64,
}

impl Signs {
    /// Written so that a compiler makes it look at many bytes in one step.
    fn of(block: &[u8; 64]) -> Self {
        let all = |is: bool| if is { u8::MAX } else { 0 };
        let (mut words, mut joins) = ([0; 65], [0; 65]);
        let (mut runs, mut telling) = ([0; 64], [0; 64]);
        for (at, &byte) in block.iter().enumerate() {
            let digit_or_bar = all(byte.wrapping_sub(b'0') < 10) | all(byte == b'_');
            let word = all((byte | 0x20).wrapping_sub(b'a') < 26) | digit_or_bar;
            // They follow each other: `-`, `.` and `/`.
            let join = all(byte.wrapping_sub(b'-') < 3) | all(byte == b'@');
            (words[at + 1], joins[at + 1]) = (word, join);
            (runs[at], telling[at]) = (word | join, digit_or_bar);
        }
        for (at, &byte) in block.iter().enumerate() {
            let hump = all(byte.wrapping_sub(b'A') < 26) & words[at];
            telling[at] |= hump | words[at + 1] & joins[at];
        }
        Self { runs: bits(&runs), telling: bits(&telling) }
    }
}

/// A bit for each byte, of which all or no bits are set.
fn bits(bytes: &[u8; 64]) -> u64 {
    let eights = bytes.as_chunks::<8>().0.iter().map(|eight| {
        let spread = u64::from_le_bytes(*eight) & 0x8040_2010_0804_0201;
        spread.wrapping_mul(0x0101_0101_0101_0101) >> 56
    });
    eights.rev().fold(0, |bits, eight| bits << 8 | eight)
}

fn say(bytes: &[u8], place: Range<usize>, kind: AtomKind, visit: &mut impl FnMut(Atom, Range<usize>)) {
    visit(Atom { key: xxhash_rust::xxh3::xxh3_64(&bytes[place.clone()]), kind }, place);
}

/// The names in several words that are joined: all of them, the segments of a path, and each word.
fn in_token(bytes: &[u8], words: &[Word], made_of: u8, visit: &mut impl FnMut(Atom, Range<usize>)) {
    let whole = words[0].start..words[words.len() - 1].end;
    let has = |bits: u8| made_of & bits != 0;
    if has(SLASH) {
        say(bytes, whole.clone(), AtomKind::Path, visit);
    } else if has(DOT) {
        say(bytes, whole.clone(), AtomKind::Dotted, visit);
    } else if has(DIGIT) {
        say(bytes, whole.clone(), AtomKind::Identifier, visit);
    }
    if !has(SLASH) {
        return words.iter().for_each(|word| word.say(bytes, visit));
    }
    let mut start = whole.start;
    let mut words = words.iter().peekable();
    while start < whole.end {
        let length = bytes[start..whole.end].iter().position(|byte| matches!(byte, b'/' | b'@'));
        let segment = start..length.map_or(whole.end, |length| start + length);
        start = segment.end + 1;
        if segment.len() > 3 && bytes[segment.clone()].contains(&b'.') {
            say(bytes, segment.clone(), AtomKind::Dotted, visit);
        }
        while let Some(word) = words.next_if(|word| word.start < segment.end) {
            word.say(bytes, visit);
        }
    }
}

/// ASCII letters, digits and `_` in a row.
#[derive(Clone, Copy, Debug)]
struct Word {
    start: usize,
    end: usize,
    made_of: u8,
}

/// What a byte may be in a name, as bits.
const LOWER: u8 = 1;
const UPPER: u8 = 2;
const DIGIT: u8 = 4;
const BAR: u8 = 8;
const WORD: u8 = LOWER | UPPER | DIGIT | BAR;
/// What joins words to one name.
const SLASH: u8 = 16;
const DOT: u8 = 32;
const OTHER_JOIN: u8 = 64;
const JOIN: u8 = SLASH | DOT | OTHER_JOIN;
/// An upper-case letter that is not the first of its word.
const HUMP: u8 = 128;

const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' => LOWER,
            b'A'..=b'Z' => UPPER,
            b'0'..=b'9' => DIGIT,
            b'_' => BAR,
            b'/' => SLASH,
            b'.' => DOT,
            b'-' | b'@' => OTHER_JOIN,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Nothing, behind the end.
fn class(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).map_or(0, |&byte| CLASS[byte as usize])
}

impl Word {
    /// The word that begins at a place.
    fn at(bytes: &[u8], start: usize) -> Self {
        let mut end = start + 1;
        let mut rest = 0;
        loop {
            let class = class(bytes, end);
            if class & WORD == 0 {
                break;
            }
            rest |= class;
            end += 1;
        }
        let hump = if rest & UPPER != 0 { HUMP } else { 0 };
        Self { start, end, made_of: class(bytes, start) | rest | hump }
    }

    fn say(&self, bytes: &[u8], visit: &mut impl FnMut(Atom, Range<usize>)) {
        if let Some(kind) = self.kind() {
            say(bytes, self.start..self.end, kind, visit);
        }
    }

    /// A number of three digits and more, or a word that is written as no plain word is.
    fn kind(&self) -> Option<AtomKind> {
        let has = |bits: u8| self.made_of & bits != 0;
        let length = self.end - self.start;
        match has(LOWER | UPPER) {
            false => (length > 2 && !has(BAR)).then_some(AtomKind::Number),
            true => (length > 3 && (has(BAR | DIGIT) || has(HUMP) && has(LOWER))).then_some(AtomKind::Identifier),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&str> {
        let mut names = Vec::new();
        atoms(text, |_, place| names.push(&text[place]));
        names
    }

    /// The names that are found in runs alone.
    fn names_in_runs(text: &str) -> Vec<&str> {
        let mut names = Vec::new();
        each_run(text.as_bytes(), |run| atoms(&text[run.clone()], |_, place| names.push(&text[run.clone()][place])));
        names
    }

    proptest::proptest! {
        /// No name stands outside of the runs, wherever blocks begin and end.
        #[test]
        fn runs_hold_all_names(text in "([a-z]{1,9}|[A-Z]{1,3}|[0-9_]{1,4}|[-./@]{1,2}|[ (,\"é]{1,3}){0,60}") {
            proptest::prop_assert_eq!(names_in_runs(&text), names(&text));
        }

        #[test]
        fn runs_hold_all_names_of_long_tokens(text in "([a-z0-9_./]{50,150}| ){0,6}") {
            proptest::prop_assert_eq!(names_in_runs(&text), names(&text));
        }
    }

    #[test]
    fn names_are_atoms_and_words_are_not() {
        assert_eq!(
            names("see src/wire/mod.rs: fn read_file(config.window) is 4096, utf8, readAll. The end, a-b."),
            ["src/wire/mod.rs", "mod.rs", "read_file", "config.window", "4096", "utf8", "readAll"]
        );
        assert_eq!(names("self.read_all(db-7)"), ["self.read_all", "read_all", "db-7"]);
    }
}
