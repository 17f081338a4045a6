//! Folds long arguments of old calls (a written file, a patch) to excerpts inside the same JSON: keys, short values
//! and structure are kept, so the call remains readable.

use crate::conversation::{CallArguments, Part};
use crate::engine::segment::SegmentKind;

use crate::engine::argument_values::{replace_long_strings, replace_strings};
use crate::engine::overlay::PartEdit;
use crate::engine::passes::excerpt::{excerpt_indexed, excerpt_string};
use crate::engine::passes::view::{FoldProposal, PassView};

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    let mut coverage = view.coverage.borrow_mut();
    let Some(coverage) = coverage.as_mut() else { return };
    for segment in view.long_segments(SegmentKind::Arguments).rev() {
        let Part::ToolCall(call) = &view.messages[segment.at.message].parts[segment.at.part] else { continue };
        let mut reuse_probability = 0.0;
        let folded = match &call.arguments {
            CallArguments::Text(text) => excerpt_string(view, coverage, segment, text, &mut reuse_probability),
            CallArguments::Json(json) => match coverage.long_values(segment.at) {
                Some(values) => replace_strings(json, values.iter().map(|value| value.span), |at, text| {
                    excerpt_indexed(view, coverage, segment, text, &values[at].indexed, &mut reuse_probability)
                }),
                None => replace_long_strings(json, |text| {
                    excerpt_string(view, coverage, segment, text, &mut reuse_probability)
                }),
            },
        };
        let Some(folded) = folded else { continue };
        let tokens = view.options.meter.text(&folded);
        if tokens < segment.tokens {
            let expected_unfold_cost = reuse_probability * view.unfold_cost(segment);
            proposals.push(FoldProposal {
                at: segment.at,
                edit: PartEdit::Arguments(folded),
                tokens,
                expected_unfold_cost,
            });
        }
    }
}
