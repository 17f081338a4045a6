//! Which lines of an old text are worth keeping.
//!
//! A line is needed again for the names in it: a path, an identifier, a number. A name needs to stand
//! in the request once. So a line is worth keeping when names stand in it that stand nowhere else and
//! are likely to be used, and when that chance times the price of an unfold is above what the line
//! costs until the end of the session. Nothing else decides: no count of lines, no head and tail.

use std::ops::Range;
use std::sync::Arc;

use crate::conversation::PartId;
use crate::engine::identifiers::index::{IdentifierCounts, IdentifierId, IdentifierIndex, IndexedText, LongValue};
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::engine::tool_action::ActionKind;

use crate::engine::passes::PassView;

/// The names that stand in a request beside some of its parts, and grow as lines of those are kept.
///
/// They are counted in the lexicon itself, which has its own counts back when this is dropped.
pub(crate) struct IdentifierCoverage<'l> {
    index: &'l mut IdentifierIndex,
    /// The names of the texts that were counted, and how often.
    counted_texts: Vec<(Arc<[IdentifierId]>, i32)>,
    /// The names that stand in kept lines and nowhere else.
    kept_identifiers: Vec<IdentifierId>,
    /// How often each name comes in the text that is cut.
    text_counts: IdentifierCounts,
}

/// A text, cut to the lines that are worth keeping.
pub(crate) struct KeptLines {
    pub(crate) lines: Vec<bool>,
    /// The chance that a line that was left out is needed again.
    pub(crate) reuse_probability: f64,
}

impl Drop for IdentifierCoverage<'_> {
    fn drop(&mut self) {
        self.release_since(0);
        for (names, by) in &self.counted_texts {
            self.index.add_occurrences(names, -by);
        }
    }
}

impl<'l> IdentifierCoverage<'l> {
    /// What the lexicon knows to stand.
    pub(crate) fn new(lexicon: &'l mut IdentifierIndex) -> Self {
        Self {
            index: lexicon,
            counted_texts: Vec::new(),
            kept_identifiers: Vec::new(),
            text_counts: IdentifierCounts::default(),
        }
    }

    /// Counts the names of a text once more, or once less.
    pub(crate) fn count_text(&mut self, place: Option<PartId>, text: &str, by: i32) {
        let names = self.index.identifiers(place, text);
        self.index.add_occurrences(&names, by);
        self.counted_texts.push((names, by));
    }

    /// Counts the names of the long values in the arguments of a call once less. Gives whether it knows them.
    pub(crate) fn count_values(&mut self, place: PartId) -> bool {
        let Some(values) = self.index.long_values(place) else { return false };
        let names: Vec<Arc<[IdentifierId]>> = values.iter().map(|value| value.indexed.identifiers()).collect();
        for names in names {
            self.index.add_occurrences(&names, -1);
            self.counted_texts.push((names, -1));
        }
        true
    }

    /// The long values in the arguments of a call, if they are remembered.
    pub(crate) fn long_values(&self, place: PartId) -> Option<Vec<LongValue>> {
        self.index.long_values(place).map(<[LongValue]>::to_vec)
    }

    /// Takes the names back that stand since so many were kept.
    fn release_since(&mut self, since: usize) {
        self.index.add_occurrences(&self.kept_identifiers[since..], -1);
        self.kept_identifiers.truncate(since);
    }

    /// What is found in the text of a result.
    pub(crate) fn indexed_result(&mut self, place: PartId, text: &str) -> IndexedText {
        self.index.indexed_result(place, text)
    }

    /// What is found in another text.
    pub(crate) fn index_text(&mut self, text: &str) -> IndexedText {
        self.index.index_text(text)
    }

    /// What is found in the items of JSON.
    pub(crate) fn index_json_items(&mut self, json: &str, items: &[Range<usize>]) -> IndexedText {
        self.index.index_spans(json, TextKind::Json, items.iter().cloned())
    }

