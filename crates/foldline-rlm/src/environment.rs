//! The text as an environment: what a model may look at without having it in its prompt.
//!
//! Every look is pure, costs at most one walk over the text, and gives back at most what its [`Clamp`] allows, with the
//! rest counted. Places are numbers of rows. A row is a line; a line that is longer than [`ROW`] bytes is several rows, so
//! that a text without line breaks can be walked through as well.

use std::fmt::Write as _;
use std::ops::Range;

use foldline::chunk::{ContentKind, chunks};
use foldline::{Meter, Tokens};
use regex::{Regex, RegexBuilder};

/// Most bytes of a row.
pub const ROW: usize = 1_000;
/// Most bytes of a pattern once it is compiled: what a model writes may not cost memory.
const PATTERN: usize = 1 << 20;
/// Bytes of the chunks that an outline is made of.
const CHUNK: usize = 4_096;

/// What one look may give back at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clamp {
    /// Rows.
    pub rows: usize,
    /// Characters.
    pub characters: usize,
    /// Tokens.
    pub tokens: Tokens,
}

impl Default for Clamp {
    /// 1200 rows and 120 000 characters, whatever they are in tokens.
    fn default() -> Self {
        Self { rows: 1_200, characters: 120_000, tokens: Tokens::MAX }
    }
}

/// A text with its rows.
#[derive(Debug)]
pub struct Environment<'t> {
    text: &'t str,
    rows: Vec<Range<usize>>,
    content: ContentKind,
}

/// Rows that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// How many lines match.
    pub lines: usize,
    /// What is shown of them.
    pub shown: String,
}

