//! Whole old results become a marker, and so do the arguments and the prose of old calls when that is
//! not enough. The oldest first; what reports a failure last, and of that the lines that do so stay.

use crate::engine::planner::Stage;
use crate::engine::segment::{Segment, SegmentKind};

use crate::conversation::{CallArguments, Part, ToolCall};
use crate::engine::overlay::PartEdit;
use crate::engine::passes::arguments::replace_long_strings;
use crate::engine::passes::support::clip;
use crate::engine::passes::{FoldProposal, PassView};

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for failed in [false, true] {
        for piece in view.old_segments(SegmentKind::Result, Stage::WholeResults).filter(|piece| piece.failed == failed)
        {
            let marker = view.marker(piece);
            let folded = if failed && !piece.superseded {
                clip::clip_to_tokens(view.text(piece), piece.tokens / 4, &view.options.meter, &marker)
            } else {
                marker
            };
            push_marker(view, piece, folded, proposals);
        }
    }
}

pub(crate) fn propose_prose_and_arguments(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for piece in view.before_stage(Stage::ProseAndArguments).filter(|piece| view.is_old(piece)) {
        match piece.kind {
            SegmentKind::Prose => push_marker(view, piece, view.marker(piece), proposals),
            SegmentKind::Arguments => {
                let Part::ToolCall(call) = &view.messages[piece.at.message].parts[piece.at.part] else { continue };
                let Some(folded) = shortened_arguments(call, &view.marker(piece)) else { continue };
                let tokens = view.options.meter.text(&folded);
                if tokens < piece.tokens {
                    let risk = 0.05 * view.unfold_cost(piece);
                    proposals.push(FoldProposal {
                        at: piece.at,
                        edit: PartEdit::Arguments(folded),
                        tokens,
                        expected_unfold_cost: risk,
                    });
                }
            }
            _ => {}
        }
    }
}

/// The arguments of a call with the marker in the place of their long texts, if there are any: JSON stays JSON,
/// keys and short values stay, and no key is added that the tool does not know.
pub(crate) fn shortened_arguments(call: &ToolCall<'_>, marker: &str) -> Option<String> {
    match &call.arguments {
        CallArguments::Text(_) => Some(marker.to_owned()),
        CallArguments::Json(json) => replace_long_strings(json, |_| Some(marker.to_owned())),
    }
}

fn push_marker(view: &PassView<'_>, piece: &Segment, marker: String, proposals: &mut Vec<FoldProposal>) {
    let tokens = view.options.meter.text(&marker);
    if tokens < piece.tokens {
        let risk = 0.1 * view.unfold_cost(piece);
        proposals.push(FoldProposal { at: piece.at, edit: PartEdit::Text(marker), tokens, expected_unfold_cost: risk });
    }
}
