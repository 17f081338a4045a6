//! Folds whole old results to a marker, and arguments and prose of old calls if that is not enough. Oldest first;
//! failures last, and of those the lines that report the failure are kept.

use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::stage::Stage;

use crate::conversation::{CallArguments, Part, ToolCall};
use crate::engine::argument_values::replace_long_strings;
use crate::engine::overlay::PartEdit;
use crate::engine::passes::support::clip;
use crate::engine::passes::view::{FoldProposal, PassView};

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for failed in [false, true] {
        for segment in
            view.old_segments(SegmentKind::Result, Stage::WholeResults).filter(|segment| segment.failed == failed)
        {
            let marker = view.marker(segment);
            let folded = if failed && !segment.superseded {
                clip::clip_to_tokens(view.text(segment), segment.tokens / 4, &view.options.meter, &marker)
            } else {
                marker
            };
            push_marker(view, segment, folded, proposals);
        }
    }
}

pub(crate) fn propose_prose_and_arguments(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for segment in view.before_stage(Stage::ProseAndArguments).filter(|segment| view.is_old(segment)) {
        match segment.kind {
            SegmentKind::Prose => push_marker(view, segment, view.marker(segment), proposals),
            SegmentKind::Arguments => {
                let Part::ToolCall(call) = &view.messages[segment.at.message].parts[segment.at.part] else { continue };
                let Some(folded) = shortened_arguments(call, &view.marker(segment)) else { continue };
                let tokens = view.options.meter.text(&folded);
                if tokens < segment.tokens {
                    let expected_unfold_cost = 0.05 * view.unfold_cost(segment);
                    proposals.push(FoldProposal {
                        at: segment.at,
                        edit: PartEdit::Arguments(folded),
                        tokens,
                        expected_unfold_cost,
                    });
                }
            }
            _ => {}
        }
    }
}

/// Returns the arguments of a call with the marker in place of their long texts, if there are any: JSON remains valid
/// JSON, keys and short values are kept, and no key is added that the tool does not know.
pub(crate) fn shortened_arguments(call: &ToolCall<'_>, marker: &str) -> Option<String> {
    match &call.arguments {
        CallArguments::Text(_) => Some(marker.to_owned()),
        CallArguments::Json(json) => replace_long_strings(json, |_| Some(marker.to_owned())),
    }
}

fn push_marker(view: &PassView<'_>, segment: &Segment, marker: String, proposals: &mut Vec<FoldProposal>) {
    let tokens = view.options.meter.text(&marker);
    if tokens < segment.tokens {
        let expected_unfold_cost = 0.1 * view.unfold_cost(segment);
        proposals.push(FoldProposal { at: segment.at, edit: PartEdit::Text(marker), tokens, expected_unfold_cost });
    }
}
