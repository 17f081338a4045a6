//! Views: a part of an original instead of all of it.
//!
//! A range of lines, then a pattern within them, then a page of what is left: each is optional, and
//! they go together. A page is bounded, so that an answer to a model is too. Nothing here reads from
//! anywhere; a view is a function of the bytes.

use std::str::FromStr;
use std::time::{Duration, Instant};

use regex::bytes::{Regex, RegexBuilder};

use crate::{Error, ErrorKind};

/// Bytes on a page: about four thousand tokens.
pub const PAGE: usize = 16 * 1024;

/// Longer patterns are not looked at.
const LONGEST_PATTERN: usize = 4 * 1024;

/// Matching takes time in proportion to the text, but a cruel pattern makes the proportion large.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line is matched in pieces of this many bytes, so that the time can be looked at in between.
const PIECE: usize = 256 * 1024;

/// Which part of an original.
///
/// ```
/// use foldline_archive::{View, view};
///
/// let text = b"one\ntwo\nthree\nfour\n";
/// let lines = View { lines: Some("2..3".parse()?), ..View::default() };
/// assert_eq!(view(text, &lines)?.bytes, b"two\nthree\n");
///
/// let grep = View { grep: Some("^t".into()), ..View::default() };
/// assert_eq!(view(text, &grep)?.bytes, b"2:two\n3:three\n");
/// # Ok::<(), foldline_archive::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// These lines alone.
    pub lines: Option<Lines>,
    /// Lines that match this regular expression, each with its number.
    pub grep: Option<String>,
    /// Lines to show before and behind each match.
    pub context: usize,
    /// This page of the outcome, counted from 1; `None` is all of it.
    pub page: Option<usize>,
}

/// A range of lines, counted from 1, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The first line.
    pub first: usize,
    /// The last line; `None` is the end.
    pub last: Option<usize>,
}

/// A part of an original.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Excerpt {
    /// The bytes of the part; with a pattern, lines in the form `12:text`, their neighbours `13-text`.
    pub bytes: Vec<u8>,
    /// Lines in the whole original.
    pub lines: usize,
    /// Lines that matched, when there was a pattern.
    pub matches: Option<usize>,
    /// The page that this is.
    pub page: usize,
    /// How many pages there are.
    pub pages: usize,
    /// Whether the pattern was tried on every line; a cruel one is given up after two seconds.
    pub complete: bool,
}

/// The part of `bytes` that the view asks for.
pub fn view(bytes: &[u8], view: &View) -> Result<Excerpt, Error> {
    let total = lines_of(bytes).count();
    let chosen = match view.lines {
        Some(lines) => lines.cut(bytes, total)?,
        None => bytes,
    };
    let (part, matches, complete) = match &view.grep {
        Some(pattern) => {
            let first = view.lines.map_or(1, |lines| lines.first);
            let found = grep(chosen, &compile(pattern)?, view.context, first);
            (found.bytes, Some(found.matches), found.complete)
        }
        None => (chosen.to_vec(), None, true),
    };
    let all = |bytes| Excerpt { bytes, lines: total, matches, page: 1, pages: 1, complete };
    match view.page {
        None => Ok(all(part)),
        Some(page) => {
            let pages: Vec<_> = pages_of(&part).collect();
            let out_of = pages.len().max(1);
            if page == 0 || page > out_of {
                return Err(bad(format!("there is no page {page}: the pages are 1 to {out_of}")));
            }
            let bytes = pages.get(page - 1).map(|page| page.to_vec()).unwrap_or_default();
            Ok(Excerpt { page, pages: out_of, ..all(bytes) })
        }
    }
}

impl Lines {
    fn cut(self, bytes: &[u8], total: usize) -> Result<&[u8], Error> {
        if self.first > total {
            return Err(bad(format!("there is no line {}: the original has {total}", self.first)));
        }
        let before: usize = lines_of(bytes).take(self.first - 1).map(<[u8]>::len).sum();
        let rest = &bytes[before..];
        let count = self.last.map_or(usize::MAX, |last| last - self.first + 1);
        let length: usize = lines_of(rest).take(count).map(<[u8]>::len).sum();
        Ok(&rest[..length])
    }
}

