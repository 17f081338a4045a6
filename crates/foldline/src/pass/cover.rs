//! Which lines of an old text are worth keeping.
//!
//! A line is needed again for the names in it: a path, an identifier, a number. A name needs to stand
//! in the request once. So a line is worth keeping when names stand in it that stand nowhere else and
//! are likely to be used, and when that chance times the price of an unfold is above what the line
//! costs until the end of the session. Nothing else decides: no count of lines, no head and tail.

use std::sync::Arc;

use crate::content::{self, Kind};
use crate::conversation::PartId;
use crate::deed::Act;
use crate::lexicon::{Lexicon, Name};
use crate::piece::{Class, Piece};

use super::View;

/// The names that stand in a request beside some of its parts, and grow as lines of those are kept.
pub(crate) struct Cover<'l> {
    lexicon: &'l mut Lexicon,
    /// How often each name stands more, or less, than the lexicon has it.
    beyond: Vec<i32>,
}

/// A text, cut to the lines that are worth keeping.
pub(crate) struct Kept {
    pub(crate) lines: Vec<bool>,
    /// The chance that a line that was left out is needed again.
    pub(crate) chance: f64,
}

impl<'l> Cover<'l> {
    /// What the lexicon knows to stand.
    pub(crate) fn of(lexicon: &'l mut Lexicon) -> Self {
        let beyond = vec![0; lexicon.len()];
        Self { lexicon, beyond }
    }

    /// Counts the names of a text once more, or once less.
    pub(crate) fn count(&mut self, place: Option<PartId>, text: &str, by: i32) {
        for name in self.names(place, text).iter() {
            self.beyond[name.number as usize] += by;
        }
    }

    /// What the text of a result is.
    pub(crate) fn kind(&self, place: PartId, text: &str) -> Kind {
        self.lexicon.kind(place, text)
    }

    fn names(&mut self, place: Option<PartId>, text: &str) -> Arc<[Name]> {
        let names = self.lexicon.names(place, text);
        self.beyond.resize(self.lexicon.len(), 0);
        names
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
        let whole = std::ptr::eq(text, view.text(piece));
        let names = self.names(whole.then_some(piece.at), text);
        let base = base_chance(piece, view.age(piece));
        let price = view.keep_price();
        let unfold = view.unfold_price(piece);
        let mut kept = vec![false; lines.len()];
        let mut missed = 1.0;
        let mut here: Vec<u32> = Vec::new();
        // Of what went wrong the lines that say so stay.
        let mut red = if piece.failed && !piece.outdated { FAILURES } else { 0 };
        let defines: Vec<bool> = lines.iter().map(|range| content::is_definition(&text[range.clone()])).collect();
        // Definitions first: of the lines that name a thing, the one that defines it tells most.
        for definitions in [true, false] {
            let mut next = 0;
            for (at, range) in lines.iter().enumerate() {
                if defines[at] != definitions {
                    continue;
                }
                next = name_at(&names, next, range.start);
                let in_line = next..name_at(&names, next, range.end);
                let line = &text[range.clone()];
                here.clear();
                let mut familiar = false;
                let mut chance: f64 = 0.0;
                for &name in &names[in_line] {
                    let known = self.lexicon.get(name);
                    familiar |= known.used > 0;
                    if known.standing + self.beyond[name.number as usize] > 0 || here.contains(&name.number) {
                        continue;
                    }
                    here.push(name.number);
                    let of_kind = if known.is_number { 0.1 } else { 1.0 };
                    let of_repetition = if known.messages > 1 { 2.0 } else { 1.0 };
                    chance = chance.max(base * of_kind * of_repetition) + base * of_kind * 0.2;
                }
                if definitions {
                    chance *= 1.8;
                }
                // What stands around a change stands in the file.
                if kind == Kind::Diff && line.starts_with(' ') {
                    chance *= 0.5;
                }
                if familiar {
                    chance *= 2.5;
                }
                let cost = (line.len() as f64 / 4.0 + 2.0) * price;
                let says = red > 0 && content::is_failure(line);
                red -= usize::from(says);
                if says || chance * unfold > cost {
                    kept[at] = true;
                    here.iter().for_each(|&number| self.beyond[number as usize] += 1);
                } else {
                    missed *= 1.0 - chance.min(1.0);
                }
            }
        }
        Kept { lines: kept, chance: 1.0 - missed }
    }
}

