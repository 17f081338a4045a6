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
//! [folded: kept 1 of 412 lines; unfold 7k3q9p2m4x1c]
//! [+2]
//! 3  fn main() {
//! [+409]
//! ```
//! Whole lines only. Where lines carry their numbers the gaps show by themselves. JSON stays JSON: a long text
//! inside of it (`stdout`) becomes an excerpt of its own, a long list the items that are worth keeping.

use crate::content::Kind;
use crate::lexicon::Found;
use crate::marker;
use crate::piece::{Class, Piece};

use super::arguments::in_json;
use super::clip::assemble;
use super::cover::Kept;
use super::{Cover, Proposal, View, json};
use crate::folds::Change;

/// Shorter texts are not worth an excerpt.
pub(super) const SHORTEST: u64 = 60;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    let mut cover = view.cover.borrow_mut();
    let Some(cover) = cover.as_mut() else { return };
    // The newest first: what stands in a newer text need not be kept from an older one.
    for piece in view.long(Class::Result).rev() {
        let text = view.text(piece);
        let found = cover.found(piece.at, text);
        let (excerpt, chance) = match found.kind {
            Kind::Json => of_json(view, cover, piece, text, &found),
            _ => of_lines(view, cover, piece, text, &found),
        };
        let tokens = view.setup.meter.text(&excerpt);
        if tokens < piece.tokens {
            let risk = chance * view.unfold_price(piece);
            proposals.push(Proposal { at: piece.at, change: Change::Text(excerpt), tokens, risk });
        }
    }
}

/// An excerpt of a text by its lines, and the chance that more of it is needed.
fn of_lines(view: &View<'_>, cover: &mut Cover<'_>, piece: &Piece, text: &str, found: &Found) -> (String, f64) {
    let mut kept = cover.choose(view, piece, text, found);
    // What is left of a table says nothing without its header.
    if found.kind == Kind::Table && kept.lines.contains(&true) {
        kept.lines[0] = true;
    }
    (render(view, piece, text, found, &kept), kept.chance)
}

fn of_json(view: &View<'_>, cover: &mut Cover<'_>, piece: &Piece, text: &str, found: &Found) -> (String, f64) {
    let mut chance = 0.0;
    if let Some(folded) = in_json(text, |inside| excerpt(view, cover, piece, inside, &mut chance)) {
        return (folded, chance);
    }
    match json::items(text) {
        Some(items) if items.spans.len() > 3 => {
            let found = cover.find_in(text, &items.spans);
            let kept = cover.choose(view, piece, text, &found);
            let count = kept.lines.iter().filter(|&&kept| kept).count();
            let handle = view.handle(text);
            let folded = match count {
                0 => marker::whole(text, handle),
                _ => {
                    let marker = marker::items(count, items.spans.len(), handle);
                    items.only(text, &kept.lines, &marker)
                }
            };
            (folded, kept.chance)
        }
        _ => of_lines(view, cover, piece, text, found),
    }
}

/// An excerpt of a long text inside of JSON.
pub(super) fn excerpt(
    view: &View<'_>,
    cover: &mut Cover<'_>,
    piece: &Piece,
    text: &str,
    chance: &mut f64,
) -> Option<String> {
    if text.len() < super::arguments::SHORTEST {
        return None;
    }
    let found = cover.find(text);
    let (folded, missed) = of_lines(view, cover, piece, text, &found);
    *chance = chance.max(missed);
    (folded.len() < text.len()).then_some(folded)
}

/// The kept lines of a text under a marker; the marker of the whole text when none is kept.
fn render(view: &View<'_>, piece: &Piece, text: &str, found: &Found, kept: &Kept) -> String {
    let count = kept.lines.iter().filter(|&&kept| kept).count();
    let handle = view.handle(view.text(piece));
    match count {
        0 => marker::whole(text, handle),
        _ => {
            let marker = marker::excerpt(count, found.len(), handle);
            assemble(&marker, text, found.lines().map(|(line, _)| line.of(text)), &kept.lines)
        }
    }
}
