//! The result of a fold: the rendering, the folds and the creases.
//!
//! Read-only: every decision was made by the state.

use serde::Serialize;

use crate::conversation::{Conversation, Message, PartId};
use crate::engine::archive::{OriginalStore, StoreError};
use crate::engine::crease::Crease;
use crate::engine::handle::Handle;
use crate::engine::marker;
use crate::engine::options::FoldOptions;
use crate::engine::overlay::{AppliedFold, RefusedParts, RenderedItem, RoundNote};
use crate::engine::stage::Stage;
use crate::engine::state::FoldState;
use crate::tokens::Tokens;
use crate::wire::RequestEdit;

/// A folded conversation.
#[derive(Clone, Debug)]
pub struct FoldedConversation {
    /// Tokens of the rendering.
    pub tokens: Tokens,
    /// Tokens of the original conversation.
    pub raw_tokens: Tokens,
    /// All creases, oldest first.
    pub creases: Vec<Crease>,
    state: FoldState,
    alternate_roles: bool,
    has_handles: bool,
}

/// Statistics of one fold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FoldStats {
    /// Folded part; for dropped rounds, the first part of the first message.
    pub part: PartId,
    /// Description of the original.
    pub description: String,
    /// Pass that proposed the fold.
    pub pass: &'static str,
    /// Stage at which it was folded.
    pub stage: Stage,
    /// Tokens of the original.
    pub tokens_before: Tokens,
    /// Tokens of the replacement.
    pub tokens_after: Tokens,
}

impl FoldedConversation {
    /// Creates the result of a fold from its last state.
    pub(crate) fn new(state: FoldState, options: &FoldOptions) -> Self {
        Self {
            tokens: state.totals.rendered() + options.overhead_tokens,
            raw_tokens: state.totals.raw() + options.overhead_tokens,
            creases: state.creases.clone(),
            state,
            alternate_roles: options.alternate_roles,
            has_handles: options.handles,
        }
    }

    /// Returns the first message of the newest round.
    pub(crate) fn newest_round_start(&self) -> usize {
        self.state.rounds.newest_start()
    }

    /// Returns the state of the fold.
    pub(crate) fn state(&self) -> &FoldState {
        &self.state
    }

    /// Returns true if nothing is folded.
    pub fn is_unchanged(&self) -> bool {
        self.state.folds.is_empty()
    }

    /// Returns the state from which [`resume`](crate::resume) continues, without its caches.
    pub fn into_state(mut self) -> FoldState {
        self.state.identifiers.release_caches();
        self.state
    }

    /// Returns true if markers carry handles.
    pub(crate) fn has_handles(&self) -> bool {
        self.has_handles
    }

    /// Records that all folds are in a record of the newest request point.
    pub(crate) fn set_recorded(&mut self) {
        let point = self.state.len();
        self.state.set_recorded(point);
    }

    /// Returns the deepest stage used.
    pub fn deepest_stage(&self) -> Option<Stage> {
        let parts = self.state.folds.visible_parts().map(|(_, fold)| fold.stage);
        parts.chain(self.state.folds.notes().map(|(_, note)| note.stage)).max()
    }

    /// Returns the tokens of rounds dropped at the truncation stage, and the handle of the newest of them.
    pub(crate) fn truncated_rounds(&self) -> Option<(Tokens, Option<Handle>)> {
        let notes = self.state.folds.notes().map(|(_, note)| note);
        let notes: Vec<&RoundNote> = notes.filter(|note| note.stage == Stage::Truncation).collect();
        let segments = notes.iter().flat_map(|note| self.state.segments.of_messages(note.messages.clone()));
        let dropped = segments.map(|segment| segment.tokens).sum();
        notes.last().map(|note| (dropped, marker::handles(&note.text).next()))
    }

    /// Returns the statistics of every fold in the rendering, in order.
    pub fn fold_stats(&self) -> Vec<FoldStats> {
        let part = |(at, fold): (PartId, &AppliedFold)| {
            let segment = self.state.segments.get(at)?;
            let (before, after) = (segment.tokens, fold.tokens);
            Some(FoldStats {
                part: at,
                description: segment.description(),
                pass: fold.pass_name,
                stage: fold.stage,
                tokens_before: before,
                tokens_after: after,
            })
        };
        let note = |(at, note): (usize, &RoundNote)| {
            let segments = self.state.segments.of_messages(note.messages.clone());
            let before = segments.iter().map(|segment| segment.tokens).sum();
            let what = format!("{} rounds from message {at} on", note.round_count);
            let at = PartId::new(at, 0);
            FoldStats {
                part: at,
                description: what,
                pass: note.pass_name(),
                stage: note.stage,
                tokens_before: before,
                tokens_after: self.state.totals.by_message()[at.message],
            }
        };
        let mut all: Vec<FoldStats> = self.state.folds.visible_parts().filter_map(part).collect();
        all.extend(self.state.folds.notes().map(note));
        all.sort_by_key(|stats| stats.part);
        all
    }

    /// Returns the pass that proposed each fold in the rendering.
    pub(crate) fn pass_names(&self) -> impl Iterator<Item = &'static str> {
        let folds = &self.state.folds;
        folds.visible_parts().map(|(_, fold)| fold.pass_name).chain(folds.notes().map(|(_, note)| note.pass_name()))
    }

    /// Writes the originals of all folds to a store, unless all of them were stored before. Returns the parts whose
    /// originals the store refuses.
    pub(crate) fn store_originals(
        &mut self,
        conversation: &Conversation<'_>,
        store: &dyn OriginalStore,
    ) -> Result<RefusedParts, StoreError> {
        let counts = self.state.fold_counts();
        if self.state.archived_counts == counts {
            return Ok(RefusedParts::default());
        }
        let refused = self.state.store_originals(&conversation.messages, store)?;
        if refused.is_empty() {
            self.state.archived_counts = counts;
        }
        Ok(refused)
    }

    /// Returns the edits that turn the request from which the conversation was parsed into the folded request.
    pub fn edits(&self, conversation: &Conversation<'_>) -> Vec<RequestEdit> {
        self.state.folds.request_edits(&conversation.messages, self.alternate_roles)
    }

    /// Returns the messages to send.
    pub fn messages<'m>(&self, conversation: &Conversation<'m>) -> Vec<Message<'m>> {
        let sequence = self.state.folds.render_order(&conversation.messages, 0, self.alternate_roles);
        let render = |rendered: RenderedItem<'_>| match rendered {
            RenderedItem::Message(at) => self.state.folds.render_message(at, &conversation.messages[at]),
            RenderedItem::Note(role, text) => Message::text(role, text.to_owned()),
        };
        sequence.into_iter().map(render).collect()
    }
}
