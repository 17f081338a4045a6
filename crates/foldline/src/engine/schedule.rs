//! The schedule of creases: when a crease is planned, and from which message on.
//!
//! Planning costs time, and a crease causes everything after it to be written to the cache again. The schedule tracks
//! which segments are old, the cost of carrying them, and the outcome of the last planning run. It decides
//! whether to plan; it must not decide what is folded.

use crate::conversation::Message;
use crate::engine::options::FoldOptions;
use crate::engine::planner::{CreasePlan, Trigger};
use crate::engine::policy::CreaseMode;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::state::FoldState;
use crate::engine::tool_action::ActionKind;
use crate::models::prices;
use crate::tokens::Tokens;

/// The counters that decide when a crease is planned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreaseSchedule {
    /// Segments already checked for age: those kept for `keep_other_calls`, and those kept for `keep_file_calls`.
    aged_segments: [usize; 2],
    /// Tokens that became old since the last crease.
    old_tokens: Tokens,
    /// First message with old tokens.
    first_old_message: Option<usize>,
    /// Old tokens at which a profitable crease is planned again.
    retry_at_tokens: Tokens,
    /// Calls at which a profitable crease is planned again, because the last plan is expected to be profitable then.
    pub(crate) retry_at_call: u32,
    /// Share of the old tokens that the last planning run could not fold.
    stuck_ratio: f64,
    /// Cost of carrying the foldable old tokens since the last crease, at base price.
    carrying_cost: f64,
    /// Tokens left by the last forced crease. The next one is not forced before the request has grown.
    settled_tokens: Tokens,
}

/// Share of the tokens that could not be folded last time that is expected not to be foldable the next time.
const EXPECTED_STUCK_RATIO: f64 = 0.85;
/// Minimum old tokens for a profitable crease: a short session ends before a crease has paid off.
const MIN_OLD_TOKENS: Tokens = 10_000;
/// Divisor of the budget that gives the minimum old tokens for small budgets.
const MIN_OLD_BUDGET_DIVISOR: Tokens = 12;
/// Calls at the start of a session that do not raise the number of expected calls: many sessions have no others.
const WARMUP_CALLS: u32 = 4;
/// Factor on the due carrying cost right after an edit: the next call is then ten times as likely to be an edit that
/// quotes text that would be cut.
const EDITING_COST_FACTOR: f64 = 4.0;
/// Approximate calls from one crease to the next, for text that the first one leaves whole.
const CALLS_BETWEEN_CREASES: f64 = 25.0;

impl CreaseSchedule {
    /// Records a crease that saved this many tokens.
    pub(crate) fn record_crease(&mut self, saved: Tokens) {
        let stuck_ratio = self.stuck_ratio_after(saved);
        let Self { aged_segments, settled_tokens, .. } = *self;
        *self = Self { aged_segments, settled_tokens, stuck_ratio, ..Self::default() };
    }

    /// Records a planning run after `calls` calls that found no profitable crease; `plan` is its best plan.
    pub(crate) fn record_unprofitable(&mut self, calls: u32, plan: Option<&CreasePlan>, options: &FoldOptions) {
        self.retry_at_tokens = self.old_tokens + self.old_tokens / 8;
        self.retry_at_call = calls.saturating_add(plan.map_or(u32::MAX, |plan| plan.calls_until_profitable(options)));
        self.stuck_ratio = self.stuck_ratio_after(plan.map_or(0, |plan| plan.saved_tokens));
    }

    /// Records the tokens that a forced crease leaves.
    pub(crate) fn record_forced(&mut self, left: Tokens) {
        self.settled_tokens = left;
    }

    fn stuck_ratio_after(&self, saved: Tokens) -> f64 {
        let old = self.old_tokens.max(1) as f64;
        (old - saved as f64).max(0.0) / old
    }

    /// Estimates the old tokens that can be folded, somewhat above what the last planning run could fold.
    fn foldable_tokens(&self) -> f64 {
        self.old_tokens as f64 * (1.0 - self.stuck_ratio * EXPECTED_STUCK_RATIO)
    }
}

