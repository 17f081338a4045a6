//! When a crease is looked for, and where it begins.
//!
//! Looking costs time, and a crease costs that what stands behind it is written again. So this room keeps the time: what has grown
//! old, what it has cost to carry it, and what the last look found. It decides whether to look, never what is folded.

use crate::conversation::Message;
use crate::engine::options::FoldOptions;
use crate::engine::planner::{CreasePlan, Trigger};
use crate::engine::policy::CreaseMode;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::state::FoldState;
use crate::engine::tool_action::ActionKind;
use crate::models::prices;
use crate::tokens::Tokens;

/// What decides when a crease is looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreaseSchedule {
    /// Pieces before these were looked at: what does not stay whole for long, and what does.
    aged_segments: [usize; 2],
    /// Tokens that have grown old since the last crease, and the first message with any of them.
    old_tokens: Tokens,
    first_old_message: Option<usize>,
    /// A crease that pays is looked for when so many tokens are old.
    retry_at_tokens: Tokens,
    /// .. or when so many calls were made: what the last look would have made go pays then.
    pub(crate) retry_at_call: u32,
    /// Which share of the old tokens the last look could not make go.
    stuck_ratio: f64,
    /// What it has cost since the last crease to carry the old tokens that would have gone, at base price.
    carrying_cost: f64,
    /// What a forced crease left: the next is not forced before it has grown.
    settled_tokens: Tokens,
}

/// So much of what the last look could not make go is thought not to go the next time.
const EXPECTED_STUCK_RATIO: f64 = 0.85;
/// With fewer old tokens than this no paid crease is looked for: a short session is over before a crease has paid, and
/// there is little to gain.
const MIN_OLD_TOKENS: Tokens = 10_000;
/// .. or than this share of a small budget, in which less fills more.
const MIN_OLD_BUDGET_DIVISOR: Tokens = 12;
/// The first calls of a session do not tell that more are to come: many sessions have no others.
const WARMUP_CALLS: u32 = 4;
/// Right after an edit a crease waits until carrying what is old has cost so many times its price: the next call is ten times
/// as likely as after anything else to be an edit that quotes what would have been cut.
const EDITING_COST_FACTOR: f64 = 4.0;
/// What a crease leaves whole waits about so many calls for the next.
const CALLS_BETWEEN_CREASES: f64 = 25.0;

impl CreaseSchedule {
    /// A crease made so many tokens go.
    pub(crate) fn record_crease(&mut self, saved: Tokens) {
        let (aged, settled, stuck) = (self.aged_segments, self.settled_tokens, self.stuck_ratio_after(saved));
        *self = Self { aged_segments: aged, settled_tokens: settled, stuck_ratio: stuck, ..Self::default() };
    }

    /// A look found nothing that pays after so many calls; this is what it came nearest to.
    pub(crate) fn record_unprofitable(&mut self, calls: u32, plan: Option<&CreasePlan>, setup: &FoldOptions) {
        self.retry_at_tokens = self.old_tokens + self.old_tokens / 8;
        self.retry_at_call = calls.saturating_add(plan.map_or(u32::MAX, |plan| plan.calls_until_profitable(setup)));
        self.stuck_ratio = self.stuck_ratio_after(plan.map_or(0, |plan| plan.saved_tokens));
    }

    /// A forced crease leaves so many tokens.
    pub(crate) fn record_forced(&mut self, left: Tokens) {
        self.settled_tokens = left;
    }

    fn stuck_ratio_after(&self, saved: Tokens) -> f64 {
        let old = self.old_tokens.max(1) as f64;
        (old - saved as f64).max(0.0) / old
    }

    /// How many of the old tokens may go, if more of them do than the last look could make go.
    fn foldable_tokens(&self) -> f64 {
        self.old_tokens as f64 * (1.0 - self.stuck_ratio * EXPECTED_STUCK_RATIO)
    }
}

