//! Folds images and files of old rounds to a marker.

use crate::engine::segment::SegmentKind;
use crate::engine::stage::Stage;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::view::{FoldProposal, PassView};

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for segment in view.old_segments(SegmentKind::Media, Stage::Reasoning) {
        let marker = view.media_marker(segment);
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
