//! Drops whole rounds and replaces them with notes.
//!
//! This module decides which rounds may be dropped and where a note is placed; `passes/support/round_note.rs` writes its
//! text. A round must not be dropped while something outside of it is paired with it, and user text must not be dropped
//! with a round.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::conversation::{Message, Part, PartId, Role};
use crate::engine::handle::Handle;
use crate::engine::original::RoundsHash;
use crate::engine::overlay;
use crate::engine::overlay::{AppliedFold, PartEdit, RoundNote};
use crate::engine::passes::support::round_note;
use crate::engine::passes::support::round_note::{MAX_LISTED_ROUNDS, NoteDetail, NoteFacts};
use crate::engine::planner::builder::{PlanBuilder, live_segments};
use crate::engine::stage::Stage;
use crate::engine::summary::PrefixSummary;
use crate::tokens::Tokens;

impl PlanBuilder<'_> {
    /// Drops whole rounds, oldest first, until the target is reached. Adjacent rounds share a note.
    pub(crate) fn fold_rounds(&mut self, target: Tokens) {
        if !self.options.may_drop_rounds() {
            return;
        }
        // The cost of a note is not known before it is written, so it is estimated first.
        let mut expected = self.request_tokens;
        let mut chosen = Vec::new();
        for round in self.foldable_rounds() {
            if expected <= target {
                break;
            }
            let tokens: Tokens = round.clone().map(|at| self.message_tokens(at)).sum();
            expected = expected - tokens + tokens.min(24);
            chosen.push(round);
        }
        let chosen = self.keep_reasoning_at_turn_start(chosen);
        if !chosen.is_empty() {
            self.drop_rounds(&chosen, Stage::Rounds, NoteDetail::Listed);
        }
        if self.request_tokens > target {
            self.write_notes(Stage::Rounds, NoteDetail::NewestListed);
        }
        if self.request_tokens > self.options.message_budget(1.0) {
            self.write_notes(Stage::Rounds, NoteDetail::Counted);
        }
    }

    /// Drops the rounds that the summary covers, first and together, which leaves more space for newer rounds.
    pub(crate) fn fold_summarized_rounds(&mut self) {
        let Some(until) = self.summary.map(|summary| summary.until) else { return };
        if !self.options.may_drop_rounds() {
            return;
        }
        let covered = self.foldable_rounds().into_iter().filter(|round| round.end <= until).collect();
        let covered: Vec<Range<usize>> = self.keep_reasoning_at_turn_start(covered);
        if covered.is_empty() {
            // They were dropped before the summary was known: add it to their note.
            self.write_notes(Stage::Rounds, NoteDetail::Listed);
        } else {
            self.drop_rounds(&covered, Stage::Rounds, NoteDetail::Listed);
            self.live = live_segments(self.state, &self.folds);
        }
    }

    /// Returns the rounds that may be dropped, oldest first.
    pub(crate) fn foldable_rounds(&self) -> Vec<Range<usize>> {
        let foldable = |round: &Range<usize>| {
            round.end <= self.newest_round_start
                && self.state.rounds.is_self_contained(round, self.messages)
                && self
                    .state
                    .segments
                    .of_messages(round.clone())
                    .iter()
                    .all(|segment| !self.options.pins.matches(segment))
        };
        self.kept_rounds().filter(|round| foldable(round)).cloned().collect()
    }

    /// Returns the rounds whose first message is not dropped, oldest first.
    fn kept_rounds(&self) -> impl Iterator<Item = &Range<usize>> {
        let kept = self.folds.dropped_messages().gaps(self.messages.len());
        kept.flat_map(|messages| &self.state.rounds.as_slice()[self.state.rounds.starting_in(messages)])
    }

    /// Removes rounds from `chosen` that must stay because the open turn has to start with reasoning. A note has the
    /// user's role, so the message after it starts a turn.
    pub(crate) fn keep_reasoning_at_turn_start(&self, mut chosen: Vec<Range<usize>>) -> Vec<Range<usize>> {
        let turn = self.last_user_message;
        let has_reasoning =
            |round: &Range<usize>| matches!(self.messages[round.start].parts.first(), Some(Part::Reasoning(_)));
        let rounds = self.state.rounds.as_slice();
        let open = &rounds[rounds.partition_point(|round| round.start <= turn)..];
        // If the turn itself starts without reasoning, reasoning is disabled.
        if !self.options.turn_starts_with_reasoning || !open.first().is_some_and(has_reasoning) {
            return chosen;
        }
        let mut next_has_reasoning = true;
        let mut kept = BTreeSet::new();
        let open: Vec<&Range<usize>> = self.kept_rounds().filter(|round| round.start > turn).collect();
        for round in open.into_iter().rev() {
            let is_chosen = chosen.binary_search_by_key(&round.start, |other| other.start).is_ok();
            if !is_chosen || !next_has_reasoning {
                kept.insert(round.start);
                next_has_reasoning = has_reasoning(round);
            }
        }
        chosen.retain(|round| !kept.contains(&round.start));
        chosen
    }

    /// Drops rounds and writes the notes that replace them. Changes nothing if the notes are longer than the rounds.
    pub(crate) fn drop_rounds(&mut self, chosen: &[Range<usize>], stage: Stage, detail: NoteDetail) {
        let before = (self.folds.clone(), self.new_tokens.clone(), self.request_tokens, self.touched_messages.clone());
        for round in chosen {
            for at in round.clone() {
                self.dropped_handles.extend(self.folds.result_handles(at, &self.messages[at]));
                let has_user_text = self.messages[at].role == Role::User
                    && self.messages[at].parts.iter().any(|part| part.as_text().is_some());
                if has_user_text {
                    self.drop_results(at, stage);
                } else {
                    let tokens = self.message_tokens(at);
                    self.subtract_tokens(at, tokens);
                    self.folds.drop_message(at);
                }
            }
        }
        self.write_notes(stage, detail);
        if self.request_tokens >= before.2 {
            (self.folds, self.new_tokens, self.request_tokens, self.touched_messages) = before;
        }
    }

    /// Drops the results of a message that also contains user text. The text stays.
    fn drop_results(&mut self, at: usize, stage: Stage) {
        for (part, content) in self.messages[at].parts.iter().enumerate() {
            if content.as_text().is_some() {
                continue;
            }
            let id = PartId::new(at, part);
            let segments = || self.state.segments.of_part(at, part).iter();
            let now: Tokens =
                segments().map(|segment| self.folds.part_tokens(segment.at).unwrap_or(segment.tokens)).sum();
            let raw: Tokens = segments().map(|segment| segment.tokens).sum();
            self.subtract_tokens(at, now + (self.options.meter.part(content) - raw));
            self.folds.set_part(id, AppliedFold { edit: PartEdit::Drop, tokens: 0, stage, pass_name: "rounds" });
        }
    }

    /// Writes one note for each run of adjacent dropped rounds. One of the notes includes the summary.
    pub(crate) fn write_notes(&mut self, stage: Stage, detail: NoteDetail) {
        let rounds = self.state.rounds.as_slice();
        let runs = self.dropped_runs();
        let summary_run = self.summary_position(&runs);
        let listed = round_note::listed_rounds(detail, &runs.iter().map(ExactSizeIterator::len).collect::<Vec<_>>());
        for ((index, run), listed) in runs.into_iter().enumerate().zip(listed) {
            let run = &rounds[run];
            let (Some(start), Some(end)) = (run.first().map(|round| round.start), run.last().map(|round| round.end))
            else {
                continue;
            };
            // The rounds of a run are adjacent, so its first and last message identify it.
            let existing = self.folds.note(start);
            let same = existing.filter(|note| note.messages.end == end);
            let summary = self.summary.filter(|_| detail != NoteDetail::CountsOnly && summary_run == Some(index));
            let summarized_until = summary.map(|summary| summary.until);
            if same.is_some_and(|note| detail == NoteDetail::Listed && note.summarized_until == summarized_until) {
                continue;
            }
            let known = existing.filter(|note| note.messages.end <= end).and_then(|note| note.hash.clone());
            let hash = self
                .options
                .handles
                .then(|| known.unwrap_or_else(|| RoundsHash::starting_at(start)).extended_to(end, self.messages));
            let tool_counts = self.tool_counts(run, start..end);
            let handle = hash.as_ref().map(RoundsHash::handle);
            let result_handles = self.result_handles(run);
            let facts = NoteFacts { tools: &tool_counts, handle, results: &result_handles };
            let mut text = round_note::note_text(&self.pass_view(1.0), run, listed, &facts);
            let mut continuation = None;
            if let Some(framed) = summary.map(PrefixSummary::framed_text) {
                if self.options.alternate_roles {
                    continuation = Some(framed);
                } else {
                    text.push('\n');
                    text.push_str(&framed);
                }
            }
            if same.is_some_and(|note| (&note.text, &note.continuation) == (&text, &continuation)) {
                continue;
            }
            // The tokens of a note are counted with the dropped message after it.
            let (meter, alternate) = (&self.options.meter, self.options.alternate_roles);
            let new = overlay::note_tokens(meter, alternate, &text, continuation.as_deref());
            for at in self.folds.notes_in(start..end).map(|(at, _)| at).chain([start]).collect::<Vec<_>>() {
                self.set_message_tokens(at, 0);
            }
            self.set_message_tokens(start, new);
            self.touched_messages.insert(start);
            let (messages, round_count) = (start..end, run.len());
            self.folds.set_note(
                start,
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
                },
                start..end,
            );
        }
    }

    /// Returns the runs of adjacent dropped rounds, as ranges of rounds.
    fn dropped_runs(&self) -> Vec<Range<usize>> {
        // Messages outside of rounds are never dropped, so the rounds that start in a range of dropped messages are adjacent.
        let dropped = self.folds.dropped_messages().ranges();
        dropped.map(|messages| self.state.rounds.starting_in(messages)).filter(|run| !run.is_empty()).collect()
    }

    /// Counts the calls of each tool in a run of rounds. Reuses the counts of existing notes, because a run grows with the
    /// conversation.
    fn tool_counts(&self, run: &[Range<usize>], messages: Range<usize>) -> BTreeMap<String, usize> {
        let mut tools = BTreeMap::new();
        let view = self.pass_view(1.0);
        let count = |from: usize, to: usize, tools: &mut BTreeMap<String, usize>| {
            let index = |at: usize| run.partition_point(|round| round.start < at);
            run[index(from)..index(to)].iter().for_each(|round| round_note::count_tools(&view, round.clone(), tools));
        };
        let mut counted = messages.start;
        for (at, note) in self.folds.notes_in(messages.clone()) {
            count(counted, at, &mut tools);
            note.tool_counts.iter().for_each(|(tool, &calls)| round_note::add_calls(&mut tools, tool, calls));
            counted = note.messages.end;
        }
        count(counted, messages.end, &mut tools);
        tools
    }

    /// Returns the handles of the results of the newest rounds of a run, which a note can list. Those of rounds that were
    /// dropped before are in their notes.
    fn result_handles(&self, run: &[Range<usize>]) -> BTreeMap<PartId, Handle> {
        let newest = &run[run.len().saturating_sub(MAX_LISTED_ROUNDS)..];
        let (Some(first), Some(last)) = (newest.first(), run.last()) else { return BTreeMap::new() };
        let range = PartId::new(first.start, 0)..PartId::new(last.end, 0);
        let notes = self.folds.notes_in(run[0].start..last.end);
        let noted = notes.flat_map(|(_, note)| note.result_handles.range(range.clone()));
        noted.chain(self.dropped_handles.range(range.clone())).map(|(&at, &handle)| (at, handle)).collect()
    }

    /// Returns the run whose note includes the summary: the last covered run, or the next one, at which a message in the
    /// user's role is possible. If roles must alternate, the next message must be the assistant's.
    fn summary_position(&self, runs: &[Range<usize>]) -> Option<usize> {
        let until = self.summary?.until;
        let rounds = self.state.rounds.as_slice();
        let is_covered = |run: &Range<usize>| rounds[run.start].start < until;
        let allows_summary = |run: &Range<usize>| {
            let start = rounds[run.start].start;
            let next = self.messages.get(self.folds.dropped_messages().first_outside(start));
            !self.options.alternate_roles || next.is_some_and(Message::is_assistant)
        };
        let last_covered = runs.iter().rposition(is_covered)?;
        let before = runs[..=last_covered].iter().rposition(allows_summary);
        before.or_else(|| runs.iter().skip(last_covered + 1).position(allows_summary).map(|at| last_covered + 1 + at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conversation, FoldOptions, Ledger, Meter, ModelTable, Prices, fold};

    /// Folds rounds that each call another tool, to a budget that holds none of them but the newest.
    fn fold_tools(names: impl Iterator<Item = String>) -> String {
        let mut messages = vec![Message::text(Role::User, "go")];
        for (at, name) in names.enumerate() {
            messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), name, "{}")]));
            messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), "some result".repeat(20))]));
        }
        let conversation = Conversation { messages, ..Conversation::default() };
        let prices = Prices::for_model(ModelTable::builtin(), None);
        let options = FoldOptions::new(Meter::for_byte_estimate(), prices, 1_000);
        let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
        folded.messages(&conversation)[1].parts[0].as_text().unwrap().to_owned()
    }

    #[test]
    fn note_of_many_tools_is_short() {
        let note = fold_tools((0..1_500).map(|at| format!("tool_{at}")));
        assert!(note.len() < 2_000 && note.contains(" others"), "{note}");
    }

    #[test]
    fn note_of_long_tool_names_is_short() {
        let note = fold_tools((0..30).map(|at| format!("tool_{at}_{}", "x".repeat(900))));
        assert!(note.len() < 2_500, "{} bytes", note.len());
    }
}
