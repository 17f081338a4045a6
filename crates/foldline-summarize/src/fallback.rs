//! The fallback without a model: facts about a text that code can extract.
//!
//! They are the files it names, tools that were called, lines that report failures, and its highest ranking passages.
//! Everything but the headings is copied from the text, so it needs no gate; it always fits.

use std::collections::HashMap;
use std::fmt::Write as _;

use foldline::Meter;
use foldline::engine::text_kind::{IdentifierKind, for_each_identifier, is_failure};
use foldline::strategies::chunk::{CompressOptions, ContentKind, compress};
use foldline::tokens::Tokens;

use crate::gate::full_path;

/// Number of files that are listed.
const MAX_LISTED_FILES: usize = 40;
/// Number of failure lines that are listed.
const MAX_LISTED_FAILURES: usize = 20;
/// Number of characters of a line.
const MAX_LINE_CHARS: usize = 200;

/// Extracts the facts of a text, in at most this many tokens.
///
/// ```
/// use foldline::Meter;
/// use foldline_summarize::extract_facts;
///
/// let text = "[user]\nfix it\n[call read_file c1]\n{\"path\":\"src/a.rs\"}\n[failed c1]\nerror: no such file\n";
/// let facts = extract_facts(text, 500, &Meter::for_byte_estimate());
/// assert!(facts.contains("Files named (1): src/a.rs"));
/// assert!(facts.contains("Tools called (1): read_file"));
/// assert!(facts.contains("6: error: no such file"));
/// ```
pub fn extract_facts(text: &str, max_tokens: Tokens, meter: &Meter) -> String {
    let mut files: HashMap<&str, (usize, usize)> = HashMap::new();
    for_each_identifier(text, |identifier, range| {
        if identifier.kind == IdentifierKind::Path {
            let (times, last) = files.entry(full_path(text, &range)).or_default();
            (*times, *last) = (*times + 1, range.start);
        }
    });
    let mut tools: HashMap<&str, usize> = HashMap::new();
    let mut failures: Vec<(usize, &str)> = Vec::new();
    let mut lines = 0;
    for (at, line) in text.lines().enumerate() {
        lines = at + 1;
        if let Some(name) = line.strip_prefix("[call ").and_then(|rest| rest.split([' ', ']']).next()) {
            *tools.entry(name).or_default() += 1;
        } else if is_failure(line) && failures.last().is_none_or(|(_, before)| *before != line) {
            failures.push((at + 1, line));
        }
    }

    let kind = match ContentKind::detect(text) {
        ContentKind::Conversation => "a conversation",
        ContentKind::Log => "a log",
        ContentKind::Code => "source text",
        _ => "a document",
    };
    let mut out = format!(
        "No model has summarised this; these facts were found by code.\nText: {kind}, {lines} lines, {} bytes.\n",
        text.len()
    );
    if !files.is_empty() {
        // The most frequent first; of equals, the latest.
        let mut named: Vec<_> = files.iter().collect();
        named.sort_unstable_by_key(|(_, (times, last))| std::cmp::Reverse((*times, *last)));
        let shown: Vec<String> = named.iter().take(MAX_LISTED_FILES).map(|(path, _)| clipped(path)).collect();
        let _ = writeln!(out, "Files named ({}): {}", named.len(), shown.join(", "));
    }
    if !tools.is_empty() {
        let mut called: Vec<_> = tools.iter().collect();
        called.sort_unstable_by_key(|(name, times)| (std::cmp::Reverse(**times), **name));
        let shown: Vec<String> = called
            .iter()
            .take(MAX_LISTED_FILES)
            .map(|(name, times)| match times {
                1 => clipped(name),
                times => format!("{} {times} times", clipped(name)),
            })
            .collect();
        let _ = writeln!(out, "Tools called ({}): {}", called.len(), shown.join(", "));
    }
    if !failures.is_empty() {
        let _ = writeln!(out, "Lines that report failures ({}), the last ones:", failures.len());
        for (at, line) in &failures[failures.len().saturating_sub(MAX_LISTED_FAILURES)..] {
            let _ = writeln!(out, "{at}: {}", clipped(line));
        }
    }
    let used = meter.text(&out);
    if used < max_tokens {
        // After the facts, the highest ranking passages of the text itself.
        let heading = "Passages:\n";
        let room = (max_tokens - used).saturating_sub(meter.text(heading) + 8);
        let options = CompressOptions { meter: meter.clone(), ..CompressOptions::default() };
        let passages = compress(text, room, &options);
        if room > 32 && passages.after <= room {
            out.push_str(heading);
            out.push_str(&passages.text);
        }
    }
    let options = CompressOptions { meter: meter.clone(), max_chunk_bytes: 256 };
    if meter.text(&out) > max_tokens { compress(&out, max_tokens, &options).text } else { out }
}

fn clipped(line: &str) -> String {
    match line.char_indices().nth(MAX_LINE_CHARS) {
        Some((end, _)) => format!("{}..", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_fit_and_list_failures() {
        let mut text: String = (0..3_000).map(|at| format!("step {at} read src/file_{}.rs\n", at % 90)).collect();
        text.insert_str(text.len() / 2, "\nerror: the disk is full\n");
        let meter = Meter::for_byte_estimate();
        for max_tokens in [60, 200, 1_000, 5_000] {
            let facts = extract_facts(&text, max_tokens, &meter);
            assert!(meter.text(&facts) <= max_tokens, "{max_tokens}: {facts}");
            assert!(max_tokens < 200 || facts.contains("error: the disk is full"), "{max_tokens}: {facts}");
        }
    }

    #[test]
    fn facts_handle_unusual_texts() {
        for text in ["", "\n", "é", "[call "] {
            assert!(extract_facts(text, 200, &Meter::for_byte_estimate()).contains("lines"));
        }
    }
}
