//! A snippet: the line of a text that fits a search best, with its neighbours.

use crate::mask;
use crate::words::{Word, each_word};

/// Lines that are looked at.
const LINES: usize = 20_000;

/// Characters of a line that are shown.
const WIDTH: usize = 160;

/// The number of the line that has most of the words, counted from 1, and what to show of it.
pub(crate) fn snippet(text: &str, sought: &[Word]) -> (usize, String) {
    let lines: Vec<&str> = text.lines().take(LINES).collect();
    let mut best = (0, 0);
    for (at, line) in lines.iter().enumerate() {
        let fit = fit(line, sought);
        if fit > best.0 {
            best = (fit, at);
        }
        if fit == sought.len() {
            break;
        }
    }
    let (_, at) = best;
    let around = lines.get(at.saturating_sub(1)..(at + 2).min(lines.len())).unwrap_or_default();
    let shown: Vec<String> = around.iter().map(|line| clip(line, sought)).filter(|line| !line.is_empty()).collect();
    (at + 1, mask::mask(&shown.join("\n")).into_owned())
}

/// How many of the words stand in the line.
fn fit(line: &str, sought: &[Word]) -> usize {
    let mut has: Vec<bool> = vec![false; sought.len()];
    each_word(line, |word| {
        for (has, wanted) in has.iter_mut().zip(sought) {
            let wanted = wanted.whole().or_else(|| wanted.pieces().next());
            *has |= word.terms().any(|term| Some(term) == wanted);
        }
    });
    has.into_iter().filter(|has| *has).count()
}

/// As much of the line as is shown, around the first of the words.
fn clip(line: &str, sought: &[Word]) -> String {
    let line = line.trim_end();
    if line.chars().count() <= WIDTH {
        return line.to_owned();
    }
    let lower = line.to_ascii_lowercase();
    let first = sought.iter().flat_map(Word::terms).filter_map(|term| lower.find(term)).min().unwrap_or(0);
    let start = line[..first].char_indices().rev().nth(WIDTH / 4).map_or(0, |(at, _)| at);
    let rest = &line[start..];
    let end = rest.char_indices().nth(WIDTH).map_or(rest.len(), |(at, _)| at);
    let (before, behind) = (if start > 0 { ".." } else { "" }, if end < rest.len() { ".." } else { "" });
    format!("{before}{}{behind}", &rest[..end])
}
