//! Writes and adopts records of decided folds.
//!
//! A decision depends on the version, the policy and the prices. While these stay the same, everyone decides the same.
//! When they change, old decisions are not made again: their folds are adopted from the records in the
//! [`Ledger`](crate::Ledger), so that the rendering of a running conversation stays the same until the next crease.

use std::ops::Range;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::conversation::{Message, Part};
use crate::engine::decide::options_at;
use crate::engine::options::{FoldOptions, Ledger, ReasoningRetention};
use crate::engine::original::RoundsHash;
use crate::engine::overlay::{AppliedFold, FoldSet, PartEdit};
use crate::engine::passes;
use crate::engine::record::{EditRecord, FoldRecord, NoteRecord, PartRecord, RecordedFolds};
use crate::engine::segment;
use crate::engine::state::FoldState;
use crate::error::Error;

impl FoldState {
    /// Returns the record of the folds since the last one at the request point after these messages; `None` if nothing
    /// is new, if the point has a record already, or if markers carry no handles, so that no other proxy can restore the
    /// originals.
    pub(crate) fn new_record(
        &self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Option<FoldRecord> {
        let before = &self.recorded;
        if before.counts == self.fold_counts() || before.point == Some(messages.len()) || !options.handles {
            return None;
        }
        let options = options_at(options, ledger, messages.len());
        let mut record = FoldRecord {
            basis: basis(&options, ledger, messages.len()),
            after: before.point,
            creases: self.creases[before.counts.0..].to_vec(),
            parts: Vec::new(),
            dropped: self.folds.dropped_messages().without(before.folds.dropped_messages()).ranges().collect(),
            notes: Vec::new(),
        };
        let changed = self.folds.changed_messages(&before.folds);
        for (at, fold) in changed.iter().flat_map(|&at| self.folds.folds_of_message(at)) {
            let original = segment::segment_text(messages, at);
            let edit = EditRecord::new(&fold.edit, original);
            record.parts.push(PartRecord { at, stage: fold.stage, pass: fold.pass_name.to_owned(), edit });
        }
        let notes = changed.iter().filter_map(|&at| self.folds.note(at));
        record.notes = notes.map(NoteRecord::from).collect();
        Some(record)
    }

    /// Records that all folds of this state are in a record of this request point.
    pub(crate) fn set_recorded(&mut self, point: usize) {
        self.recorded = RecordedFolds { point: Some(point), folds: self.folds.clone(), counts: self.fold_counts() };
    }

    /// Adopts the folds of the record at the request point after these messages, in place of those that this state has
    /// since the last record. Returns false if there is none that continues the last one.
    pub(crate) fn adopt_record(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Result<bool, Error> {
        let point = messages.len();
        let Some(records) = ledger.records.get(&point) else { return Ok(false) };
        let options = &*options_at(options, ledger, point);
        let basis = basis(options, ledger, point);
        let continues = |record: &&FoldRecord| record.basis == basis && record.after == self.recorded.point;
        let record = records.iter().map(AsRef::as_ref).find(continues);
        let Some((record, folds)) =
            record.and_then(|record| Some((record, record.folds_after(&self.recorded.folds, options, messages)?)))
        else {
            return Ok(false);
        };
        let changed = folds.changed_messages(&self.folds);
        if !changed.is_empty() {
            self.index_identifiers(options, messages)?;
            let tokens = |&at: &usize| {
                let tokens = folds.message_tokens(at, &messages[at], &options.meter, options.alternate_roles);
                (at, tokens)
            };
            let tokens = changed.iter().map(tokens).collect();
            self.replace_folds(messages, folds, &tokens, &changed);
            let newest = record.creases.last().filter(|crease| crease.request_point == point);
            newest.into_iter().for_each(|crease| self.schedule.record_crease(crease.saved_tokens));
        }
        self.creases.truncate(self.recorded.counts.0);
        self.creases.extend_from_slice(&record.creases);
        self.failed_plan.take_if(|failed| failed.request_point == point);
        self.set_recorded(point);
        Ok(true)
    }

    /// Passes a request point at which others decided.
    pub(crate) fn pass_undecided(&mut self, options: &FoldOptions, ledger: &Ledger, point: usize) {
        self.accrue_carrying_cost(&options_at(options, ledger, point));
    }

    /// Returns true if the rendering exceeds the budget of this request point.
    pub(crate) fn is_over_budget(&self, options: &FoldOptions, ledger: &Ledger, point: usize) -> bool {
        self.totals.rendered() > options_at(options, ledger, point).message_budget(1.0)
    }

    fn fold_counts(&self) -> (usize, usize) {
        (self.creases.len(), self.folds.len())
    }
}

impl FoldRecord {
    /// Returns the folds of the record before with those of this one; `None` if they do not belong to these messages.
    fn folds_after(&self, before: &FoldSet, options: &FoldOptions, messages: &[Message<'_>]) -> Option<FoldSet> {
        let mut folds = before.clone();
        let is_range = |range: &Range<usize>| range.start < range.end && range.end <= messages.len();
        for range in &self.dropped {
            is_range(range).then_some(())?;
            range.clone().for_each(|at| folds.drop_message(at));
        }
        for part in &self.parts {
            let original = segment::segment_text(messages, part.at);
            let edit = part.edit.edit_of(original)?;
            let is_editable = match (messages.get(part.at.message)?.parts.get(part.at.part)?, part.at.inner, &edit) {
                (Part::ToolCall(_), None, PartEdit::Arguments(_)) => true,
                (_, _, PartEdit::Arguments(_)) => false,
                (Part::ToolResult(result), Some(inner), _) => inner < result.content.len(),
                (_, inner, _) => inner.is_none(),
            };
            if !is_editable || folds.is_dropped(part.at.message) {
                return None;
            }
            let tokens = match &edit {
                PartEdit::Text(text) | PartEdit::Arguments(text) => options.meter.text(text),
                PartEdit::Drop => 0,
            };
            let pass_name = passes::known_name(&part.pass);
            folds.set_part(part.at, AppliedFold { edit, tokens, stage: part.stage, pass_name });
        }
        for note in &self.notes {
            let rounds = note.messages.clone();
            if !is_range(&rounds) || !folds.is_dropped(rounds.start) {
                return None;
            }
            let known = folds.note(rounds.start).filter(|known| known.messages.end <= rounds.end);
            let known = known.and_then(|known| known.hash.clone());
            let hash = known.unwrap_or_else(|| RoundsHash::starting_at(rounds.start)).extended_to(rounds.end, messages);
            folds.set_note(rounds.start, note.with_hash(hash), rounds);
        }
        Some(folds)
    }
}

impl FoldOptions {
    /// Returns a hash of the rules by which folds are decided: the version of the engine, the policy and the prices.
    /// With equal rules, messages and ledgers, everyone decides the same.
    pub fn decision_rules(&self) -> u64 {
        let Self { policy, prices, .. } = self;
        xxh3_64(format!("{} {policy:?} {prices:?}", env!("CARGO_PKG_VERSION")).as_bytes())
    }
}

/// Returns a hash of the facts and options on which folds at a request point depend, besides the decision rules.
fn basis(options: &FoldOptions, ledger: &Ledger, point: usize) -> u64 {
    let reasoning = match options.reasoning_retention {
        ReasoningRetention::KeepAll => 0,
        ReasoningRetention::DropFinishedTurns => 1,
        ReasoningRetention::DropOld => 2,
    };
    let flags = [
        options.handles,
        options.hex_handles,
        options.keep_messages,
        options.results_only,
        options.signed_history,
        options.alternate_roles,
        options.edit_arguments,
        options.edit_media,
        options.turn_starts_with_reasoning,
    ];
    let mut hasher = Xxh3::new();
    hasher.update(&[reasoning]);
    hasher.update(&flags.map(u8::from));
    hasher.update(&(options.budget as u64).to_le_bytes());
    if let Some(summary) = ledger.summary_at(point) {
        hasher.update(&(summary.until as u64).to_le_bytes());
        hasher.update(summary.text.as_bytes());
    }
    if let Some(pins) = ledger.pins_at(point) {
        hasher.update(format!("{:?} {:?}", pins.tools, pins.targets).as_bytes());
    }
    hasher.digest()
}
