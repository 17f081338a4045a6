//! Extraction of identifiers from a text: paths, symbols, numbers.
//!
//! Later actions refer to identifiers, so a text is worth keeping for the identifiers in it. This module must not depend
//! on their meaning or on other texts. It scans every byte of a conversation once, so it must be fast.

use std::ops::Range;

/// An identifier in a text, by hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifierKey {
    /// Hash of its bytes.
    pub hash: u64,
    /// Kind of the identifier.
    pub kind: IdentifierKind,
}

/// The kind of an identifier, from the most to the least specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdentifierKind {
    /// `src/main.rs`
    Path,
    /// `config.window`
    Dotted,
    /// `read_file`, `readFile`, `utf8`, `fmt::Debug`, `bg-blue-600`, `--dry-run`
    Symbol,
    /// `4096`
    Number,
    /// `items-center`, `MTIME`: a name in code, or English; a text that repeats it is evidence for a name.
    PossibleName,
}

/// Calls `visit` with every identifier in a text and its position, in order. Plain words are not identifiers. Paths,
/// dotted and qualified names are visited as a whole and then by component, because either may be used alone.
///
/// ```
/// let mut names = Vec::new();
/// let text = "see src/read_file.rs, then 4096";
/// foldline::engine::text_kind::for_each_identifier(text, |_, range| names.push(&text[range]));
/// assert_eq!(names, ["src/read_file.rs", "read_file.rs", "read_file", "4096"]);
/// ```
pub fn for_each_identifier(text: &str, visit: impl FnMut(IdentifierKey, Range<usize>)) {
    IdentifierScanner::default().for_each_identifier(text, visit);
}

/// A reusable buffer for the words of an identifier.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentifierScanner(Vec<WordSpan>);

impl IdentifierScanner {
    /// Does the same as [`for_each_identifier`], with a reused buffer.
    pub(crate) fn for_each_identifier(&mut self, text: &str, mut visit: impl FnMut(IdentifierKey, Range<usize>)) {
        let Self(words) = self;
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if byte_class(bytes, at) & WORD == 0 {
                at += 1;
                continue;
            }
            let first = WordSpan::starting_at(bytes, at);
            let is_flag = starts_with_dashes(bytes, at);
            at = first.end;
            words.clear();
            // A token is a sequence of words and joiners that ends with a word.
            let (mut classes, mut joiners) = (first.byte_classes, 0);
            while byte_class(bytes, at) & JOINER != 0 {
                joiners |= byte_class(bytes, at);
                at += 1;
                if byte_class(bytes, at) & WORD != 0 {
                    if words.is_empty() {
                        words.push(first);
                    }
                    let word = WordSpan::starting_at(bytes, at);
                    at = word.end;
                    classes |= word.byte_classes | joiners;
                    words.push(word);
                }
            }
            let end = words.last().map_or(first.end, |last| last.end);
            if is_flag {
                emit(bytes, first.start - 2..end, IdentifierKind::Symbol, &mut visit);
            }
            if words.is_empty() {
                first.emit(bytes, &mut visit);
            } else if classes & OTHER_JOINER != 0 && bytes[first.end..end].contains(&b':') {
                emit_qualified(bytes, words, &mut visit);
            } else {
                emit_joined(bytes, words, classes, &mut visit);
            }
        }
    }
}

/// Calls `visit` with every run of words and joiners that may contain an identifier. The rest of the text contains none.
///
/// Tests 64 bytes at a time, so that plain words, which make up most text, have no individual cost.
pub(crate) fn for_each_run(bytes: &[u8], mut visit: impl FnMut(Range<usize>)) {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut last = [0; 64];
        let block = rest.first_chunk().unwrap_or_else(|| {
            last[..rest.len()].copy_from_slice(rest);
            &last
        });
        let BlockMasks { run_mask, mut identifier_mask } = BlockMasks::from_block(block);
        // A run that continues after the block is scanned again from its start; one that fills the block, byte by byte.
        let open = run_mask.leading_ones();
        if open == 64 {
            let length = rest.iter().position(|&byte| BYTE_CLASSES[byte as usize] == 0).unwrap_or(rest.len());
            visit(trimmed(bytes, at..at + length));
            at += length;
            continue;
        }
        let closed = u64::MAX >> open;
        identifier_mask &= closed;
        while identifier_mask != 0 {
            let inside = identifier_mask.trailing_zeros();
            let end = inside + (!run_mask >> inside).trailing_zeros();
            let start = 64 - (!run_mask & !(u64::MAX << inside)).leading_zeros();
            visit(trimmed(bytes, at + start as usize..at + end as usize));
            identifier_mask &= u64::MAX << end;
        }
        at += 64 - open as usize;
    }
}

