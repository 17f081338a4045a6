//! Lines that an earlier text already contains.
//!
//! Few texts of a conversation repeat another one as a whole, but a quarter of their lines occur in an
//! earlier one: a file is read again at another offset, a test prints the same tail. This module finds runs of
//! whole lines that occur, in the same order, in an indexed text.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::identity_hasher::IdentityHasher;
use crate::engine::{marker, text_kind};

/// The hashes of the lines of a text, computed once.
#[derive(Clone, Debug)]
pub(crate) struct LineHashes(Arc<[u32]>);

/// Hash of a line that is too short to search for.
const INSIGNIFICANT_HASH: u32 = 0;

/// Minimum length of a line to search for.
const MIN_SIGNIFICANT_BYTES: usize = 8;

impl LineHashes {
    /// Hashes the lines of a text. 32 bits are enough, because matches are compared byte by byte.
    pub(crate) fn new(text: &str) -> Self {
        let hash = |line: &str| {
            if is_significant(line) { (xxh3_64(line.as_bytes()) as u32).max(1) } else { INSIGNIFICANT_HASH }
        };
        let mut hashes = Vec::with_capacity(text.len() / 24 + 1);
        hashes.extend(text_kind::iter_line_ranges(text).map(|line| hash(&text[line])));
        Self(hashes.into())
    }

    /// Returns the lines to search for, each with its number.
    fn significant_lines(&self) -> impl Iterator<Item = (usize, u32)> {
        self.0.iter().copied().enumerate().filter(|&(_, hash)| hash != INSIGNIFICANT_HASH)
    }
}

/// The last text with each line, which shows which texts share a line without comparing them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineOwners {
    lines: HashMap<u32, u32, BuildHasherDefault<IdentityHasher>>,
}

impl LineOwners {
    /// Records the text with this number. Calls `shared_with` with the last earlier text that shares a line, for each line.
    pub(crate) fn record(&mut self, number: u32, hashes: &LineHashes, mut shared_with: impl FnMut(u32)) {
        for (_, hash) in hashes.significant_lines() {
            let before = self.lines.insert(hash, number);
            before.filter(|&before| before != number).into_iter().for_each(&mut shared_with);
        }
    }
}

/// An index of texts by their lines.
#[derive(Default)]
pub(crate) struct LineIndex<'t> {
    texts: Vec<IndexedSource<'t>>,
    /// First position of each line: text and line number.
    first_seen: HashMap<u32, (usize, usize), BuildHasherDefault<IdentityHasher>>,
}

struct IndexedSource<'t> {
    text: Cow<'t, str>,
    /// Line ranges, computed at the first match.
    lines: OnceCell<Vec<Range<usize>>>,
}

/// Lines of a text that also occur in an indexed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineRun {
    /// Line numbers in the text.
    pub(crate) lines: Range<usize>,
    /// Number of the indexed text, from [`LineIndex::add`].
    pub(crate) source: usize,
    /// First line of the run in the indexed text.
    pub(crate) source_line: usize,
}

impl<'t> LineIndex<'t> {
    /// Adds a text and returns its number.
    pub(crate) fn add(&mut self, text: Cow<'t, str>, hashes: &LineHashes) -> usize {
        let number = self.texts.len();
        for (at, hash) in hashes.significant_lines() {
            self.first_seen.entry(hash).or_insert((number, at));
        }
        self.texts.push(IndexedSource { text, lines: OnceCell::new() });
        number
    }

    /// Returns true if an indexed text may contain one of the lines.
    pub(crate) fn has_any(&self, hashes: &LineHashes) -> bool {
        hashes.significant_lines().any(|(_, hash)| self.first_seen.contains_key(&hash))
    }

    /// Returns the matching runs of at least `min_bytes` bytes, in order.
    pub(crate) fn matching_runs(
        &self,
        text: &str,
        hashes: &LineHashes,
        lines: &[Range<usize>],
        min_bytes: usize,
    ) -> Vec<LineRun> {
        let mut runs: Vec<LineRun> = Vec::new();
        for (at, hash) in hashes.significant_lines() {
            // A line inside a run does not start another run.
            if runs.last().is_none_or(|last| last.lines.end <= at) {
                let run = self.run_at(text, hash, lines, at);
                runs.extend(run.filter(|run| byte_range(lines, &run.lines).len() >= min_bytes));
            }
        }
        runs
    }

    /// Returns the run that starts at a line. Compares bytes, because the hash only suggests a match.
    fn run_at(&self, text: &str, hash: u32, lines: &[Range<usize>], at: usize) -> Option<LineRun> {
        let &(source, from) = self.first_seen.get(&hash)?;
        let IndexedSource { text: other, lines: others } = &self.texts[source];
        let others = others.get_or_init(|| text_kind::line_ranges(other));
        let pairs = lines[at..].iter().zip(&others[from..]);
        // A marker replaces lines, so it must not be part of a match.
        let same = |(here, there): &(&Range<usize>, &Range<usize>)| {
            let here = &text[(*here).clone()];
            here == &other[(*there).clone()] && !marker::is_marker(here)
        };
        let count = pairs.take_while(same).count();
        (count > 0).then(|| LineRun { lines: at..at + count, source, source_line: from })
    }
}

/// Returns the byte range of some lines.
pub(crate) fn byte_range(lines: &[Range<usize>], run: &Range<usize>) -> Range<usize> {
    lines[run.start].start..lines[run.end - 1].end
}

fn is_significant(line: &str) -> bool {
    text_kind::trim_line(line).len() >= MIN_SIGNIFICANT_BYTES && !marker::is_marker(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(earlier: &[&'static str], text: &str) -> Vec<LineRun> {
        let mut index = LineIndex::default();
        for text in earlier {
            index.add((*text).into(), &LineHashes::new(text));
        }
        let hashes = LineHashes::new(text);
        let runs = index.matching_runs(text, &hashes, &text_kind::line_ranges(text), 20);
        assert!(runs.is_empty() || index.has_any(&hashes));
        runs
    }

    #[test]
    fn run_is_found_at_any_position() {
        let earlier = "first line of it\nsecond line of it\n\nthird line of it\n";
        let found = runs(&["something else\n", earlier], "new line\nsecond line of it\n\nthird line of it\nnew again");
        assert_eq!(found, [LineRun { lines: 1..4, source: 1, source_line: 1 }]);
        assert_eq!(runs(&[earlier], "third line of it\nsecond line of it\n"), []);
    }

    #[test]
    fn short_lines_start_no_run() {
        assert_eq!(runs(&["}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n"], "}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n"), []);
    }

    #[test]
    fn run_does_not_cross_a_marker() {
        let text = "a line before it\n[+40]\na line after it\nand one more here";
        assert_eq!(runs(&[text], text), [LineRun { lines: 2..4, source: 0, source_line: 2 }]);
    }
}
