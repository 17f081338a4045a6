//! Long old outputs become the lines of them that are worth keeping.
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
//! Whole lines only. Where lines carry their numbers the gaps show by themselves. JSON stays JSON: a long text
//! inside of it (`stdout`) becomes an excerpt of its own, a long list the items that are worth keeping.

use crate::engine::identifiers::index::IndexedText;
use crate::engine::marker;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::text_kind::TextKind;
use crate::tokens::{LineCounts, Tokens};

use crate::engine::overlay::PartEdit;
use crate::engine::passes::arguments::replace_long_strings;
use crate::engine::passes::support::json_clip;
use crate::engine::passes::{FoldProposal, IdentifierCoverage, PassView};

/// Shorter texts are not worth an excerpt.
pub(crate) const MIN_EXCERPT_TOKENS: u64 = 60;

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    let mut cover = view.coverage.borrow_mut();
    let Some(cover) = cover.as_mut() else { return };
    // The newest first: what stands in a newer text need not be kept from an older one.
    for piece in view.long_segments(SegmentKind::Result).rev() {
        let text = view.text(piece);
        let found = cover.indexed_result(piece.at, text);
        let excerpt = match found.kind {
            TextKind::Json => excerpt_json(view, cover, piece, text, &found),
            _ => excerpt_lines(view, cover, piece, text, &found, piece.line_counts.as_ref()),
        };
        let tokens = excerpt.tokens.unwrap_or_else(|| view.options.meter.text_by_lines(&excerpt.text));
        if tokens < piece.tokens {
            let risk = excerpt.reuse_probability * view.unfold_cost(piece);
            proposals.push(FoldProposal {
                at: piece.at,
                edit: PartEdit::Text(excerpt.text),
                tokens,
                expected_unfold_cost: risk,
            });
        }
    }
}

/// What is left of a text.
struct TextExcerpt {
    text: String,
    /// Its tokens, if they were counted.
    tokens: Option<Tokens>,
    /// The chance that more of it is needed.
    reuse_probability: f64,
}

/// An excerpt of a text by its lines.
fn excerpt_lines(
    view: &PassView<'_>,
    cover: &mut IdentifierCoverage<'_>,
    piece: &Segment,
    text: &str,
    found: &IndexedText,
    counts: Option<&LineCounts>,
) -> TextExcerpt {
    let mut kept = cover.choose_lines(view, piece, text, found);
    // What is left of a table says nothing without its header.
    if found.kind == TextKind::Table && kept.lines.contains(&true) {
        kept.lines[0] = true;
    }
    let count = kept.lines.iter().filter(|&&kept| kept).count();
    let handle = view.handle(view.text(piece));
    let (text, tokens) = match count {
        0 => (marker::whole_text(text, handle), None),
        _ => {
            let marker = marker::excerpt(count, found.len(), handle);
            let lines = found.lines().map(|(line, _)| line.text_in(text));
            view.assemble(&marker, text, (lines, &kept.lines), counts)
        }
    };
    TextExcerpt { text, tokens, reuse_probability: kept.reuse_probability }
}

fn excerpt_json(
    view: &PassView<'_>,
    cover: &mut IdentifierCoverage<'_>,
    piece: &Segment,
    text: &str,
    found: &IndexedText,
) -> TextExcerpt {
    let mut chance = 0.0;
    if let Some(folded) = replace_long_strings(text, |inside| excerpt_string(view, cover, piece, inside, &mut chance)) {
        return TextExcerpt { text: folded, tokens: None, reuse_probability: chance };
    }
    match json_clip::largest_items(text) {
        Some(items) if items.spans.len() > 3 => {
            let found = cover.index_json_items(text, &items.spans);
            let kept = cover.choose_lines(view, piece, text, &found);
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
        _ => excerpt_lines(view, cover, piece, text, found, piece.line_counts.as_ref()),
    }
}

/// An excerpt of a long text inside of JSON.
pub(crate) fn excerpt_string(
    view: &PassView<'_>,
    cover: &mut IdentifierCoverage<'_>,
    piece: &Segment,
    text: &str,
    chance: &mut f64,
) -> Option<String> {
    if text.len() < crate::engine::passes::arguments::MIN_ARGUMENT_BYTES {
        return None;
    }
    let found = cover.index_text(text);
    excerpt_indexed(view, cover, piece, text, &found, chance)
}

/// An excerpt of a long text inside of JSON in which this was found.
pub(crate) fn excerpt_indexed(
    view: &PassView<'_>,
    cover: &mut IdentifierCoverage<'_>,
    piece: &Segment,
    text: &str,
    found: &IndexedText,
    chance: &mut f64,
) -> Option<String> {
    let folded = excerpt_lines(view, cover, piece, text, found, None);
    *chance = chance.max(folded.reuse_probability);
    (folded.text.len() < text.len()).then_some(folded.text)
}
