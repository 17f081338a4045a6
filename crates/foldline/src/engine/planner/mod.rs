//! The planner: chooses among the proposals of the passes, under budget, laws and prices.
//!
//! Passes are not trusted: a fold that does not save tokens is rejected, and a crease that is not
//! forced must be profitable. The last stages end inside the budget or report the floor.

pub(crate) mod rounds;

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, PartId};
use crate::engine::identifiers::index::IdentifierIndex;
use crate::engine::options::FoldOptions;
use crate::engine::overlay::{AppliedFold, FoldSet, PartEdit};
use crate::engine::passes;
use crate::engine::passes::support::round_note::NoteDetail;
use crate::engine::passes::{FoldProposal, IdentifierCoverage, LiveSegment, PassView};
use crate::engine::policy::CreaseMode;
use crate::engine::segment::SegmentKind;
use crate::engine::state::FoldState;
use crate::engine::summary::PrefixSummary;
use crate::error::Error;
use crate::models::prices;
use crate::tokens::Tokens;

mod protected;

/// The stages of a crease, in the order in which they run until the target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Lossless rewriting, verified by its inverse.
    Repack,
    /// Text that occurs in the request more than once.
    Duplicates,
    /// Old reasoning, where the laws allow it, and old images and files.
    Reasoning,
    /// Long old texts, reduced to the lines worth keeping.
    Excerpts,
    /// Whole old results.
    WholeResults,
    /// Old prose and arguments.
    ProseAndArguments,
    /// Whole old rounds, reduced to one line each.
    Rounds,
    /// Protected parts that are too large.
    Protected,
    /// Everything except the system, the task, the newest user message and the newest round.
    Truncation,
}

/// The reason for a crease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Trigger {
    /// The request was above the trigger ratio of the budget.
    OverBudget,
    /// The expected savings exceed the cost.
    Profitable,
    /// The provider's cache is cold: rewriting costs nothing extra.
    ColdCache,
}

/// The planned folds of a crease.
pub(crate) struct CreasePlan {
    pub(crate) folds: FoldSet,
    /// Tokens of each message afterwards; those of a note are counted with the message after it.
    pub(crate) message_tokens: Vec<Tokens>,
    /// Messages whose rendering changes.
    pub(crate) touched_messages: BTreeSet<usize>,
    pub(crate) saved_tokens: Tokens,
    /// Tokens after the first changed byte that had been sent, before the change.
    pub(crate) suffix_tokens: Tokens,
    /// First changed message.
    pub(crate) first_message: usize,
    /// Expected gain over the rest of the session at base price, beyond the policy's `min_gain_ratio` times the cost.
    pub(crate) expected_gain: f64,
}

impl CreasePlan {
    /// Returns the number of further calls after which the crease would be profitable, at least one. Each call made
    /// raises the number of calls expected.
    pub(crate) fn calls_until_profitable(&self, options: &FoldOptions) -> u32 {
        let policy = &options.policy;
        let gain_per_call =
            policy.remaining_ratio / policy.min_gain_ratio * options.prices.read * self.saved_tokens as f64;
        (-self.expected_gain / gain_per_call).ceil().max(1.0) as u32
    }
}

/// Chooses the folds of a crease at the end of `messages` that changes no message before `edit_from`. Returns `None` if
/// there is nothing to fold.
pub(crate) fn choose_folds(
    state: &FoldState,
    identifiers: &mut IdentifierIndex,
    options: &FoldOptions,
    messages: &[Message<'_>],
    trigger: Trigger,
    edit_from: usize,
    summary: Option<&PrefixSummary>,
) -> Result<Option<CreasePlan>, Error> {
    if options.policy.crease_mode == CreaseMode::Never {
        return Ok(None);
    }
    let mut builder = PlanBuilder::new(state, options, messages, trigger, edit_from, summary);
    if trigger == Trigger::OverBudget {
        builder.fold_summarized_rounds();
    }
    // The passes of these stages decide by price, without a target.
    for stage in [Stage::Duplicates, Stage::Reasoning, Stage::Excerpts] {
        builder.run_stage(identifiers, stage, 1.0, None)?;
    }
    if trigger == Trigger::OverBudget {
        let target = builder.target;
        builder.run_stage(identifiers, Stage::Repack, 1.0, Some(target))?;
        builder.run_stage(identifiers, Stage::Excerpts, 4.0, Some(target))?;
        builder.run_stage(identifiers, Stage::Excerpts, 16.0, Some(target))?;
        builder.run_stage(identifiers, Stage::WholeResults, 1.0, Some(target))?;
        builder.run_stage(identifiers, Stage::ProseAndArguments, 1.0, Some(target))?;
        options.cancel.check()?;
        builder.fold_rounds(target);
        if builder.request_tokens > options.message_budget(1.0) && summary.is_some() {
            // A summary must not displace user text.
            builder.write_notes(Stage::Rounds, NoteDetail::CountsOnly);
        }
        builder.shorten_protected()?;
    }
    Ok(builder.build(trigger))
}

struct PlanBuilder<'d> {
    state: &'d FoldState,
    options: &'d FoldOptions,
    messages: &'d [Message<'d>],
    folds: FoldSet,
    message_tokens: Vec<Tokens>,
    request_tokens: Tokens,
    /// Segments of messages that were not dropped before the first stage.
    live: Vec<LiveSegment>,
    summary: Option<&'d PrefixSummary>,
    edit_from: usize,
    /// Target tokens of a forced crease.
    target: Tokens,
    keep_share_start: usize,
    newest_round_start: usize,
    last_user_message: usize,
    expected_calls: f64,
    /// Messages whose rendering changes.
    touched_messages: BTreeSet<usize>,
    expected_unfold_cost: f64,
}

