//! Lines of an old result that stand again, in the same order, in a newer one: a file read once more around
//! another line, the same tail of every test run. They stay where they are newest.
//!
//! What is left out is marked by a gap and not by a reference, so nothing dangles when the newer text is
//! folded in its turn.

use std::borrow::Cow;

use crate::content;
use crate::marker;
use crate::piece::Piece;

use super::again::Standing;
use super::{Proposal, View};
use crate::folds::Change;

/// Shorter texts and shorter runs are not worth it.
pub(crate) const SHORTEST: u64 = 60;
const RUN: usize = 160;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    let may_repeat = |piece: &&Piece| piece.said_again && piece.tokens >= SHORTEST && view.is_old(piece);
    // Nothing is compared with what is older than the oldest of them.
    let Some(oldest) = view.results().find(may_repeat) else { return };
    let mut standing = Standing::default();
    let newer = view.results().rev().take_while(|piece| piece.at >= oldest.at);
    for piece in newer.filter(|piece| piece.tokens >= SHORTEST) {
        let text = view.text(piece);
        if may_repeat(&piece) {
            let lines = content::lines(text);
            let mut kept = vec![true; lines.len()];
            for run in standing.runs(text, &lines, RUN) {
                kept[run.lines].fill(false);
            }
            let count = kept.iter().filter(|&&kept| kept).count();
            if count > 0 && count < lines.len() {
                let marker = marker::excerpt(count, lines.len(), view.handle(text));
                let each = lines.iter().map(|line| &text[line.clone()]);
                let (folded, tokens) = view.assembled(&marker, text, (each, &kept), piece.lines.as_ref());
                let tokens = tokens.unwrap_or_else(|| view.setup.meter.text(&folded));
                if tokens < piece.tokens {
                    proposals.push(Proposal { at: piece.at, change: Change::Text(folded), tokens, risk: 0.0 });
                }
            }
        }
        if piece.echoes && piece.at > oldest.at {
            standing.add(Cow::Borrowed(text));
        }
    }
}
