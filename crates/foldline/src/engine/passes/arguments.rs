//! Folds long arguments of old calls (a written file, a patch) to excerpts inside the same JSON: keys, short values
//! and structure are kept, so the call remains readable.

use crate::conversation::{CallArguments, Part};
use crate::engine::segment::SegmentKind;
use crate::wire;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::excerpt::{excerpt_indexed, excerpt_string};
use crate::engine::passes::{FoldProposal, PassView};

/// Minimum length of a string value that is folded.
pub(crate) const MIN_ARGUMENT_BYTES: usize = 400;

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

/// Returns the JSON text with its long strings replaced and every other byte unchanged.
pub(crate) fn replace_long_strings(json: &str, mut fold: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let long = wire::string_values(json)
        .into_iter()
        .map(|string| string.span)
        .filter(|span| span.end - span.start >= MIN_ARGUMENT_BYTES);
    replace_strings(json, long, |_, text| fold(text))
}

/// Returns the JSON text with some of its strings replaced and every other byte unchanged.
fn replace_strings(
    json: &str,
    spans: impl Iterator<Item = wire::ByteSpan>,
    mut fold: impl FnMut(usize, &str) -> Option<String>,
) -> Option<String> {
    let mut out = String::new();
    let mut at = 0;
    for (index, span) in spans.enumerate() {
        let string = wire::JsonValue { body: json, span };
        let Some(folded) = string.string().and_then(|text| fold(index, &text)) else { continue };
        out.push_str(&json[at..span.start]);
        out.push_str(&wire::encode(&folded));
        at = span.end;
    }
    if at == 0 {
        return None;
    }
    out.push_str(&json[at..]);
    Some(out)
}
