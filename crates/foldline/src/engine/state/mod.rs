//! The state of a fold: everything that decisions depend on, and the folds decided so far.
//!
//! A state grows message by message and holds no text except that of markers and excerpts. Nothing is planned here:
//! `ingest` adds messages, and [`decide`](crate::engine::decide) decides at request points.

pub(crate) mod failure;
mod ingest;
pub(crate) mod results;
pub(crate) mod rounds;
pub(crate) mod segments;
pub(crate) mod totals;

use std::fmt;

use crate::conversation::Message;
use crate::engine::archive::{Original, OriginalStore, StoreError};
use crate::engine::crease::Crease;
use crate::engine::handle::Handle;
use crate::engine::identifiers::index::IdentifierIndex;
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::overlay::{FoldSet, RefusedParts, RemovedOriginal};
use crate::engine::record::LastRecord;
use crate::engine::schedule::CreaseSchedule;
use crate::engine::segment::SegmentKind;
use crate::engine::state::failure::FailedPlan;
use crate::engine::state::results::ResultIndex;
use crate::engine::state::rounds::RoundTable;
use crate::engine::state::segments::SegmentTable;
use crate::engine::state::totals::TokenTotals;
use crate::error::{Error, ErrorKind};
use crate::tokens::Tokens;

/// The state of a fold after some messages. Holds no text except that of markers and excerpts.
#[derive(Clone, Default)]
pub struct FoldState {
    pub(crate) segments: SegmentTable,
    pub(crate) rounds: RoundTable,
    pub(crate) totals: TokenTotals,
    pub(crate) results: ResultIndex,
    pub(crate) identifiers: IdentifierIndex,
    pub(crate) schedule: CreaseSchedule,
    pub(crate) folds: FoldSet,
    pub(crate) creases: Vec<Crease>,
    pub(crate) last_record: LastRecord,
    /// The last plan that could not fit.
    pub(crate) failed_plan: Option<FailedPlan>,
    /// Numbers of creases and folded parts when the originals were last stored. Every fold increases one of them.
    pub(crate) archived_counts: (usize, usize),
}

impl fmt::Debug for FoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoldState")
            .field("messages", &self.len())
            .field("creases", &self.creases.len())
            .finish_non_exhaustive()
    }
}

impl FoldState {
    /// Returns the number of messages ingested.
    pub fn len(&self) -> usize {
        self.totals.by_message().len()
    }

    /// Returns true if no message was ingested.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers of creases and of folded parts.
    pub(crate) fn fold_counts(&self) -> (usize, usize) {
        (self.creases.len(), self.folds.len())
    }

    /// Returns true if the messages continue those of this state: the last decision assumed that the model answers.
    pub(crate) fn is_continued_by(&self, messages: &[Message<'_>], options: &FoldOptions) -> bool {
        let seen = self.len();
        seen == 0
            || messages.get(seen).is_none_or(|next| options.has_request_point_before(next, messages[..seen].last()))
    }

    /// Returns a lower bound of the tokens of any rendering: verbatim texts, and the calls and prose of the newest round,
    /// which no plan changes.
    pub(crate) fn fixed_tokens(&self) -> Tokens {
        let newest = self.segments.of_messages(self.rounds.newest_start()..self.len()).iter();
        let fixed = newest.filter(|segment| matches!(segment.kind, SegmentKind::Arguments | SegmentKind::Prose));
        self.totals.verbatim() + fixed.map(|segment| segment.tokens).sum::<Tokens>()
    }

    /// Returns the error of the request with this many messages, if it could not fit.
    pub(crate) fn failure_at(&self, request_point: usize) -> Option<&Error> {
        self.failed_plan.as_ref().filter(|failed| failed.request_point == request_point).map(|failed| &failed.error)
    }

    /// Returns true if the request with this many messages could not fit into another budget than that of now.
    pub(crate) fn has_failed_at_another_budget(
        &self,
        request_point: usize,
        options: &FoldOptions,
        ledger: &Ledger,
    ) -> bool {
        let now = ledger.budget_at(request_point, options);
        self.failure_at(request_point)
            .is_some_and(|error| !matches!(error.kind(), ErrorKind::CannotFit { budget, .. } if *budget == now))
    }

    /// Writes the originals of all folds to a store. Returns the parts whose originals the store refuses.
    pub(crate) fn store_originals(
        &self,
        messages: &[Message<'_>],
        store: &dyn OriginalStore,
    ) -> Result<RefusedParts, StoreError> {
        let removed = self.folds.removed_originals(messages);
        let metadata = |original: &RemovedOriginal<'_>| {
            let segment = self.segments.get(original.at).filter(|_| original.rounds.is_none());
            let call = segment.and_then(|segment| segment.tool_call.as_ref());
            let in_rounds = original.rounds.iter().flat_map(|round| self.segments.of_messages(round.clone()));
            let tokens = segment.into_iter().chain(in_rounds).map(|segment| segment.tokens).sum();
            (
                Handle::for_content(&original.bytes),
                call.map(|call| (call.tool.clone(), call.action.target.clone())),
                tokens,
            )
        };
        let metadata: Vec<_> = removed.iter().map(metadata).collect();
        let originals: Vec<Original<'_>> = removed
            .iter()
            .zip(&metadata)
            .map(|(original, (handle, call, tokens))| Original {
                handle: *handle,
                bytes: &original.bytes,
                tool: call.as_ref().map(|(tool, _)| tool.as_str()),
                arguments: call.as_ref().map(|(_, target)| target.as_str()),
                message: original.rounds.as_ref().map_or(original.at.message, |rounds| rounds.start),
                tokens: *tokens,
            })
            .collect();
        let mut refused = RefusedParts::default();
        let indices = store.store_accepted(&originals)?;
        indices.into_iter().filter_map(|index| removed.get(index)).for_each(|original| refused.add(original));
        Ok(refused)
    }
}
