//! Folds results that are byte-for-byte equal to another result: one copy is kept.

use std::collections::HashMap;

use crate::engine::segment::SegmentKind;
use crate::engine::stage::Stage;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::view::{FoldProposal, PassView};

/// Minimum size of a duplicate that is worth a marker.
const MIN_DUPLICATE_TOKENS: u64 = 40;

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    let mut newest = HashMap::new();
    for segment in view.unfolded_results() {
        newest.insert(segment.text_hash, segment.at);
    }
    for segment in view.old_segments(SegmentKind::Result, Stage::Duplicates) {
        if segment.tokens < MIN_DUPLICATE_TOKENS || newest.get(&segment.text_hash).is_none_or(|&at| at == segment.at) {
            continue;
        }
        let marker = view.marker(segment);
        let tokens = view.options.meter.text(&marker);
        if tokens < segment.tokens {
            proposals.push(FoldProposal {
                at: segment.at,
                edit: PartEdit::Text(marker),
                tokens,
                expected_unfold_cost: 0.0,
            });
        }
    }
}
