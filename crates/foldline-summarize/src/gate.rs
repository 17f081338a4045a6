//! The quality gate: no text of a model is installed unless it passes.
//!
//! The gate is code and trusts no model. It rejects a summary that is empty, an excuse, too long, a loop, off topic, or
//! that states a path, number, name or quotation that is not in the source, with reasons that the model can act on.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use foldline::text_kind::{IdentifierKind, for_each_identifier};
use foldline::{Meter, Tokens};
use regex::Regex;

/// A summary with fewer letters is treated as empty.
const MIN_LETTERS: usize = 40;
/// Quotations longer than this many characters must occur in the source.
const MIN_QUOTE_CHARS: usize = 12;
/// Share of repeated lines from which a text is a loop.
const MAX_REPETITION_RATIO: f64 = 0.5;
/// Number of values that are named in a rejection.
const MAX_NAMED_VALUES: usize = 12;

/// The reason to reject a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SummaryFlaw {
    /// It has no content.
    Empty,
    /// It states that there is no summary.
    Excuse,
    /// It has more tokens than allowed.
    TooLong {
        /// Its tokens.
        tokens: Tokens,
        /// The maximum.
        max_tokens: Tokens,
    },
    /// It repeats itself.
    Repetitive,
    /// It does not name the goal of the work.
    MissingGoal,
    /// It states values that are not in the source.
    Invented(Vec<String>),
}

impl fmt::Display for SummaryFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SummaryFlaw::Empty => f.write_str("it says nothing"),
            SummaryFlaw::Excuse => f.write_str("it is an excuse, not a briefing"),
            SummaryFlaw::TooLong { tokens, max_tokens } => {
                write!(f, "it has {tokens} tokens, and may have {max_tokens}")
            }
            SummaryFlaw::Repetitive => f.write_str("it repeats itself"),
            SummaryFlaw::MissingGoal => f.write_str("it does not name the goal"),
            SummaryFlaw::Invented(values) => {
                let shown = values
                    .iter()
                    .take(MAX_NAMED_VALUES)
                    .map(|value| format!("`{value}`"))
                    .collect::<Vec<_>>()
                    .join(", ");
                write!(f, "these do not occur in the text: {shown}")?;
                match values.len().saturating_sub(MAX_NAMED_VALUES) {
                    0 => Ok(()),
                    more => write!(f, ", and {more} more"),
                }
            }
        }
    }
}

/// The criteria that a summary must meet.
pub struct QualityGate<'s> {
    sources: Vec<&'s str>,
    identifiers: HashSet<u64>,
    goal: &'s str,
    max_tokens: Tokens,
    meter: &'s Meter,
}

impl<'s> QualityGate<'s> {
    /// Creates a gate for summaries of these sources, with a goal (none if empty) and a maximum number of tokens.
    ///
    /// ```
    /// use foldline::Meter;
    /// use foldline_summarize::{QualityGate, SummaryFlaw};
    ///
    /// let source = "error: connection to db-7 lost after 3000 ms in src/pool.rs";
    /// let meter = Meter::for_byte_estimate();
    /// let gate = QualityGate::new(vec![source], "why does the pool lose connections?", 100, &meter);
    /// let good = "Goal: why the pool loses connections. db-7 was lost after 3000 ms (src/pool.rs).";
    /// assert_eq!(gate.check(good), Ok(()));
    /// let bad = "Goal: why the pool loses connections. db-8 was lost after 3000 ms (src/pool.rs).";
    /// assert_eq!(gate.check(bad), Err(vec![SummaryFlaw::Invented(vec!["db-8".into()])]));
    /// ```
    pub fn new(sources: Vec<&'s str>, goal: &'s str, max_tokens: Tokens, meter: &'s Meter) -> Self {
        let mut sources = sources;
        sources.push(goal);
        let mut identifiers = HashSet::new();
        sources.iter().for_each(|source| {
            for_each_identifier(source, |identifier, _| {
                identifiers.insert(identifier.hash);
            })
        });
        Self { sources, identifiers, goal, max_tokens, meter }
    }

