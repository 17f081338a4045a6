//! Writes and adopts records of decided folds.
//!
//! A decision depends on the version, the policy and the prices. While these stay the same, everyone decides the same.
//! When they change, old decisions are not made again: their folds are adopted from the records in the
//! [`Ledger`](crate::Ledger), so that the rendering of a running conversation stays the same until the next crease.

use std::collections::BTreeSet;
use std::ops::Range;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::conversation::{Message, Part, PartId};
use crate::engine::crease::Crease;
use crate::engine::decide::options_at;
use crate::engine::message_ranges::MessageRanges;
use crate::engine::options::{FoldOptions, Ledger, ReasoningRetention};
use crate::engine::original::RoundsHash;
use crate::engine::overlay::{AppliedFold, FoldSet, PartEdit};
use crate::engine::passes;
use crate::engine::record::{EditRecord, FoldRecord, LastRecord, NoteRecord, PartRecord};
use crate::engine::segment;
use crate::engine::state::FoldState;
use crate::error::Error;
use crate::tokens::Tokens;

/// A recorded token count above this is damaged.
const MAX_RECORDED_TOKENS: Tokens = 1 << 40;

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
        let last = &self.last_record;
        if last.counts == self.fold_counts() || last.point == Some(messages.len()) || !options.handles {
            return None;
        }
        let changed = || last.changed.iter().copied().filter(|&at| !self.folds.is_same_message(&last.folds, at));
        let part = |(at, fold): (PartId, &AppliedFold)| {
            let edit = EditRecord::new(&fold.edit, segment::segment_text(messages, at));
            PartRecord { at, stage: fold.stage, pass: fold.pass_name.to_owned(), edit }
        };
        let dropped: MessageRanges =
            changed().filter(|&at| self.folds.is_dropped(at) && !last.folds.is_dropped(at)).collect();
        Some(FoldRecord {
            basis: basis(&options_at(options, ledger, messages.len()), ledger, messages.len()),
            after: last.point,
            creases: self.creases[last.counts.0..].to_vec(),
            parts: changed().flat_map(|at| self.folds.folds_of_message(at)).map(part).collect(),
            dropped: dropped.ranges().collect(),
            notes: changed().filter_map(|at| self.folds.note(at)).map(NoteRecord::from).collect(),
        })
    }

    /// Records that all folds of this state are in a record of this request point.
    pub(crate) fn set_recorded(&mut self, point: usize) {
        self.last_record = LastRecord { point: Some(point), counts: self.fold_counts(), ..LastRecord::default() };
    }

    /// Returns true if the newest request has a record, and more folds than those in it.
    pub(crate) fn has_folds_beyond_record(&self) -> bool {
        self.last_record.point == Some(self.len()) && self.last_record.counts != self.fold_counts()
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
        let decided = &*options_at(options, ledger, point);
        let basis = basis(decided, ledger, point);
        let continues = |record: &&FoldRecord| record.basis == basis && record.after == self.last_record.point;
        let Some(record) = records.iter().map(AsRef::as_ref).find(continues) else { return Ok(false) };
        let is_same = self.new_record(options, ledger, messages).is_some_and(|own| own == *record);
        if !is_same && !self.replace_by_record(record, decided, messages)? {
            return Ok(false);
        }
        self.failed_plan.take_if(|failed| failed.request_point == point);
        self.set_recorded(point);
        Ok(true)
    }

    /// Replaces the folds since the last record by those of this one. Returns false, and changes nothing, if they do not
    /// belong to these messages.
    fn replace_by_record(
        &mut self,
        record: &FoldRecord,
        options: &FoldOptions,
        messages: &[Message<'_>],
    ) -> Result<bool, Error> {
        if !record.belongs_to(messages) {
            return Ok(false);
        }
        self.index_identifiers(options, messages)?;
        let mut touched = record.messages(&self.folds);
        touched.extend(&self.last_record.changed);
        let mut before = FoldSet::default();
        touched.iter().for_each(|&at| before.copy_message(&self.folds, at));
        self.last_record.changed.iter().for_each(|&at| self.folds.copy_message(&self.last_record.folds, at));
        if record.add_to(&mut self.folds, options, messages).is_none() {
            touched.iter().for_each(|&at| self.folds.copy_message(&before, at));
            return Ok(false);
        }
        touched.retain(|&at| !self.folds.is_same_message(&before, at));
        if !touched.is_empty() {
            self.update_indexes(messages, &before, &touched);
            let (meter, alternate) = (&options.meter, options.alternate_roles);
            let tokens = |&at: &usize| (at, self.folds.message_tokens(at, &messages[at], meter, alternate));
            self.totals.replace_all(&touched.iter().map(tokens).collect());
            let newest = record.creases.last().filter(|crease| crease.request_point == messages.len());
            newest.into_iter().for_each(|crease| self.schedule.record_crease(crease.saved_tokens));
            // Their originals are not in the archive yet, or not known to be.
            self.archived_counts = Default::default();
        }
        self.creases.truncate(self.last_record.counts.0);
        self.creases.extend_from_slice(&record.creases);
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
}

impl FoldRecord {
    /// Returns the messages whose folds it may change in this set.
    fn messages(&self, folds: &FoldSet) -> BTreeSet<usize> {
        let notes = self.notes.iter().flat_map(|note| folds.notes_in(note.messages.clone()).map(|(at, _)| at));
        let parts = self.parts.iter().map(|part| part.at.message);
        let own_notes = self.notes.iter().map(|note| note.messages.start);
        self.dropped.iter().cloned().flatten().chain(notes).chain(parts).chain(own_notes).collect()
    }

    /// Returns true if its positions and counts can be those of folds of these messages.
    fn belongs_to(&self, messages: &[Message<'_>]) -> bool {
        let is_possible = |crease: &Crease| {
            let tokens = [crease.saved_tokens, crease.suffix_tokens, crease.rewrite_cost];
            crease.request_point.max(crease.first_message) <= messages.len()
                && tokens.iter().all(|&tokens| tokens <= MAX_RECORDED_TOKENS)
        };
        let has_own_results =
            |note: &NoteRecord| note.result_handles.iter().all(|(at, _)| note.messages.contains(&at.message));
        are_sorted(self.dropped.iter(), messages.len())
            && are_sorted(self.notes.iter().map(|note| &note.messages), messages.len())
            && self.parts.iter().all(|part| part.at.message < messages.len())
            && self.notes.iter().all(has_own_results)
            && self.creases.iter().all(is_possible)
    }

    /// Adds its folds to those of the record before; `None` if they do not belong to these messages. Every dropped
    /// message must be covered by a note, and every note by no other.
    fn add_to(&self, folds: &mut FoldSet, options: &FoldOptions, messages: &[Message<'_>]) -> Option<()> {
        self.dropped.iter().cloned().flatten().for_each(|at| folds.drop_message(at));
        for part in &self.parts {
            let (edit, inner) = (part.edit.edit_of(segment::segment_text(messages, part.at))?, part.at.inner);
            let is_editable = match (messages.get(part.at.message)?.parts.get(part.at.part)?, inner, &edit) {
                (Part::ToolCall(_), None, PartEdit::Arguments(_)) | (_, None, PartEdit::Drop) => true,
                (Part::ToolResult(result), Some(inner), PartEdit::Text(_)) => inner < result.content.len(),
                (Part::ToolCall(_) | Part::ToolResult(_), ..) | (_, Some(_), _) => false,
                (_, None, edit) => matches!(edit, PartEdit::Text(_)),
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
            let overlaps = folds.note_over(rounds.start).is_some_and(|known| known.messages.start < rounds.start)
                || folds.note_over(rounds.end - 1).is_some_and(|known| known.messages.end > rounds.end);
            if overlaps || !folds.is_dropped(rounds.start) {
                return None;
            }
            let known = folds.note(rounds.start).and_then(|known| known.hash.clone());
            let hash = known.unwrap_or_else(|| RoundsHash::starting_at(rounds.start)).extended_to(rounds.end, messages);
            folds.set_note(rounds.start, note.with_hash(hash), rounds);
        }
        let is_noted =
            |range: &Range<usize>| folds.note_over(range.start).is_some_and(|note| range.end <= note.messages.end);
        self.dropped.iter().all(is_noted).then_some(())
    }
}

/// Returns true if these ranges of messages are not empty and in order, do not overlap, and end before `len`.
fn are_sorted<'r>(mut ranges: impl Iterator<Item = &'r Range<usize>>, len: usize) -> bool {
    let mut from = 0;
    ranges.all(|range| {
        let follows = from <= range.start && range.start < range.end && range.end <= len;
        from = range.end;
        follows
    })
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
    hasher.update(&options.budget.to_le_bytes());
    if let Some(summary) = ledger.summary_at(point) {
        hasher.update(&(summary.until as u64).to_le_bytes());
        hasher.update(summary.text.as_bytes());
    }
    if let Some(pins) = ledger.pins_at(point) {
        hasher.update(format!("{:?} {:?}", pins.tools, pins.targets).as_bytes());
    }
    hasher.digest()
}
