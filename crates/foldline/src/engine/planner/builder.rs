//! A plan under construction: the folds accepted so far, and the request with them.
//!
//! Accepts proposals of passes stage by stage; `target`, `protected` and `rounds` add what no pass can propose.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::conversation::{Message, PartId};
use crate::engine::crease::Trigger;
use crate::engine::handle::Handle;
use crate::engine::identifiers::coverage::IdentifierCoverage;
use crate::engine::identifiers::index::IdentifierIndex;
use crate::engine::options::FoldOptions;
use crate::engine::overlay::{AppliedFold, FoldSet, PartEdit};
use crate::engine::passes;
use crate::engine::passes::view::{FoldProposal, LiveSegment, PassView};
use crate::engine::planner::plan::CreasePlan;
use crate::engine::schedule;
use crate::engine::segment::SegmentKind;
use crate::engine::stage::Stage;
use crate::engine::state::FoldState;
use crate::engine::state::totals::MessageTokens;
use crate::engine::summary::PrefixSummary;
use crate::error::Error;
use crate::models::prices;
use crate::tokens::Tokens;

/// A plan under construction.
pub(crate) struct PlanBuilder<'d> {
    pub(crate) state: &'d FoldState,
    pub(crate) options: &'d FoldOptions,
    pub(crate) messages: &'d [Message<'d>],
    pub(crate) folds: FoldSet,
    /// Tokens of messages that differ from those of the state.
    pub(crate) new_tokens: MessageTokens,
    pub(crate) request_tokens: Tokens,
    /// Segments of messages that were not dropped before the first stage.
    pub(crate) live: Vec<LiveSegment>,
    pub(crate) summary: Option<&'d PrefixSummary>,
    pub(crate) edit_from: usize,
    /// Target tokens of a forced crease.
    pub(crate) target: Tokens,
    pub(crate) keep_share_start: usize,
    pub(crate) newest_round_start: usize,
    pub(crate) last_user_message: usize,
    pub(crate) expected_calls: f64,
    /// Messages whose rendering changes.
    pub(crate) touched_messages: BTreeSet<usize>,
    /// Handles of folded results in rounds that this plan drops.
    pub(crate) dropped_handles: BTreeMap<PartId, Handle>,
    pub(crate) expected_unfold_cost: f64,
}

