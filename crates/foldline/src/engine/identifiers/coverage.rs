//! The choice of the lines of an old text that are worth keeping.
//!
//! A line is needed again for its identifiers (paths, symbols, numbers), and an identifier needs to occur in the request
//! only once. So a line is kept if it has identifiers that occur nowhere else, and the probability that they are needed
//! times the price of an unfold exceeds the cost of carrying the line until the end of the session. Nothing else decides:
//! no line count, no head and tail.

use std::ops::Range;
use std::sync::Arc;

use crate::conversation::PartId;
use crate::engine::identifiers::index::{IdentifierCounts, IdentifierId, IdentifierIndex, IndexedText, LongValue};
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::engine::tool_action::ActionKind;

/// The identifiers that occur in a request outside of the parts to cut. Grows as lines of those parts are kept.
///
/// Changes the counts of the index itself; dropping this value restores them.
pub(crate) struct IdentifierCoverage<'l> {
    index: &'l mut IdentifierIndex,
    /// Identifiers of the counted texts, and the amount added for each text.
    counted_texts: Vec<(Arc<[IdentifierId]>, i32)>,
    /// Identifiers that occur in kept lines only.
    kept_identifiers: Vec<IdentifierId>,
    /// Occurrences of each identifier in the text being cut.
    text_counts: IdentifierCounts,
}

/// The prices between which a line is kept or folded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetentionPrices {
    /// Calls since the segment was ingested.
    pub(crate) age: u32,
    /// Calls made so far.
    pub(crate) calls: u32,
    /// Cost of a kept token until the end of the session.
    pub(crate) retention_cost: f64,
    /// Cost of unfolding the segment.
    pub(crate) unfold_cost: f64,
}

/// The lines of a text that are kept.
pub(crate) struct KeptLines {
    /// True for each kept line.
    pub(crate) lines: Vec<bool>,
    /// Probability that a removed line is needed again.
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
    /// Starts with the counts of the index.
    pub(crate) fn new(index: &'l mut IdentifierIndex) -> Self {
        Self {
            index,
            counted_texts: Vec::new(),
            kept_identifiers: Vec::new(),
            text_counts: IdentifierCounts::default(),
        }
    }

    /// Adds `by` to the occurrences of the identifiers of a text.
    pub(crate) fn count_text(&mut self, place: Option<PartId>, text: &str, by: i32) {
        let names = self.index.identifiers(place, text);
        self.index.add_occurrences(&names, by);
        self.counted_texts.push((names, by));
    }

    /// Subtracts the identifiers of the long values in the arguments of a call. Returns false if they are not cached.
    pub(crate) fn count_values(&mut self, place: PartId) -> bool {
        let Some(values) = self.index.long_values(place) else { return false };
        let names: Vec<Arc<[IdentifierId]>> = values.iter().map(|value| value.indexed.identifiers()).collect();
        for names in names {
            self.index.add_occurrences(&names, -1);
            self.counted_texts.push((names, -1));
        }
        true
    }

    /// Returns the long values in the arguments of a call, if cached.
    pub(crate) fn long_values(&self, place: PartId) -> Option<Vec<LongValue>> {
        self.index.long_values(place).map(<[LongValue]>::to_vec)
    }

    /// Returns the number of identifiers that occur in kept lines only.
    pub(crate) fn kept_count(&self) -> usize {
        self.kept_identifiers.len()
    }

    /// Removes the kept identifiers from position `start` on.
    pub(crate) fn release_since(&mut self, start: usize) {
        self.index.add_occurrences(&self.kept_identifiers[start..], -1);
        self.kept_identifiers.truncate(start);
    }

    /// Returns the index of a result's text.
    pub(crate) fn indexed_result(&mut self, place: PartId, text: &str) -> IndexedText {
        self.index.indexed_result(place, text)
    }

    /// Indexes another text.
    pub(crate) fn index_text(&mut self, text: &str) -> IndexedText {
        self.index.index_text(text)
    }

    /// Indexes the items of a JSON text.
    pub(crate) fn index_json_items(&mut self, json: &str, items: &[Range<usize>]) -> IndexedText {
        self.index.index_spans(json, TextKind::Json, items.iter().cloned())
    }

