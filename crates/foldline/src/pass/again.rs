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

use crate::lexicon::Key;
use crate::{content, marker};

/// The lines of a text by their hashes, made once: every look at what stands elsewhere begins with them.
#[derive(Clone, Debug)]
pub(crate) struct Hashes(Arc<[u32]>);

/// In the place of a line that says too little to look for.
const UNTOLD: u32 = 0;

/// A line with fewer letters says too little to look for.
const TELLING: usize = 8;

impl Hashes {
    /// Half of a hash is enough: what is found by it is compared by its bytes.
    pub(crate) fn of(text: &str) -> Self {
        let hash = |line: &str| if is_telling(line) { (xxh3_64(line.as_bytes()) as u32).max(1) } else { UNTOLD };
        let mut hashes = Vec::with_capacity(text.len() / 24 + 1);
        hashes.extend(content::each_line(text).map(|line| hash(&text[line])));
        Self(hashes.into())
    }

    /// The lines that say enough, each with its number.
    fn telling(&self) -> impl Iterator<Item = (usize, u32)> {
        self.0.iter().copied().enumerate().filter(|&(_, hash)| hash != UNTOLD)
    }
}

/// Who said each line last, of all texts so far: to know before any are compared which of them have a line in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    lines: HashMap<u32, u32, BuildHasherDefault<Key>>,
}

impl Said {
    /// Takes note of the text with this number. Calls `again` with the one before it that said a line of it.
    pub(crate) fn note(&mut self, number: u32, hashes: &Hashes, mut again: impl FnMut(u32)) {
        for (_, hash) in hashes.telling() {
            let before = self.lines.insert(hash, number);
            before.filter(|&before| before != number).into_iter().for_each(&mut again);
        }
    }
}

/// Texts that stand, by their lines.
#[derive(Default)]
pub(crate) struct Standing<'t> {
    texts: Vec<Source<'t>>,
    /// Where a line stands first: text and line.
    first: HashMap<u32, (usize, usize), BuildHasherDefault<Key>>,
}

struct Source<'t> {
    text: Cow<'t, str>,
    /// Its lines, when one of them stands elsewhere.
    lines: OnceCell<Vec<Range<usize>>>,
}

/// Lines of a text that stand elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The lines.
    pub(crate) lines: Range<usize>,
    /// The text in which they stand, as [`Standing::add`] numbered it.
    pub(crate) source: usize,
    /// The first of them there.
    pub(crate) from: usize,
}

impl<'t> Standing<'t> {
    /// Remembers a text, and gives it the next number.
    pub(crate) fn add(&mut self, text: Cow<'t, str>, hashes: &Hashes) -> usize {
        let number = self.texts.len();
        for (at, hash) in hashes.telling() {
            self.first.entry(hash).or_insert((number, at));
        }
        self.texts.push(Source { text, lines: OnceCell::new() });
        number
    }

    /// Whether a line may stand here.
    pub(crate) fn has_any(&self, hashes: &Hashes) -> bool {
        hashes.telling().any(|(_, hash)| self.first.contains_key(&hash))
    }

    /// The runs of at least so many bytes in a text, from its head to its tail.
    pub(crate) fn runs(&self, text: &str, hashes: &Hashes, lines: &[Range<usize>], at_least: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (at, hash) in hashes.telling() {
            // What belongs to a run begins no other.
            if runs.last().is_none_or(|last| last.lines.end <= at) {
                let run = self.run(text, hash, lines, at);
                runs.extend(run.filter(|run| extent(lines, &run.lines).len() >= at_least));
            }
        }
        runs
    }

    /// The run that begins with a line. What is found by its hash is compared by its bytes.
    fn run(&self, text: &str, hash: u32, lines: &[Range<usize>], at: usize) -> Option<Run> {
        let &(source, from) = self.first.get(&hash)?;
        let Source { text: other, lines: others } = &self.texts[source];
        let others = others.get_or_init(|| content::lines(other));
        let pairs = lines[at..].iter().zip(&others[from..]);
        // A marker in a text stands for lines that do not stand there.
        let same = |(here, there): &(&Range<usize>, &Range<usize>)| {
            let here = &text[(*here).clone()];
            here == &other[(*there).clone()] && !marker::is_marker(here)
        };
        let count = pairs.take_while(same).count();
        (count > 0).then(|| Run { lines: at..at + count, source, from })
    }
}

/// The bytes of some lines.
pub(crate) fn extent(lines: &[Range<usize>], run: &Range<usize>) -> Range<usize> {
    lines[run.start].start..lines[run.end - 1].end
}

fn is_telling(line: &str) -> bool {
    content::trim(line).len() >= TELLING && !marker::is_marker(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(earlier: &[&'static str], text: &str) -> Vec<Run> {
        let mut standing = Standing::default();
        for text in earlier {
            standing.add((*text).into(), &Hashes::of(text));
        }
        let hashes = Hashes::of(text);
        let runs = standing.runs(text, &hashes, &content::lines(text), 20);
        assert!(runs.is_empty() || standing.has_any(&hashes));
        runs
    }

    #[test]
    fn a_run_is_found_wherever_it_stands_in_either_text() {
        let earlier = "first line of it\nsecond line of it\n\nthird line of it\n";
        let found = runs(&["something else\n", earlier], "new line\nsecond line of it\n\nthird line of it\nnew again");
        assert_eq!(found, [Run { lines: 1..4, source: 1, from: 1 }]);
        assert_eq!(runs(&[earlier], "third line of it\nsecond line of it\n"), []);
    }

    #[test]
    fn lines_that_say_little_begin_no_run() {
        assert_eq!(runs(&["}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n"], "}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n}\n"), []);
    }

    #[test]
    fn no_run_goes_through_a_marker() {
        let text = "a line before it\n[+40]\na line after it\nand one more here";
        assert_eq!(runs(&[text], text), [Run { lines: 2..4, source: 0, from: 2 }]);
    }
}
