//! When a crease is looked for, and where it begins.
//!
//! Looking costs time, and a crease costs that what stands behind it is written again. So this room keeps the time: what has grown
//! old, what it has cost to carry it, and what the last look found. It decides whether to look, never what is folded.

use crate::conversation::Message;
use crate::deed::Act;
use crate::fold::State;
use crate::measure::Tokens;
use crate::piece::{Class, Piece};
use crate::plan::{Plan, Reason};
use crate::policy::Creases;
use crate::price;
use crate::setup::Setup;

/// What decides when a crease is looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// Pieces before these were looked at: what does not stay whole for long, and what does.
    aged: [usize; 2],
    /// Tokens that have grown old since the last crease, and the first message with any of them.
    old: Tokens,
    first: Option<usize>,
    /// A crease that pays is looked for when so many tokens are old.
    retry: Tokens,
    /// .. or when so many calls were made: what the last look would have made go pays then.
    pub(crate) due: u32,
    /// Which share of the old tokens the last look could not make go.
    stuck: f64,
    /// What it has cost since the last crease to carry the old tokens that would have gone, at base price.
    carried: f64,
    /// What a forced crease left: the next is not forced before it has grown.
    settled: Tokens,
}

/// So much of what the last look could not make go is thought not to go the next time.
const HOPE: f64 = 0.85;
/// With fewer old tokens than this no paid crease is looked for: a short session is over before a crease has paid, and
/// there is little to gain.
const WORTH_LOOKING: Tokens = 10_000;
/// .. or than this share of a small budget, in which less fills more.
const SHARE_WORTH_LOOKING: Tokens = 12;
/// The first calls of a session do not tell that more are to come: many sessions have no others.
const OPENING: u32 = 4;
/// Right after an edit a crease waits until carrying what is old has cost so many times its price: the next call is ten times
/// as likely as after anything else to be an edit that quotes what would have been cut.
const WHILE_EDITING: f64 = 4.0;
/// What a crease leaves whole waits about so many calls for the next.
const BETWEEN_CREASES: f64 = 25.0;

impl Clock {
    /// A crease made so many tokens go.
    pub(crate) fn creased(&mut self, saved: Tokens) {
        let (aged, settled, stuck) = (self.aged, self.settled, self.stuck_after(saved));
        *self = Self { aged, settled, stuck, ..Self::default() };
    }

    /// A look found nothing that pays after so many calls; this is what it came nearest to.
    pub(crate) fn looked_in_vain(&mut self, calls: u32, plan: Option<&Plan>, setup: &Setup) {
        self.retry = self.old + self.old / 8;
        self.due = calls.saturating_add(plan.map_or(u32::MAX, |plan| plan.pays_in(setup)));
        self.stuck = self.stuck_after(plan.map_or(0, |plan| plan.saved));
    }

    /// A forced crease leaves so many tokens.
    pub(crate) fn settle(&mut self, left: Tokens) {
        self.settled = left;
    }

    fn stuck_after(&self, saved: Tokens) -> f64 {
        let old = self.old.max(1) as f64;
        (old - saved as f64).max(0.0) / old
    }

    /// How many of the old tokens may go, if more of them do than the last look could make go.
    fn goes(&self) -> f64 {
        self.old as f64 * (1.0 - self.stuck * HOPE)
    }
}

impl State {
    /// Counts what has grown old, and what it costs to carry it once more.
    pub(crate) fn wait(&mut self, setup: &Setup) {
        self.age(setup);
        self.clock.carried += setup.prices.read * self.clock.goes();
    }

    /// Counts what has grown old since the last look.
    fn age(&mut self, setup: &Setup) {
        for (line, keep) in [setup.policy.keep_rest, setup.policy.keep_reads].into_iter().enumerate() {
            while let Some(piece) = self.pieces.get(self.clock.aged[line]) {
                if self.calls - piece.call < keep {
                    break;
                }
                self.clock.aged[line] += 1;
                if piece.counts_when_old() && usize::from(piece.stays()) == line {
                    self.clock.old += piece.tokens;
                    let first = self.clock.first.get_or_insert(piece.at.message);
                    *first = piece.at.message.min(*first);
                }
            }
        }
    }

