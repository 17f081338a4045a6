//! Long old outputs become the lines of them that are worth keeping.
//!
//! Before:
//! ```text
//! 1  use std::io;
//! 2
//! 3  fn main() {
//! ..
//! ```
//! After:
//! ```text
//! [folded: kept 1 of 412 lines of read_file src/main.rs; unfold 7k3q9p2m4x1c]
//! [+2]
//! 3  fn main() {
//! [+409]
//! ```
//! Whole lines only. Where lines carry their numbers the gaps show by themselves.

use crate::content;
use crate::marker;
use crate::piece::{Class, Piece};
use crate::plan::Rung;

use super::clip::assemble;
use super::cover::Kept;
use super::{Proposal, View};
use crate::folds::Change;

/// Shorter texts are not worth an excerpt.
const SHORTEST: u64 = 60;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    let mut cover = view.cover.borrow_mut();
    let Some(cover) = cover.as_mut() else { return };
    // The newest first: what stands in a newer text need not be kept from an older one.
    for piece in view.old(Class::Result, Rung::Excerpts).rev() {
        if piece.tokens < SHORTEST {
            continue;
        }
        let text = view.text(piece);
        let lines = content::lines(text);
        let kept = cover.choose(view, piece, text, &lines);
        let excerpt = render(view, piece, text, &lines, &kept);
        let tokens = view.setup.meter.text(&excerpt);
        if tokens < piece.tokens {
            let risk = kept.chance * view.unfold_price(piece);
            proposals.push(Proposal { at: piece.at, change: Change::Text(excerpt), tokens, risk });
        }
    }
}

/// The kept lines of a text under a marker; the marker of the whole text when none is kept.
pub(super) fn render(
    view: &View<'_>,
    piece: &Piece,
    text: &str,
    lines: &[std::ops::Range<usize>],
    kept: &Kept,
) -> String {
    let count = kept.lines.iter().filter(|&&kept| kept).count();
    let handle = view.handle(view.text(piece));
    match count {
        0 => marker::whole(text, &piece.words(), handle),
        _ => assemble(&marker::excerpt(count, lines.len(), &piece.words(), handle), text, lines, &kept.lines),
    }
}
