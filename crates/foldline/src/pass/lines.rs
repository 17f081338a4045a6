//! Lines of an old result that stand again, in the same order, in a newer one: a file read once more around
//! another line, the same tail of every test run. They stay where they are newest.
//!
//! What is left out is marked by a gap and not by a reference, so nothing dangles when the newer text is
//! folded in its turn.

use std::borrow::Cow;

use crate::content;
use crate::marker;

use super::again::Standing;
use super::clip::assemble;
use super::{Proposal, View};
use crate::folds::Change;

/// Shorter texts and shorter runs are not worth it.
pub(crate) const SHORTEST: u64 = 60;
const RUN: usize = 160;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    let mut standing = Standing::default();
    for piece in view.results().rev().filter(|piece| piece.tokens >= SHORTEST) {
        let text = view.text(piece);
        if piece.said_again && view.is_old(piece) {
            let lines = content::lines(text);
            let mut kept = vec![true; lines.len()];
            for run in standing.runs(text, &lines, RUN) {
                kept[run.lines].fill(false);
            }
            let count = kept.iter().filter(|&&kept| kept).count();
            if count > 0 && count < lines.len() {
                let marker = marker::excerpt(count, lines.len(), view.handle(text));
                let folded = assemble(&marker, text, lines.iter().map(|line| &text[line.clone()]), &kept);
                let tokens = view.setup.meter.text(&folded);
                if tokens < piece.tokens {
                    proposals.push(Proposal { at: piece.at, change: Change::Text(folded), tokens, risk: 0.0 });
                }
            }
        }
        if piece.echoes {
            standing.add(Cow::Borrowed(text));
        }
    }
}
