//! Which lines of an old text are worth keeping.
//!
//! A line is needed again for the names in it: a path, an identifier, a number. A name needs to stand
//! in the request once. So a line is worth keeping when names stand in it that stand nowhere else and
//! are likely to be used, and when that chance times the price of an unfold is above what the line
//! costs until the end of the session. Nothing else decides: no count of lines, no head and tail.

use std::ops::Range;
use std::sync::Arc;

use crate::content::{self, Kind};
use crate::conversation::PartId;
use crate::deed::Act;
use crate::lexicon::{Found, Lexicon, LongValue, Name, NameCounts};
use crate::piece::{Class, Piece};

use super::View;

/// The names that stand in a request beside some of its parts, and grow as lines of those are kept.
///
/// They are counted in the lexicon itself, which has its own counts back when this is dropped.
pub(crate) struct Cover<'l> {
    lexicon: &'l mut Lexicon,
    /// The names of the texts that were counted, and how often.
    texts: Vec<(Arc<[Name]>, i32)>,
    /// The names that stand in kept lines and nowhere else.
    kept: Vec<Name>,
    /// How often each name comes in the text that is cut.
    often: NameCounts,
}

/// A text, cut to the lines that are worth keeping.
pub(crate) struct Kept {
    pub(crate) lines: Vec<bool>,
    /// The chance that a line that was left out is needed again.
    pub(crate) chance: f64,
}

impl Drop for Cover<'_> {
    fn drop(&mut self) {
        self.let_go(0);
        for (names, by) in &self.texts {
            self.lexicon.count(names, -by);
        }
    }
}

impl<'l> Cover<'l> {
    /// What the lexicon knows to stand.
    pub(crate) fn of(lexicon: &'l mut Lexicon) -> Self {
        Self { lexicon, texts: Vec::new(), kept: Vec::new(), often: NameCounts::default() }
    }

    /// Counts the names of a text once more, or once less.
    pub(crate) fn count(&mut self, place: Option<PartId>, text: &str, by: i32) {
        let names = self.lexicon.names(place, text);
        self.lexicon.count(&names, by);
        self.texts.push((names, by));
    }

    /// Counts the names of the long values in the arguments of a call once less. Gives whether it knows them.
    pub(crate) fn count_values(&mut self, place: PartId) -> bool {
        let Some(values) = self.lexicon.values(place) else { return false };
        let names: Vec<Arc<[Name]>> = values.iter().map(|value| value.found.names()).collect();
        for names in names {
            self.lexicon.count(&names, -1);
            self.texts.push((names, -1));
        }
        true
    }

    /// The long values in the arguments of a call, if they are remembered.
    pub(crate) fn values(&self, place: PartId) -> Option<Vec<LongValue>> {
        self.lexicon.values(place).map(<[LongValue]>::to_vec)
    }

    /// Takes the names back that stand since so many were kept.
    fn let_go(&mut self, since: usize) {
        self.lexicon.count(&self.kept[since..], -1);
        self.kept.truncate(since);
    }

    /// What is found in the text of a result.
    pub(crate) fn found(&mut self, place: PartId, text: &str) -> Found {
        self.lexicon.found(place, text)
    }

    /// What is found in another text.
    pub(crate) fn find(&mut self, text: &str) -> Found {
        self.lexicon.find(text)
    }

    /// What is found in the items of JSON.
    pub(crate) fn find_in(&mut self, json: &str, items: &[Range<usize>]) -> Found {
        self.lexicon.find_in(json, Kind::Json, items.iter().cloned())
    }

    /// Chooses the lines of a text. The names in kept lines stand from now on.
    pub(crate) fn choose(&mut self, view: &View<'_>, piece: &Piece, text: &str, found: &Found) -> Kept {
        let base = base_chance(piece, view.age(piece), view.calls);
        let of_number = base * 0.1;
        let price = view.keep_price();
        let unfold = view.unfold_price(piece);
        let mut kept = vec![false; found.len()];
        let mut missed = 1.0;
        self.often.count(found);
        // Of what went wrong the lines that say so stay.
        let mut red = if piece.failed && !piece.outdated { FAILURES } else { 0 };
        // Definitions first: of the lines that name a thing, the one that defines it tells most.
        for definitions in [true, false] {
            for (at, (line, names)) in found.lines().enumerate().filter(|(_, (line, _))| line.defines == definitions) {
                let before = self.kept.len();
                let mut chance: f64 = 0.0;
                // What is new stands with this line from now on, in which it may come again.
                let familiar = self.lexicon.raise(names, |name, known| {
                    self.kept.push(name);
                    let of_name = if known.is_number() { of_number } else { base };
                    // What a text is about, it says often.
                    let of_name = of_name * f64::from(self.often.times(name)).sqrt().sqrt();
                    chance = chance.max(if known.again() { of_name * 1.4 } else { of_name }) + of_name * 0.4;
                });
                if definitions {
                    chance *= 1.8;
                }
                // What stands around a change stands in the file.
                if found.kind == Kind::Diff && line.of(text).starts_with(' ') {
                    chance *= 0.5;
                }
                if familiar {
                    chance *= 2.5;
                }
                let cost = (line.len() as f64 / 4.0 + 2.0) * price;
                let says = red > 0 && content::is_failure(line.of(text));
                red -= usize::from(says);
                kept[at] = says || chance * unfold > cost;
                if !kept[at] {
                    missed *= 1.0 - chance.min(1.0);
                    self.let_go(before);
                }
            }
        }
        Kept { lines: kept, chance: 1.0 - missed }
    }
}

/// So many lines that say what went wrong are kept of a failure.
const FAILURES: usize = 12;

/// The chance that a line of such a piece, with a name that stands nowhere else, is needed again. Shares of lines that
/// were, in recorded sessions: docs/decisions/0014.
fn base_chance(piece: &Piece, age: u32, calls: u32) -> f64 {
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
    // The longer a session has gone on, the less of what comes is news.
    let of_calls = (32.0 / f64::from(calls.max(8))).powf(0.3);
    of_source * of_length * of_calls * 16.0 / f64::from(age.max(8))
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
        base_chance(&result, 16, 32)
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
        let young = base_chance(&arguments, 8, 32);
        assert_eq!(young, base_chance(&arguments, 4, 32));
        assert_eq!(young, 2.0 * base_chance(&arguments, 16, 32));
        assert!(young > base_chance(&arguments, 8, 64));
        arguments.outdated = true;
        assert_eq!(base_chance(&arguments, 8, 32), young / 2.0);
    }
}
