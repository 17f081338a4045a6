//! Records of decided folds: what another proxy, or a later version, needs to render a conversation in the same way.
//!
//! A record holds positions and new text; the text that a fold keeps is copied from the messages. Data only: `adopt`
//! writes, checks and applies records.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conversation::PartId;
use crate::engine::crease::Crease;
use crate::engine::handle::Handle;
use crate::engine::original::RoundsHash;
use crate::engine::overlay::{FoldSet, PartEdit, RoundNote};
use crate::engine::stage::Stage;
use crate::engine::text_delta::TextDelta;

/// The folds that are new at a request point: those since the record before it.
///
/// Records are made by [`FoldedRequest::new_record`](crate::FoldedRequest::new_record), stored by the caller, and given to
/// later folds in [`Ledger::records`](crate::Ledger::records).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldRecord {
    /// Hash of the facts and options on which the folds depend, besides the decision rules.
    pub(crate) basis: u64,
    /// Request point of the record before.
    pub(crate) after: Option<usize>,
    pub(crate) creases: Vec<Crease>,
    pub(crate) parts: Vec<PartRecord>,
    /// Newly dropped messages.
    pub(crate) dropped: Vec<Range<usize>>,
    pub(crate) notes: Vec<NoteRecord>,
}

impl FoldRecord {
    /// Returns the hash of the facts and options on which the folds depend: a request point has at most one record for
    /// each.
    pub fn basis(&self) -> u64 {
        self.basis
    }
}

/// The fold of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartRecord {
    pub(crate) at: PartId,
    pub(crate) stage: Stage,
    pub(crate) pass: String,
    pub(crate) edit: EditRecord,
}

/// The edit of a part, as its difference from the original.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EditRecord {
    Text(TextDelta),
    Arguments(TextDelta),
    Drop,
}

/// A note; its hash is computed from the messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NoteRecord {
    text: String,
    pub(crate) messages: Range<usize>,
    round_count: usize,
    tool_counts: BTreeMap<String, usize>,
    pub(crate) result_handles: Vec<(PartId, Handle)>,
    stage: Stage,
    continuation: Option<String>,
    summarized_until: Option<usize>,
}

/// The last record of a state, and what changed since.
#[derive(Clone, Default)]
pub(crate) struct LastRecord {
    /// Request point of the record.
    pub(crate) point: Option<usize>,
    /// Numbers of creases and folded parts. Every fold increases one of them.
    pub(crate) counts: (usize, usize),
    /// Messages whose folds may have changed since.
    pub(crate) changed: BTreeSet<usize>,
    /// The folds of those messages in the record.
    pub(crate) folds: FoldSet,
}

impl LastRecord {
    /// Notes that the folds of a message are about to change from these.
    pub(crate) fn note_change(&mut self, at: usize, folds: &FoldSet) {
        if self.changed.insert(at) {
            self.folds.copy_message(folds, at);
        }
    }
}

impl EditRecord {
    pub(crate) fn new(edit: &PartEdit, original: &str) -> Self {
        match edit {
            PartEdit::Text(text) => Self::Text(TextDelta::new(text, original)),
            PartEdit::Arguments(arguments) => Self::Arguments(TextDelta::new(arguments, original)),
            PartEdit::Drop => Self::Drop,
        }
    }

    /// Returns the edit; `None` if it does not belong to this original.
    pub(crate) fn edit_of(&self, original: &str) -> Option<PartEdit> {
        Some(match self {
            Self::Text(delta) => PartEdit::Text(delta.text(original)?),
            Self::Arguments(delta) => PartEdit::Arguments(delta.text(original)?),
            Self::Drop => PartEdit::Drop,
        })
    }
}

impl From<&RoundNote> for NoteRecord {
    fn from(note: &RoundNote) -> Self {
        let RoundNote { text, messages, round_count, tool_counts, stage, continuation, summarized_until, .. } =
            note.clone();
        let result_handles = note.result_handles.iter().map(|(&at, &handle)| (at, handle)).collect();
        Self { text, messages, round_count, tool_counts, result_handles, stage, continuation, summarized_until }
    }
}

impl NoteRecord {
    /// Returns the note.
    pub(crate) fn with_hash(&self, hash: RoundsHash) -> RoundNote {
        let Self { text, messages, round_count, tool_counts, stage, continuation, summarized_until, .. } = self.clone();
        let result_handles = self.result_handles.iter().copied().collect();
        let hash = Some(hash);
        RoundNote {
            text,
            messages,
            round_count,
            hash,
            tool_counts,
            result_handles,
            stage,
            continuation,
            summarized_until,
        }
    }
}
