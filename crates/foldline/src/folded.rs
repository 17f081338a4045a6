//! A whole conversation, folded: what is sent, what was folded, and why.
//!
//! It only tells; every decision was the state's.

use serde::Serialize;

use crate::conversation::{Conversation, Message, PartId};
use crate::fold::{Crease, State};
use crate::folds::{Fold, Note, Rendered};
use crate::handle::Handle;
use crate::keep::{Keep, KeepError};
use crate::marker;
use crate::measure::Tokens;
use crate::plan::Rung;
use crate::wire::Edit;

/// A whole conversation, folded.
#[derive(Clone)]
pub struct Folded {
    /// Tokens of what is sent.
    pub tokens: Tokens,
    /// Tokens of what came.
    pub raw_tokens: Tokens,
    /// Every crease, oldest first.
    pub creases: Vec<Crease>,
    pub(crate) state: State,
    pub(crate) alternate: bool,
}

/// One fold, in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explained {
    /// Which part.
    pub at: PartId,
    /// What it was.
    pub what: String,
    /// The pass that proposed it.
    pub pass: &'static str,
    /// The rung of the ladder.
    pub rung: Rung,
    /// Tokens before.
    pub before: Tokens,
    /// Tokens after.
    pub after: Tokens,
}

impl Folded {
    /// The first message of the newest round.
    pub(crate) fn newest_round(&self) -> usize {
        self.state.newest_round()
    }

    /// Whether nothing is folded.
    pub fn is_untouched(&self) -> bool {
        self.state.folds.is_empty()
    }

    /// What is needed to go on from here with [`resume`](crate::resume), and no more.
    pub fn into_state(mut self) -> State {
        self.state.lexicon.rest();
        self.state
    }

    /// The deepest rung that was spent.
    pub fn deepest(&self) -> Option<Rung> {
        let parts = self.state.folds.parts().map(|(_, fold)| fold.rung);
        parts.chain(self.state.folds.notes().map(|(_, note)| note.rung)).max()
    }

    /// The tokens that went with whole rounds at the last rung, and the handle of the newest of them.
    pub(crate) fn truncated(&self) -> Option<(Tokens, Option<Handle>)> {
        let notes = self.state.folds.notes().map(|(_, note)| note);
        let notes: Vec<&Note> = notes.filter(|note| note.rung == Rung::Truncation).collect();
        let rounds = notes.iter().flat_map(|note| &note.rounds);
        let pieces = rounds.flat_map(|&(start, end)| self.state.pieces_of(start..end));
        let dropped = pieces.map(|piece| piece.tokens).sum();
        notes.last().map(|note| (dropped, marker::handles(&note.text).next()))
    }

    /// Every fold that stands, one after the other.
    pub fn explain(&self) -> Vec<Explained> {
        let part = |(at, fold): (PartId, &Fold)| {
            let piece = self.state.piece(at)?;
            let (before, after) = (piece.tokens, fold.tokens);
            Some(Explained { at, what: piece.words(), pass: fold.pass, rung: fold.rung, before, after })
        };
        let note = |(at, note): (usize, &Note)| {
            let pieces = note.rounds.iter().flat_map(|&(start, end)| self.state.pieces_of(start..end));
            let before = pieces.map(|piece| piece.tokens).sum();
            let what = format!("{} rounds from message {at} on", note.rounds.len());
            let at = PartId::new(at, 0);
            Explained { at, what, pass: note.pass(), rung: note.rung, before, after: self.state.tokens[at.message] }
        };
        let mut all: Vec<Explained> = self.state.folds.parts().filter_map(part).collect();
        all.extend(self.state.folds.notes().map(note));
        all.sort_by_key(|explained| explained.at);
        all
    }

    /// The pass that proposed each fold that stands.
    pub(crate) fn passes(&self) -> impl Iterator<Item = &'static str> {
        let folds = &self.state.folds;
        folds.parts().map(|(_, fold)| fold.pass).chain(folds.notes().map(|(_, note)| note.pass()))
    }

    /// Hands the originals of all that is folded to an archive, unless it was given all of them before.
    pub(crate) fn keep(&mut self, conversation: &Conversation<'_>, keep: &dyn Keep) -> Result<(), KeepError> {
        let all = (self.creases.len(), self.state.folds.len());
        if self.state.kept != all {
            self.state.keep(&conversation.messages, keep)?;
            self.state.kept = all;
        }
        Ok(())
    }

    /// The edits that turn the request, from which the conversation was read, into what is sent.
    pub fn edits(&self, conversation: &Conversation<'_>) -> Vec<Edit> {
        self.state.folds.edits(&conversation.messages, self.alternate)
    }

    /// The messages as they are to be sent.
    pub fn messages<'m>(&self, conversation: &Conversation<'m>) -> Vec<Message<'m>> {
        let sequence = self.state.folds.sequence(&conversation.messages, 0, self.alternate);
        let render = |rendered: Rendered<'_>| match rendered {
            Rendered::Message(at) => self.state.folds.render(at, &conversation.messages[at]),
            Rendered::Note(role, text) => Message::text(role, text.to_owned()),
        };
        sequence.into_iter().map(render).collect()
    }
}
