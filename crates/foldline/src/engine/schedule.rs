//! The schedule of creases: when a crease is planned, and from which message on.
//!
//! Planning costs time, and a crease causes everything after it to be written to the cache again. The schedule tracks
//! which segments are old, the cost of carrying them, and the outcome of the last planning run. It decides
//! whether to plan; it must not decide what is folded.

use crate::engine::crease::Trigger;
use crate::engine::options::FoldOptions;
use crate::engine::policy::CreaseMode;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::state::rounds::RoundTable;
use crate::engine::state::segments::SegmentTable;
use crate::engine::state::totals::TokenTotals;
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
    retry_at_call: u32,
    /// Share of the old tokens that the last planning run could not fold.
    stuck_ratio: f64,
    /// Cost of carrying the foldable old tokens since the last crease, at base price.
    carrying_cost: f64,
    /// Tokens left by the last forced crease. The next one is not forced before the request has grown.
    settled_tokens: Tokens,
}

/// The parts of a fold state that a schedule reads.
#[derive(Clone, Copy)]
pub(crate) struct ScheduleInput<'s> {
    pub(crate) segments: &'s SegmentTable,
    pub(crate) rounds: &'s RoundTable,
    pub(crate) totals: &'s TokenTotals,
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

    /// Records a planning run after `calls` calls that found no profitable crease. The best plan would save this many
    /// tokens and be profitable after `profitable_in` further calls; `None` if there was no plan.
    pub(crate) fn record_unprofitable(&mut self, calls: u32, profitable_in: Option<u32>, saved: Tokens) {
        self.retry_at_tokens = self.old_tokens + self.old_tokens / 8;
        self.retry_at_call = calls.saturating_add(profitable_in.unwrap_or(u32::MAX));
        self.stuck_ratio = self.stuck_ratio_after(saved);
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

    /// Counts the segments that became old, and adds the cost of sending the foldable old tokens once more.
    pub(crate) fn accrue_carrying_cost(&mut self, segments: &[Segment], calls: u32, options: &FoldOptions) {
        self.count_old_segments(segments, calls, options);
        self.carrying_cost += options.prices.read * self.foldable_tokens();
    }

    /// Counts the segments that became old since the last count.
    fn count_old_segments(&mut self, segments: &[Segment], calls: u32, options: &FoldOptions) {
        for (group, keep) in [options.policy.keep_other_calls, options.policy.keep_file_calls].into_iter().enumerate() {
            while let Some(segment) = segments.get(self.aged_segments[group]) {
                if calls - segment.call_index < keep {
                    break;
                }
                self.aged_segments[group] += 1;
                if segment.counts_when_old() && usize::from(segment.is_kept_longer()) == group {
                    self.old_tokens += segment.tokens;
                    let first = self.first_old_message.get_or_insert(segment.at.message);
                    *first = segment.at.message.min(*first);
                }
            }
        }
    }

    /// Returns the reason to plan a crease at this request point, if there is one.
    pub(crate) fn crease_trigger(
        &self,
        input: ScheduleInput<'_>,
        options: &FoldOptions,
        is_cold: bool,
    ) -> Option<Trigger> {
        let (policy, rendered) = (&options.policy, input.totals.rendered());
        let over_budget = rendered > options.message_budget(1.0);
        // If a forced crease could not reach its target, the next one waits until the request has grown.
        let has_grown = self.settled_tokens == 0 || rendered > self.settled_tokens + options.budget / 16;
        match policy.crease_mode {
            CreaseMode::Never if over_budget => Some(Trigger::OverBudget),
            CreaseMode::Never => None,
            _ if over_budget || rendered > options.message_budget(policy.trigger_ratio) && has_grown => {
                Some(Trigger::OverBudget)
            }
            CreaseMode::Forced | CreaseMode::Once => None,
            CreaseMode::Profitable if self.old_tokens < min_old_tokens(rendered, options) => None,
            CreaseMode::Profitable if is_cold => Some(Trigger::ColdCache),
            CreaseMode::Profitable
                if self.old_tokens < self.retry_at_tokens && input.rounds.calls() < self.retry_at_call =>
            {
                None
            }
            // A crease drops all reasoning of the open turn, so it waits for the next user message.
            CreaseMode::Profitable if options.signed_history && !input.ends_with_user_message() => None,
            CreaseMode::Profitable if !self.may_be_profitable(input, options) => None,
            CreaseMode::Profitable => Some(Trigger::Profitable),
        }
    }

    /// Returns the first message that a crease may change. A profitable crease starts at the text that became old since
    /// the last one; what that one left is not worth writing everything after it again.
    pub(crate) fn crease_start(&self, options: &FoldOptions, trigger: Trigger) -> usize {
        match trigger {
            Trigger::Profitable if !options.signed_history => self.first_old_message.unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns true if a crease may be profitable under an optimistic estimate of the foldable tokens. Otherwise no
    /// plan is made.
    ///
    /// Ski-rental rule: the number of remaining calls is unknown, so a crease also waits until the carrying cost
    /// equals the rewrite cost (2-competitive).
    fn may_be_profitable(&self, input: ScheduleInput<'_>, options: &FoldOptions) -> bool {
        let remaining = expected_calls(input.rounds.calls(), options) / options.policy.min_gain_ratio;
        let suffix = input.totals.suffix(self.first_old_message.unwrap_or(0), input.rounds.newest_start());
        let foldable = self.foldable_tokens() as Tokens;
        let cost = options.prices.rewrite_cost(suffix, foldable);
        let is_profitable = || prices::crease_gain(suffix, foldable, remaining, &options.prices, 0.0) > 0.0;
        let due = if input.is_editing() { EDITING_COST_FACTOR * cost } else { cost };
        self.carrying_cost >= due && is_profitable() && !self.should_wait(input, options)
    }

    /// Returns true if a crease should wait because much of the text kept for its age becomes old within a few calls.
    ///
    /// A crease now would write that text again and leave it until the next crease. Waiting costs carrying the old
    /// tokens until then.
    fn should_wait(&self, input: ScheduleInput<'_>, options: &FoldOptions) -> bool {
        let (prices, keep) = (&options.prices, options.policy.keep_file_calls);
        let missed_cost = prices.write - prices.read + prices.read * CALLS_BETWEEN_CREASES;
        let mut aging_tokens = 0;
        // Segments become old in the order in which they were ingested.
        let before_newest = input.segments.of_messages(0..input.rounds.newest_start());
        let young = before_newest.iter().skip(self.aged_segments[1]);
        young.filter(|segment| segment.counts_when_old() && segment.is_kept_longer()).any(|segment| {
            aging_tokens += segment.tokens;
            let calls = f64::from((segment.call_index + keep).saturating_sub(input.rounds.calls()));
            missed_cost * aging_tokens as f64 > calls * prices.read * self.old_tokens as f64
        })
    }

    #[cfg(test)]
    pub(crate) fn has_unprofitable_plan(&self) -> bool {
        self.retry_at_call > 0
    }
}

impl ScheduleInput<'_> {
    fn ends_with_user_message(self) -> bool {
        self.rounds.last_user_message() + 1 == self.totals.by_message().len()
    }

    /// Returns true if the newest round edits a file.
    fn is_editing(self) -> bool {
        let is_edit = |segment: &Segment| {
            segment.kind == SegmentKind::Arguments
                && segment.tool_call.as_ref().is_some_and(|call| call.action.kind == ActionKind::Edit)
        };
        let newest = self.rounds.newest_start()..self.totals.by_message().len();
        self.segments.of_messages(newest).iter().any(is_edit)
    }
}

/// Estimates the number of calls that follow the first `calls` ones.
pub(crate) fn expected_calls(calls: u32, options: &FoldOptions) -> f64 {
    f64::from(calls.saturating_sub(WARMUP_CALLS)) * options.policy.remaining_ratio
}

/// Returns the minimum old tokens for a profitable crease of a request with `rendered` tokens.
fn min_old_tokens(rendered: Tokens, options: &FoldOptions) -> Tokens {
    MIN_OLD_TOKENS.min(options.budget / MIN_OLD_BUDGET_DIVISOR).max(rendered / 24)
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
