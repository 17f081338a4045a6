//! The text as an environment: views for a model that does not have the text in its prompt.
//!
//! Every view is pure, costs at most one scan of the text, and returns at most what its [`ViewLimits`] allow, with
//! a count of the rest. Positions are row numbers. A row is a line; a line longer than [`MAX_ROW_BYTES`] is several
//! rows, so that a text without line breaks can be explored too.

use std::fmt::Write as _;
use std::ops::Range;

use foldline::Meter;
use foldline::strategies::chunk::{ContentKind, chunks};
use foldline::tokens::Tokens;
use regex::{Regex, RegexBuilder};

/// Maximum bytes of a row.
pub const MAX_ROW_BYTES: usize = 1_000;
/// Maximum bytes of a compiled pattern: a model must not be able to exhaust memory.
const MAX_PATTERN_BYTES: usize = 1 << 20;
/// Bytes of the chunks of an outline.
const OUTLINE_CHUNK_BYTES: usize = 4_096;

/// The limits of one view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewLimits {
    /// Rows.
    pub rows: usize,
    /// Characters.
    pub chars: usize,
    /// Tokens.
    pub tokens: Tokens,
}

impl Default for ViewLimits {
    /// Returns 1200 rows and 120 000 characters, without a token limit.
    fn default() -> Self {
        Self { rows: 1_200, chars: 120_000, tokens: Tokens::MAX }
    }
}

/// A text, split into rows.
#[derive(Debug)]
pub struct TextEnvironment<'t> {
    text: &'t str,
    rows: Vec<Range<usize>>,
    content: ContentKind,
}

/// Lines that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrepMatches {
    /// Number of matching lines.
    pub line_count: usize,
    /// The shown part of them.
    pub text: String,
}

