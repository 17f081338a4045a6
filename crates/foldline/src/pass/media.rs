//! Images and files of old rounds become a marker.

use crate::piece::Class;
use crate::plan::Rung;

use super::{Proposal, View};
use crate::folds::Change;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    for piece in view.old(Class::Media, Rung::Reasoning) {
        let marker = view.media_marker(piece);
        let tokens = view.setup.meter.text(&marker);
        if tokens < piece.tokens {
            proposals.push(Proposal { at: piece.at, change: Change::Text(marker), tokens, risk: 0.0 });
        }
    }
}