    /// Chooses the lines of a text to keep. The identifiers of kept lines count as occurring from then on.
    pub(crate) fn choose_lines(
        &mut self,
        segment: &Segment,
        prices: &RetentionPrices,
        text: &str,
        found: &IndexedText,
    ) -> KeptLines {
        let &RetentionPrices { age, calls, retention_cost, unfold_cost } = prices;
        let base = base_reuse_probability(segment, age, calls);
        let number_base = base * 0.1;
        let mut kept = vec![false; found.len()];
        let mut unused_probability = 1.0;
        self.text_counts.count(found);
        // A failure keeps the lines that report it.
        let mut failure_lines_left = if segment.failed && !segment.superseded { MAX_FAILURE_LINES } else { 0 };
        // Definitions first: they are the most useful lines with an identifier.
        for definitions in [true, false] {
            for (at, (line, names)) in
                found.lines().enumerate().filter(|(_, (line, _))| line.is_definition == definitions)
            {
                let before = self.kept_identifiers.len();
                let mut probability: f64 = 0.0;
                // New identifiers count as occurring from here on; the line may contain them more than once.
                let used_by_model = self.index.add_missing(names, |name, stats| {
                    self.kept_identifiers.push(name);
                    if stats.may_be_english() {
                        return;
                    }
                    let weight = if stats.is_number() { number_base } else { base };
                    // Identifiers that are frequent in the text are central to it.
                    let weight = weight * f64::from(self.text_counts.times(name)).sqrt().sqrt();
                    probability =
                        probability.max(if stats.is_repeated() { weight * 1.4 } else { weight }) + weight * 0.4;
                });
                if definitions {
                    probability *= 1.8;
                }
                // Context lines of a diff are also in the file.
                if found.kind == TextKind::Diff && line.text_in(text).starts_with(' ') {
                    probability *= 0.5;
                }
                if used_by_model {
                    probability *= 2.5;
                }
                let cost = (line.len() as f64 / 4.0 + 2.0) * retention_cost;
                let is_failure = failure_lines_left > 0 && text_kind::has_failure_word(line.text_in(text));
                failure_lines_left -= usize::from(is_failure);
                kept[at] = is_failure || probability * unfold_cost > cost;
                if !kept[at] {
                    unused_probability *= 1.0 - probability.min(1.0);
                    self.release_since(before);
                }
            }
        }
        KeptLines { lines: kept, reuse_probability: 1.0 - unused_probability }
    }
}

/// Maximum lines that report a failure kept in an excerpt.
const MAX_FAILURE_LINES: usize = 12;

/// Estimates the probability that a line of a segment, with an identifier that occurs nowhere else, is needed again.
/// Fitted to recorded sessions: docs/decisions/0014.
fn base_reuse_probability(segment: &Segment, age: u32, calls: u32) -> f64 {
    // About as many lines of a long output are needed as of a short one, so each line is less likely. Of a file, more
    // lines are needed the longer it is, but less than in proportion.
    let (source_factor, length_exponent) = match (segment.kind, segment.tool_call.as_ref().map(|call| call.action.kind))
    {
        (SegmentKind::Result, Some(ActionKind::Read)) => (0.045, 0.5),
        (SegmentKind::Result, Some(ActionKind::Search)) => (0.019, 1.0),
        (SegmentKind::Result, Some(ActionKind::Run)) => (0.012, 1.0),
        // The model returns to its own changes more often than to other results.
        (SegmentKind::Result, Some(ActionKind::Edit)) => (0.1, 1.0),
        (SegmentKind::Arguments, _) => (0.15, 0.0),
        _ => (0.02, 1.0),
    };
    let source_factor = if segment.superseded { source_factor * 0.5 } else { source_factor };
    let length_factor = (1000.0 / segment.tokens.max(1) as f64).powf(length_exponent);
    // In a long session a smaller share of the results is new.
    let calls_factor = (32.0 / f64::from(calls.max(8))).powf(0.3);
    source_factor * length_factor * calls_factor * 16.0 / f64::from(age.max(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Message, Part, Role};
    use crate::engine::segment;
    use crate::engine::segment::PendingCalls;
    use crate::tokens::Meter;

    /// Returns the probability of a line of a tool result with this many equal lines.
    fn result_probability(tool: &'static str, arguments: &'static str, lines: usize) -> f64 {
        let call = Message::new(Role::Assistant, vec![Part::call("c", tool, arguments)]);
        let result = Message::new(Role::Tool, vec![Part::result("c", "src/value.rs and more of it\n".repeat(lines))]);
        let (mut pending, meter) = (PendingCalls::new(), Meter::for_byte_estimate());
        let [_, result] =
            [call, result].map(|message| segment::message_segments(0, &message, 0, &mut pending, &meter).remove(0));
        base_reuse_probability(&result, 16, 32)
    }

    /// About as many hits are needed of ten times as many, so each has a tenth of the probability.
    #[test]
    fn longer_output_lowers_line_probability() {
        let hits = |lines| result_probability("grep", r#"{"pattern":"value"}"#, lines);
        let read = |lines| result_probability("read_file", r#"{"path":"a.rs"}"#, lines);
        assert!((hits(20) / hits(200) - 10.0).abs() < 0.5, "{} {}", hits(20), hits(200));
        // Of a file ten times as long more lines are needed, but not ten times as many.
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