impl FromStr for Lines {
    type Err = Error;

    /// Reads `10..20`, `10..`, `..20` and `10`; `10-20` and `10:20` are understood as well.
    fn from_str(text: &str) -> Result<Self, Error> {
        let odd = || bad("not a range of lines: write it as 10..20, 10.. or ..20, counted from 1".into());
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&it| it > 0).ok_or_else(odd);
        let ends = match text.split_once("..") {
            // A lone sign in front would be a negative number, which means nothing here.
            None => text.split_once(['-', ':']).filter(|(first, _)| !first.trim().is_empty()),
            ends => ends,
        };
        let (first, last) = match ends.map(|(first, last)| (first.trim(), last.trim())) {
            None => {
                let line = number(text)?;
                (line, Some(line))
            }
            Some(("", "")) => return Err(odd()),
            Some((first, last)) => {
                let first = if first.is_empty() { 1 } else { number(first)? };
                (first, if last.is_empty() { None } else { Some(number(last)?) })
            }
        };
        if last.is_some_and(|last| last < first) {
            return Err(odd());
        }
        Ok(Self { first, last })
    }
}

/// The lines, each with its line break.
fn lines_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|&byte| byte == b'\n')
}

/// Pages of at most [`PAGE`] bytes that end with a line where that is possible, and never inside a
/// character.
fn pages_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.len().min(PAGE);
        if end < rest.len() {
            end = match rest[..end].iter().rposition(|&byte| byte == b'\n') {
                Some(at) => at + 1,
                // A continuation byte of UTF-8 is 10xxxxxx; a character has at most three of them.
                None => (end - 3..=end).rev().find(|&at| rest[at] & 0xc0 != 0x80).unwrap_or(end),
            };
        }
        let (page, behind) = rest.split_at(end);
        rest = behind;
        Some(page)
    })
}

fn compile(pattern: &str) -> Result<Regex, Error> {
    if pattern.len() > LONGEST_PATTERN {
        return Err(bad(format!("the pattern is longer than {LONGEST_PATTERN} bytes")));
    }
    RegexBuilder::new(pattern)
        .size_limit(1024 * 1024)
        .dfa_size_limit(4 * 1024 * 1024)
        .build()
        .map_err(|error| bad(format!("not a regular expression: {error}")))
}

struct Grepped {
    bytes: Vec<u8>,
    matches: usize,
    complete: bool,
}

