//! Lines of an old result that stand again, in the same order, in a newer one: a file read once more around
//! another line, the same tail of every test run. They stay where they are newest.
//!
//! What is left out is marked by a gap and not by a reference, so nothing dangles when the newer text is
//! folded in its turn.
//!
//! For policies that make no excerpts. An excerpt leaves out what stands elsewhere by itself: where both were made, one in
//! twenty-five was longer than what this pass had left.

use std::borrow::Cow;

use crate::content;
use crate::marker;
use crate::piece::Piece;

use super::again::{Hashes, Standing};
use super::{Proposal, View};
use crate::folds::Change;
use crate::plan::Rung;
use crate::policy::Policy;

/// Shorter texts and shorter runs are not worth it.
pub(crate) const SHORTEST: u64 = 60;
const RUN: usize = 160;

/// Whether it proposes anything.
pub(crate) fn is_wanted(policy: &Policy) -> bool {
    policy.deepest < Rung::Excerpts
}

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    if !is_wanted(&view.setup.policy) {
        return;
    }
    let may_repeat = |piece: &&Piece| piece.said_again && piece.tokens >= SHORTEST && view.is_old(piece);
    // Nothing is compared with what is older than the oldest of them.
    let Some(oldest) = view.results().find(may_repeat) else { return };
    let mut standing = Standing::default();
    let newer = view.results().rev().take_while(|piece| piece.at >= oldest.at);
    for piece in newer.filter(|piece| piece.tokens >= SHORTEST) {
        let (repeats, is_source) = (may_repeat(&piece), piece.echoes && piece.at > oldest.at);
        if !repeats && !is_source {
            continue;
        }
        let text = view.text(piece);
        let hashes = piece.hashes.clone().unwrap_or_else(|| Hashes::of(text));
        if repeats && standing.has_any(&hashes) {
            proposals.extend(without_repeats(view, piece, text, &hashes, &standing));
        }
        if is_source {
            standing.add(Cow::Borrowed(text), &hashes);
        }
    }
}

/// A result without its lines that stand elsewhere.
fn without_repeats(
    view: &View<'_>,
    piece: &Piece,
    text: &str,
    hashes: &Hashes,
    standing: &Standing<'_>,
) -> Option<Proposal> {
    let lines = content::lines(text);
    let mut kept = vec![true; lines.len()];
    for run in standing.runs(text, hashes, &lines, RUN) {
        kept[run.lines].fill(false);
    }
    let count = kept.iter().filter(|&&kept| kept).count();
    if count == 0 || count == lines.len() {
        return None;
    }
    let marker = marker::excerpt(count, lines.len(), view.handle(text));
    let each = lines.iter().map(|line| &text[line.clone()]);
    let (folded, tokens) = view.assembled(&marker, text, (each, &kept), piece.lines.as_ref());
    let tokens = tokens.unwrap_or_else(|| view.setup.meter.text_of_lines(&folded));
    (tokens < piece.tokens).then_some(Proposal { at: piece.at, change: Change::Text(folded), tokens, risk: 0.0 })
}
