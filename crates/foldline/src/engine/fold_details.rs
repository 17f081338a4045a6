//! What a folded request contains, for people: each fold with its tool, target and marker, and tokens by kind.
//!
//! Read-only: nothing here influences a fold.

use serde::Serialize;

use crate::conversation::PartId;
use crate::engine::apply::FoldedRequest;
use crate::engine::handle::Handle;
use crate::engine::marker;
use crate::engine::overlay::PartEdit;
use crate::engine::rendering::FoldStats;
use crate::engine::segment::SegmentKind;
use crate::tokens::Tokens;

/// A fold, described for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FoldDetail {
    /// Folded part; for dropped rounds, the first part of the first message.
    pub part: PartId,
    /// Handle of the original, if an archive holds it.
    pub handle: Option<Handle>,
    /// Tool of the folded call or result.
    pub tool: Option<String>,
    /// File, command or query of the call; otherwise a description.
    pub target: String,
    /// Pass that proposed the fold.
    pub pass: &'static str,
    /// Tokens of the original.
    pub tokens_before: Tokens,
    /// Tokens of the replacement.
    pub tokens_after: Tokens,
    /// Text that replaces the original; empty if the part is removed.
    pub marker: String,
}

/// Tokens of a request's messages as sent, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TokenBreakdown {
    /// User messages.
    pub user: Tokens,
    /// Markers, excerpts and notes that replace originals.
    pub folded: Tokens,
    /// All messages.
    pub messages: Tokens,
}

impl FoldedRequest {
    /// Returns every fold of the request, described for people, in order.
    pub fn fold_details(&self) -> Vec<FoldDetail> {
        let Some(folded) = &self.folded else { return Vec::new() };
        let state = folded.state();
        let texts = state.folds.visible_parts().filter(|(at, _)| state.segments.get(*at).is_some());
        let texts = texts.map(|(at, fold)| match &fold.edit {
            PartEdit::Text(text) | PartEdit::Arguments(text) => (at, text.as_str()),
            PartEdit::Drop => (at, ""),
        });
        let notes = state.folds.notes().map(|(at, note)| (PartId::new(at, 0), note.text.as_str()));
        let mut markers: Vec<(PartId, &str)> = texts.chain(notes).collect();
        markers.sort_by_key(|(at, _)| *at);
        // Both lists have the same folds in the same order.
        let folds = folded.fold_stats().into_iter().zip(markers);
        let detail = |(stats, (_, text)): (FoldStats, (PartId, &str))| {
            let is_note = state.folds.note(stats.part.message).is_some_and(|note| note.text == text);
            let call =
                state.segments.get(stats.part).filter(|_| !is_note).and_then(|segment| segment.tool_call.as_ref());
            let target = call.map(|call| call.action.target.clone()).filter(|target| !target.is_empty());
            FoldDetail {
                part: stats.part,
                handle: marker::handles(text).next(),
                tool: call.map(|call| call.tool.clone()),
                target: target.unwrap_or(stats.description),
                pass: stats.pass,
                tokens_before: stats.tokens_before,
                tokens_after: stats.tokens_after,
                marker: text.to_owned(),
            }
        };
        folds.map(detail).collect()
    }

    /// Returns true if a message at or after this position has folds.
    pub fn has_ingest_folds(&self, from: usize) -> bool {
        let first = PartId::new(from, 0);
        self.folded.as_ref().is_some_and(|folded| folded.state().folds.visible_parts().any(|(at, _)| at >= first))
    }

    /// Returns the tokens of the messages as sent, by kind.
    pub fn token_breakdown(&self) -> TokenBreakdown {
        let Some(state) = self.state() else { return TokenBreakdown::default() };
        let is_user = |kind: SegmentKind| kind == SegmentKind::InputText;
        let live = state.segments.as_slice().iter().filter(|segment| {
            is_user(segment.kind)
                && !state.folds.is_dropped(segment.at.message)
                && state.folds.stage(segment.at).is_none()
        });
        let parts = state.folds.visible_parts().map(|(_, fold)| fold.tokens);
        let notes = state.folds.notes().map(|(at, _)| state.totals.by_message().get(at).copied().unwrap_or_default());
        TokenBreakdown {
            user: live.map(|segment| segment.tokens).sum(),
            folded: parts.chain(notes).sum(),
            messages: state.totals.rendered(),
        }
    }
}