impl<'t> Environment<'t> {
    /// Walks through the text once.
    pub fn new(text: &'t str) -> Self {
        let mut rows = Vec::with_capacity(text.len() / 40 + 1);
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let end = start + line.trim_end_matches('\n').len();
            let mut at = start;
            while end - at > ROW {
                let cut = text.floor_char_boundary(at + ROW);
                rows.push(at..cut);
                at = cut;
            }
            rows.push(at..end);
            start += line.len();
        }
        Self { text, rows, content: ContentKind::detect(text) }
    }

    /// The text.
    pub fn text(&self) -> &'t str {
        self.text
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// What the text is.
    pub fn content(&self) -> ContentKind {
        self.content
    }

    /// The text of some rows, the first of all being 1, both ends included.
    pub fn between(&self, first: usize, last: usize) -> &'t str {
        let last = last.min(self.rows.len());
        match first.max(1) {
            first if first > last => "",
            first => &self.text[self.rows[first - 1].start..self.rows[last - 1].end],
        }
    }

    /// The row at which a byte of the text stands.
    fn row_of(&self, byte: usize) -> usize {
        self.rows.partition_point(|row| row.start <= byte).max(1)
    }

    /// Rows with their numbers, as far as the clamp allows; from the end when `backwards`.
    fn show(&self, first: usize, last: usize, from: End, clamp: Clamp, meter: &Meter) -> String {
        let (first, last) = (first.max(1), last.min(self.rows.len()));
        if first > last {
            return format!("(no such rows: the text has {})", self.rows.len());
        }
        let mut room = Room::new(clamp, meter);
        let line = |row: usize| format!("{row}: {}\n", &self.text[self.rows[row - 1].clone()]);
        let mut shown = Vec::new();
        let order: Box<dyn Iterator<Item = usize>> = match from {
            End::Head => Box::new(first..=last),
            End::Tail => Box::new((first..=last).rev()),
        };
        for row in order {
            let line = line(row);
            if !room.takes(&line) {
                break;
            }
            shown.push(line);
        }
        let left = last + 1 - first - shown.len();
        if from == End::Tail {
            shown.reverse();
        }
        let mut out: String = shown.concat();
        if left > 0 {
            let rest = match from {
                End::Head => last + 1 - left..last + 1,
                End::Tail => first..first + left,
            };
            let _ = write!(out, "(rows {} to {} are not shown: too long)", rest.start, rest.end - 1);
        }
        out
    }

    /// The first rows.
    pub fn head(&self, count: usize, clamp: Clamp, meter: &Meter) -> String {
        self.show(1, count.max(1), End::Head, clamp, meter)
    }

    /// The last rows.
    pub fn tail(&self, count: usize, clamp: Clamp, meter: &Meter) -> String {
        let first = (self.rows.len() + 1).saturating_sub(count.max(1));
        self.show(first, self.rows.len(), End::Tail, clamp, meter)
    }

    /// Rows from a place on.
    pub fn slice(&self, first: usize, last: usize, clamp: Clamp, meter: &Meter) -> String {
        self.show(first, last, End::Head, clamp, meter)
    }

    /// The lines that match, each at the row where its first match begins, from the row `after` on.
    pub fn grep(&self, pattern: &Pattern, after: usize, clamp: Clamp, meter: &Meter) -> Found {
        let mut room = Room::new(clamp, meter);
        let mut shown = String::new();
        let (mut lines, mut before, mut next) = (0, 0, None);
        for (row, _) in self.matches(pattern) {
            lines += 1;
            if row < after {
                before += 1;
                continue;
            }
            if next.is_some() {
                continue;
            }
            let line = format!("{row}: {}\n", &self.text[self.rows[row - 1].clone()]);
            if room.takes(&line) {
                shown.push_str(&line);
            } else {
                next = Some((row, lines - 1 - before));
            }
        }
        if let Some((row, so_far)) = next {
            let left = lines - before - so_far;
            let _ = write!(shown, "({left} more matches, from row {row} on)");
        }
        Found { lines, shown }
    }

    /// How many lines match, and how often.
    pub fn count(&self, pattern: &Pattern) -> (usize, usize) {
        self.matches(pattern).fold((0, 0), |(lines, all), (_, times)| (lines + 1, all + times))
    }

    /// For each line that matches: the row of its first match, and how many there are.
    fn matches<'p>(&'p self, pattern: &'p Pattern) -> impl Iterator<Item = (usize, usize)> + 'p {
        let mut start = 0;
        self.text.split_inclusive('\n').filter_map(move |line| {
            let here = start;
            start += line.len();
            let line = line.trim_end_matches(['\n', '\r']);
            let first = pattern.0.find(line)?;
            Some((self.row_of(here + first.start()), pattern.0.find_iter(line).count()))
        })
    }

    /// Where something begins in the text: the highest ranking places that fit, in their order, one line each.
    pub fn outline(&self, clamp: Clamp, meter: &Meter) -> String {
        let chunks = chunks(self.text, CHUNK);
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by_key(|&at| (std::cmp::Reverse(chunks[at].boundary.priority()), std::cmp::Reverse(at)));
        let mut room = Room::new(clamp, meter);
        let mut kept: Vec<(usize, String)> = Vec::new();
        for at in order {
            let chunk = &chunks[at];
            let text = &self.text[chunk.bytes.clone()];
            let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let first = &first[..first.floor_char_boundary(120)];
            let rows = (self.row_of(chunk.bytes.start), self.row_of(chunk.bytes.end.saturating_sub(1)));
            let line = format!("{}-{} {}: {first}\n", rows.0, rows.1, word(chunk.boundary));
            if !room.takes(&line) {
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

/// From which end rows are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Head,
    Tail,
}

fn word(boundary: foldline::chunk::BoundaryKind) -> &'static str {
    use foldline::chunk::BoundaryKind;
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

/// What a model looks for.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// A regular expression; what is none is looked for as it stands. Letters match in either case.
    pub fn new(pattern: &str) -> Self {
        let build = |pattern: &str| RegexBuilder::new(pattern).case_insensitive(true).size_limit(PATTERN).build();
        let literal = |_| build(&regex::escape(&pattern[..pattern.floor_char_boundary(1_000)]));
        Self(build(pattern).or_else(literal).expect("a short text as it stands is always a pattern"))
    }
}

/// What is left of a clamp.
struct Room<'m> {
    clamp: Clamp,
    meter: &'m Meter,
}

impl<'m> Room<'m> {
    /// Some tokens are kept for the line that tells what is not shown.
    fn new(clamp: Clamp, meter: &'m Meter) -> Self {
        Self { clamp: Clamp { tokens: clamp.tokens.saturating_sub(24), ..clamp }, meter }
    }