    /// Checks a summary; returns all flaws if it must not be installed.
    pub fn check(&self, summary: &str) -> Result<(), Vec<SummaryFlaw>> {
        let mut flaws = Vec::new();
        if summary.chars().filter(|sign| sign.is_alphanumeric()).take(MIN_LETTERS).count() < MIN_LETTERS {
            // A short excuse is both; the excuse is the more specific flaw.
            flaws.push(if is_excuse(summary) { SummaryFlaw::Excuse } else { SummaryFlaw::Empty });
            return Err(flaws);
        }
        if is_excuse(summary) {
            flaws.push(SummaryFlaw::Excuse);
        }
        let tokens = self.meter.text(summary);
        if tokens > self.max_tokens {
            flaws.push(SummaryFlaw::TooLong { tokens, max_tokens: self.max_tokens });
        }
        if is_repetitive(summary) {
            flaws.push(SummaryFlaw::Repetitive);
        }
        if !names_goal(summary, self.goal) {
            flaws.push(SummaryFlaw::MissingGoal);
        }
        let invented = self.invented_values(summary);
        if !invented.is_empty() {
            flaws.push(SummaryFlaw::Invented(invented));
        }
        if flaws.is_empty() { Ok(()) } else { Err(flaws) }
    }

    /// Returns the exact values in a summary that do not occur in the sources.
    fn invented_values(&self, summary: &str) -> Vec<String> {
        // `12,345` is the number 12345.
        static GROUPED_NUMBER: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"\b[0-9]{1,3}(,[0-9]{3})+\b").expect("the pattern is valid"));
        static QUOTE: LazyLock<Regex> =
            LazyLock::new(|| Regex::new("`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”").expect("the pattern is valid"));
        let mut seen = HashSet::new();
        let mut invented = Vec::new();
        let mut check_value = |value: &str| {
            if seen.insert(value.to_owned()) && !self.occurs_in_sources(value) {
                invented.push(value.to_owned());
            }
        };
        for quote in QUOTE.captures_iter(summary) {
            let quoted = quote.iter().skip(1).flatten().next().map_or("", |quote| quote.as_str()).trim();
            // A quotation may be shortened in the middle.
            for piece in quoted.split("...").flat_map(|piece| piece.split('…')) {
                let piece = piece.trim().trim_end_matches(['.', ',']);
                if piece.chars().nth(MIN_QUOTE_CHARS).is_some() {
                    check_value(piece);
                }
            }
        }
        let grouped: HashSet<&str> = GROUPED_NUMBER.find_iter(summary).map(|number| number.as_str()).collect();
        for number in &grouped {
            if !self.occurs_in_sources(number) {
                check_value(&number.replace(',', ""));
            }
        }
        // The pieces of a path that was already checked add nothing.
        let mut checked_end = 0;
        for_each_identifier(summary, |identifier, range| {
            let value = full_path(summary, &range);
            let in_group = grouped.iter().any(|number| {
                let from = summary.floor_char_boundary(range.start.saturating_sub(number.len()));
                let to = summary.ceil_char_boundary((range.end + number.len()).min(summary.len()));
                summary[from..to].contains(number) && number.split(',').any(|piece| piece == value)
            });
            let known = self.identifiers.contains(&identifier.hash)
                || in_group
                || self.is_ordinary_language(value, identifier.kind);
            if !known && range.end > checked_end {
                checked_end = range.end;
                check_value(value);
            }
        });
        invented
    }

    fn occurs_in_sources(&self, value: &str) -> bool {
        let finder = memchr::memmem::Finder::new(value.as_bytes());
        self.sources.iter().any(|source| finder.find(source.as_bytes()).is_some())
    }

    /// Returns true for language that looks like an identifier: `e.g`, `and/or`, a missing space after a sentence.
    fn is_ordinary_language(&self, value: &str, kind: IdentifierKind) -> bool {
        let word = |piece: &str| piece.bytes().all(|byte| byte.is_ascii_alphabetic());
        match kind {
            IdentifierKind::Dotted if ["e.g", "i.e", "a.k.a"].contains(&value.to_ascii_lowercase().as_str()) => true,
            IdentifierKind::Path if !value.starts_with('/') && !value.contains('.') => {
                let mut pieces = value.split('/');
                pieces.clone().count() == 2
                    && pieces.all(|piece| word(piece) && !piece.is_empty() && self.occurs_in_sources(piece))
            }
            _ => false,
        }
    }
}