/// Returns true if a word follows two dashes at the start of its run, as in `--dry-run`.
fn starts_with_dashes(bytes: &[u8], word: usize) -> bool {
    word >= 2
        && bytes[word - 2..word] == *b"--"
        && byte_class(bytes, word) & (LOWER | UPPER) != 0
        && (word == 2 || BYTE_CLASSES[bytes[word - 3] as usize] == 0)
}

/// Returns a run without joiners at its ends, except for the dashes of a flag.
fn trimmed(bytes: &[u8], run: Range<usize>) -> Range<usize> {
    let Range { mut start, mut end } = run;
    while start < end && byte_class(bytes, start) & JOINER != 0 {
        start += 1;
    }
    if start < end && starts_with_dashes(bytes, start) {
        start -= 2;
    }
    while start < end && byte_class(bytes, end - 1) & JOINER != 0 {
        end -= 1;
    }
    start..end
}

/// Classes of 64 bytes, one bit each.
struct BlockMasks {
    /// Bytes of words and joiners.
    run_mask: u64,
    /// Bytes of which an identifier has at least one: digits, underscores, inner capitals, and letters after a joiner.
    identifier_mask: u64,
}

impl BlockMasks {
    /// Computes the masks of a block. Written so that the compiler vectorizes it.
    fn from_block(block: &[u8; 64]) -> Self {
        let all = |is: bool| if is { u8::MAX } else { 0 };
        let (mut words, mut joins) = ([0; 65], [0; 65]);
        let (mut runs, mut identifiers) = ([0; 64], [0; 64]);
        for (at, &byte) in block.iter().enumerate() {
            let digit_or_underscore = all(byte.wrapping_sub(b'0') < 10) | all(byte == b'_');
            let word = all((byte | 0x20).wrapping_sub(b'a') < 26) | digit_or_underscore;
            // `-`, `.` and `/` are adjacent in ASCII.
            let join = all(byte.wrapping_sub(b'-') < 3) | all(byte == b'@') | all(byte == b':');
            (words[at + 1], joins[at + 1]) = (word, join);
            (runs[at], identifiers[at]) = (word | join, digit_or_underscore);
        }
        for (at, &byte) in block.iter().enumerate() {
            let inner_upper = all(byte.wrapping_sub(b'A') < 26) & words[at];
            identifiers[at] |= inner_upper | words[at + 1] & joins[at];
        }
        Self { run_mask: to_bitmask(&runs), identifier_mask: to_bitmask(&identifiers) }
    }
}

/// Packs bytes that are 0 or 255 into one bit each.
fn to_bitmask(bytes: &[u8; 64]) -> u64 {
    let eights = bytes.as_chunks::<8>().0.iter().map(|eight| {
        let spread = u64::from_le_bytes(*eight) & 0x8040_2010_0804_0201;
        spread.wrapping_mul(0x0101_0101_0101_0101) >> 56
    });
    eights.rev().fold(0, |bits, eight| bits << 8 | eight)
}

fn emit(bytes: &[u8], place: Range<usize>, kind: IdentifierKind, visit: &mut impl FnMut(IdentifierKey, Range<usize>)) {
    visit(IdentifierKey { hash: xxhash_rust::xxh3::xxh3_64(&bytes[place.clone()]), kind }, place);
}

/// Emits the identifiers in joined words: the whole, the segments of a path, and each word.
fn emit_joined(bytes: &[u8], words: &[WordSpan], classes: u8, visit: &mut impl FnMut(IdentifierKey, Range<usize>)) {
    let whole = words[0].start..words[words.len() - 1].end;
    let has = |bits: u8| classes & bits != 0;
    if has(SLASH) {
        emit(bytes, whole.clone(), IdentifierKind::Path, visit);
    } else if has(DOT) {
        emit(bytes, whole.clone(), IdentifierKind::Dotted, visit);
    } else {
        emit_hyphenated(bytes, words, visit);
    }
    if !has(SLASH) {
        return words.iter().for_each(|word| word.emit(bytes, visit));
    }
    let mut start = whole.start;
    let mut words = words.iter().peekable();
    while start < whole.end {
        let length = bytes[start..whole.end].iter().position(|byte| matches!(byte, b'/' | b'@'));
        let segment = start..length.map_or(whole.end, |length| start + length);
        start = segment.end + 1;
        if segment.len() > 3 && bytes[segment.clone()].contains(&b'.') {
            emit(bytes, segment.clone(), IdentifierKind::Dotted, visit);
        }
        while let Some(word) = words.next_if(|word| word.start < segment.end) {
            word.emit(bytes, visit);
        }
    }
}