impl<'d> PlanBuilder<'d> {
    pub(crate) fn new(
        state: &'d FoldState,
        options: &'d FoldOptions,
        messages: &'d [Message<'d>],
        edit_from: usize,
        summary: Option<&'d PrefixSummary>,
    ) -> Self {
        Self {
            state,
            options,
            messages,
            folds: state.folds.clone(),
            new_tokens: MessageTokens::new(),
            request_tokens: state.totals.rendered(),
            live: live_segments(state, &state.folds),
            summary,
            edit_from,
            target: 0,
            keep_share_start: 0,
            newest_round_start: state.rounds.newest_start(),
            last_user_message: state.rounds.last_user_message(),
            expected_calls: schedule::expected_calls(state.rounds.calls(), options),
            touched_messages: BTreeSet::new(),
            dropped_handles: BTreeMap::new(),
            expected_unfold_cost: 0.0,
        }
    }

    /// Accepts the proposals of a stage: all of them, or until the target is reached. With a `space_factor` above 1 space
    /// is worth more than at first, so excerpts are cut again.
    pub(crate) fn run_stage(
        &mut self,
        identifiers: &mut IdentifierIndex,
        stage: Stage,
        space_factor: f64,
        target: Option<Tokens>,
    ) -> Result<(), Error> {
        let reached = |builder: &Self| target.is_some_and(|target| builder.request_tokens <= target);
        if stage > self.options.policy.max_stage || reached(self) {
            return Ok(());
        }
        self.options.cancel.check()?;
        let view = self.pass_view(space_factor);
        if stage == Stage::Excerpts {
            *view.coverage.borrow_mut() = Some(self.build_coverage(&view, identifiers));
        }
        // All passes of a stage see the request as it was before the stage.
        let mut proposals = Vec::new();
        for pass in passes::passes_for_stage(stage) {
            self.options.cancel.check()?;
            let mut from_pass = Vec::new();
            (pass.propose)(&view, &mut from_pass);
            proposals.extend(from_pass.into_iter().map(|proposal| (proposal, pass.name)));
        }
        drop(view);
        for (proposal, pass) in proposals {
            self.accept(proposal, stage, pass);
            if reached(self) {
                break;
            }
        }
        Ok(())
    }

    /// Counts the identifiers that remain in the request outside of the segments that may be cut now.
    fn build_coverage<'l>(&self, view: &PassView<'_>, identifiers: &'l mut IdentifierIndex) -> IdentifierCoverage<'l> {
        let mut coverage = IdentifierCoverage::new(identifiers);
        let mut cut = BTreeSet::new();
        for segment in
            [SegmentKind::Result, SegmentKind::Arguments].into_iter().flat_map(|kind| view.long_segments(kind))
        {
            let at = segment.at;
            if self.touched_messages.contains(&at.message) {
                cut.insert(at);
                continue;
            }
            if segment.kind == SegmentKind::Arguments && coverage.count_values(at) {
                continue;
            }
            let part = &self.messages[at.message].parts[at.part];
            self.folds.for_each_cuttable_text(at, part, |place, text| coverage.count_text(place, text, -1));
        }
        // Messages changed by earlier stages: subtract the old rendering, add the new one.
        for &at in &self.touched_messages {
            let message = &self.messages[at];
            let left_out = |part| cut.contains(&part);
            self.state.folds.for_each_rendered_text(
                at,
                message,
                |_| false,
                |place, text| coverage.count_text(place, text, -1),
            );
            self.folds.for_each_rendered_text(at, message, left_out, |place, text| coverage.count_text(place, text, 1));
        }
        coverage
    }

    pub(crate) fn pass_view<'v>(&'v self, space_factor: f64) -> PassView<'v> {
        PassView {
            messages: self.messages,
            segments: &self.state.segments,
            live: &self.live,
            folds: &self.folds,
            options: self.options,
            calls: self.state.rounds.calls(),
            edit_from: self.edit_from,
            newest_round_start: self.newest_round_start,
            keep_share_start: self.keep_share_start,
            last_user_message: self.last_user_message,
            expected_calls: self.expected_calls,
            request_tokens: self.request_tokens,
            space_value: space_factor * self.options.policy.space_value,
            cuts_excerpts: space_factor > 1.0,
            coverage: RefCell::new(None),
        }
    }

    /// Applies a proposal if it has fewer tokens than the current rendering of the part.
    pub(crate) fn accept(&mut self, proposal: FoldProposal, stage: Stage, pass: &'static str) {
        let at = proposal.at;
        let Some(segment) = self.state.segments.get(at) else { return };
        let now = self.folds.part_tokens(at).unwrap_or(segment.tokens);
        if proposal.tokens >= now || self.folds.is_dropped(at.message) {
            return;
        }
        self.subtract_tokens(at.message, now - proposal.tokens);
        self.expected_unfold_cost += proposal.expected_unfold_cost;
        self.folds.set_part(at, AppliedFold { edit: proposal.edit, tokens: proposal.tokens, stage, pass_name: pass });
        let segments = self.state.segments.as_slice();
        if let Ok(index) = self.live.binary_search_by_key(&at, |live| segments[live.index].at) {
            self.live[index].stage = Some(stage);
        }
    }

    /// Takes back the fold of a part, which adds `more` tokens.
    pub(crate) fn restore(&mut self, at: PartId, more: Tokens) {
        self.folds.copy_part(&self.state.folds, at);
        let now = self.message_tokens(at.message);
        self.set_message_tokens(at.message, now + more);
    }

    /// Returns the tokens of a message with the folds accepted so far.
    pub(crate) fn message_tokens(&self, message: usize) -> Tokens {
        self.new_tokens.get(&message).copied().unwrap_or_else(|| self.state.totals.by_message()[message])
    }

    pub(crate) fn set_message_tokens(&mut self, message: usize, tokens: Tokens) {
        self.request_tokens = self.request_tokens - self.message_tokens(message) + tokens;
        self.new_tokens.insert(message, tokens);
    }

    pub(crate) fn subtract_tokens(&mut self, message: usize, by: Tokens) {
        self.set_message_tokens(message, self.message_tokens(message) - by);
        self.touched_messages.insert(message);
    }

    pub(crate) fn build(mut self, trigger: Trigger) -> Option<CreasePlan> {
        if self.touched_messages.is_empty() {
            return None;
        }
        if self.options.signed_history {
            self.drop_all_reasoning();
        }
        let first_message = self.touched_messages.first().copied()?;
        if self.request_tokens >= self.state.totals.rendered() {
            return None;
        }
        let saved_tokens = self.state.totals.rendered() - self.request_tokens;
        let suffix_tokens = self.state.totals.suffix(first_message, self.newest_round_start);
        let prices = &self.options.prices;
        let min_gain_ratio = self.options.policy.min_gain_ratio;
        let expected_gain = match trigger {
            Trigger::ColdCache => {
                (self.expected_calls * prices.read + prices.write) * saved_tokens as f64 - self.expected_unfold_cost
            }
            Trigger::OverBudget | Trigger::Profitable => prices::crease_gain(
                suffix_tokens,
                saved_tokens,
                self.expected_calls / min_gain_ratio,
                prices,
                self.expected_unfold_cost / min_gain_ratio,
            ),
        };
        Some(CreasePlan {
            folds: self.folds,
            message_tokens: self.new_tokens,
            touched_messages: self.touched_messages,
            saved_tokens,
            suffix_tokens,
            first_message,
            expected_gain,
        })
    }

    /// Drops all reasoning. Reasoning signed together with the messages before it becomes invalid at a crease, and
    /// the kept reasoning must be contiguous; later reasoning is signed with the new rendering.
    pub(crate) fn drop_all_reasoning(&mut self) {
        let segments = self.state.segments.as_slice();
        let reasoning = self.live.iter().filter(|live| live.kind == SegmentKind::Reasoning);
        for at in reasoning.map(|live| segments[live.index].at).collect::<Vec<_>>() {
            let proposal = FoldProposal { at, edit: PartEdit::Drop, tokens: 0, expected_unfold_cost: 0.0 };
            self.accept(proposal, Stage::Reasoning, "signed_reasoning");
        }
    }
}

