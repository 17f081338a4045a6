//! Decisions at request points: whether to crease, planning, and applying or reverting a plan.
//!
//! A decision may depend only on the messages before the point, the options and the ledger.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::conversation::{Message, PartId};
use crate::engine::crease::{Crease, Trigger};
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::overlay::FoldSet;
use crate::engine::planner;
use crate::engine::planner::plan::CreasePlan;
use crate::engine::policy::CreaseMode;
use crate::engine::schedule::ScheduleInput;
use crate::engine::stage::Stage;
use crate::engine::state::FoldState;
use crate::engine::state::failure::FailedPlan;
use crate::engine::state::totals::MessageTokens;
use crate::error::{Error, ErrorKind};
use crate::tokens::Tokens;

/// The previous values of everything that a crease changed.
#[derive(Clone)]
pub(crate) struct CreaseUndo {
    folds: FoldSet,
    message_tokens: MessageTokens,
    touched_messages: BTreeSet<usize>,
}

impl FoldState {
    /// Decides at a past request point. A request that could not fit was refused or sent unfolded, so that is not an
    /// error here.
    pub(crate) fn decide_past(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Option<Crease> {
        if matches!(options.policy.crease_mode, CreaseMode::Never | CreaseMode::Once) {
            return None;
        }
        let options = options_at(options, ledger, messages.len());
        // If the tokens that no plan removes exceed the budget, no plan can fit; the same if one failed shortly before.
        let limit = options.message_budget(1.0);
        let fixed = self.fixed_tokens();
        let bound = self.failed_plan.as_ref().and_then(|failed| failed.bound_for(self.totals.raw(), fixed, limit));
        if fixed > limit || bound.is_some() {
            self.accrue_carrying_cost(&options);
            return None;
        }
        let decided = self.decide(&options, ledger, messages);
        if let (Err(_), Some(failed)) = (&decided, &mut self.failed_plan) {
            failed.is_reported = false;
        }
        decided.ok().flatten()
    }

    /// Decides at the request point after the last ingested message.
    pub(crate) fn decide(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Result<Option<Crease>, Error> {
        let planned = self.plan_crease(options, ledger, messages)?;
        Ok(planned.map(|(plan, trigger)| self.apply_plan(options, messages, plan, trigger).0))
    }

    /// Returns the plan of a crease at this request point, if there is to be one. Changes only the schedule and caches.
    pub(crate) fn plan_crease(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Result<Option<(CreasePlan, Trigger)>, Error> {
        options.cancel.check()?;
        let at = messages.len();
        let options = &*options_at(options, ledger, at);
        self.accrue_carrying_cost(options);
        let is_cold = ledger.cold_points.contains(&at);
        let input = ScheduleInput { segments: &self.segments, rounds: &self.rounds, totals: &self.totals };
        let Some(trigger) = self.schedule.crease_trigger(input, options, is_cold) else {
            return Ok(None);
        };
        let (limit, fixed) = (options.message_budget(1.0), self.fixed_tokens());
        if let Some(failed) = self.failed_plan.as_mut().filter(|failed| failed.is_reported)
            && trigger == Trigger::OverBudget
            && let Some(left) = failed.bound_for(self.totals.raw(), fixed, limit)
        {
            failed.request_point = at;
            failed.error = cannot_fit_error(options, left, failed.largest);
            return Err(failed.error.clone());
        }
        let plan = self.choose_folds(options, ledger, messages, trigger)?;
        if trigger == Trigger::OverBudget {
            let rendered = self.totals.rendered();
            let left = plan.as_ref().map_or(rendered, |plan| rendered - plan.saved_tokens);
            if left > limit {
                let failed = self.describe_failure(options, left, plan.as_ref());
                let failed = self.failed_plan.insert(failed);
                return Err(failed.error.clone());
            }
            self.failed_plan = None;
            self.schedule.record_forced(left);
        }
        match plan {
            Some(plan) if trigger == Trigger::OverBudget || plan.expected_gain > 0.0 => Ok(Some((plan, trigger))),
            plan => {
                let profitable_in = plan.as_ref().map(|plan| plan.calls_until_profitable(options));
                let saved = plan.map_or(0, |plan| plan.saved_tokens);
                self.schedule.record_unprofitable(self.rounds.calls(), profitable_in, saved);
                Ok(None)
            }
        }
    }

    pub(crate) fn accrue_carrying_cost(&mut self, options: &FoldOptions) {
        self.schedule.accrue_carrying_cost(self.segments.as_slice(), self.rounds.calls(), options);
    }

    /// Brings the indexes up to date and runs the planner.
    fn choose_folds(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
        trigger: Trigger,
    ) -> Result<Option<CreasePlan>, Error> {
        self.results.index_new_results(self.segments.as_mut_slice(), options, messages)?;
        self.index_identifiers(options, messages)?;
        let mut identifiers = std::mem::take(&mut self.identifiers);
        let from = self.schedule.crease_start(options, trigger);
        let summary = ledger.summary_at(messages.len());
        let plan = planner::choose_folds(self, &mut identifiers, options, messages, trigger, from, summary);
        self.identifiers = identifiers;
        plan
    }

    /// Indexes the identifiers of the messages that are not indexed yet.
    pub(crate) fn index_identifiers(&mut self, options: &FoldOptions, messages: &[Message<'_>]) -> Result<(), Error> {
        let kind_of = |at| self.segments.get(at).and_then(|segment| segment.text_kind);
        self.identifiers.index_messages(messages, &self.folds, &options.cancel, kind_of)
    }

    /// Applies a plan. Returns the previous values for [`FoldState::undo_crease`].
    pub(crate) fn apply_plan(
        &mut self,
        options: &FoldOptions,
        messages: &[Message<'_>],
        plan: CreasePlan,
        trigger: Trigger,
    ) -> (Crease, CreaseUndo) {
        let rewrite_cost = match trigger {
            Trigger::ColdCache => 0,
            _ => options.prices.rewrite_cost(plan.suffix_tokens, plan.saved_tokens).round() as Tokens,
        };
        let request_point = self.len();
        let (folds, message_tokens) =
            self.replace_folds(messages, plan.folds, &plan.message_tokens, &plan.touched_messages);
        self.schedule.record_crease(plan.saved_tokens);
        let crease = Crease {
            request_point,
            trigger,
            saved_tokens: plan.saved_tokens,
            suffix_tokens: plan.suffix_tokens,
            rewrite_cost,
            first_message: plan.first_message,
        };
        (crease, CreaseUndo { folds, message_tokens, touched_messages: plan.touched_messages })
    }

    /// Replaces the folds, which changes the rendering of the touched messages. Returns the previous folds and tokens.
    fn replace_folds(
        &mut self,
        messages: &[Message<'_>],
        folds: FoldSet,
        message_tokens: &MessageTokens,
        touched_messages: &BTreeSet<usize>,
    ) -> (FoldSet, MessageTokens) {
        for &at in touched_messages.iter().chain(message_tokens.keys()) {
            self.last_record.note_change(at, &self.folds);
        }
        let before = std::mem::replace(&mut self.folds, folds);
        self.update_indexes(messages, &before, touched_messages);
        (before, self.totals.replace_all(message_tokens))
    }

    /// Brings the indexes up to date after the folds of some messages changed from those `before`.
    pub(crate) fn update_indexes(&mut self, messages: &[Message<'_>], before: &FoldSet, changed: &BTreeSet<usize>) {
        for &at in changed {
            self.identifiers.update_message(at, &messages[at], before, &self.folds);
            // Line hashes and counts are not needed for text that is cut.
            let segments = self.segments.indices(at..at + 1);
            for segment in &mut self.segments.as_mut_slice()[segments] {
                let stage = self.folds.stage(segment.at);
                segment.line_hashes.take_if(|_| stage.is_some());
                segment.line_counts.take_if(|_| stage >= Some(Stage::Excerpts));
            }
        }
    }

    /// Reverts the last crease, except for the schedule.
    pub(crate) fn undo_crease(&mut self, messages: &[Message<'_>], before: CreaseUndo) {
        for &at in &before.touched_messages {
            self.identifiers.update_message(at, &messages[at], &self.folds, &before.folds);
        }
        self.folds = before.folds;
        self.totals.replace_all(&before.message_tokens);
    }

    /// Describes a plan that leaves too many tokens.
    fn describe_failure(&self, options: &FoldOptions, left: Tokens, plan: Option<&CreasePlan>) -> FailedPlan {
        let folds = plan.map_or(&self.folds, |plan| &plan.folds);
        let kept = folds.dropped_messages().gaps(self.len());
        let segments = kept.flat_map(|messages| self.segments.of_messages(messages));
        let sizes = segments.map(|segment| (segment.at, folds.part_tokens(segment.at).unwrap_or(segment.tokens)));
        let largest = sizes.max_by_key(|(_, tokens)| *tokens);
        // Only a policy that may truncate has shortened everything that can be shortened.
        let has_truncated =
            options.policy.max_stage >= Stage::Truncation && options.policy.crease_mode != CreaseMode::Never;
        let is_permanent = |&at: &usize| at != self.rounds.last_user_message() || self.rounds.is_task(at);
        let new_tokens = |at: usize| plan.and_then(|plan| plan.message_tokens.get(&at).copied());
        let tokens = |at: usize| new_tokens(at).unwrap_or_else(|| self.totals.by_message()[at]);
        let permanent = self.rounds.messages_between().filter(is_permanent).map(tokens);
        FailedPlan {
            request_point: self.len(),
            error: cannot_fit_error(options, left, largest),
            raw: self.totals.raw(),
            left,
            is_reported: true,
            permanent: if has_truncated { permanent.sum() } else { 0 },
            largest,
        }
    }
}

/// Returns the error for messages of which a plan leaves `left` tokens.
fn cannot_fit_error(options: &FoldOptions, left: Tokens, largest: Option<(PartId, Tokens)>) -> Error {
    let (floor, budget) = (left + options.overhead_tokens, options.budget);
    let what = match largest {
        Some((at, tokens)) if tokens > options.overhead_tokens => {
            format!("the largest part left is {at} with {tokens} tokens")
        }
        _ => format!("system and tools alone are {} tokens", options.overhead_tokens),
    };
    let message = format!(
        "cannot fit: the floor is {floor} tokens and the budget is {budget}; {what}; use a larger window or send less"
    );
    Error::new(ErrorKind::CannotFit { floor, budget, largest }, message)
}

/// Returns the options with the budget of a request point.
pub(crate) fn options_at<'s>(options: &'s FoldOptions, ledger: &Ledger, at: usize) -> Cow<'s, FoldOptions> {
    let (budget, pins) = (ledger.budget_at(at, options), ledger.pins_at(at));
    if budget == options.budget && pins.is_none() {
        return Cow::Borrowed(options);
    }
    let mut options = FoldOptions { budget, ..options.clone() };
    pins.into_iter().for_each(|pins| options.pins.add(pins));
    Cow::Owned(options)
}