/// Emits words joined by hyphens: a name if there is a digit or a third word, otherwise a possible name.
fn emit_hyphenated(bytes: &[u8], words: &[WordSpan], visit: &mut impl FnMut(IdentifierKey, Range<usize>)) {
    let whole = words[0].start..words[words.len() - 1].end;
    let classes = words.iter().fold(0, |classes, word| classes | word.byte_classes);
    if classes & DIGIT != 0 {
        return emit(bytes, whole, IdentifierKind::Symbol, visit);
    }
    if whole.len() < 5 || words.iter().any(|word| word.end - word.start < 2) {
        return;
    }
    let is_connective = |word: &WordSpan| CONNECTIVES.contains(&&bytes[word.start..word.end]);
    let kind = match words.len() > 2 && !words.iter().any(is_connective) {
        true => IdentifierKind::Symbol,
        false => IdentifierKind::PossibleName,
    };
    emit(bytes, whole, kind, visit);
}

/// Words that join others in hyphenated English: `step-by-step`, `out-of-date`.
const CONNECTIVES: [&[u8]; 14] =
    [b"an", b"and", b"as", b"at", b"by", b"for", b"in", b"it", b"of", b"on", b"or", b"the", b"to", b"up"];

/// Emits names joined by colons: the whole of `fmt::Debug`, `node:fs` or a URL, then what is between the colons.
fn emit_qualified(bytes: &[u8], words: &[WordSpan], visit: &mut impl FnMut(IdentifierKey, Range<usize>)) {
    let whole = words[0].start..words[words.len() - 1].end;
    let text = &bytes[whole.clone()];
    let colons = text.iter().filter(|&&byte| byte == b':').count();
    let is_pair = colons == 1 || text.windows(2).filter(|pair| pair == b"::").count() * 2 == colons;
    let has_slash = text.contains(&b'/');
    if has_slash && text.windows(3).any(|three| three == b"://") {
        emit(bytes, whole, IdentifierKind::Path, visit);
    } else if is_pair && !has_slash && text.len() > 4 && words[0].byte_classes & (LOWER | UPPER) != 0 {
        emit(bytes, whole, IdentifierKind::Symbol, visit);
    }
    let mut from = 0;
    for at in 1..=words.len() {
        let is_end = at == words.len() || bytes[words[at - 1].end..words[at].start].contains(&b':');
        if !is_end {
            continue;
        }
        match &words[from..at] {
            [word] => word.emit(bytes, visit),
            group => {
                let between = &bytes[group[0].start..group[group.len() - 1].end];
                let classes = between.iter().fold(0, |classes, &byte| classes | BYTE_CLASSES[byte as usize]);
                emit_joined(bytes, group, classes, visit);
            }
        }
        from = at;
    }
}

/// A word: ASCII letters, digits and `_`.
#[derive(Clone, Copy, Debug)]
struct WordSpan {
    start: usize,
    end: usize,
    byte_classes: u8,
}

/// Byte classes, as bits.
const LOWER: u8 = 1;
const UPPER: u8 = 2;
const DIGIT: u8 = 4;
const UNDERSCORE: u8 = 8;
const WORD: u8 = LOWER | UPPER | DIGIT | UNDERSCORE;
/// Joiners: bytes that join words to one identifier.
const SLASH: u8 = 16;
const DOT: u8 = 32;
const OTHER_JOINER: u8 = 64;
const JOINER: u8 = SLASH | DOT | OTHER_JOINER;
/// An upper-case letter that is not the first of its word.
const INNER_UPPER: u8 = 128;

const BYTE_CLASSES: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' => LOWER,
            b'A'..=b'Z' => UPPER,
            b'0'..=b'9' => DIGIT,
            b'_' => UNDERSCORE,
            b'/' => SLASH,
            b'.' => DOT,
            b'-' | b'@' | b':' => OTHER_JOINER,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Returns the class of a byte; 0 after the end.