    /// Chooses the lines of a text. The names in kept lines stand from now on.
    pub(crate) fn choose_lines(
        &mut self,
        view: &PassView<'_>,
        piece: &Segment,
        text: &str,
        found: &IndexedText,
    ) -> KeptLines {
        let base = base_reuse_probability(piece, view.age(piece), view.calls);
        let of_number = base * 0.1;
        let price = view.retention_cost();
        let unfold = view.unfold_cost(piece);
        let mut kept = vec![false; found.len()];
        let mut missed = 1.0;
        self.text_counts.count(found);
        // Of what went wrong the lines that say so stay.
        let mut red = if piece.failed && !piece.superseded { MAX_FAILURE_LINES } else { 0 };
        // Definitions first: of the lines that name a thing, the one that defines it tells most.
        for definitions in [true, false] {
            for (at, (line, names)) in
                found.lines().enumerate().filter(|(_, (line, _))| line.is_definition == definitions)
            {
                let before = self.kept_identifiers.len();
                let mut chance: f64 = 0.0;
                // What is new stands with this line from now on, in which it may come again.
                let familiar = self.index.add_missing(names, |name, known| {
                    self.kept_identifiers.push(name);
                    let of_name = if known.is_number() { of_number } else { base };
                    // What a text is about, it says often.
                    let of_name = of_name * f64::from(self.text_counts.times(name)).sqrt().sqrt();
                    chance = chance.max(if known.is_repeated() { of_name * 1.4 } else { of_name }) + of_name * 0.4;
                });
                if definitions {
                    chance *= 1.8;
                }
                // What stands around a change stands in the file.
                if found.kind == TextKind::Diff && line.text_in(text).starts_with(' ') {
                    chance *= 0.5;
                }
                if familiar {
                    chance *= 2.5;
                }
                let cost = (line.len() as f64 / 4.0 + 2.0) * price;
                let says = red > 0 && text_kind::is_failure(line.text_in(text));
                red -= usize::from(says);
                kept[at] = says || chance * unfold > cost;
                if !kept[at] {
                    missed *= 1.0 - chance.min(1.0);
                    self.release_since(before);
                }
            }
        }
        KeptLines { lines: kept, reuse_probability: 1.0 - missed }
    }
}

/// So many lines that say what went wrong are kept of a failure.
const MAX_FAILURE_LINES: usize = 12;

/// The chance that a line of such a piece, with a name that stands nowhere else, is needed again. Shares of lines that
/// were, in recorded sessions: docs/decisions/0014.
fn base_reuse_probability(piece: &Segment, age: u32, calls: u32) -> f64 {
    // Of a long output about as much is needed as of a short one, so a line of it less; of a file, which is read as a
    // whole, more the longer it is, but not in proportion.
    let (of_source, by_length) = match (piece.kind, piece.tool_call.as_ref().map(|done| done.action.kind)) {
        (SegmentKind::Result, Some(ActionKind::Read)) => (0.045, 0.5),
        (SegmentKind::Result, Some(ActionKind::Search)) => (0.019, 1.0),
        (SegmentKind::Result, Some(ActionKind::Run)) => (0.012, 1.0),
        // The model comes back to its own work more often than to what it was shown.
        (SegmentKind::Result, Some(ActionKind::Edit)) => (0.1, 1.0),
        (SegmentKind::Arguments, _) => (0.15, 0.0),
        _ => (0.02, 1.0),
    };
    let of_source = if piece.superseded { of_source * 0.5 } else { of_source };
    let of_length = (1000.0 / piece.tokens.max(1) as f64).powf(by_length);
    // The longer a session has gone on, the less of what comes is news.
    let of_calls = (32.0 / f64::from(calls.max(8))).powf(0.3);
    of_source * of_length * of_calls * 16.0 / f64::from(age.max(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Message, Part, Role};
    use crate::engine::segment;
    use crate::engine::segment::PendingCalls;
    use crate::tokens::Meter;

    /// The chance of a line of what a tool gave back, with this many lines of the same length.
    fn result_probability(tool: &'static str, arguments: &'static str, lines: usize) -> f64 {
        let call = Message::new(Role::Assistant, vec![Part::call("c", tool, arguments)]);
        let result = Message::new(Role::Tool, vec![Part::result("c", "src/value.rs and more of it\n".repeat(lines))]);
        let (mut open, meter) = (PendingCalls::new(), Meter::for_byte_estimate());
        let [_, result] =
            [call, result].map(|message| segment::message_segments(0, &message, 0, &mut open, &meter).remove(0));
        base_reuse_probability(&result, 16, 32)
    }

    /// Ten times as many hits, and about as many of them are needed: each has a tenth of the chance.
    #[test]
    fn longer_output_lowers_line_probability() {
        let hits = |lines| result_probability("grep", r#"{"pattern":"value"}"#, lines);
        let read = |lines| result_probability("read_file", r#"{"path":"a.rs"}"#, lines);
        assert!((hits(20) / hits(200) - 10.0).abs() < 0.5, "{} {}", hits(20), hits(200));
        // A file that is ten times as long is needed more often, but not ten times as often.
        assert!((2.0..5.0).contains(&(read(20) / read(200))), "{} {}", read(20), read(200));
    }

    #[test]
    fn probability_falls_with_age_and_when_superseded() {
        let mut arguments = segment::message_segments(
            0,
            &Message::new(Role::Assistant, vec![Part::call("c", "bash", r#"{"command":"make all"}"#)]),
            0,
            &mut PendingCalls::new(),
            &Meter::for_byte_estimate(),
        )
        .remove(0);
        let young = base_reuse_probability(&arguments, 8, 32);
        assert_eq!(young, base_reuse_probability(&arguments, 4, 32));
        assert_eq!(young, 2.0 * base_reuse_probability(&arguments, 16, 32));
        assert!(young > base_reuse_probability(&arguments, 8, 64));
        arguments.superseded = true;
        assert_eq!(base_reuse_probability(&arguments, 8, 32), young / 2.0);
    }
}
