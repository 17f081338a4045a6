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
use crate::measure::{LineCounts, Tokens};
use crate::piece::{Class, Piece};

use super::arguments::in_json;
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
        let excerpt = match found.kind {
            Kind::Json => of_json(view, cover, piece, text, &found),
            _ => of_lines(view, cover, piece, text, &found, piece.lines.as_ref()),
        };
        let tokens = excerpt.tokens.unwrap_or_else(|| view.setup.meter.text_of_lines(&excerpt.text));
        if tokens < piece.tokens {
            let risk = excerpt.chance * view.unfold_price(piece);
            proposals.push(Proposal { at: piece.at, change: Change::Text(excerpt.text), tokens, risk });
        }
    }
}

/// What is left of a text.
struct Excerpt {
    text: String,
    /// Its tokens, if they were counted.
    tokens: Option<Tokens>,
    /// The chance that more of it is needed.
    chance: f64,
}

/// An excerpt of a text by its lines.
fn of_lines(
    view: &View<'_>,
    cover: &mut Cover<'_>,
    piece: &Piece,
    text: &str,
    found: &Found,
    counts: Option<&LineCounts>,
) -> Excerpt {
    let mut kept = cover.choose(view, piece, text, found);
    // What is left of a table says nothing without its header.
    if found.kind == Kind::Table && kept.lines.contains(&true) {
        kept.lines[0] = true;
    }
    let count = kept.lines.iter().filter(|&&kept| kept).count();
    let handle = view.handle(view.text(piece));
    let (text, tokens) = match count {
        0 => (marker::whole(text, handle), None),
        _ => {
            let marker = marker::excerpt(count, found.len(), handle);
            let lines = found.lines().map(|(line, _)| line.of(text));
            view.assembled(&marker, text, (lines, &kept.lines), counts)
        }
    };
    Excerpt { text, tokens, chance: kept.chance }
}

fn of_json(view: &View<'_>, cover: &mut Cover<'_>, piece: &Piece, text: &str, found: &Found) -> Excerpt {
    let mut chance = 0.0;
    if let Some(folded) = in_json(text, |inside| excerpt(view, cover, piece, inside, &mut chance)) {
        return Excerpt { text: folded, tokens: None, chance };
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
            Excerpt { text: folded, tokens: None, chance: kept.chance }
        }
        _ => of_lines(view, cover, piece, text, found, piece.lines.as_ref()),
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
    excerpt_of(view, cover, piece, text, &found, chance)
}

/// An excerpt of a long text inside of JSON in which this was found.
pub(super) fn excerpt_of(
    view: &View<'_>,
    cover: &mut Cover<'_>,
    piece: &Piece,
    text: &str,
    found: &Found,
    chance: &mut f64,
) -> Option<String> {
    let folded = of_lines(view, cover, piece, text, found, None);
    *chance = chance.max(folded.chance);
    (folded.text.len() < text.len()).then_some(folded.text)
}