impl<'d> PlanBuilder<'d> {
    fn new(
        state: &'d FoldState,
        options: &'d FoldOptions,
        messages: &'d [Message<'d>],
        trigger: Trigger,
        edit_from: usize,
        summary: Option<&'d PrefixSummary>,
    ) -> Self {
        let mut builder = Self {
            state,
            options,
            messages,
            folds: state.folds.clone(),
            message_tokens: state.message_tokens.clone(),
            request_tokens: state.rendered_tokens,
            live: live_segments(state, &state.folds),
            summary,
            edit_from,
            target: 0,
            keep_share_start: 0,
            newest_round_start: state.newest_round_start(),
            last_user_message: state.last_user_message,
            expected_calls: state.expected_calls(options),
            touched_messages: BTreeSet::new(),
            expected_unfold_cost: 0.0,
        };
        if trigger == Trigger::OverBudget {
            let protected = builder.protected_tokens();
            builder.target = builder.target(protected);
            builder.keep_share_start = state.keep_share_start(options, builder.newest_round_start, protected);
        }
        builder
    }

    /// Accepts the proposals of a stage: all of them, or until the target is reached.
    fn run_stage(
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

    fn pass_view<'v>(&'v self, space_factor: f64) -> PassView<'v> {
        PassView {
            messages: self.messages,
            segments: &self.state.segments,
            live: &self.live,
            first_segment: &self.state.first_segment,
            options: self.options,
            calls: self.state.calls,
            edit_from: self.edit_from,
            newest_round_start: self.newest_round_start,
            keep_share_start: self.keep_share_start,
            last_user_message: self.last_user_message,
            expected_calls: self.expected_calls,
            request_tokens: self.request_tokens,
            space_value: space_factor * self.options.policy.space_value,
            coverage: RefCell::new(None),
        }
    }

    /// Applies a proposal if it has fewer tokens than the current rendering of the part.
    fn accept(&mut self, proposal: FoldProposal, stage: Stage, pass: &'static str) {
        let at = proposal.at;
        let Some(segment) = self.state.segment(at) else { return };
        let now = self.folds.part_tokens(at).unwrap_or(segment.tokens);
        if proposal.tokens >= now || self.folds.is_dropped(at.message) {
            return;
        }
        self.subtract_tokens(at.message, now - proposal.tokens);
        self.expected_unfold_cost += proposal.expected_unfold_cost;
        self.folds.set_part(at, AppliedFold { edit: proposal.edit, tokens: proposal.tokens, stage, pass_name: pass });
        let segments = &self.state.segments;
        if let Ok(index) = self.live.binary_search_by_key(&at, |live| segments[live.index].at) {
            self.live[index].stage = Some(stage);
        }
    }

    fn subtract_tokens(&mut self, message: usize, by: Tokens) {
        self.message_tokens[message] -= by;
        self.request_tokens -= by;
        self.touched_messages.insert(message);
    }

    fn build(mut self, trigger: Trigger) -> Option<CreasePlan> {
        let first_message = self.touched_messages.first().copied()?;
        if self.options.signed_history {
            self.drop_all_reasoning();
        }
        if self.request_tokens >= self.state.rendered_tokens {
            return None;
        }
        let saved_tokens = self.state.rendered_tokens - self.request_tokens;
        let suffix_tokens = self.state.suffix_tokens(first_message);
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
            message_tokens: self.message_tokens,
            touched_messages: self.touched_messages,
            saved_tokens,
            suffix_tokens,
            first_message,
            expected_gain,
        })
    }

    /// Drops all reasoning. Reasoning signed together with the messages before it becomes invalid at a crease, and
    /// the kept reasoning must be contiguous; later reasoning is signed with the new rendering.
    fn drop_all_reasoning(&mut self) {
        for segment in self.state.segments.iter().filter(|segment| segment.kind == SegmentKind::Reasoning) {
            let proposal = FoldProposal { at: segment.at, edit: PartEdit::Drop, tokens: 0, expected_unfold_cost: 0.0 };
            self.accept(proposal, Stage::Reasoning, "signed_reasoning");
        }
    }
}

/// Returns the segments of messages that are not dropped.
fn live_segments(state: &FoldState, folds: &FoldSet) -> Vec<LiveSegment> {
    let mut folded = folds.all_parts().peekable();
    let mut live = Vec::new();
    // A part that is folded as a whole hides everything inside it.
    let mut whole = None;
    // In a long conversation most messages are dropped; skip their segments.
    let kept = (0..state.len()).filter(|&message| !folds.is_dropped(message));
    for index in kept.flat_map(|message| state.segment_range(message..message + 1)) {
        let segment = &state.segments[index];
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