fn byte_class(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).map_or(0, |&byte| BYTE_CLASSES[byte as usize])
}

impl WordSpan {
    /// Returns the word that starts at a position.
    fn starting_at(bytes: &[u8], start: usize) -> Self {
        let mut end = start + 1;
        let mut rest = 0;
        loop {
            let class = byte_class(bytes, end);
            if class & WORD == 0 {
                break;
            }
            rest |= class;
            end += 1;
        }
        let inner_upper = if rest & UPPER != 0 { INNER_UPPER } else { 0 };
        Self { start, end, byte_classes: byte_class(bytes, start) | rest | inner_upper }
    }

    fn emit(&self, bytes: &[u8], visit: &mut impl FnMut(IdentifierKey, Range<usize>)) {
        if let Some(kind) = self.kind() {
            emit(bytes, self.start..self.end, kind, visit);
        }
    }

    /// Returns the kind of identifier: a number of at least three digits, or a word that is not plain text; else `None`.
    fn kind(&self) -> Option<IdentifierKind> {
        let has = |bits: u8| self.byte_classes & bits != 0;
        let length = self.end - self.start;
        match has(LOWER | UPPER) {
            false => (length > 2 && !has(UNDERSCORE)).then_some(IdentifierKind::Number),
            true if length < 4 => None,
            true if has(UNDERSCORE | DIGIT) || has(INNER_UPPER) && has(LOWER) => Some(IdentifierKind::Symbol),
            true => has(INNER_UPPER).then_some(IdentifierKind::PossibleName),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identifiers(text: &str) -> Vec<&str> {
        let mut names = Vec::new();
        for_each_identifier(text, |_, place| names.push(&text[place]));
        names
    }

    /// Returns the identifiers found in runs only.
    fn identifiers_in_runs(text: &str) -> Vec<&str> {
        let mut names = Vec::new();
        for_each_run(text.as_bytes(), |run| {
            for_each_identifier(&text[run.clone()], |_, place| names.push(&text[run.clone()][place]))
        });
        names
    }

    proptest::proptest! {
        /// No identifier is outside of the runs, wherever blocks start and end.
        #[test]
        fn runs_contain_all_identifiers(text in "([a-z]{1,9}|[A-Z]{1,3}|[0-9_]{1,4}|[-./@:]{1,2}|--|::|[ (,\"é]{1,3}){0,60}") {
            proptest::prop_assert_eq!(identifiers_in_runs(&text), identifiers(&text));
        }

        #[test]
        fn runs_contain_all_identifiers_of_long_tokens(text in "([a-z0-9_./]{50,150}| ){0,6}") {
            proptest::prop_assert_eq!(identifiers_in_runs(&text), identifiers(&text));
        }
    }

    #[test]
    fn plain_words_are_not_identifiers() {
        assert_eq!(
            identifiers("see src/wire/mod.rs: fn read_file(config.window) is 4096, utf8, readAll. The end, a-b."),
            ["src/wire/mod.rs", "mod.rs", "read_file", "config.window", "4096", "utf8", "readAll"]
        );
        assert_eq!(identifiers("self.read_all(db-7)"), ["self.read_all", "read_all", "db-7"]);
        assert!(identifiers("at 12:30 or so: key:").is_empty());
    }

    #[test]
    fn names_of_code_are_whole() {
        assert_eq!(identifiers("std::fmt::Debug, node:fs"), ["std::fmt::Debug", "node:fs"]);
        assert_eq!(identifiers("at src/main.rs:120:fn"), ["src/main.rs", "main.rs", "120"]);
        assert_eq!(identifiers("run --dry-run, ---x --no_color"), ["--dry-run", "dry-run", "--no_color", "no_color"]);
        assert_eq!(identifiers("bg-blue-600 text-muted-foreground"), ["bg-blue-600", "600", "text-muted-foreground"]);
        assert_eq!(
            identifiers("https://docs.rs/a_crate"),
            ["https://docs.rs/a_crate", "docs.rs/a_crate", "docs.rs", "a_crate"]
        );
    }

    #[test]
    fn possible_names_have_their_own_kind() {
        let mut kinds = Vec::new();
        let text = "items-center of MTIME, step-by-step, a-b, The ABC";
        for_each_identifier(text, |key, place| kinds.push((&text[place], key.kind)));
        let expected = ["items-center", "MTIME", "step-by-step"].map(|name| (name, IdentifierKind::PossibleName));
        assert_eq!(kinds, expected);
    }
}
