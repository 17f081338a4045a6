//! A whole conversation, folded: what is sent, what was folded, and why.
//!
//! It only tells; every decision was the state's.

use serde::Serialize;

use crate::conversation::{Conversation, Message, PartId};
use crate::engine::archive::{OriginalStore, StoreError};
use crate::engine::handle::Handle;
use crate::engine::marker;
use crate::engine::overlay::{AppliedFold, RenderedItem, RoundNote};
use crate::engine::planner::Stage;
use crate::engine::state::{Crease, FoldState};
use crate::tokens::Tokens;
use crate::wire::RequestEdit;

/// A whole conversation, folded.
#[derive(Clone)]
pub struct FoldedConversation {
    /// Tokens of what is sent.
    pub tokens: Tokens,
    /// Tokens of what came.
    pub raw_tokens: Tokens,
    /// Every crease, oldest first.
    pub creases: Vec<Crease>,
    pub(crate) state: FoldState,
    pub(crate) alternate_roles: bool,
}

/// One fold, in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FoldStats {
    /// Which part.
    pub part: PartId,
    /// What it was.
    pub description: String,
    /// The pass that proposed it.
    pub pass: &'static str,
    /// The rung of the ladder.
    pub stage: Stage,
    /// Tokens before.
    pub tokens_before: Tokens,
    /// Tokens after.
    pub tokens_after: Tokens,
}

impl FoldedConversation {
    /// The first message of the newest round.
    pub(crate) fn newest_round_start(&self) -> usize {
        self.state.newest_round_start()
    }

    /// Whether nothing is folded.
    pub fn is_unchanged(&self) -> bool {
        self.state.folds.is_empty()
    }

    /// What is needed to go on from here with [`skip_to_next_document`](crate::skip_to_next_document), and no more.
    pub fn into_state(mut self) -> FoldState {
        self.state.identifiers.release_caches();
        self.state
    }

    /// The deepest rung that was spent.
    pub fn deepest_stage(&self) -> Option<Stage> {
        let parts = self.state.folds.visible_parts().map(|(_, fold)| fold.stage);
        parts.chain(self.state.folds.notes().map(|(_, note)| note.stage)).max()
    }

    /// The tokens that went with whole rounds at the last rung, and the handle of the newest of them.
    pub(crate) fn truncated_rounds(&self) -> Option<(Tokens, Option<Handle>)> {
        let notes = self.state.folds.notes().map(|(_, note)| note);
        let notes: Vec<&RoundNote> = notes.filter(|note| note.stage == Stage::Truncation).collect();
        let rounds = notes.iter().flat_map(|note| &note.rounds);
        let pieces = rounds.flat_map(|&(start, end)| self.state.segments_of(start..end));
        let dropped = pieces.map(|piece| piece.tokens).sum();
        notes.last().map(|note| (dropped, marker::handles(&note.text).next()))
    }

    /// Every fold that stands, one after the other.
    pub fn fold_stats(&self) -> Vec<FoldStats> {
        let part = |(at, fold): (PartId, &AppliedFold)| {
            let piece = self.state.segment(at)?;
            let (before, after) = (piece.tokens, fold.tokens);
            Some(FoldStats {
                part: at,
                description: piece.description(),
                pass: fold.pass_name,
                stage: fold.stage,
                tokens_before: before,
                tokens_after: after,
            })
        };
        let note = |(at, note): (usize, &RoundNote)| {
            let pieces = note.rounds.iter().flat_map(|&(start, end)| self.state.segments_of(start..end));
            let before = pieces.map(|piece| piece.tokens).sum();
            let what = format!("{} rounds from message {at} on", note.rounds.len());
            let at = PartId::new(at, 0);
            FoldStats {
                part: at,
                description: what,
                pass: note.pass_name(),
                stage: note.stage,
                tokens_before: before,
                tokens_after: self.state.message_tokens[at.message],
            }
        };
        let mut all: Vec<FoldStats> = self.state.folds.visible_parts().filter_map(part).collect();
        all.extend(self.state.folds.notes().map(note));
        all.sort_by_key(|explained| explained.part);
        all
    }

    /// The pass that proposed each fold that stands.
    pub(crate) fn pass_names(&self) -> impl Iterator<Item = &'static str> {
        let folds = &self.state.folds;
        folds.visible_parts().map(|(_, fold)| fold.pass_name).chain(folds.notes().map(|(_, note)| note.pass_name()))
    }

    /// Hands the originals of all that is folded to an archive, unless it was given all of them before.
    pub(crate) fn store_originals(
        &mut self,
        conversation: &Conversation<'_>,
        keep: &dyn OriginalStore,
    ) -> Result<(), StoreError> {
        let all = (self.creases.len(), self.state.folds.len());
        if self.state.archived_counts != all {
            self.state.store_originals(&conversation.messages, keep)?;
            self.state.archived_counts = all;
        }
        Ok(())
    }

    /// The edits that turn the request, from which the conversation was read, into what is sent.
    pub fn edits(&self, conversation: &Conversation<'_>) -> Vec<RequestEdit> {
        self.state.folds.request_edits(&conversation.messages, self.alternate_roles)
    }

    /// The messages as they are to be sent.
    pub fn messages<'m>(&self, conversation: &Conversation<'m>) -> Vec<Message<'m>> {
        let sequence = self.state.folds.render_order(&conversation.messages, 0, self.alternate_roles);
        let render = |rendered: RenderedItem<'_>| match rendered {
            RenderedItem::Message(at) => self.state.folds.render_message(at, &conversation.messages[at]),
            RenderedItem::Note(role, text) => Message::text(role, text.to_owned()),
        };
        sequence.into_iter().map(render).collect()
    }
}
