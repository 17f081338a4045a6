//! Folds long old outputs to the lines that are worth keeping.
//!
//! Before:
//! ```text
//! 1  use std::io;
//! 2
//! 3  fn main() {
//! ..
//! ```
//! After:
//! ```text
//! [folded: kept 1 of 412 lines; unfold 7k3q9p2m4x1c]
//! [+2]
//! 3  fn main() {
//! [+409]
//! ```
//! Only whole lines are kept. Gaps are not marked where lines carry their numbers. JSON remains valid JSON: a long
//! text inside it (`stdout`) gets its own excerpt, a long list is reduced to the items that are worth keeping.

use crate::engine::argument_values::{MIN_ARGUMENT_BYTES, replace_long_strings};
use crate::engine::identifiers::coverage::IdentifierCoverage;
use crate::engine::identifiers::index::IndexedText;
use crate::engine::marker;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::text_kind::TextKind;
use crate::tokens::{LineCounts, Tokens};

use crate::engine::overlay::PartEdit;
use crate::engine::passes::support::json_clip;
use crate::engine::passes::view::{FoldProposal, PassView};

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    let mut coverage = view.coverage.borrow_mut();
    let Some(coverage) = coverage.as_mut() else { return };
    // Newest first: a line that appears in a newer text need not be kept in an older one.
    for segment in view.long_segments(SegmentKind::Result).rev() {
        let text = view.text(segment);
        let indexed = coverage.indexed_result(segment.at, text);
        let kept_before = coverage.kept_count();
        let excerpt = match indexed.kind {
            TextKind::Json => excerpt_json(view, coverage, segment, text, &indexed),
            _ => excerpt_lines(view, coverage, segment, text, &indexed, segment.line_counts.as_ref()),
        };
        let tokens = excerpt.tokens.unwrap_or_else(|| view.options.meter.text_by_lines(&excerpt.text));
        if tokens >= view.folds.part_tokens(segment.at).unwrap_or(segment.tokens) {
            // The current text remains, so its identifiers count and not those of the excerpt.
            coverage.release_since(kept_before);
            let part = &view.messages[segment.at.message].parts[segment.at.part];
            view.folds.for_each_cuttable_text(segment.at, part, |place, text| coverage.count_text(place, text, 1));
            continue;
        }
        let expected_unfold_cost = excerpt.reuse_probability * view.unfold_cost(segment);
        proposals.push(FoldProposal {
            at: segment.at,
            edit: PartEdit::Text(excerpt.text),
            tokens,
            expected_unfold_cost,
        });
    }
}

/// The excerpt of a text.
struct TextExcerpt {
    text: String,
    /// Tokens of the text, if they were counted.
    tokens: Option<Tokens>,
    /// Probability that more of the text is needed.
    reuse_probability: f64,
}

/// Returns an excerpt of a text by its lines.
fn excerpt_lines(
    view: &PassView<'_>,
    coverage: &mut IdentifierCoverage<'_>,
    segment: &Segment,
    text: &str,
    indexed: &IndexedText,
    counts: Option<&LineCounts>,
) -> TextExcerpt {
    let mut kept = coverage.choose_lines(segment, &view.retention_prices(segment), text, indexed);
    // The rows of a table are useless without its header.
    if indexed.kind == TextKind::Table && kept.lines.contains(&true) {
        kept.lines[0] = true;
    }
    let count = kept.lines.iter().filter(|&&kept| kept).count();
    let handle = view.handle(view.text(segment));
    let (text, tokens) = match count {
        0 => (marker::whole_text(text, handle), None),
        _ => {
            let marker = marker::excerpt(count, indexed.len(), handle);
            let lines = indexed.lines().map(|(line, _)| line.text_in(text));
            view.assemble(&marker, text, (lines, &kept.lines), counts)
        }
    };
    TextExcerpt { text, tokens, reuse_probability: kept.reuse_probability }
}

fn excerpt_json(
    view: &PassView<'_>,
    coverage: &mut IdentifierCoverage<'_>,
    segment: &Segment,
    text: &str,
    indexed: &IndexedText,
) -> TextExcerpt {
    let mut reuse_probability = 0.0;
    if let Some(folded) =
        replace_long_strings(text, |inside| excerpt_string(view, coverage, segment, inside, &mut reuse_probability))
    {
        return TextExcerpt { text: folded, tokens: None, reuse_probability };
    }
    match json_clip::largest_items(text) {
        Some(items) if items.spans.len() > 3 => {
            let indexed = coverage.index_json_items(text, &items.spans);
            let kept = coverage.choose_lines(segment, &view.retention_prices(segment), text, &indexed);
            let count = kept.lines.iter().filter(|&&kept| kept).count();
            let handle = view.handle(text);
            let folded = match count {
                0 => marker::whole_text(text, handle),
                _ => {
                    let marker = marker::items(count, items.spans.len(), handle);
                    items.retain(text, &kept.lines, &marker)
                }
            };
            TextExcerpt { text: folded, tokens: None, reuse_probability: kept.reuse_probability }
        }
        _ => excerpt_lines(view, coverage, segment, text, indexed, segment.line_counts.as_ref()),
    }
}

/// Returns an excerpt of a long text inside JSON.
pub(crate) fn excerpt_string(
    view: &PassView<'_>,
    coverage: &mut IdentifierCoverage<'_>,
    segment: &Segment,
    text: &str,
    reuse_probability: &mut f64,
) -> Option<String> {
    if text.len() < MIN_ARGUMENT_BYTES {
        return None;
    }
    let indexed = coverage.index_text(text);
    excerpt_indexed(view, coverage, segment, text, &indexed, reuse_probability)
}

/// Returns an excerpt of a long text inside JSON that is already indexed.
pub(crate) fn excerpt_indexed(
    view: &PassView<'_>,
    coverage: &mut IdentifierCoverage<'_>,
    segment: &Segment,
    text: &str,
    indexed: &IndexedText,
    reuse_probability: &mut f64,
) -> Option<String> {
    let folded = excerpt_lines(view, coverage, segment, text, indexed, None);
    *reuse_probability = reuse_probability.max(folded.reuse_probability);
    (folded.text.len() < text.len()).then_some(folded.text)
}
