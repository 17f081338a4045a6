//! Lines that an earlier text has already said.
//!
//! Few texts of a conversation repeat another one whole; a quarter of their lines stand in an earlier
//! one. A file is read again around another line, a test prints the same tail. This room finds runs of
//! whole lines that stand, in the same order, in a text that was remembered before.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::identifiers::index::IdentityHasher;
use crate::engine::{marker, text_kind};

/// The lines of a text by their hashes, made once: every look at what stands elsewhere begins with them.
#[derive(Clone, Debug)]
pub(crate) struct LineHashes(Arc<[u32]>);

/// In the place of a line that says too little to look for.
const INSIGNIFICANT_HASH: u32 = 0;

/// A line with fewer letters says too little to look for.
const MIN_SIGNIFICANT_BYTES: usize = 8;

impl LineHashes {
    /// Half of a hash is enough: what is found by it is compared by its bytes.
    pub(crate) fn new(text: &str) -> Self {
        let hash = |line: &str| {
            if is_significant(line) { (xxh3_64(line.as_bytes()) as u32).max(1) } else { INSIGNIFICANT_HASH }
        };
        let mut hashes = Vec::with_capacity(text.len() / 24 + 1);
        hashes.extend(text_kind::iter_line_ranges(text).map(|line| hash(&text[line])));
        Self(hashes.into())
    }

    /// The lines that say enough, each with its number.
    fn significant_lines(&self) -> impl Iterator<Item = (usize, u32)> {
        self.0.iter().copied().enumerate().filter(|&(_, hash)| hash != INSIGNIFICANT_HASH)
    }
}

/// Who said each line last, of all texts so far: to know before any are compared which of them have a line in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineOwners {
    lines: HashMap<u32, u32, BuildHasherDefault<IdentityHasher>>,
}

impl LineOwners {
    /// Takes note of the text with this number. Calls `again` with the one before it that said a line of it.
    pub(crate) fn record(&mut self, number: u32, hashes: &LineHashes, mut again: impl FnMut(u32)) {
        for (_, hash) in hashes.significant_lines() {
            let before = self.lines.insert(hash, number);
            before.filter(|&before| before != number).into_iter().for_each(&mut again);
        }
    }
}

/// Texts that stand, by their lines.
#[derive(Default)]
pub(crate) struct LineIndex<'t> {
    texts: Vec<IndexedSource<'t>>,
    /// Where a line stands first: text and line.
    first_seen: HashMap<u32, (usize, usize), BuildHasherDefault<IdentityHasher>>,
}

struct IndexedSource<'t> {
    text: Cow<'t, str>,
    /// Its lines, when one of them stands elsewhere.
    lines: OnceCell<Vec<Range<usize>>>,
}

/// Lines of a text that stand elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineRun {
    /// The lines.
    pub(crate) lines: Range<usize>,
    /// The text in which they stand, as [`LineIndex::add`] numbered it.
    pub(crate) source: usize,
    /// The first of them there.
    pub(crate) source_line: usize,
}

impl<'t> LineIndex<'t> {
    /// Remembers a text, and gives it the next number.
    pub(crate) fn add(&mut self, text: Cow<'t, str>, hashes: &LineHashes) -> usize {
        let number = self.texts.len();
        for (at, hash) in hashes.significant_lines() {
            self.first_seen.entry(hash).or_insert((number, at));
        }
        self.texts.push(IndexedSource { text, lines: OnceCell::new() });
        number
    }

    /// Whether a line may stand here.
    pub(crate) fn has_any(&self, hashes: &LineHashes) -> bool {
        hashes.significant_lines().any(|(_, hash)| self.first_seen.contains_key(&hash))
    }

    /// The runs of at least so many bytes in a text, from its head to its tail.
    pub(crate) fn matching_runs(
        &self,
        text: &str,
        hashes: &LineHashes,
        lines: &[Range<usize>],
        at_least: usize,
    ) -> Vec<LineRun> {
        let mut runs: Vec<LineRun> = Vec::new();
        for (at, hash) in hashes.significant_lines() {
            // What belongs to a run begins no other.
            if runs.last().is_none_or(|last| last.lines.end <= at) {
                let run = self.run_at(text, hash, lines, at);
                runs.extend(run.filter(|run| byte_range(lines, &run.lines).len() >= at_least));
            }
        }
        runs
    }

    /// The run that begins with a line. What is found by its hash is compared by its bytes.
    fn run_at(&self, text: &str, hash: u32, lines: &[Range<usize>], at: usize) -> Option<LineRun> {
        let &(source, from) = self.first_seen.get(&hash)?;
        let IndexedSource { text: other, lines: others } = &self.texts[source];
        let others = others.get_or_init(|| text_kind::line_ranges(other));
        let pairs = lines[at..].iter().zip(&others[from..]);
        // A marker in a text stands for lines that do not stand there.
        let same = |(here, there): &(&Range<usize>, &Range<usize>)| {
            let here = &text[(*here).clone()];
            here == &other[(*there).clone()] && !marker::is_marker(here)
        };
        let count = pairs.take_while(same).count();
        (count > 0).then(|| LineRun { lines: at..at + count, source, source_line: from })
    }
}

/// The bytes of some lines.
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
        let mut standing = LineIndex::default();
        for text in earlier {
            standing.add((*text).into(), &LineHashes::new(text));
        }
        let hashes = LineHashes::new(text);
        let runs = standing.matching_runs(text, &hashes, &text_kind::line_ranges(text), 20);
        assert!(runs.is_empty() || standing.has_any(&hashes));
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
