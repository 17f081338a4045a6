//! Passes: pure functions that propose folds. None of them applies anything, and none depends on
//! another: removing one from [`ALL`] breaks nothing.
//!
//! A pass looks at a [`View`] and pushes [`Proposal`]s; `plan` alone decides which of them are taken.
//! To add one: a file with the idea, a line in [`ALL`], a line in the changelog.

pub(crate) mod again;
pub(crate) mod arguments;
pub(crate) mod clip;
mod cover;
mod excerpt;
pub(crate) mod json;
pub(crate) mod lines;
mod media;
pub(crate) mod prose;
mod reasoning;
mod repack;
mod repeats;
pub(crate) mod results;
pub(crate) mod rounds;
pub(crate) mod screen;

use std::cell::RefCell;
use std::ops::Range;

use crate::Handle;
use crate::conversation::{Message, Part, PartId};
use crate::folds::{self, Change};
use crate::marker;
use crate::measure::{LineCounts, Tally, Tokens};
use crate::piece::{self, Class, Piece};
use crate::plan::Rung;
use crate::setup::Setup;

pub(crate) use cover::Cover;

/// A pass: a name for statistics, its place on the ladder, and what it proposes.
pub(crate) struct Pass {
    pub(crate) name: &'static str,
    pub(crate) rung: Rung,
    pub(crate) propose: fn(&View<'_>, &mut Vec<Proposal>),
}

/// Every pass, in the order of the ladder.
pub(crate) static ALL: &[Pass] = &[
    Pass { name: "repack", rung: Rung::Repack, propose: repack::propose },
    Pass { name: "repeats", rung: Rung::Repeats, propose: repeats::propose },
    Pass { name: "lines", rung: Rung::Repeats, propose: lines::propose },
    Pass { name: "reasoning", rung: Rung::Reasoning, propose: reasoning::propose },
    Pass { name: "media", rung: Rung::Reasoning, propose: media::propose },
    Pass { name: "excerpt", rung: Rung::Excerpts, propose: excerpt::propose },
    Pass { name: "arguments", rung: Rung::Excerpts, propose: arguments::propose },
    Pass { name: "prose", rung: Rung::Excerpts, propose: prose::propose },
    Pass { name: "results", rung: Rung::Markers, propose: results::propose },
    Pass { name: "writing", rung: Rung::Writing, propose: results::propose_writing },
];

/// The passes of a rung.
pub(crate) fn of(rung: Rung) -> Vec<&'static Pass> {
    let passes = ALL.iter().filter(|pass| pass.rung == rung);
    #[cfg(test)]
    if BACKWARDS.get() {
        return passes.rev().collect();
    }
    passes.collect()
}

#[cfg(test)]
thread_local! {
    /// Whether the passes of a rung take turns the other way round: nothing that is promised may depend on it.
    pub(crate) static BACKWARDS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A fold that a pass would make.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) at: PartId,
    pub(crate) change: Change,
    /// Tokens that stand there afterwards.
    pub(crate) tokens: Tokens,
    /// What the fold is expected to cost by being asked back, at base price.
    pub(crate) risk: f64,
}

/// What a pass may look at: the messages before the crease, and what is known of them.
pub(crate) struct View<'v> {
    pub(crate) messages: &'v [Message<'v>],
    pub(crate) pieces: &'v [Piece],
    /// The pieces of messages that are not gone.
    pub(crate) alive: &'v [Alive],
    /// Index of the first piece of each message.
    pub(crate) first_piece: &'v [usize],
    pub(crate) setup: &'v Setup,
    /// Calls made so far.
    pub(crate) calls: u32,
    /// Messages before this one are left as they are.
    pub(crate) from: usize,
    /// Messages from here on are the newest round: left whole, since the model has not answered it yet.
    pub(crate) newest: usize,
    /// Messages before this one are old whatever their age, since younger ones fill their share of the
    /// budget.
    pub(crate) crowded: usize,
    /// The last message in which the user says something: before it stand finished turns.
    pub(crate) last_said: usize,
    /// Calls that are expected to come.
    pub(crate) remaining: f64,
    /// Tokens of the request as it stands.
    pub(crate) context: Tokens,
    /// By how much room is valued above its price.
    pub(crate) thrift: f64,
    /// What stands in the request, for the passes that fold what stands elsewhere.
    pub(crate) cover: RefCell<Option<Cover<'v>>>,
}

/// A piece of a message that is not gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alive {
    /// Which one.
    pub(crate) index: usize,
    /// What it is: most passes want one class, and need not look at the other pieces.
    pub(crate) class: Class,
    /// How far down the ladder it has come.
    pub(crate) rung: Option<Rung>,
}

impl<'v> View<'v> {
    /// The pieces of a class that are old enough to be folded and not folded yet at this rung.
    pub(crate) fn old(&self, class: Class, rung: Rung) -> impl DoubleEndedIterator<Item = &'v Piece> + '_ {
        let above = self.which(move |it| it.class == class && it.rung.is_none_or(|taken| taken < rung));
        above.filter(|piece| self.is_old(piece))
    }

