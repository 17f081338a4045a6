//! Long arguments of old calls (a file that was written, a patch) become excerpts inside the same
//! JSON: keys, short values and the shape stay, so that the call still reads as the call it was.

use crate::conversation::{CallArguments, Part};
use crate::engine::segment::SegmentKind;
use crate::wire;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::excerpt::{excerpt_indexed, excerpt_string};
use crate::engine::passes::{FoldProposal, PassView};

/// Shorter strings stay as they are.
pub(crate) const MIN_ARGUMENT_BYTES: usize = 400;

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    let mut cover = view.coverage.borrow_mut();
    let Some(cover) = cover.as_mut() else { return };
    for piece in view.long_segments(SegmentKind::Arguments).rev() {
        let Part::ToolCall(call) = &view.messages[piece.at.message].parts[piece.at.part] else { continue };
        let mut chance = 0.0;
        let folded = match &call.arguments {
            CallArguments::Text(text) => excerpt_string(view, cover, piece, text, &mut chance),
            CallArguments::Json(json) => match cover.long_values(piece.at) {
                Some(values) => replace_strings(json, values.iter().map(|value| value.span), |at, text| {
                    excerpt_indexed(view, cover, piece, text, &values[at].indexed, &mut chance)
                }),
                None => replace_long_strings(json, |text| excerpt_string(view, cover, piece, text, &mut chance)),
            },
        };
        let Some(folded) = folded else { continue };
        let tokens = view.options.meter.text(&folded);
        if tokens < piece.tokens {
            let risk = chance * view.unfold_cost(piece);
            proposals.push(FoldProposal {
                at: piece.at,
                edit: PartEdit::Arguments(folded),
                tokens,
                expected_unfold_cost: risk,
            });
        }
    }
}

/// JSON text with its long strings replaced, every other byte as it was.
pub(crate) fn replace_long_strings(json: &str, mut fold: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let long = wire::string_values(json)
        .into_iter()
        .map(|string| string.span)
        .filter(|span| span.end - span.start >= MIN_ARGUMENT_BYTES);
    replace_strings(json, long, |_, text| fold(text))
}

/// JSON text with some of its strings replaced, every other byte as it was.
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
