//! Long arguments of old calls (a file that was written, a patch) become excerpts inside the same
//! JSON: keys, short values and the shape stay, so that the call still reads as the call it was.

use crate::conversation::{Arguments, Part};
use crate::piece::Class;
use crate::wire;

use super::excerpt::{excerpt, excerpt_of};
use super::{Proposal, View};
use crate::folds::Change;

/// Shorter strings stay as they are.
pub(crate) const SHORTEST: usize = 400;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    let mut cover = view.cover.borrow_mut();
    let Some(cover) = cover.as_mut() else { return };
    for piece in view.long(Class::Arguments).rev() {
        let Part::ToolCall(call) = &view.messages[piece.at.message].parts[piece.at.part] else { continue };
        let mut chance = 0.0;
        let folded = match &call.arguments {
            Arguments::Text(text) => excerpt(view, cover, piece, text, &mut chance),
            Arguments::Json(json) => match cover.values(piece.at) {
                Some(values) => in_strings(json, values.iter().map(|value| value.span), |at, text| {
                    excerpt_of(view, cover, piece, text, &values[at].found, &mut chance)
                }),
                None => in_json(json, |text| excerpt(view, cover, piece, text, &mut chance)),
            },
        };
        let Some(folded) = folded else { continue };
        let tokens = view.setup.meter.text(&folded);
        if tokens < piece.tokens {
            let risk = chance * view.unfold_price(piece);
            proposals.push(Proposal { at: piece.at, change: Change::Arguments(folded), tokens, risk });
        }
    }
}

/// JSON text with its long strings replaced, every other byte as it was.
pub(super) fn in_json(json: &str, mut fold: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let long =
        wire::strings(json).into_iter().map(|string| string.span).filter(|span| span.end - span.start >= SHORTEST);
    in_strings(json, long, |_, text| fold(text))
}

/// JSON text with some of its strings replaced, every other byte as it was.
fn in_strings(
    json: &str,
    spans: impl Iterator<Item = wire::Span>,
    mut fold: impl FnMut(usize, &str) -> Option<String>,
) -> Option<String> {
    let mut out = String::new();
    let mut at = 0;
    for (index, span) in spans.enumerate() {
        let string = wire::Value { body: json, span };
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