impl<'t> TextEnvironment<'t> {
    /// Splits the text into rows, in one scan.
    pub fn new(text: &'t str) -> Self {
        let mut rows = Vec::with_capacity(text.len() / 40 + 1);
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let end = start + line.trim_end_matches('\n').len();
            let mut at = start;
            while end - at > MAX_ROW_BYTES {
                let cut = text.floor_char_boundary(at + MAX_ROW_BYTES);
                rows.push(at..cut);
                at = cut;
            }
            rows.push(at..end);
            start += line.len();
        }
        Self { text, rows, content: ContentKind::detect(text) }
    }

    /// Returns the text.
    pub fn text(&self) -> &'t str {
        self.text
    }

    /// Returns the number of rows.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the kind of content.
    pub fn content_kind(&self) -> ContentKind {
        self.content
    }

    /// Returns the text of some rows, counted from 1, both ends included.
    pub fn rows_text(&self, first: usize, last: usize) -> &'t str {
        let last = last.min(self.rows.len());
        match first.max(1) {
            first if first > last => "",
            first => &self.text[self.rows[first - 1].start..self.rows[last - 1].end],
        }
    }

    /// Returns the row that contains a byte of the text.
    fn row_at(&self, byte: usize) -> usize {
        self.rows.partition_point(|row| row.start <= byte).max(1)
    }

    /// Returns numbered rows, within the limits; starts at either end.
    fn show_rows(&self, first: usize, last: usize, from: ShowFrom, limits: ViewLimits, meter: &Meter) -> String {
        let (first, last) = (first.max(1), last.min(self.rows.len()));
        if first > last {
            return format!("(no such rows: the text has {})", self.rows.len());
        }
        let mut budget = ViewBudget::new(limits, meter);
        let line = |row: usize| format!("{row}: {}\n", &self.text[self.rows[row - 1].clone()]);
        let mut shown = Vec::new();
        let order: Box<dyn Iterator<Item = usize>> = match from {
            ShowFrom::Head => Box::new(first..=last),
            ShowFrom::Tail => Box::new((first..=last).rev()),
        };
        for row in order {
            let line = line(row);
            if !budget.try_take(&line) {
                break;
            }
            shown.push(line);
        }
        let left = last + 1 - first - shown.len();
        if from == ShowFrom::Tail {
            shown.reverse();
        }
        let mut out: String = shown.concat();
        if left > 0 {
            let rest = match from {
                ShowFrom::Head => last + 1 - left..last + 1,
                ShowFrom::Tail => first..first + left,
            };
            let _ = write!(out, "(rows {} to {} are not shown: too long)", rest.start, rest.end - 1);
        }
        out
    }

    /// Returns the first rows.
    pub fn head(&self, count: usize, limits: ViewLimits, meter: &Meter) -> String {
        self.show_rows(1, count.max(1), ShowFrom::Head, limits, meter)
    }

    /// Returns the last rows.
    pub fn tail(&self, count: usize, limits: ViewLimits, meter: &Meter) -> String {
        let first = (self.rows.len() + 1).saturating_sub(count.max(1));
        self.show_rows(first, self.rows.len(), ShowFrom::Tail, limits, meter)
    }

    /// Returns a range of rows.
    pub fn slice(&self, first: usize, last: usize, limits: ViewLimits, meter: &Meter) -> String {
        self.show_rows(first, last, ShowFrom::Head, limits, meter)
    }

    /// Returns the matching lines, each at the row of its first match, from the row `after` on.
    pub fn grep(&self, pattern: &SearchPattern, after: usize, limits: ViewLimits, meter: &Meter) -> GrepMatches {
        let mut budget = ViewBudget::new(limits, meter);
        let mut shown = String::new();
        let (mut lines, mut before, mut next) = (0, 0, None);
        for (row, _) in self.matching_rows(pattern) {
            lines += 1;
            if row < after {
                before += 1;
                continue;
            }
            if next.is_some() {
                continue;
            }
            let line = format!("{row}: {}\n", &self.text[self.rows[row - 1].clone()]);
            if budget.try_take(&line) {
                shown.push_str(&line);
            } else {
                next = Some((row, lines - 1 - before));
            }
        }
        if let Some((row, so_far)) = next {
            let left = lines - before - so_far;
            let _ = write!(shown, "({left} more matches, from row {row} on)");
        }
        GrepMatches { line_count: lines, text: shown }
    }

    /// Returns the number of matching lines, and of matches.
    pub fn count_matches(&self, pattern: &SearchPattern) -> (usize, usize) {
        self.matching_rows(pattern).fold((0, 0), |(lines, all), (_, times)| (lines + 1, all + times))
    }

    /// Returns, for each matching line, the row of its first match and its number of matches.
    fn matching_rows<'p>(&'p self, pattern: &'p SearchPattern) -> impl Iterator<Item = (usize, usize)> + 'p {
        let mut start = 0;
        self.text.split_inclusive('\n').filter_map(move |line| {
            let here = start;
            start += line.len();
            let line = line.trim_end_matches(['\n', '\r']);
            let first = pattern.0.find(line)?;
            Some((self.row_at(here + first.start()), pattern.0.find_iter(line).count()))
        })
    }

    /// Returns an outline: the highest ranking chunks that fit, in text order, one line each.
    pub fn outline(&self, limits: ViewLimits, meter: &Meter) -> String {
        let chunks = chunks(self.text, OUTLINE_CHUNK_BYTES);
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by_key(|&at| (std::cmp::Reverse(chunks[at].boundary.priority()), std::cmp::Reverse(at)));
        let mut budget = ViewBudget::new(limits, meter);
        let mut kept: Vec<(usize, String)> = Vec::new();
        for at in order {
            let chunk = &chunks[at];
            let text = &self.text[chunk.bytes.clone()];
            let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let first = &first[..first.floor_char_boundary(120)];
            let rows = (self.row_at(chunk.bytes.start), self.row_at(chunk.bytes.end.saturating_sub(1)));
            let line = format!("{}-{} {}: {first}\n", rows.0, rows.1, boundary_name(chunk.boundary));
            if !budget.try_take(&line) {
                break;
            }
            kept.push((at, line));
        }
        kept.sort_unstable();
        let left = chunks.len() - kept.len();
        let mut out: String = kept.into_iter().map(|(_, line)| line).collect();
        if left > 0 {
            let _ = write!(out, "({left} more of lower rank)");
        }
        out
    }
}

/// The end from which rows are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShowFrom {
    Head,
    Tail,
}

fn boundary_name(boundary: foldline::strategies::chunk::BoundaryKind) -> &'static str {
    use foldline::strategies::chunk::BoundaryKind;
    match boundary {
        BoundaryKind::Error => "error",
        BoundaryKind::FailedTool => "failed tool",
        BoundaryKind::Heading => "heading",
        BoundaryKind::Turn => "turn",
        BoundaryKind::Definition => "definition",
        BoundaryKind::Code => "code",
        BoundaryKind::Tool => "tool",
        _ => "text",
    }
}

/// A search pattern of a model.
#[derive(Clone, Debug)]
pub struct SearchPattern(Regex);

impl SearchPattern {
    /// Compiles a regular expression; an invalid one is matched literally. Case-insensitive.
    pub fn new(pattern: &str) -> Self {
        let build =
            |pattern: &str| RegexBuilder::new(pattern).case_insensitive(true).size_limit(MAX_PATTERN_BYTES).build();
        let literal = |_| build(&regex::escape(&pattern[..pattern.floor_char_boundary(1_000)]));
        Self(build(pattern).or_else(literal).expect("a short literal is always a valid pattern"))
    }
}