    fn takes(&mut self, line: &str) -> bool {
        let characters = line.chars().count();
        let tokens = self.meter.text(line);
        let Clamp { rows, characters: most, tokens: room } = self.clamp;
        if rows == 0 || characters > most || tokens > room {
            return false;
        }
        self.clamp = Clamp { rows: rows - 1, characters: most - characters, tokens: room - tokens };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clamp(rows: usize) -> Clamp {
        Clamp { rows, ..Clamp::default() }
    }

    fn numbered(count: usize) -> String {
        (1..=count).map(|at| format!("line {at} says {}\n", at * 7)).collect()
    }

    #[test]
    fn looks_are_clamped_and_say_what_they_leave_out() {
        let (text, meter) = (numbered(50), Meter::for_byte_estimate());
        let it = Environment::new(&text);
        assert_eq!(it.head(2, clamp(9), &meter), "1: line 1 says 7\n2: line 2 says 14\n");
        assert_eq!(it.tail(1, clamp(9), &meter), "50: line 50 says 350\n");
        assert_eq!(it.slice(10, 20, clamp(1), &meter), "10: line 10 says 70\n(rows 11 to 20 are not shown: too long)");
        assert_eq!(it.tail(5, clamp(1), &meter), "50: line 50 says 350\n(rows 46 to 49 are not shown: too long)");
        assert_eq!(it.slice(60, 70, clamp(1), &meter), "(no such rows: the text has 50)");
        let found = it.grep(&Pattern::new("says 7"), 0, clamp(2), &meter);
        assert_eq!(found.lines, 3);
        assert_eq!(found.shown, "1: line 1 says 7\n10: line 10 says 70\n(1 more matches, from row 11 on)");
        let rest = it.grep(&Pattern::new("says 7"), 11, clamp(2), &meter);
        assert_eq!(rest.shown, "11: line 11 says 77\n");
        assert_eq!(it.count(&Pattern::new("[0-9]+")), (50, 100));
    }

    #[test]
    fn a_text_without_line_breaks_has_rows_too() {
        let text = format!("{}needle{}", "é".repeat(3_000), "x".repeat(5_000));
        let it = Environment::new(&text);
        assert_eq!(it.rows(), 12);
        let found = it.grep(&Pattern::new("NEEDLE"), 0, Clamp::default(), &Meter::for_byte_estimate());
        assert!(found.lines == 1 && found.shown.starts_with("7: needle"), "{found:?}");
        let whole: String = (1..=it.rows()).map(|row| it.between(row, row)).collect();
        assert_eq!(whole, text);
    }

    #[test]
    fn patterns_that_are_none_are_looked_for_as_they_stand() {
        let it = Environment::new("a(b\nab\n");
        assert_eq!(it.count(&Pattern::new("a(b")), (1, 1));
        assert_eq!(it.count(&Pattern::new("(((((a{1000}){1000}){1000}){1000}){1000})")), (0, 0));
    }

    #[test]
    fn tokens_bound_a_look() {
        let (text, meter) = (numbered(5_000), Meter::for_byte_estimate());
        let it = Environment::new(&text);
        for tokens in [30, 100, 1_000] {
            let clamp = Clamp { tokens, ..Clamp::default() };
            for shown in [
                it.head(5_000, clamp, &meter),
                it.tail(5_000, clamp, &meter),
                it.grep(&Pattern::new("line"), 0, clamp, &meter).shown,
                it.outline(clamp, &meter),
            ] {
                assert!(meter.text(&shown) <= tokens, "{tokens}: {shown}");
            }
        }
    }

    #[test]
    fn an_outline_knows_the_only_error_of_a_long_log() {
        let mut text = numbered(5_000);
        text.insert_str(text.find("line 2500 ").unwrap(), "error: the disk is full\n");
        let it = Environment::new(&text);
        let outline = it.outline(clamp(4), &Meter::for_byte_estimate());
        assert!(outline.contains("error: error: the disk is full\n"), "{outline}");
        assert!(outline.ends_with("more of lower rank)"), "{outline}");
    }
}