    /// Why a crease is to be looked for at this request point, if it is.
    pub(crate) fn reason(&self, setup: &Setup, cold: bool, messages: &[Message<'_>]) -> Option<Reason> {
        let policy = &setup.policy;
        let full = self.rendered > setup.room_at(1.0);
        // Where a forced crease could not reach its target, the next waits until something has grown.
        let grown = self.clock.settled == 0 || self.rendered > self.clock.settled + setup.budget / 16;
        match policy.creases {
            Creases::Never if full => Some(Reason::Must),
            Creases::Never => None,
            _ if full || self.rendered > setup.room_at(policy.high) && grown => Some(Reason::Must),
            Creases::Forced => None,
            Creases::Paid if self.clock.old < self.worth_looking(setup) => None,
            Creases::Paid if cold => Some(Reason::Free),
            Creases::Paid if self.clock.old < self.clock.retry && self.calls < self.clock.due => None,
            // A crease costs all reasoning of the open turn: it waits for the next word of the user.
            Creases::Paid if setup.signed && self.last_said + 1 != messages.len() => None,
            Creases::Paid if !self.may_pay(setup) => None,
            Creases::Paid => Some(Reason::Worth),
        }
    }

    /// The first message that a crease may touch. One that must pay begins with what has grown old since the last: what that
    /// one left is not worth that everything behind it is written again.
    pub(crate) fn begins_at(&self, setup: &Setup, reason: Reason) -> usize {
        match reason {
            Reason::Worth if !setup.signed => self.clock.first.unwrap_or(0),
            _ => 0,
        }
    }

    /// How many calls are expected to come.
    pub(crate) fn remaining(&self, setup: &Setup) -> f64 {
        f64::from(self.calls.saturating_sub(OPENING)) * setup.policy.remaining
    }

    /// How many tokens must have grown old before a paid crease is looked for.
    fn worth_looking(&self, setup: &Setup) -> Tokens {
        WORTH_LOOKING.min(setup.budget / SHARE_WORTH_LOOKING).max(self.rendered / 24)
    }

    /// Whether a crease may pay, if more of what has grown old goes than the last look could make go: where even that
    /// is not enough, no plan is made.
    ///
    /// Nobody knows how many calls are to come. Who rents until the rent has come to the price and then buys never pays
    /// more than twice what foresight would have: so a crease waits until carrying what it would have folded has cost as
    /// much as the crease itself, however many calls are expected.
    fn may_pay(&self, setup: &Setup) -> bool {
        let remaining = self.remaining(setup) / setup.policy.patience;
        let (suffix, goes) = (self.suffix(self.clock.first.unwrap_or(0)), self.clock.goes() as Tokens);
        let price = setup.prices.rewrite(suffix, goes);
        let pays = || price::worth(suffix, goes, remaining, &setup.prices, 0.0) > 0.0;
        let due = if self.is_editing() { WHILE_EDITING * price } else { price };
        self.clock.carried >= due && pays() && !self.ripens(setup)
    }

    /// Whether the model's last deed was to edit a file.
    fn is_editing(&self) -> bool {
        let edits = |piece: &Piece| {
            piece.class == Class::Arguments && piece.deed.as_ref().is_some_and(|done| done.deed.act == Act::Edit)
        };
        self.pieces_of(self.newest_round()..self.len()).iter().any(edits)
    }

    /// Whether a crease is worth waiting for, since so much of what is left whole for its age grows old within a few calls.
    ///
    /// What is still whole is written again by a crease, and waits for the next one then. Against that stands what it costs to
    /// carry what is old until it has grown old too.
    fn ripens(&self, setup: &Setup) -> bool {
        let (prices, keep) = (&setup.prices, setup.policy.keep_reads);
        let missed = prices.write - prices.read + prices.read * BETWEEN_CREASES;
        let mut ripe = 0;
        // They came in this order, and grow old in it.
        let young = self.pieces_of(0..self.newest_round()).iter().skip(self.clock.aged[1]);
        young.filter(|piece| piece.counts_when_old() && piece.stays()).any(|piece| {
            ripe += piece.tokens;
            let calls = f64::from((piece.call + keep).saturating_sub(self.calls));
            missed * ripe as f64 > calls * prices.read * self.clock.old as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Conversation, Ledger, Message, Meter, ModelTable, Part, Prices, Role, Setup, fold};

    /// After how many calls a session creases that reads a long file, says much behind it, and edits in some of its calls.
    fn creases(edits: impl Fn(usize) -> bool) -> Vec<usize> {
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
        let setup = Setup::new(Meter::for_model(table, Some("gpt-4o")), prices, 200_000);
        let conversation = Conversation { messages, ..Conversation::default() };
        let folded = fold(&conversation, &setup, &Ledger::default()).unwrap();
        folded.creases.iter().map(|crease| (crease.at - 1) / 2).collect()
    }

    /// A crease waits for the end of a run of edits, and not for ever.
    #[test]
    fn a_crease_does_not_come_between_edits() {
        let [quiet] = creases(|_| false)[..] else { panic!("one crease") };
        let end = quiet + 3;
        assert_eq!(creases(|at| (quiet - 3..end).contains(&at)), [end + 1]);
        let [late] = creases(|at| at > quiet - 3)[..] else { panic!("one crease") };
        assert!((end + 1..120).contains(&late), "{late}");
    }
}