/// The remaining part of the limits of a view.
struct ViewBudget<'m> {
    limits: ViewLimits,
    meter: &'m Meter,
}

impl<'m> ViewBudget<'m> {
    /// Reserves some tokens for the line that reports the omitted rows.
    fn new(limits: ViewLimits, meter: &'m Meter) -> Self {
        Self { limits: ViewLimits { tokens: limits.tokens.saturating_sub(24), ..limits }, meter }
    }

    fn try_take(&mut self, line: &str) -> bool {
        let characters = line.chars().count();
        let tokens = self.meter.text(line);
        let ViewLimits { rows, chars, tokens: tokens_left } = self.limits;
        if rows == 0 || characters > chars || tokens > tokens_left {
            return false;
        }
        self.limits = ViewLimits { rows: rows - 1, chars: chars - characters, tokens: tokens_left - tokens };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_limit(rows: usize) -> ViewLimits {
        ViewLimits { rows, ..ViewLimits::default() }
    }

    fn numbered_lines(count: usize) -> String {
        (1..=count).map(|at| format!("line {at} says {}\n", at * 7)).collect()
    }

    #[test]
    fn views_are_limited_and_count_what_is_omitted() {
        let (text, meter) = (numbered_lines(50), Meter::for_byte_estimate());
        let environment = TextEnvironment::new(&text);
        assert_eq!(environment.head(2, row_limit(9), &meter), "1: line 1 says 7\n2: line 2 says 14\n");
        assert_eq!(environment.tail(1, row_limit(9), &meter), "50: line 50 says 350\n");
        assert_eq!(
            environment.slice(10, 20, row_limit(1), &meter),
            "10: line 10 says 70\n(rows 11 to 20 are not shown: too long)"
        );
        assert_eq!(
            environment.tail(5, row_limit(1), &meter),
            "50: line 50 says 350\n(rows 46 to 49 are not shown: too long)"
        );
        assert_eq!(environment.slice(60, 70, row_limit(1), &meter), "(no such rows: the text has 50)");
        let found = environment.grep(&SearchPattern::new("says 7"), 0, row_limit(2), &meter);
        assert_eq!(found.line_count, 3);
        assert_eq!(found.text, "1: line 1 says 7\n10: line 10 says 70\n(1 more matches, from row 11 on)");
        let rest = environment.grep(&SearchPattern::new("says 7"), 11, row_limit(2), &meter);
        assert_eq!(rest.text, "11: line 11 says 77\n");
        assert_eq!(environment.count_matches(&SearchPattern::new("[0-9]+")), (50, 100));
    }

    #[test]
    fn long_lines_are_split_into_rows() {
        let text = format!("{}needle{}", "é".repeat(3_000), "x".repeat(5_000));
        let environment = TextEnvironment::new(&text);
        assert_eq!(environment.row_count(), 12);
        let found =
            environment.grep(&SearchPattern::new("NEEDLE"), 0, ViewLimits::default(), &Meter::for_byte_estimate());
        assert!(found.line_count == 1 && found.text.starts_with("7: needle"), "{found:?}");
        let whole: String = (1..=environment.row_count()).map(|row| environment.rows_text(row, row)).collect();
        assert_eq!(whole, text);
    }

    #[test]
    fn invalid_patterns_match_literally() {
        let environment = TextEnvironment::new("a(b\nab\n");
        assert_eq!(environment.count_matches(&SearchPattern::new("a(b")), (1, 1));
        assert_eq!(environment.count_matches(&SearchPattern::new("(((((a{1000}){1000}){1000}){1000}){1000})")), (0, 0));
    }

    #[test]
    fn views_respect_the_token_limit() {
        let (text, meter) = (numbered_lines(5_000), Meter::for_byte_estimate());
        let environment = TextEnvironment::new(&text);
        for tokens in [30, 100, 1_000] {
            let limits = ViewLimits { tokens, ..ViewLimits::default() };
            for shown in [
                environment.head(5_000, limits, &meter),
                environment.tail(5_000, limits, &meter),
                environment.grep(&SearchPattern::new("line"), 0, limits, &meter).text,
                environment.outline(limits, &meter),
            ] {
                assert!(meter.text(&shown) <= tokens, "{tokens}: {shown}");
            }
        }
    }

    #[test]
    fn outline_contains_the_only_error_of_a_log() {
        let mut text = numbered_lines(5_000);
        text.insert_str(text.find("line 2500 ").unwrap(), "error: the disk is full\n");
        let environment = TextEnvironment::new(&text);
        let outline = environment.outline(row_limit(4), &Meter::for_byte_estimate());
        assert!(outline.contains("error: error: the disk is full\n"), "{outline}");
        assert!(outline.ends_with("more of lower rank)"), "{outline}");
    }
}
