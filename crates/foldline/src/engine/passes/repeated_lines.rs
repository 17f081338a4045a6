//! Lines of an old result that stand again, in the same order, in a newer one: a file read once more around
//! another line, the same tail of every test run. They stay where they are newest.
//!
//! What is left out is marked by a gap and not by a reference, so nothing dangles when the newer text is
//! folded in its turn.
//!
//! For policies that make no excerpts. An excerpt leaves out what stands elsewhere by itself: where both were made, one in
//! twenty-five was longer than what this pass had left.

use std::borrow::Cow;

use crate::engine::marker;
use crate::engine::segment::Segment;
use crate::engine::text_kind;

use crate::engine::line_index::{LineHashes, LineIndex};
use crate::engine::overlay::PartEdit;
use crate::engine::passes::{FoldProposal, PassView};
use crate::engine::planner::Stage;
use crate::engine::policy::Policy;

/// Shorter texts and shorter runs are not worth it.
pub(crate) const MIN_RESULT_TOKENS: u64 = 60;
const MIN_RUN_BYTES: usize = 160;

/// Whether it proposes anything.
pub(crate) fn is_enabled(policy: &Policy) -> bool {
    policy.max_stage < Stage::Excerpts
}

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    if !is_enabled(&view.options.policy) {
        return;
    }
    let may_repeat = |piece: &&Segment| piece.repeated_later && piece.tokens >= MIN_RESULT_TOKENS && view.is_old(piece);
    // Nothing is compared with what is older than the oldest of them.
    let Some(oldest) = view.unfolded_results().find(may_repeat) else { return };
    let mut standing = LineIndex::default();
    let newer = view.unfolded_results().rev().take_while(|piece| piece.at >= oldest.at);
    for piece in newer.filter(|piece| piece.tokens >= MIN_RESULT_TOKENS) {
        let (repeats, is_source) = (may_repeat(&piece), piece.repeats_earlier_lines && piece.at > oldest.at);
        if !repeats && !is_source {
            continue;
        }
        let text = view.text(piece);
        let hashes = piece.line_hashes.clone().unwrap_or_else(|| LineHashes::new(text));
        if repeats && standing.has_any(&hashes) {
            proposals.extend(without_repeated_lines(view, piece, text, &hashes, &standing));
        }
        if is_source {
            standing.add(Cow::Borrowed(text), &hashes);
        }
    }
}

/// A result without its lines that stand elsewhere.
fn without_repeated_lines(
    view: &PassView<'_>,
    piece: &Segment,
    text: &str,
    hashes: &LineHashes,
    standing: &LineIndex<'_>,
) -> Option<FoldProposal> {
    let lines = text_kind::line_ranges(text);
    let mut kept = vec![true; lines.len()];
    for run in standing.matching_runs(text, hashes, &lines, MIN_RUN_BYTES) {
        kept[run.lines].fill(false);
    }
    let count = kept.iter().filter(|&&kept| kept).count();
    if count == 0 || count == lines.len() {
        return None;
    }
    let marker = marker::excerpt(count, lines.len(), view.handle(text));
    let each = lines.iter().map(|line| &text[line.clone()]);
    let (folded, tokens) = view.assemble(&marker, text, (each, &kept), piece.line_counts.as_ref());
    let tokens = tokens.unwrap_or_else(|| view.options.meter.text_by_lines(&folded));
    (tokens < piece.tokens).then_some(FoldProposal {
        at: piece.at,
        edit: PartEdit::Text(folded),
        tokens,
        expected_unfold_cost: 0.0,
    })
}