fn grep(bytes: &[u8], pattern: &Regex, context: usize, first: usize) -> Grepped {
    let until = Instant::now() + PATIENCE;
    let mut found = Grepped { bytes: Vec::new(), matches: 0, complete: true };
    let lines: Vec<&[u8]> = lines_of(bytes).collect();
    let mut matching = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.is_empty() && pattern.is_match(line) || line.chunks(PIECE).any(|piece| pattern.is_match(piece)) {
            matching.push(at);
        }
        if Instant::now() > until {
            found.complete = at + 1 == lines.len();
            break;
        }
    }
    found.matches = matching.len();
    let mut shown = 0;
    for (nth, &at) in matching.iter().enumerate() {
        let from = at.saturating_sub(context).max(shown);
        // A neighbour that matches itself is shown as a match, in its turn.
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

fn bad(message: String) -> Error {
    Error::new(ErrorKind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(bytes: &[u8], wanted: &View) -> String {
        String::from_utf8(view(bytes, wanted).unwrap().bytes).unwrap()
    }

    fn lines(range: &str) -> View {
        View { lines: Some(range.parse().unwrap()), ..View::default() }
    }

    #[test]
    fn lines_are_exact_to_the_last_byte() {
        let it = b"a\r\n\nb\nc";
        assert_eq!(text(it, &lines("1")), "a\r\n");
        assert_eq!(text(it, &lines("2..3")), "\nb\n");
        assert_eq!(text(it, &lines("3..")), "b\nc");
        assert_eq!(text(it, &lines("..99")), "a\r\n\nb\nc");
        assert!(view(it, &lines("5")).is_err());
    }

    #[test]
    fn odd_ranges_are_refused() {
        for odd in ["", "..", "0", "0..3", "5..4", "a..b", "-1", "1..2..3", "99999999999999999999999"] {
            assert!(odd.parse::<Lines>().is_err(), "{odd:?}");
        }
        assert_eq!("10-20".parse::<Lines>().unwrap(), "10..20".parse().unwrap());
    }

    #[test]
    fn a_pattern_shows_its_neighbours_once() {
        let it = b"a\nhit 1\nb\nhit 2\nc\nd\ne\nhit 3";
        let grep = |context| View { grep: Some("^hit".into()), context, ..View::default() };
        assert_eq!(text(it, &grep(0)), "2:hit 1\n4:hit 2\n8:hit 3\n");
        assert_eq!(text(it, &grep(1)), "1-a\n2:hit 1\n3-b\n4:hit 2\n5-c\n--\n7-e\n8:hit 3\n");
        let within = View { lines: Some("3..7".parse().unwrap()), ..grep(0) };
        assert_eq!(text(it, &within), "4:hit 2\n");
        assert_eq!(view(it, &grep(0)).unwrap().matches, Some(3));
    }

    /// The classic catastrophe of backtracking engines, on a long line and with large repetitions.
    #[test]
    fn a_cruel_pattern_ends() {
        let line = "a".repeat(2_000_000);
        for cruel in ["(a+)+$b", "(a|aa)+$b", "(.*)*x", ".{0,400}b.{0,400}c"] {
            let begun = Instant::now();
            let found = view(line.as_bytes(), &View { grep: Some(cruel.into()), ..View::default() });
            assert!(found.is_err() || found.unwrap().matches == Some(0), "{cruel}");
            assert!(begun.elapsed() < Duration::from_secs(60), "{cruel}");
        }
        for refused in ["a{1000}{1000}{1000}", "(", &"x".repeat(1_000_000)] {
            let grep = View { grep: Some(refused.into()), ..View::default() };
            assert_eq!(view(b"x", &grep).unwrap_err().kind(), &ErrorKind::BadRequest);
        }
    }

    #[test]
    fn an_empty_original_has_one_empty_page() {
        let page = view(b"", &View { page: Some(1), ..View::default() }).unwrap();
        assert_eq!((page.bytes.as_slice(), page.pages, page.lines), (b"".as_slice(), 1, 0));
        assert!(view(b"", &View { page: Some(2), ..View::default() }).is_err());
        assert!(view(b"", &View { page: Some(0), ..View::default() }).is_err());
    }

    proptest! {
        /// Pages are bounded, do not tear characters, and together are the original.
        #[test]
        fn pages_make_up_the_original(words in prop::collection::vec("[a-zé漢🦀]{0,3000}|\n{1,5}", 0..40)) {
            let whole = words.concat();
            let count = view(whole.as_bytes(), &View { page: Some(1), ..View::default() }).unwrap().pages;
            let mut together = String::new();
            for page in 1..=count {
                let page = view(whole.as_bytes(), &View { page: Some(page), ..View::default() }).unwrap();
                prop_assert!(page.bytes.len() <= PAGE);
                together.push_str(std::str::from_utf8(&page.bytes).unwrap());
            }
            prop_assert_eq!(together, whole);
        }

        /// Binary bytes survive paging as well.
        #[test]
        fn any_bytes_make_up_the_original(bytes in prop::collection::vec(any::<u8>(), 0..60_000)) {
            let together: Vec<u8> = pages_of(&bytes).flatten().copied().collect();
            prop_assert_eq!(together, bytes);
        }

        #[test]
        fn two_ranges_make_up_the_original(text in "[a-z\n]{0,200}", at in 1usize..50) {
            let bytes = text.as_bytes();
            let total = lines_of(bytes).count();
            prop_assume!(at < total);
            let head = Lines { first: 1, last: Some(at) }.cut(bytes, total).unwrap();
            let tail = Lines { first: at + 1, last: None }.cut(bytes, total).unwrap();
            prop_assert_eq!([head, tail].concat(), bytes);
        }
    }
}