/// Returns the segments of messages that are not dropped.
pub(crate) fn live_segments(state: &FoldState, folds: &FoldSet) -> Vec<LiveSegment> {
    let segments = state.segments.as_slice();
    let mut folded = folds.all_parts().peekable();
    let mut live = Vec::new();
    // A part that is folded as a whole hides everything inside it.
    let mut whole = None;
    // In a long conversation most messages are dropped; skip their segments.
    let kept = folds.dropped_messages().gaps(state.len());
    for index in kept.flat_map(|messages| state.segments.indices(messages)) {
        let segment = &segments[index];
        // Both are sorted by position.
        while let Some((at, _)) = folded.next_if(|(at, _)| *at < segment.at) {
            whole = if at.inner.is_none() { Some(at) } else { whole };
        }
        let own = folded.peek().filter(|(at, _)| *at == segment.at).map(|(_, fold)| resume_stage(fold.stage));
        let stage = if whole == Some(PartId { inner: None, ..segment.at }) { Some(Stage::Truncation) } else { own };
        live.push(LiveSegment { index, kind: segment.kind, stage });
    }
    live
}

/// Returns the stage from which a folded part continues. A part that was shortened while protected may still become an
/// excerpt or a marker once it is old.
fn resume_stage(stage: Stage) -> Stage {
    if stage >= Stage::Protected { Stage::Reasoning } else { stage }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Part, Role};
    use crate::tokens::Meter;
    use crate::{ModelTable, Prices};

    /// Returns the lines kept of an old result with a definition and other lines, after excerpts at these values of space.
    fn kept_lines(space_factors: &[f64]) -> [bool; 2] {
        let filler = "and so on, in words that nothing refers to\n".repeat(8);
        let text = format!("pub fn parse_input() {{\nthe value of other_input is read\n{filler}");
        let shown = shown_after(&[text], |builder, identifiers| {
            for &factor in space_factors {
                builder.run_stage(identifiers, Stage::Excerpts, factor, None).unwrap();
            }
        });
        ["parse_input", "other_input"].map(|name| shown.contains(name))
    }

    /// Returns what is left of old results after `run`.
    fn shown_after(results: &[String], run: impl FnOnce(&mut PlanBuilder<'_>, &mut IdentifierIndex)) -> String {
        let mut messages = vec![Message::text(Role::User, "Make the parser faster.")];
        for (at, result) in results.iter().enumerate() {
            let id = format!("call_{at}");
            let call = Part::call(id.clone(), "edit_file", r#"{"path":"a.rs","old_string":"a"}"#);
            messages.push(Message::new(Role::Assistant, vec![call]));
            messages.push(Message::new(Role::Tool, vec![Part::result(id, result.clone())]));
        }
        for at in 0..20 {
            messages.push(Message::text(Role::Assistant, format!("step {at}")));
            messages.push(Message::text(Role::User, "go on"));
        }
        let prices = Prices::for_model(ModelTable::builtin(), None);
        let options = FoldOptions::new(Meter::for_byte_estimate(), prices, 100_000);
        let (mut state, mut identifiers) = (FoldState::default(), IdentifierIndex::default());
        messages.iter().for_each(|message| state.ingest(&options, message, true));
        identifiers.index_messages(&messages, &state.folds, &options.cancel, |_| None).unwrap();
        let mut builder = PlanBuilder::new(&state, &options, &messages, 0, None);
        run(&mut builder, &mut identifiers);
        let mut shown = String::new();
        for (at, message) in messages.iter().enumerate().filter(|(_, message)| message.has_results()) {
            builder.folds.for_each_rendered_text(at, message, |_| false, |_, text| shown.push_str(text));
        }
        shown
    }

    #[test]
    fn excerpt_that_stays_smaller_does_not_remove_lines_elsewhere() {
        let filler = "and so on, in words that nothing refers to\n".repeat(8);
        let result = |name: &str| format!("the value of shared_input is read\npub fn {name}() {{\n{filler}");
        let shown = shown_after(&[result("parse_older"), result("parse_newer")], |builder, identifiers| {
            // The newer result is cut below the value of the shared line, and then the target is reached.
            let target = builder.request_tokens - 1;
            builder.run_stage(identifiers, Stage::Excerpts, 16.0, Some(target)).unwrap();
            builder.run_stage(identifiers, Stage::Excerpts, 1.1, None).unwrap();
        });
        assert!(shown.contains("shared_input"), "{shown}");
    }

    #[test]
    fn excerpts_are_cut_again_where_space_is_worth_more() {
        assert_eq!(kept_lines(&[]), [true, true]);
        assert_eq!(kept_lines(&[1.0]), [true, true]);
        assert_eq!(kept_lines(&[1.0, 4.0]), [true, false]);
        assert_eq!(kept_lines(&[1.0, 4.0, 16.0]), [false, false]);
    }
}