/// The first name at or behind a place, from the one at `from` on. It is near, most of the time.
fn name_at(names: &[Name], from: usize, place: usize) -> usize {
    let before = |name: &Name| (name.start as usize) < place;
    let near = names[from..].iter().take(NEAR).take_while(|name| before(name)).count();
    if near < NEAR { from + near } else { from + near + names[from + near..].partition_point(before) }
}

const NEAR: usize = 16;

/// So many lines that say what went wrong are kept of a failure.
const FAILURES: usize = 12;

/// The chance that a line of such a piece, with a name that stands nowhere else, is needed again. Shares of lines that
/// were, in recorded sessions: docs/decisions/0014.
fn base_chance(piece: &Piece, age: u32) -> f64 {
    // Of a long output about as much is needed as of a short one, so a line of it less; of a file, which is read as a
    // whole, more the longer it is, but not in proportion.
    let (of_source, by_length) = match (piece.class, piece.deed.as_ref().map(|done| done.deed.act)) {
        (Class::Result, Some(Act::Read)) => (0.045, 0.5),
        (Class::Result, Some(Act::Search)) => (0.019, 1.0),
        (Class::Result, Some(Act::Run)) => (0.012, 1.0),
        // The model comes back to its own work more often than to what it was shown.
        (Class::Result, Some(Act::Edit)) => (0.1, 1.0),
        (Class::Arguments, _) => (0.15, 0.0),
        _ => (0.02, 1.0),
    };
    let of_source = if piece.outdated { of_source * 0.5 } else { of_source };
    let of_length = (1000.0 / piece.tokens.max(1) as f64).powf(by_length);
    of_source * of_length * (16.0 / f64::from(age.max(8))).powf(1.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Message, Part, Role};
    use crate::measure::Meter;
    use crate::piece::{self, Open};

    /// The chance of a line of what a tool gave back, with this many lines of the same length.
    fn of_result(tool: &'static str, arguments: &'static str, lines: usize) -> f64 {
        let call = Message::new(Role::Assistant, vec![Part::call("c", tool, arguments)]);
        let result = Message::new(Role::Tool, vec![Part::result("c", "src/value.rs and more of it\n".repeat(lines))]);
        let (mut open, meter) = (Open::new(), Meter::by_bytes());
        let [_, result] = [call, result].map(|message| piece::pieces(0, &message, 0, &mut open, &meter).remove(0));
        base_chance(&result, 16)
    }

    /// Ten times as many hits, and about as many of them are needed: each has a tenth of the chance.
    #[test]
    fn a_line_of_a_long_output_is_needed_less_than_one_of_a_short_one() {
        let hits = |lines| of_result("grep", r#"{"pattern":"value"}"#, lines);
        let read = |lines| of_result("read_file", r#"{"path":"a.rs"}"#, lines);
        assert!((hits(20) / hits(200) - 10.0).abs() < 0.5, "{} {}", hits(20), hits(200));
        // A file that is ten times as long is needed more often, but not ten times as often.
        assert!((2.0..5.0).contains(&(read(20) / read(200))), "{} {}", read(20), read(200));
    }

    #[test]
    fn the_chance_falls_with_age_and_is_halved_by_a_newer_word() {
        let mut arguments = piece::pieces(
            0,
            &Message::new(Role::Assistant, vec![Part::call("c", "bash", r#"{"command":"make all"}"#)]),
            0,
            &mut Open::new(),
            &Meter::by_bytes(),
        )
        .remove(0);
        let young = base_chance(&arguments, 8);
        assert_eq!(young, base_chance(&arguments, 4));
        assert!(young > 2.0 * base_chance(&arguments, 16));
        arguments.outdated = true;
        assert_eq!(base_chance(&arguments, 8), young / 2.0);
    }
}
