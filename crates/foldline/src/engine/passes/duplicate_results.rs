//! A result that says again, byte for byte, what a newer or older result says: one copy stays.

use std::collections::HashMap;

use crate::engine::planner::Stage;
use crate::engine::segment::SegmentKind;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::{FoldProposal, PassView};

/// Shorter repeats are not worth a marker.
const MIN_DUPLICATE_TOKENS: u64 = 40;

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    let mut newest = HashMap::new();
    for piece in view.unfolded_results() {
        newest.insert(piece.text_hash, piece.at);
    }
    for piece in view.old_segments(SegmentKind::Result, Stage::Duplicates) {
        if piece.tokens < MIN_DUPLICATE_TOKENS || newest.get(&piece.text_hash).is_none_or(|&at| at == piece.at) {
            continue;
        }
        let marker = view.marker(piece);
        let tokens = view.options.meter.text(&marker);
        if tokens < piece.tokens {
            proposals.push(FoldProposal {
                at: piece.at,
                edit: PartEdit::Text(marker),
                tokens,
                expected_unfold_cost: 0.0,
            });
        }
    }
}
