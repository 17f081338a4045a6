//! Excerpts: a part of an original instead of the whole.
//!
//! A range of lines, then a pattern within them, then a page of the result; each is optional, and they combine.
//! A page is bounded, and therefore an answer to a model is too. An excerpt is a function of the bytes and the query;
//! only a caller that gives up early gets less.

use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder};

use crate::error::{Error, ErrorKind};

/// Bytes of a page: about four thousand tokens.
pub const PAGE_BYTES: usize = 16 * 1024;

/// Longer patterns are rejected.
const MAX_PATTERN_BYTES: usize = 4 * 1024;

/// Lines are matched in chunks of this size.
const MATCH_CHUNK_BYTES: usize = 256 * 1024;

/// The requested part of an original.
///
/// ```
/// use foldline::engine::{ExcerptQuery, excerpt};
///
/// let text = b"one\ntwo\nthree\nfour\n";
/// let lines = ExcerptQuery { lines: Some("2..3".parse()?), ..ExcerptQuery::default() };
/// assert_eq!(excerpt(text, &lines)?.bytes, b"two\nthree\n");
///
/// let grep = ExcerptQuery { grep: Some("^t".into()), ..ExcerptQuery::default() };
/// assert_eq!(excerpt(text, &grep)?.bytes, b"2:two\n3:three\n");
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExcerptQuery {
    /// Only these lines.
    pub lines: Option<LineRange>,
    /// Lines that match this regular expression, each with its number.
    pub grep: Option<String>,
    /// Lines to show before and after each match.
    pub context: usize,
    /// This page of the result, counted from 1; `None` is all of it.
    pub page: Option<usize>,
}

/// A range of lines, counted from 1, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRange {
    /// The first line.
    pub first: usize,
    /// The last line; `None` is the end.
    pub last: Option<usize>,
}

/// A part of an original.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Excerpt {
    /// The bytes of the part; with a pattern, lines in the form `12:text`, context lines `13-text`.
    pub bytes: Vec<u8>,
    /// Number of lines in the whole original.
    pub total_lines: usize,
    /// Number of lines that matched, if there was a pattern.
    pub matches: Option<usize>,
    /// The number of this page.
    pub page: usize,
    /// Number of pages.
    pub pages: usize,
    /// False if the caller gave up before every line was tried.
    pub is_complete: bool,
}

/// Returns the part of `bytes` that the query requests.
///
/// # Errors
///
/// [`ErrorKind::InvalidExcerpt`](crate::ErrorKind::InvalidExcerpt) if the lines or the page do not exist, or the pattern is
/// not a valid regular expression.
pub fn excerpt(bytes: &[u8], query: &ExcerptQuery) -> Result<Excerpt, Error> {
    excerpt_until(bytes, query, || false)
}

/// Returns the part of `bytes` that the query requests, as far as it is found until `gives_up` returns true. Matching is
/// linear in the text, but a pathological pattern has a large constant: a server checks a deadline here.
///
/// # Errors
///
/// The same as of [`excerpt`].
pub fn excerpt_until(bytes: &[u8], query: &ExcerptQuery, gives_up: impl Fn() -> bool) -> Result<Excerpt, Error> {
    let total_lines = lines_with_breaks(bytes).count();
    let chosen = match query.lines {
        Some(lines) => lines.slice(bytes, total_lines)?,
        None => bytes,
    };
    let (part, matches, is_complete) = match &query.grep {
        Some(pattern) => {
            let first = query.lines.map_or(1, |lines| lines.first);
            let found = grep(chosen, &compile_pattern(pattern)?, query.context, first, gives_up);
            (found.bytes, Some(found.matches), found.is_complete)
        }
        None => (chosen.to_vec(), None, true),
    };
    let all = |bytes| Excerpt { bytes, total_lines, matches, page: 1, pages: 1, is_complete };
    match query.page {
        None => Ok(all(part)),
        Some(page) => {
            let pages: Vec<_> = split_pages(&part).collect();
            let page_count = pages.len().max(1);
            if page == 0 || page > page_count {
                return Err(invalid_excerpt(format!("there is no page {page}: the pages are 1 to {page_count}")));
            }
            let bytes = pages.get(page - 1).map(|page| page.to_vec()).unwrap_or_default();
            Ok(Excerpt { page, pages: page_count, ..all(bytes) })
        }
    }
}

impl LineRange {
    fn slice(self, bytes: &[u8], total: usize) -> Result<&[u8], Error> {
        if self.first > total {
            return Err(invalid_excerpt(format!("there is no line {}: the original has {total}", self.first)));
        }
        let before: usize = lines_with_breaks(bytes).take(self.first - 1).map(<[u8]>::len).sum();
        let rest = &bytes[before..];
        let count = self.last.map_or(usize::MAX, |last| last - self.first + 1);
        let length: usize = lines_with_breaks(rest).take(count).map(<[u8]>::len).sum();
        Ok(&rest[..length])
    }
}