/// Returns an identifier with the slash before it, if it is an absolute path.
pub(crate) fn full_path<'t>(text: &'t str, range: &Range<usize>) -> &'t str {
    let rooted = range.start > 0 && text.as_bytes()[range.start - 1] == b'/' && text[range.clone()].contains('/');
    &text[range.start - usize::from(rooted)..range.end]
}

/// Returns true if a text states that there is no summary, or is the output of a failing program. Only the beginning
/// counts, because a long text may report failures.
pub(crate) fn is_excuse(text: &str) -> bool {
    static EXCUSE_PREFIX: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?ix)^[\s\#*>\-]*(
              (i(’|'|\s+a)m\s+|i\s+am\s+)?(very\s+)?(sorry|afraid)\b
            | i\s+(can\s*(not|['’]t)|could\s*(not|n['’]t)|am\s+(not\s+able|unable)|do\s*n['’]?o?t\s+have|(won|don)['’]t)\b
            | as\s+an?\s+(ai|language\s+model|assistant)\b
            | unable\s+to\b | failed\s+to\b | (an\s+)?(internal\s+)?error\b[\s:] | traceback\b | exception\b
            | (no|empty)\s+(summary|content|text|data|input|briefing)\b
            | (the\s+)?(summary|summarization|summarisation|request)\s+(failed|could\s+not|was\s+not|timed\s+out|is\s+not\s+available)
            | n/?a\b | null\b | none\b | undefined\b | todo\b | \[?(insert|placeholder)
            )",
        )
        .expect("the pattern is valid")
    });
    EXCUSE_PREFIX.is_match(text)
}

/// Returns true if most lines, or most runs of words, are repetitions.
fn is_repetitive(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| line.len() > 8).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    let runs: Vec<&[&str]> = words.windows(6).collect();
    let repeats = |all: usize, different: usize| 1.0 - different as f64 / all.max(1) as f64;
    let different_lines = lines.iter().collect::<HashSet<_>>().len();
    let different_runs = runs.iter().collect::<HashSet<_>>().len();
    lines.len() >= 6 && repeats(lines.len(), different_lines) > MAX_REPETITION_RATIO
        || runs.len() >= 40 && repeats(runs.len(), different_runs) > MAX_REPETITION_RATIO
}

/// Returns true if a summary shares enough keywords with the goal.
fn names_goal(summary: &str, goal: &str) -> bool {
    let keywords = |text: &str, most: usize| -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for word in text.split(|sign: char| !sign.is_alphanumeric() && sign != '_') {
            let word = word.to_lowercase();
            if word.chars().count() >= 4 && !STOP_WORDS.contains(&word.as_str()) && !words.contains(&word) {
                words.push(word);
            }
            if words.len() == most {
                break;
            }
        }
        words
    };
    let goal = keywords(goal, 40);
    if goal.is_empty() {
        return true;
    }
    let lower = summary.to_lowercase();
    // Compares stems, so that `parsing` matches `parser`.
    let stem = |word: &str| word.chars().take(word.chars().count().max(5).saturating_sub(2)).collect::<String>();
    let named = goal.iter().filter(|word| lower.contains(&stem(word))).count();
    named >= goal.len().div_ceil(3).min(3)
}

