//! A result that says again, byte for byte, what a newer or older result says: one copy stays.

use std::collections::HashMap;

use crate::piece::Class;
use crate::plan::Rung;

use super::{Proposal, View};
use crate::folds::Change;

/// Shorter repeats are not worth a marker.
const SHORTEST: u64 = 40;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    let mut newest = HashMap::new();
    for piece in view.results() {
        newest.insert(piece.hash, piece.at);
    }
    for piece in view.old(Class::Result, Rung::Repeats) {
        if piece.tokens < SHORTEST || newest.get(&piece.hash).is_none_or(|&at| at == piece.at) {
            continue;
        }
        let marker = view.marker(piece);
        let tokens = view.setup.meter.text(&marker);
        if tokens < piece.tokens {
            proposals.push(Proposal { at: piece.at, change: Change::Text(marker), tokens, risk: 0.0 });
        }
    }
}
