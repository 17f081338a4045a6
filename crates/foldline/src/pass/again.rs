//! Lines that an earlier text has already said.
//!
//! Few texts of a conversation repeat another one whole; a quarter of their lines stand in an earlier
//! one. A file is read again around another line, a test prints the same tail. This room finds runs of
//! whole lines that stand, in the same order, in a text that was remembered before.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::lexicon::Key;
use crate::{content, marker};

/// Texts that stand, by their lines.
#[derive(Default)]
pub(crate) struct Standing<'t> {
    texts: Vec<(Cow<'t, str>, Vec<Range<usize>>)>,
    /// Where a line stands first: text and line.
    first: HashMap<u64, (usize, usize), BuildHasherDefault<Key>>,
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

/// A line with fewer letters says too little to look for.
const TELLING: usize = 8;

/// Who said each line last, of all texts so far: to know before any are compared which of them have a line in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    /// Half of a line's hash is enough: who finds too much here compares bytes later.
    lines: HashMap<u32, u32, BuildHasherDefault<Key>>,
}

impl Said {
    /// Takes note of the text with this number. Calls `again` with the one before it that said a line of it.
    pub(crate) fn note(&mut self, number: u32, text: &str, mut again: impl FnMut(u32)) {
        let lines = content::each_line(text).map(|line| &text[line]).filter(|line| is_telling(line));
        let hashes: Vec<u32> = lines.map(|line| xxh3_64(line.as_bytes()) as u32).collect();
        for hash in hashes {
            let before = self.lines.insert(hash, number);
            before.filter(|&before| before != number).into_iter().for_each(&mut again);
        }
    }
}

impl<'t> Standing<'t> {
    /// Remembers a text, and gives it the next number.
    pub(crate) fn add(&mut self, text: Cow<'t, str>) -> usize {
        let number = self.texts.len();
        let lines = content::lines(&text);
        for (at, range) in lines.iter().enumerate() {
            if is_telling(&text[range.clone()]) {
                self.first.entry(xxh3_64(text[range.clone()].as_bytes())).or_insert((number, at));
            }
        }
        self.texts.push((text, lines));
        number
    }

    /// The runs of at least so many bytes in a text, from its head to its tail.
    pub(crate) fn runs(&self, text: &str, lines: &[Range<usize>], at_least: usize) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            let run = self.run(text, lines, at).filter(|run| extent(lines, &run.lines).len() >= at_least);
            at = run.as_ref().map_or(at + 1, |run| run.lines.end);
            runs.extend(run);
        }
        runs
    }

    /// The run that begins with a line. What is found by its hash is compared by its bytes.
    fn run(&self, text: &str, lines: &[Range<usize>], at: usize) -> Option<Run> {
        let line = &text[lines[at].clone()];
        if !is_telling(line) {
            return None;
        }
        let &(source, from) = self.first.get(&xxh3_64(line.as_bytes()))?;
        let (other, others) = &self.texts[source];
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
            standing.add((*text).into());
        }
        standing.runs(text, &content::lines(text), 20)
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
