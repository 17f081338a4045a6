//! Drops old reasoning whole, where the provider allows it.

use crate::engine::options::ReasoningRetention;
use crate::engine::segment::SegmentKind;
use crate::engine::stage::Stage;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::view::{FoldProposal, PassView};

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    let until = match view.options.reasoning_retention {
        ReasoningRetention::KeepAll => return,
        ReasoningRetention::DropFinishedTurns => view.last_user_message,
        ReasoningRetention::DropOld => view.newest_round_start,
    };
    for segment in
        view.old_segments(SegmentKind::Reasoning, Stage::Reasoning).take_while(|segment| segment.at.message < until)
    {
        proposals.push(FoldProposal { at: segment.at, edit: PartEdit::Drop, tokens: 0, expected_unfold_cost: 0.0 });
    }
}