impl FromStr for LineRange {
    type Err = Error;

    /// Parses `10..20`, `10..`, `..20` and `10`; also accepts `10-20` and `10:20`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid =
            || invalid_excerpt("not a range of lines: write it as 10..20, 10.. or ..20, counted from 1".into());
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&line| line > 0).ok_or_else(invalid);
        let ends = match text.split_once("..") {
            // A leading sign would be a negative number, which is not a line.
            None => text.split_once(['-', ':']).filter(|(first, _)| !first.trim().is_empty()),
            ends => ends,
        };
        let (first, last) = match ends.map(|(first, last)| (first.trim(), last.trim())) {
            None => {
                let line = number(text)?;
                (line, Some(line))
            }
            Some(("", "")) => return Err(invalid()),
            Some((first, last)) => {
                let first = if first.is_empty() { 1 } else { number(first)? };
                (first, if last.is_empty() { None } else { Some(number(last)?) })
            }
        };
        if last.is_some_and(|last| last < first) {
            return Err(invalid());
        }
        Ok(Self { first, last })
    }
}

/// Returns the lines, each with its line break.
fn lines_with_breaks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|&byte| byte == b'\n')
}

/// Returns pages of at most [`PAGE_BYTES`] bytes that end at a line break where possible, and never inside a
/// character.
fn split_pages(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.len().min(PAGE_BYTES);
        if end < rest.len() {
            end = match rest[..end].iter().rposition(|&byte| byte == b'\n') {
                Some(at) => at + 1,
                // A continuation byte of UTF-8 is 10xxxxxx; a character has at most three of them.
                None => (end - 3..=end).rev().find(|&at| rest[at] & 0xc0 != 0x80).unwrap_or(end),
            };
        }
        let (page, tail) = rest.split_at(end);
        rest = tail;
        Some(page)
    })
}

fn compile_pattern(pattern: &str) -> Result<Regex, Error> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(invalid_excerpt(format!("the pattern is longer than {MAX_PATTERN_BYTES} bytes")));
    }
    RegexBuilder::new(pattern)
        .size_limit(1024 * 1024)
        .dfa_size_limit(4 * 1024 * 1024)
        .build()
        .map_err(|error| invalid_excerpt(format!("not a regular expression: {error}")))
}

struct GrepResult {
    bytes: Vec<u8>,
    matches: usize,
    is_complete: bool,
}

fn grep(bytes: &[u8], pattern: &Regex, context: usize, first: usize, gives_up: impl Fn() -> bool) -> GrepResult {
    let mut found = GrepResult { bytes: Vec::new(), matches: 0, is_complete: true };
    let lines: Vec<&[u8]> = lines_with_breaks(bytes).collect();
    let mut matching = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.is_empty() && pattern.is_match(line)
            || line.chunks(MATCH_CHUNK_BYTES).any(|piece| pattern.is_match(piece))
        {
            matching.push(at);
        }
        if gives_up() {
            found.is_complete = at + 1 == lines.len();
            break;
        }
    }
    found.matches = matching.len();
    let mut shown = 0;
    for (nth, &at) in matching.iter().enumerate() {
        let from = at.saturating_sub(context).max(shown);
        // A context line that matches too is shown as a match, in its turn.
        let next = matching.get(nth + 1).copied().unwrap_or(lines.len());
        let to = (at + context + 1).min(next).min(lines.len());
        if context > 0 && shown > 0 && from > shown {
            found.bytes.extend_from_slice(b"--\n");
        }
        for (nth, line) in lines.iter().enumerate().take(to).skip(from) {
            let sign = if nth == at { ':' } else { '-' };
            found.bytes.extend_from_slice(format!("{}{sign}", first + nth).as_bytes());
            found.bytes.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                found.bytes.push(b'\n');
            }
        }
        shown = to;
    }
    found
}