impl FoldState {
    /// Counts the segments that became old, and adds the cost of sending the foldable old tokens once more.
    pub(crate) fn accrue_carrying_cost(&mut self, options: &FoldOptions) {
        self.count_old_segments(options);
        self.schedule.carrying_cost += options.prices.read * self.schedule.foldable_tokens();
    }

    /// Counts the segments that became old since the last count.
    fn count_old_segments(&mut self, options: &FoldOptions) {
        for (group, keep) in [options.policy.keep_other_calls, options.policy.keep_file_calls].into_iter().enumerate() {
            while let Some(segment) = self.segments.get(self.schedule.aged_segments[group]) {
                if self.calls - segment.call_index < keep {
                    break;
                }
                self.schedule.aged_segments[group] += 1;
                if segment.counts_when_old() && usize::from(segment.is_kept_longer()) == group {
                    self.schedule.old_tokens += segment.tokens;
                    let first = self.schedule.first_old_message.get_or_insert(segment.at.message);
                    *first = segment.at.message.min(*first);
                }
            }
        }
    }

    /// Returns the reason to plan a crease at this request point, if there is one.
    pub(crate) fn crease_trigger(
        &self,
        options: &FoldOptions,
        cold: bool,
        messages: &[Message<'_>],
    ) -> Option<Trigger> {
        let policy = &options.policy;
        let over_budget = self.rendered_tokens > options.message_budget(1.0);
        // If a forced crease could not reach its target, the next one waits until the request has grown.
        let has_grown = self.schedule.settled_tokens == 0
            || self.rendered_tokens > self.schedule.settled_tokens + options.budget / 16;
        match policy.crease_mode {
            CreaseMode::Never if over_budget => Some(Trigger::OverBudget),
            CreaseMode::Never => None,
            _ if over_budget || self.rendered_tokens > options.message_budget(policy.trigger_ratio) && has_grown => {
                Some(Trigger::OverBudget)
            }
            CreaseMode::Forced => None,
            CreaseMode::Profitable if self.schedule.old_tokens < self.min_old_tokens(options) => None,
            CreaseMode::Profitable if cold => Some(Trigger::ColdCache),
            CreaseMode::Profitable
                if self.schedule.old_tokens < self.schedule.retry_at_tokens
                    && self.calls < self.schedule.retry_at_call =>
            {
                None
            }
            // A crease drops all reasoning of the open turn, so it waits for the next user message.
            CreaseMode::Profitable if options.signed_history && self.last_user_message + 1 != messages.len() => None,
            CreaseMode::Profitable if !self.may_be_profitable(options) => None,
            CreaseMode::Profitable => Some(Trigger::Profitable),
        }
    }

    /// Returns the first message that a crease may change. A profitable crease starts at the text that became old since
    /// the last one; what that one left is not worth writing everything after it again.
    pub(crate) fn crease_start(&self, options: &FoldOptions, trigger: Trigger) -> usize {
        match trigger {
            Trigger::Profitable if !options.signed_history => self.schedule.first_old_message.unwrap_or(0),
            _ => 0,
        }
    }

    /// Estimates the number of calls still to come.
    pub(crate) fn expected_calls(&self, options: &FoldOptions) -> f64 {
        f64::from(self.calls.saturating_sub(WARMUP_CALLS)) * options.policy.remaining_ratio
    }

    /// Returns the minimum old tokens for a profitable crease.
    fn min_old_tokens(&self, options: &FoldOptions) -> Tokens {
        MIN_OLD_TOKENS.min(options.budget / MIN_OLD_BUDGET_DIVISOR).max(self.rendered_tokens / 24)
    }

    /// Returns true if a crease may be profitable under an optimistic estimate of the foldable tokens. Otherwise no
    /// plan is made.
    ///
    /// Ski-rental rule: the number of remaining calls is unknown, so a crease also waits until the carrying cost
    /// equals the rewrite cost (2-competitive).
    fn may_be_profitable(&self, options: &FoldOptions) -> bool {
        let remaining = self.expected_calls(options) / options.policy.min_gain_ratio;
        let (suffix, foldable) = (
            self.suffix_tokens(self.schedule.first_old_message.unwrap_or(0)),
            self.schedule.foldable_tokens() as Tokens,
        );
        let cost = options.prices.rewrite_cost(suffix, foldable);
        let is_profitable = || prices::crease_gain(suffix, foldable, remaining, &options.prices, 0.0) > 0.0;
        let due = if self.is_editing() { EDITING_COST_FACTOR * cost } else { cost };
        self.schedule.carrying_cost >= due && is_profitable() && !self.should_wait(options)
    }

    /// Returns true if the newest round edits a file.
    fn is_editing(&self) -> bool {
        let is_edit = |segment: &Segment| {
            segment.kind == SegmentKind::Arguments
                && segment.tool_call.as_ref().is_some_and(|call| call.action.kind == ActionKind::Edit)
        };
        self.segments_of(self.newest_round_start()..self.len()).iter().any(is_edit)
    }

    /// Returns true if a crease should wait because much of the text kept for its age becomes old within a few calls.
    ///
    /// A crease now would write that text again and leave it until the next crease. Waiting costs carrying the old
    /// tokens until then.
    fn should_wait(&self, options: &FoldOptions) -> bool {
        let (prices, keep) = (&options.prices, options.policy.keep_file_calls);
        let missed_cost = prices.write - prices.read + prices.read * CALLS_BETWEEN_CREASES;
        let mut aging_tokens = 0;
        // Segments become old in the order in which they were ingested.
        let young = self.segments_of(0..self.newest_round_start()).iter().skip(self.schedule.aged_segments[1]);
        young.filter(|segment| segment.counts_when_old() && segment.is_kept_longer()).any(|segment| {
            aging_tokens += segment.tokens;
            let calls = f64::from((segment.call_index + keep).saturating_sub(self.calls));
            missed_cost * aging_tokens as f64 > calls * prices.read * self.schedule.old_tokens as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::fold;
    use crate::{Conversation, FoldOptions, Ledger, Message, Meter, ModelTable, Part, Prices, Role};

    /// Returns the calls at which a session creases that reads a long file, writes long prose after it, and edits in some
    /// calls.
    fn crease_calls(edits: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut messages = vec![Message::text(Role::User, "Please make the parser faster.")];
        for at in 0..200 {
            let (tool, arguments) = match edits(at) {
                _ if at == 30 => ("read_file", r#"{"path":"a.rs"}"#.to_owned()),
                true => ("edit_file", format!(r#"{{"path":"a.rs","old_string":"{at}","new_string":"{}"}}"#, at + 1)),
                false => ("run", format!(r#"{{"command":"make {at}"}}"#)),
            };
            let lines = if at == 30 { 2_000 } else { 1 };
            let output: String =
                (0..lines).map(|line| format!("the word {line} is copied, and read again\n")).collect();
            let prose =
                if at == 31 { "It is slow where it copies each of the words. ".repeat(400) } else { at.to_string() };
            let call = Part::call(format!("c{at}"), tool, arguments);
            messages.push(Message::new(Role::Assistant, vec![Part::text(prose), call]));
            messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), output)]));
        }
        let table = ModelTable::builtin();
        let prices = Prices::for_model(table, Some("claude-opus-4-6"));
        let options = FoldOptions::new(Meter::for_model(table, Some("gpt-4o")), prices, 200_000);
        let conversation = Conversation { messages, ..Conversation::default() };
        let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
        folded.creases.iter().map(|crease| (crease.request_point - 1) / 2).collect()
    }

    /// A crease waits for the end of a run of edits, but not indefinitely.
    #[test]
    fn crease_is_delayed_during_edits() {
        let [quiet] = crease_calls(|_| false)[..] else { panic!("one crease") };
        let end = quiet + 3;
        assert_eq!(crease_calls(|at| (quiet - 3..end).contains(&at)), [end + 1]);
        let [late] = crease_calls(|at| at > quiet - 3)[..] else { panic!("one crease") };
        assert!((end + 1..120).contains(&late), "{late}");
    }
}
