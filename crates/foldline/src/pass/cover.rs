//! Which lines of an old text are worth keeping.
//!
//! A line is needed again for the names in it: a path, an identifier, a number. A name needs to stand
//! in the request once. So a line is worth keeping when names stand in it that stand nowhere else and
//! are likely to be used, and when that chance times the price of an unfold is above what the line
//! costs until the end of the session. Nothing else decides: no count of lines, no head and tail.

use crate::content::{self, Atom, AtomKind, Kind};
use crate::deed::Act;
use crate::lexicon::{ByName, Lexicon};
use crate::piece::{Class, Piece};

use super::View;

/// The names that stand in a request beside some of its parts, and grow as lines of those are kept.
pub(crate) struct Cover<'l> {
    lexicon: &'l Lexicon,
    /// How often names stand more, or less, than the lexicon has it.
    beyond: ByName<i32>,
}

/// A text, cut to the lines that are worth keeping.
pub(crate) struct Kept {
    pub(crate) lines: Vec<bool>,
    /// The chance that a line that was left out is needed again.
    pub(crate) chance: f64,
}

impl<'l> Cover<'l> {
    /// What the lexicon knows to stand.
    pub(crate) fn of(lexicon: &'l Lexicon) -> Self {
        Self { lexicon, beyond: ByName::default() }
    }

    /// Counts the names of a text once more, or once less.
    pub(crate) fn count(&mut self, text: &str, by: i32) {
        content::atoms(text, |atom, _| *self.beyond.entry(atom.key).or_default() += by);
    }

    /// Chooses the lines of a text. The names in kept lines stand from now on.
    pub(crate) fn choose(
        &mut self,
        view: &View<'_>,
        piece: &Piece,
        text: &str,
        lines: &[std::ops::Range<usize>],
        kind: Kind,
    ) -> Kept {
        let base = base_chance(piece, view.age(piece));
        let price = view.keep_price();
        let unfold = view.unfold_price(piece);
        let mut kept = vec![false; lines.len()];
        let mut missed = 1.0;
        let mut here: Vec<u64> = Vec::new();
        // Of what went wrong the lines that say so stay.
        let mut red = if piece.failed && !piece.outdated { FAILURES } else { 0 };
        // Definitions first: of the lines that name a thing, the one that defines it tells most.
        for definitions in [true, false] {
            for (at, range) in lines.iter().enumerate() {
                let line = &text[range.clone()];
                if kept[at] || content::is_definition(line) != definitions {
                    continue;
                }
                here.clear();
                let mut familiar = false;
                let mut chance: f64 = 0.0;
                content::atoms(line, |Atom { key, kind }, _| {
                    let known = self.lexicon.get(key);
                    familiar |= known.used > 0;
                    let beyond = self.beyond.get(&key).copied().unwrap_or(0);
                    if known.standing + beyond > 0 || here.contains(&key) {
                        return;
                    }
                    here.push(key);
                    let of_kind = match kind {
                        AtomKind::Number => 0.1,
                        AtomKind::Path | AtomKind::Dotted | AtomKind::Identifier => 1.0,
                    };
                    let of_repetition = if known.messages > 1 { 1.5 } else { 1.0 };
                    chance = chance.max(base * of_kind * of_repetition) + base * of_kind * 0.2;
                });
                if definitions {
                    chance *= 1.8;
                }
                // What stands around a change stands in the file.
                if kind == Kind::Diff && line.starts_with(' ') {
                    chance *= 0.5;
                }
                if familiar {
                    chance *= 1.6;
                }
                let cost = (line.len() as f64 / 4.0 + 2.0) * price;
                let says = red > 0 && content::is_failure(line);
                red -= usize::from(says);
                if says || chance * unfold > cost {
                    kept[at] = true;
                    here.iter().for_each(|&key| *self.beyond.entry(key).or_default() += 1);
                } else {
                    missed *= 1.0 - chance.min(1.0);
                }
            }
        }
        Kept { lines: kept, chance: 1.0 - missed }
    }
}

/// So many lines that say what went wrong are kept of a failure.
const FAILURES: usize = 12;

/// The chance that a line of such a piece, with a name that stands nowhere else, is needed again.
fn base_chance(piece: &Piece, age: u32) -> f64 {
    let of_source = match (piece.class, piece.deed.as_ref().map(|done| done.deed.act)) {
        (Class::Result, Some(Act::Read)) => 0.045,
        (Class::Result, Some(Act::Search)) => 0.019,
        (Class::Result, Some(Act::Run)) => 0.012,
        (Class::Result, _) => 0.02,
        (Class::Arguments, _) => 0.02,
        _ => 0.02,
    };
    let of_source = if piece.outdated { of_source * 0.5 } else { of_source };
    of_source * (16.0 / f64::from(age.max(8))).powf(0.5)
}
