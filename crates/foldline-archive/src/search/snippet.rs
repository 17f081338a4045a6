//! Snippets: the line of a text that matches a search best, with its neighbors.

use crate::search::redact;
use crate::search::tokenize::{SearchWord, for_each_word};

/// Number of lines that are scanned.
const MAX_SCANNED_LINES: usize = 20_000;

/// Number of characters of a line that are shown.
const MAX_LINE_CHARS: usize = 160;

/// Returns the number of the line with most of the words, counted from 1, and the text to show.
pub(crate) fn snippet(text: &str, query: &[SearchWord]) -> (usize, String) {
    let lines: Vec<&str> = text.lines().take(MAX_SCANNED_LINES).collect();
    let mut best = (0, 0);
    for (at, line) in lines.iter().enumerate() {
        let score = count_matches(line, query);
        if score > best.0 {
            best = (score, at);
        }
        if score == query.len() {
            break;
        }
    }
    let (_, at) = best;
    let around = lines.get(at.saturating_sub(1)..(at + 2).min(lines.len())).unwrap_or_default();
    let shown: Vec<String> = around.iter().map(|line| clip(line, query)).filter(|line| !line.is_empty()).collect();
    (at + 1, redact::redact(&shown.join("\n")).into_owned())
}

/// Returns the number of query words in the line.
pub(crate) fn count_matches(line: &str, query: &[SearchWord]) -> usize {
    let mut has: Vec<bool> = vec![false; query.len()];
    for_each_word(line, |word| {
        for (has, wanted) in has.iter_mut().zip(query) {
            let wanted = wanted.whole().or_else(|| wanted.pieces().next());
            *has |= word.terms().any(|term| Some(term) == wanted);
        }
    });
    has.into_iter().filter(|has| *has).count()
}

/// Returns the shown part of the line, around the first match.
fn clip(line: &str, query: &[SearchWord]) -> String {
    let line = line.trim_end();
    if line.chars().count() <= MAX_LINE_CHARS {
        return line.to_owned();
    }
    let lower = line.to_ascii_lowercase();
    let first = query.iter().flat_map(SearchWord::terms).filter_map(|term| lower.find(term)).min().unwrap_or(0);
    let start = line[..first].char_indices().rev().nth(MAX_LINE_CHARS / 4).map_or(0, |(at, _)| at);
    let rest = &line[start..];
    let end = rest.char_indices().nth(MAX_LINE_CHARS).map_or(rest.len(), |(at, _)| at);
    let (before, after) = (if start > 0 { ".." } else { "" }, if end < rest.len() { ".." } else { "" });
    format!("{before}{}{after}", &rest[..end])
}