impl FoldState {
    /// Counts what has grown old, and what it costs to carry it once more.
    pub(crate) fn accrue_carrying_cost(&mut self, setup: &FoldOptions) {
        self.count_old_segments(setup);
        self.schedule.carrying_cost += setup.prices.read * self.schedule.foldable_tokens();
    }

    /// Counts what has grown old since the last look.
    fn count_old_segments(&mut self, setup: &FoldOptions) {
        for (line, keep) in [setup.policy.keep_other_calls, setup.policy.keep_file_calls].into_iter().enumerate() {
            while let Some(piece) = self.segments.get(self.schedule.aged_segments[line]) {
                if self.calls - piece.call_index < keep {
                    break;
                }
                self.schedule.aged_segments[line] += 1;
                if piece.counts_when_old() && usize::from(piece.is_kept_longer()) == line {
                    self.schedule.old_tokens += piece.tokens;
                    let first = self.schedule.first_old_message.get_or_insert(piece.at.message);
                    *first = piece.at.message.min(*first);
                }
            }
        }
    }

    /// Why a crease is to be looked for at this request point, if it is.
    pub(crate) fn crease_trigger(&self, setup: &FoldOptions, cold: bool, messages: &[Message<'_>]) -> Option<Trigger> {
        let policy = &setup.policy;
        let full = self.rendered_tokens > setup.message_budget(1.0);
        // Where a forced crease could not reach its target, the next waits until something has grown.
        let grown = self.schedule.settled_tokens == 0
            || self.rendered_tokens > self.schedule.settled_tokens + setup.budget / 16;
        match policy.crease_mode {
            CreaseMode::Never if full => Some(Trigger::OverBudget),
            CreaseMode::Never => None,
            _ if full || self.rendered_tokens > setup.message_budget(policy.trigger_ratio) && grown => {
                Some(Trigger::OverBudget)
            }
            CreaseMode::Forced => None,
            CreaseMode::Profitable if self.schedule.old_tokens < self.min_old_tokens(setup) => None,
            CreaseMode::Profitable if cold => Some(Trigger::ColdCache),
            CreaseMode::Profitable
                if self.schedule.old_tokens < self.schedule.retry_at_tokens
                    && self.calls < self.schedule.retry_at_call =>
            {
                None
            }
            // A crease costs all reasoning of the open turn: it waits for the next word of the user.
            CreaseMode::Profitable if setup.signed_history && self.last_user_message + 1 != messages.len() => None,
            CreaseMode::Profitable if !self.may_be_profitable(setup) => None,
            CreaseMode::Profitable => Some(Trigger::Profitable),
        }
    }

    /// The first message that a crease may touch. One that must pay begins with what has grown old since the last: what that
    /// one left is not worth that everything behind it is written again.
    pub(crate) fn crease_start(&self, setup: &FoldOptions, reason: Trigger) -> usize {
        match reason {
            Trigger::Profitable if !setup.signed_history => self.schedule.first_old_message.unwrap_or(0),
            _ => 0,
        }
    }

    /// How many calls are expected to come.
    pub(crate) fn expected_calls(&self, setup: &FoldOptions) -> f64 {
        f64::from(self.calls.saturating_sub(WARMUP_CALLS)) * setup.policy.remaining_ratio
    }

    /// How many tokens must have grown old before a paid crease is looked for.
    fn min_old_tokens(&self, setup: &FoldOptions) -> Tokens {
        MIN_OLD_TOKENS.min(setup.budget / MIN_OLD_BUDGET_DIVISOR).max(self.rendered_tokens / 24)
    }

    /// Whether a crease may pay, if more of what has grown old goes than the last look could make go: where even that
    /// is not enough, no plan is made.
    ///
    /// Nobody knows how many calls are to come. Who rents until the rent has come to the price and then buys never pays
    /// more than twice what foresight would have: so a crease waits until carrying what it would have folded has cost as
    /// much as the crease itself, however many calls are expected.
    fn may_be_profitable(&self, setup: &FoldOptions) -> bool {
        let remaining = self.expected_calls(setup) / setup.policy.min_gain_ratio;
        let (suffix, goes) = (
            self.suffix_tokens(self.schedule.first_old_message.unwrap_or(0)),
            self.schedule.foldable_tokens() as Tokens,
        );
        let price = setup.prices.rewrite_cost(suffix, goes);
        let pays = || prices::crease_gain(suffix, goes, remaining, &setup.prices, 0.0) > 0.0;
        let due = if self.is_editing() { EDITING_COST_FACTOR * price } else { price };
        self.schedule.carrying_cost >= due && pays() && !self.should_wait(setup)
    }

    /// Whether the model's last deed was to edit a file.
    fn is_editing(&self) -> bool {
        let edits = |piece: &Segment| {
            piece.kind == SegmentKind::Arguments
                && piece.tool_call.as_ref().is_some_and(|done| done.action.kind == ActionKind::Edit)
        };
        self.segments_of(self.newest_round_start()..self.len()).iter().any(edits)
    }

    /// Whether a crease is worth waiting for, since so much of what is left whole for its age grows old within a few calls.
    ///
    /// What is still whole is written again by a crease, and waits for the next one then. Against that stands what it costs to
    /// carry what is old until it has grown old too.
    fn should_wait(&self, setup: &FoldOptions) -> bool {
        let (prices, keep) = (&setup.prices, setup.policy.keep_file_calls);
        let missed = prices.write - prices.read + prices.read * CALLS_BETWEEN_CREASES;
        let mut ripe = 0;
        // They came in this order, and grow old in it.
        let young = self.segments_of(0..self.newest_round_start()).iter().skip(self.schedule.aged_segments[1]);
        young.filter(|piece| piece.counts_when_old() && piece.is_kept_longer()).any(|piece| {
            ripe += piece.tokens;
            let calls = f64::from((piece.call_index + keep).saturating_sub(self.calls));
            missed * ripe as f64 > calls * prices.read * self.schedule.old_tokens as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::fold;
    use crate::{Conversation, FoldOptions, Ledger, Message, Meter, ModelTable, Part, Prices, Role};

    /// After how many calls a session creases that reads a long file, says much behind it, and edits in some of its calls.
    fn crease_calls(edits: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut messages = vec![Message::text(Role::User, "Please make the parser faster.")];
        for at in 0..200 {
            let (tool, arguments) = match edits(at) {
                _ if at == 30 => ("read_file", r#"{"path":"a.rs"}"#.to_owned()),
                true => ("edit_file", format!(r#"{{"path":"a.rs","old_string":"{at}","new_string":"{}"}}"#, at + 1)),
                false => ("run", format!(r#"{{"command":"make {at}"}}"#)),
            };
            let lines = if at == 30 { 2_000 } else { 1 };
            let said: String = (0..lines).map(|line| format!("the word {line} is copied, and read again\n")).collect();
            let prose =
                if at == 31 { "It is slow where it copies each of the words. ".repeat(400) } else { at.to_string() };
            let call = Part::call(format!("c{at}"), tool, arguments);
            messages.push(Message::new(Role::Assistant, vec![Part::text(prose), call]));
            messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), said)]));
        }
        let table = ModelTable::builtin();
        let prices = Prices::for_model(table, Some("claude-opus-4-6"));
        let setup = FoldOptions::new(Meter::for_model(table, Some("gpt-4o")), prices, 200_000);
        let conversation = Conversation { messages, ..Conversation::default() };
        let folded = fold(&conversation, &setup, &Ledger::default()).unwrap();
        folded.creases.iter().map(|crease| (crease.request_point - 1) / 2).collect()
    }

    /// A crease waits for the end of a run of edits, and not for ever.
    #[test]
    fn crease_is_delayed_during_edits() {
        let [quiet] = crease_calls(|_| false)[..] else { panic!("one crease") };
        let end = quiet + 3;
        assert_eq!(crease_calls(|at| (quiet - 3..end).contains(&at)), [end + 1]);
        let [late] = crease_calls(|at| at > quiet - 3)[..] else { panic!("one crease") };
        assert!((end + 1..120).contains(&late), "{late}");
    }
}
