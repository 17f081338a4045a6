//! Whole rounds go, and notes stand for them.
//!
//! Which rounds may go is decided here, and where a note stands; what it says is `pass/rounds.rs`. Nothing of a round goes
//! while something outside of it belongs to it, and no word of a user goes with one.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::conversation::{Message, Part, PartId, Role};
use crate::engine::overlay::{AppliedFold, CONTINUATION_TEXT, PartEdit, RoundNote};
use crate::engine::passes::support::round_note;
use crate::engine::passes::support::round_note::NoteDetail;
use crate::engine::planner::{PlanBuilder, Stage, live_segments};
use crate::engine::summary::PrefixSummary;
use crate::tokens::Tokens;

impl PlanBuilder<'_> {
    /// Whole rounds, the oldest first, until the target is reached; neighbours share a note.
    pub(crate) fn fold_rounds(&mut self, target: Tokens) {
        if Stage::Rounds > self.options.policy.max_stage {
            return;
        }
        // What a note costs is not known before it is written, so an estimate goes first.
        let mut expected = self.request_tokens;
        let mut taken = Vec::new();
        for round in self.foldable_rounds() {
            if expected <= target {
                break;
            }
            let tokens: Tokens = self.message_tokens[round.clone()].iter().sum();
            expected = expected - tokens + tokens.min(24);
            taken.push(round);
        }
        let taken = self.keep_reasoning_at_turn_start(taken);
        if !taken.is_empty() {
            self.drop_rounds(&taken, Stage::Rounds, NoteDetail::Listed);
        }
        if self.request_tokens > target {
            self.write_notes(Stage::Rounds, NoteDetail::Counted);
        }
    }

    /// The rounds that a summary tells of go first and together: what is younger has more room then.
    pub(crate) fn fold_summarized_rounds(&mut self) {
        let Some(until) = self.summary.map(|summary| summary.until) else { return };
        if Stage::Rounds > self.options.policy.max_stage {
            return;
        }
        let told = self.foldable_rounds().into_iter().filter(|round| round.end <= until).collect();
        let told: Vec<Range<usize>> = self.keep_reasoning_at_turn_start(told);
        if told.is_empty() {
            // They went before it came: it stands with what stands for them.
            self.write_notes(Stage::Rounds, NoteDetail::Listed);
        } else {
            self.drop_rounds(&told, Stage::Rounds, NoteDetail::Listed);
            self.live = live_segments(self.state, &self.folds);
        }
    }

    /// The rounds that may go whole, oldest first.
    fn foldable_rounds(&self) -> Vec<Range<usize>> {
        let foldable = |round: &Range<usize>| {
            round.end <= self.newest_round_start
                && !self.folds.is_dropped(round.start)
                && self.state.is_self_contained(round, self.messages)
                && self.state.segments_of(round.clone()).iter().all(|piece| !self.options.pins.matches(piece))
        };
        self.state.rounds().iter().filter(|round| foldable(round)).cloned().collect()
    }

    /// Of these rounds those that may go where the open turn has to begin with reasoning: a note stands in the
    /// user's role, so what comes behind it begins a turn.
    pub(crate) fn keep_reasoning_at_turn_start(&self, mut taken: Vec<Range<usize>>) -> Vec<Range<usize>> {
        let asks = |message: &Message<'_>| message.role == Role::User && !message.has_results();
        let turn = self.messages.iter().rposition(asks).unwrap_or(0);
        let thinks =
            |round: &Range<usize>| matches!(self.messages[round.start].parts.first(), Some(Part::Reasoning(_)));
        let rounds = self.state.rounds();
        let open = &rounds[rounds.partition_point(|round| round.start <= turn)..];
        // Where the turn did not begin so either, the model was not asked to think.
        if !self.options.turn_starts_with_reasoning || !open.first().is_some_and(thinks) {
            return taken;
        }
        let mut opens = true;
        for round in open.iter().rev().filter(|round| !self.folds.is_dropped(round.start)) {
            match taken.iter().rposition(|it| it == round) {
                Some(at) if !opens => {
                    taken.remove(at);
                    opens = thinks(round);
                }
                Some(_) => {}
                None => opens = thinks(round),
            }
        }
        taken
    }

    /// Drops rounds and writes the notes that stand for them; not if the notes are longer.
    pub(crate) fn drop_rounds(&mut self, taken: &[Range<usize>], rung: Stage, detail: NoteDetail) {
        let before =
            (self.folds.clone(), self.message_tokens.clone(), self.request_tokens, self.touched_messages.clone());
        for round in taken {
            for at in round.clone() {
                let said = self.messages[at].role == Role::User
                    && self.messages[at].parts.iter().any(|part| part.as_text().is_some());
                if said {
                    self.drop_results(at, rung);
                } else {
                    let tokens = self.message_tokens[at];
                    self.subtract_tokens(at, tokens);
                    self.folds.drop_message(at);
                }
            }
        }
        self.write_notes(rung, detail);
        if self.request_tokens >= before.2 {
            (self.folds, self.message_tokens, self.request_tokens, self.touched_messages) = before;
        }
    }

    /// Results that share a message with words of the user: the words stay.
    fn drop_results(&mut self, at: usize, rung: Stage) {
        for (part, content) in self.messages[at].parts.iter().enumerate() {
            if content.as_text().is_some() {
                continue;
            }
            let id = PartId::new(at, part);
            let pieces = || self.state.segments_of(at..at + 1).iter().filter(|piece| piece.at.part == part);
            let now: Tokens = pieces().map(|piece| self.folds.part_tokens(piece.at).unwrap_or(piece.tokens)).sum();
            let came: Tokens = pieces().map(|piece| piece.tokens).sum();
            self.subtract_tokens(at, now + (self.options.meter.part(content) - came));
            self.folds.set_part(id, AppliedFold { edit: PartEdit::Drop, tokens: 0, stage: rung, pass_name: "rounds" });
        }
    }

    /// Writes one note for every run of dropped rounds with nothing left between them; a summary stands with one of them.
    pub(crate) fn write_notes(&mut self, rung: Stage, detail: NoteDetail) {
        let mut runs: Vec<Vec<Range<usize>>> = Vec::new();
        for round in self.state.rounds().iter().filter(|round| self.folds.is_dropped(round.start)).cloned() {
            match runs.last_mut() {
                Some(run)
                    if run.last().is_some_and(|last| {
                        (last.end..round.start).all(|at| self.folds.is_dropped(at))
                            && self.folds.is_dropped(last.end - 1)
                    }) =>
                {
                    run.push(round)
                }
                _ => runs.push(vec![round]),
            }
        }
        let place = self.summary_position(&runs);
        for (index, run) in runs.into_iter().enumerate() {
            let (Some(start), Some(end)) = (run.first().map(|round| round.start), run.last().map(|round| round.end))
            else {
                continue;
            };
            // Nothing is left between its first round and its last, so these tell which they are.
            let same = |note: &RoundNote| note.rounds.last().is_some_and(|last| last.1 == end);
            let stands = self.folds.note(start).filter(|note| same(note));
            let summary = self.summary.filter(|_| detail != NoteDetail::CountsOnly && place == Some(index));
            let told = summary.map(|summary| summary.until);
            if stands.is_some_and(|note| detail == NoteDetail::Listed && note.summarized_until == told) {
                continue;
            }
            let tools = self.tool_counts(&run, start..end);
            let mut text = round_note::note_text(&self.pass_view(1.0), &run, &tools, detail);
            let mut go_on = None;
            if let Some(framed) = summary.map(PrefixSummary::framed_text) {
                if self.options.alternate_roles {
                    go_on = Some(framed);
                } else {
                    text.push('\n');
                    text.push_str(&framed);
                }
            }
            if stands.is_some_and(|note| (&note.text, &note.continuation) == (&text, &go_on)) {
                continue;
            }
            // The tokens of a note stand with the message that it comes before, which is gone.
            let new = self.note_tokens(&text, go_on.as_deref());
            for at in (start..end).filter(|&at| self.folds.is_dropped(at)).collect::<Vec<_>>() {
                self.request_tokens -= std::mem::take(&mut self.message_tokens[at]);
            }
            self.message_tokens[start] = new;
            self.request_tokens += new;
            self.touched_messages.insert(start);
            let rounds = run.iter().map(|round| (round.start, round.end)).collect();
            self.folds.set_note(
                start,
                RoundNote {
                    text,
                    rounds,
                    tool_counts: tools,
                    stage: rung,
                    continuation: go_on,
                    summarized_until: told,
                },
                start..end,
            );
        }
    }

    /// How often each tool was called in a run of rounds. What the notes know that stand there is not counted again: a run
    /// grows with the conversation.
    fn tool_counts(&self, run: &[Range<usize>], messages: Range<usize>) -> BTreeMap<String, usize> {
        let mut tools = BTreeMap::new();
        let view = self.pass_view(1.0);
        let count = |from: usize, to: usize, tools: &mut BTreeMap<String, usize>| {
            let behind = |at: usize| run.partition_point(|round| round.start < at);
            run[behind(from)..behind(to)].iter().for_each(|round| round_note::count_tools(&view, round.clone(), tools));
        };
        let mut counted = messages.start;
        for (at, note) in self.folds.notes_in(messages.clone()) {
            count(counted, at, &mut tools);
            note.tool_counts.iter().for_each(|(tool, calls)| *tools.entry(tool.clone()).or_default() += calls);
            counted = note.rounds.last().map_or(at, |last| last.1);
        }
        count(counted, messages.end, &mut tools);
        tools
    }

    /// The run of rounds with which the summary stands: the last of those that it tells of, or the next where a summary
    /// can speak in the user's role. Where roles must take turns, that is only before words of the model's.
    fn summary_position(&self, runs: &[Vec<Range<usize>>]) -> Option<usize> {
        let until = self.summary?.until;
        let is_told = |run: &Vec<Range<usize>>| run.first().is_some_and(|round| round.start < until);
        let takes = |run: &Vec<Range<usize>>| {
            let start = run.first().map_or(0, |round| round.start);
            let next = (start..self.messages.len()).find(|&at| !self.folds.is_dropped(at)).map(|at| &self.messages[at]);
            !self.options.alternate_roles || next.is_some_and(Message::is_assistant)
        };
        let last_told = runs.iter().rposition(is_told)?;
        let before = runs[..=last_told].iter().rposition(takes);
        before.or_else(|| runs.iter().skip(last_told + 1).position(takes).map(|at| last_told + 1 + at))
    }

    fn note_tokens(&self, text: &str, go_on: Option<&str>) -> Tokens {
        let note = |role, text: &str| self.options.meter.message(&Message::text(role, text.to_owned()));
        let go_on = go_on.unwrap_or(CONTINUATION_TEXT);
        note(Role::User, text) + if self.options.alternate_roles { note(Role::User, go_on) } else { 0 }
    }
}
