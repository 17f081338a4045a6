//! Drops old reasoning whole, where the provider allows it.

use crate::conversation::{Message, Part};
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
    let old = view.old_segments(SegmentKind::Reasoning, Stage::Reasoning);
    for segment in old.take_while(|segment| segment.at.message < until) {
        if has_only_blank_text(&view.messages[segment.at.message]) {
            continue;
        }
        proposals.push(FoldProposal { at: segment.at, edit: PartEdit::Drop, tokens: 0, expected_unfold_cost: 0.0 });
    }
}

/// Returns true if a message would be left with blank texts alone, which providers refuse.
fn has_only_blank_text(message: &Message<'_>) -> bool {
    let mut others = message.parts.iter().filter(|part| !matches!(part, Part::Reasoning(_))).peekable();
    others.peek().is_some() && others.all(|part| matches!(part, Part::Text { text } if text.is_blank()))
}