/// Words of four letters and more that carry no information about a goal.
const STOP_WORDS: [&str; 40] = [
    "about", "after", "again", "also", "been", "before", "could", "does", "each", "every", "find", "from", "have",
    "here", "into", "just", "like", "make", "more", "most", "need", "only", "over", "please", "should", "some", "such",
    "than", "that", "their", "them", "then", "there", "these", "they", "this", "want", "what", "with", "your",
];

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "[user]\nmake the parser accept empty lists\n[call sh c1]\n{\"command\":\"cargo test\"}\n\
        [failed c1]\nerror[E0308]: mismatched types in src/parser.rs:212, run 0af3-77bc took 12345 ms\n\
        read and write or input; output\n";
    const GOAL: &str = "make the parser accept empty lists";

    fn check(summary: &str) -> Result<(), Vec<SummaryFlaw>> {
        QualityGate::new(vec![SOURCE], GOAL, 120, &Meter::for_byte_estimate()).check(summary)
    }

    #[test]
    fn faithful_summary_passes() {
        let summary = "Goal: the parser must accept empty lists.\nState: `cargo test` fails with E0308 in \
            src/parser.rs:212 (run 0af3-77bc, 12,345 ms), e.g. \"mismatched types ... took\", read/write and 2 more.";
        assert_eq!(check(summary), Ok(()));
    }

    #[test]
    fn failure_text_is_never_a_summary() {
        for text in [
            "I'm sorry, but I can't help with that request about the parser and its empty lists.",
            "Error: context length exceeded while the parser was accepting empty lists, try again.",
            "As an AI language model I do not have access to the parser and to empty lists at all.",
            "I cannot summarize this text. The parser and the empty lists are not known to me.",
            "Summary failed: the parser accept empty lists request timed out after 30 seconds, sorry.",
            "Unable to process the parser, accept, empty lists. Please provide more information.",
            "Traceback (most recent call last): parser accept empty lists, and so on and so forth",
        ] {
            assert!(check(text).unwrap_err().contains(&SummaryFlaw::Excuse), "{text}");
        }
        for text in ["", " \n ", "ok", "...", "No summary.", "N/A"] {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn invented_values_are_rejected() {
        let base = "Goal: the parser must accept empty lists.";
        let invented = |rest: &str| match check(&format!("{base} {rest}")) {
            Err(flaws) => match &flaws[..] {
                [SummaryFlaw::Invented(values)] => values.clone(),
                _ => panic!("{flaws:?}"),
            },
            Ok(()) => Vec::new(),
        };
        assert_eq!(invented("Edited src/lexer.rs."), ["src/lexer.rs"]);
        assert_eq!(invented("It took 12346 ms or 12,346 ms."), ["12346"]);
        assert_eq!(invented("error E0309 came up."), ["E0309"]);
        assert_eq!(invented("It said \"no such file or directory\"."), ["no such file or directory"]);
        assert_eq!(invented("run 0af3-77bd"), ["0af3-77bd"]);
        assert_eq!(invented("3 files, 12 of them"), Vec::<String>::new());
    }

    #[test]
    fn long_repetitive_and_off_topic_summaries_are_rejected() {
        let long = format!("the parser accepts empty lists. {}", distinct_words(200));
        assert!(matches!(check(&long).unwrap_err()[..], [SummaryFlaw::TooLong { max_tokens: 120, .. }]));
        let looping = "the parser accepts empty lists\n".repeat(12);
        assert_eq!(check(&looping).unwrap_err(), [SummaryFlaw::Repetitive]);
        let other = "The weather is fine today and the birds are singing in all the trees of the garden.";
        assert_eq!(check(other).unwrap_err(), [SummaryFlaw::MissingGoal]);
    }

    /// Returns distinct words without a meaning.
    fn distinct_words(count: usize) -> String {
        (0..count)
            .map(|at| format!("{}{} ", (b'a' + (at % 26) as u8) as char, (b'a' + (at / 26) as u8) as char))
            .collect()
    }
}
