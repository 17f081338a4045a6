//! A snippet: the line of a text that fits a search best, with its neighbours.

use crate::search::redact;
use crate::search::tokenize::{SearchWord, for_each_word};

/// Lines that are looked at.
const MAX_SCANNED_LINES: usize = 20_000;

/// Characters of a line that are shown.
const MAX_LINE_CHARS: usize = 160;

/// The number of the line that has most of the words, counted from 1, and what to show of it.
pub(crate) fn snippet(text: &str, sought: &[SearchWord]) -> (usize, String) {
    let lines: Vec<&str> = text.lines().take(MAX_SCANNED_LINES).collect();
    let mut best = (0, 0);
    for (at, line) in lines.iter().enumerate() {
        let fit = count_matches(line, sought);
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
    (at + 1, redact::redact(&shown.join("\n")).into_owned())
}

/// How many of the words stand in the line.
fn count_matches(line: &str, sought: &[SearchWord]) -> usize {
    let mut has: Vec<bool> = vec![false; sought.len()];
    for_each_word(line, |word| {
        for (has, wanted) in has.iter_mut().zip(sought) {
            let wanted = wanted.whole().or_else(|| wanted.pieces().next());
            *has |= word.terms().any(|term| Some(term) == wanted);
        }
    });
    has.into_iter().filter(|has| *has).count()
}

/// As much of the line as is shown, around the first of the words.
fn clip(line: &str, sought: &[SearchWord]) -> String {
    let line = line.trim_end();
    if line.chars().count() <= MAX_LINE_CHARS {
        return line.to_owned();
    }
    let lower = line.to_ascii_lowercase();
    let first = sought.iter().flat_map(SearchWord::terms).filter_map(|term| lower.find(term)).min().unwrap_or(0);
    let start = line[..first].char_indices().rev().nth(MAX_LINE_CHARS / 4).map_or(0, |(at, _)| at);
    let rest = &line[start..];
    let end = rest.char_indices().nth(MAX_LINE_CHARS).map_or(rest.len(), |(at, _)| at);
    let (before, behind) = (if start > 0 { ".." } else { "" }, if end < rest.len() { ".." } else { "" });
    format!("{before}{}{behind}", &rest[..end])
}