    /// The pieces that have not come down the ladder to this rung, oldest first.
    pub(crate) fn above(&self, rung: Rung) -> impl DoubleEndedIterator<Item = &'v Piece> + use<'v> {
        self.which(move |it| it.rung.is_none_or(|taken| taken < rung))
    }

    /// The results that stand as they came, oldest first.
    pub(crate) fn results(&self) -> impl DoubleEndedIterator<Item = &'v Piece> + use<'v> {
        self.which(|it| it.class == Class::Result && it.rung.is_none())
    }

    fn which<F: Fn(&Alive) -> bool>(&self, is: F) -> impl DoubleEndedIterator<Item = &'v Piece> + use<'v, F> {
        let pieces = self.pieces;
        self.alive.iter().filter(move |it| is(it)).map(move |it| &pieces[it.index])
    }

    /// The old pieces of a class that are long enough to be cut to an excerpt, and are not cut yet.
    pub(crate) fn long(&self, class: Class) -> impl DoubleEndedIterator<Item = &'v Piece> + '_ {
        self.old(class, Rung::Excerpts).filter(|piece| match piece.class {
            Class::Arguments => self.text(piece).len() >= arguments::SHORTEST,
            _ => piece.tokens >= excerpt::SHORTEST,
        })
    }

    pub(crate) fn is_old(&self, piece: &Piece) -> bool {
        let aged = self.age(piece) >= keep(self.setup, piece) || piece.at.message < self.crowded;
        let may_change = self.from..self.newest;
        aged && may_change.contains(&piece.at.message) && !self.setup.pins.holds(piece)
    }

    /// The pieces of a range of messages.
    pub(crate) fn pieces_of(&self, messages: Range<usize>) -> &'v [Piece] {
        let index = |message: usize| self.first_piece.get(message).copied().unwrap_or(self.pieces.len());
        &self.pieces[index(messages.start)..index(messages.end)]
    }

    pub(crate) fn age(&self, piece: &Piece) -> u32 {
        self.calls - piece.call
    }

    /// The text of a piece.
    pub(crate) fn text(&self, piece: &Piece) -> &'v str {
        piece::text(self.messages, piece.at)
    }

    /// The kept lines of a text under a marker, and how many tokens that is if those of the lines are known.
    fn assembled<'t>(
        &self,
        marker: &str,
        text: &'t str,
        (lines, kept): (impl Iterator<Item = &'t str>, &[bool]),
        counts: Option<&LineCounts>,
    ) -> (String, Option<Tokens>) {
        let Some(counts) = counts else { return (clip::assemble(marker, text, lines, kept, |_, _, _| {}), None) };
        let mut tally = Tally::new(&self.setup.meter);
        let assembled = clip::assemble(marker, text, lines, kept, |before, line, number| {
            tally.line(before, line, number.and_then(|number| counts.of(number)));
        });
        let tokens = tally.of(&assembled);
        (assembled, Some(tokens))
    }

    /// The handle of a text, when markers carry handles.
    pub(crate) fn handle(&self, text: &str) -> Option<Handle> {
        self.setup.handles.then(|| Handle::of(text.as_bytes()))
    }

    /// The marker of a whole piece.
    pub(crate) fn marker(&self, piece: &Piece) -> String {
        let text = self.text(piece);
        marker::whole(text, self.handle(text))
    }

    /// The marker of an image or a file.
    pub(crate) fn media_marker(&self, piece: &Piece) -> String {
        let part = self.messages[piece.at.message].parts.get(piece.at.part);
        let part = match (part, piece.at.inner) {
            (Some(Part::ToolResult(it)), Some(inner)) => it.content.get(inner),
            (part, _) => part,
        };
        let what = match part {
            Some(Part::File(file)) => file.name.as_ref().map_or("a file".to_owned(), |name| format!("file {name}")),
            _ => "an image".to_owned(),
        };
        let handle = part.filter(|_| self.setup.handles).map(|part| Handle::of(&folds::original(part)));
        marker::thing(&what, handle)
    }

    /// What a kept token costs until the end of the session: it is written once more at this crease
    /// and read by every call to come.
    pub(crate) fn keep_price(&self) -> f64 {
        let prices = &self.setup.prices;
        (prices.write + prices.read * self.remaining) * self.thrift
    }

    /// What it costs when a piece that was folded is needed after all.
    pub(crate) fn unfold_price(&self, piece: &Piece) -> f64 {
        self.setup.prices.unfold(self.context, piece.tokens)
    }
}

/// For how many calls a piece is left whole.
pub(crate) fn keep(setup: &Setup, piece: &Piece) -> u32 {
    let policy = &setup.policy;
    if piece.stays() && !piece.outdated { policy.keep_reads } else { policy.keep_rest }
}
