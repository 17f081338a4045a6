//! Whole old results become a marker, and so do the arguments and the prose of old calls when that is
//! not enough. The oldest first; what reports a failure last, and of that the lines that do so stay.

use crate::piece::{Class, Piece};
use crate::plan::Rung;

use super::arguments::in_json;
use super::clip;
use super::{Proposal, View};
use crate::conversation::{Arguments, Part, ToolCall};
use crate::folds::Change;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    for failed in [false, true] {
        for piece in view.old(Class::Result, Rung::Markers).filter(|piece| piece.failed == failed) {
            let marker = view.marker(piece);
            let folded = if failed && !piece.outdated {
                clip::clip(view.text(piece), piece.tokens / 4, &view.setup.meter, &marker)
            } else {
                marker
            };
            push(view, piece, folded, proposals);
        }
    }
}

pub(super) fn propose_writing(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    for piece in view.above(Rung::Writing).filter(|piece| view.is_old(piece)) {
        match piece.class {
            Class::Prose => push(view, piece, view.marker(piece), proposals),
            Class::Arguments => {
                let Part::ToolCall(call) = &view.messages[piece.at.message].parts[piece.at.part] else { continue };
                let Some(folded) = shortened(call, &view.marker(piece)) else { continue };
                let tokens = view.setup.meter.text(&folded);
                if tokens < piece.tokens {
                    let risk = 0.05 * view.unfold_price(piece);
                    proposals.push(Proposal { at: piece.at, change: Change::Arguments(folded), tokens, risk });
                }
            }
            _ => {}
        }
    }
}

/// The arguments of a call with the marker in the place of their long texts, if there are any: JSON stays JSON,
/// keys and short values stay, and no key is added that the tool does not know.
pub(crate) fn shortened(call: &ToolCall<'_>, marker: &str) -> Option<String> {
    match &call.arguments {
        Arguments::Text(_) => Some(marker.to_owned()),
        Arguments::Json(json) => in_json(json, |_| Some(marker.to_owned())),
    }
}

fn push(view: &View<'_>, piece: &Piece, marker: String, proposals: &mut Vec<Proposal>) {
    let tokens = view.setup.meter.text(&marker);
    if tokens < piece.tokens {
        let risk = 0.1 * view.unfold_price(piece);
        proposals.push(Proposal { at: piece.at, change: Change::Text(marker), tokens, risk });
    }
}