fn invalid_excerpt(message: String) -> Error {
    Error::new(ErrorKind::InvalidExcerpt, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(bytes: &[u8], query: &ExcerptQuery) -> String {
        String::from_utf8(excerpt(bytes, query).unwrap().bytes).unwrap()
    }

    fn lines(range: &str) -> ExcerptQuery {
        ExcerptQuery { lines: Some(range.parse().unwrap()), ..ExcerptQuery::default() }
    }

    #[test]
    fn line_ranges_are_byte_exact() {
        let original = b"a\r\n\nb\nc";
        assert_eq!(text(original, &lines("1")), "a\r\n");
        assert_eq!(text(original, &lines("2..3")), "\nb\n");
        assert_eq!(text(original, &lines("3..")), "b\nc");
        assert_eq!(text(original, &lines("..99")), "a\r\n\nb\nc");
        assert!(excerpt(original, &lines("5")).is_err());
    }

    #[test]
    fn invalid_line_ranges_are_rejected() {
        for invalid in ["", "..", "0", "0..3", "5..4", "a..b", "-1", "1..2..3", "99999999999999999999999"] {
            assert!(invalid.parse::<LineRange>().is_err(), "{invalid:?}");
        }
        assert_eq!("10-20".parse::<LineRange>().unwrap(), "10..20".parse().unwrap());
    }

    #[test]
    fn grep_context_lines_are_shown_once() {
        let original = b"a\nhit 1\nb\nhit 2\nc\nd\ne\nhit 3";
        let grep = |context| ExcerptQuery { grep: Some("^hit".into()), context, ..ExcerptQuery::default() };
        assert_eq!(text(original, &grep(0)), "2:hit 1\n4:hit 2\n8:hit 3\n");
        assert_eq!(text(original, &grep(1)), "1-a\n2:hit 1\n3-b\n4:hit 2\n5-c\n--\n7-e\n8:hit 3\n");
        let within = ExcerptQuery { lines: Some("3..7".parse().unwrap()), ..grep(0) };
        assert_eq!(text(original, &within), "4:hit 2\n");
        assert_eq!(excerpt(original, &grep(0)).unwrap().matches, Some(3));
    }

    /// Classic catastrophes of backtracking engines, on a long line and with large repetitions.
    #[test]
    fn pathological_pattern_terminates() {
        let line = "a".repeat(2_000_000);
        for pattern in ["(a+)+$b", "(a|aa)+$b", "(.*)*x", ".{0,400}b.{0,400}c"] {
            let found =
                excerpt(line.as_bytes(), &ExcerptQuery { grep: Some(pattern.into()), ..ExcerptQuery::default() });
            assert!(found.is_err() || found.unwrap().matches == Some(0), "{pattern}");
        }
        for refused in ["a{1000}{1000}{1000}", "(", &"x".repeat(1_000_000)] {
            let grep = ExcerptQuery { grep: Some(refused.into()), ..ExcerptQuery::default() };
            assert_eq!(excerpt(b"x", &grep).unwrap_err().kind(), &ErrorKind::InvalidExcerpt);
        }
    }

    #[test]
    fn grep_ends_when_the_caller_gives_up() {
        let grep = ExcerptQuery { grep: Some("x".into()), ..ExcerptQuery::default() };
        let found = excerpt_until(b"x\nx\nx\n", &grep, || true).unwrap();
        assert_eq!((found.matches, found.is_complete), (Some(1), false));
        assert!(excerpt_until(b"x", &grep, || true).unwrap().is_complete, "every line was tried");
    }

    #[test]
    fn empty_original_has_one_empty_page() {
        let page = excerpt(b"", &ExcerptQuery { page: Some(1), ..ExcerptQuery::default() }).unwrap();
        assert_eq!((page.bytes.as_slice(), page.pages, page.total_lines), (b"".as_slice(), 1, 0));
        assert!(excerpt(b"", &ExcerptQuery { page: Some(2), ..ExcerptQuery::default() }).is_err());
        assert!(excerpt(b"", &ExcerptQuery { page: Some(0), ..ExcerptQuery::default() }).is_err());
    }

    proptest! {
        /// Pages are bounded, do not split characters, and concatenate to the original.
        #[test]
        fn pages_concatenate_to_the_original(words in prop::collection::vec("[a-zé漢🦀]{0,3000}|\n{1,5}", 0..40)) {
            let whole = words.concat();
            let count = excerpt(whole.as_bytes(), &ExcerptQuery { page: Some(1), ..ExcerptQuery::default() }).unwrap().pages;
            let mut together = String::new();
            for page in 1..=count {
                let page = excerpt(whole.as_bytes(), &ExcerptQuery { page: Some(page), ..ExcerptQuery::default() }).unwrap();
                prop_assert!(page.bytes.len() <= PAGE_BYTES);
                together.push_str(std::str::from_utf8(&page.bytes).unwrap());
            }
            prop_assert_eq!(together, whole);
        }

        /// Binary data survives paging.
        #[test]
        fn pages_of_binary_data_concatenate_to_the_original(bytes in prop::collection::vec(any::<u8>(), 0..60_000)) {
            let together: Vec<u8> = split_pages(&bytes).flatten().copied().collect();
            prop_assert_eq!(together, bytes);
        }

        #[test]
        fn adjacent_ranges_concatenate_to_the_original(text in "[a-z\n]{0,200}", at in 1usize..50) {
            let bytes = text.as_bytes();
            let total = lines_with_breaks(bytes).count();
            prop_assume!(at < total);
            let head = LineRange { first: 1, last: Some(at) }.slice(bytes, total).unwrap();
            let tail = LineRange { first: at + 1, last: None }.slice(bytes, total).unwrap();
            prop_assert_eq!([head, tail].concat(), bytes);
        }
    }
}
