//! The plan: which proposals are taken, under budget, laws and price.
//!
//! Passes are not trusted here. A fold that does not save tokens is refused; a crease that is not
//! forced must pay; every rung makes progress or is left; and the last rungs end inside the budget,
//! or say how far from it the floor is.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, PartId};
use crate::error::Error;
use crate::fold::State;
use crate::folds::{Change, Fold, Folds};
use crate::lexicon::Lexicon;
use crate::measure::Tokens;
use crate::pass::rounds::Detail;
use crate::pass::{self, Alive, Cover, Proposal, View};
use crate::piece::Class;
use crate::policy::Creases;
use crate::price;
use crate::setup::Setup;
use crate::summarised::Summarised;

mod notes;
mod protected;

/// The ladder: what is spent in this order until the target holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rung {
    /// Text that can be rewritten shorter and back again, verified.
    Repack,
    /// What stands in the request a second time.
    Repeats,
    /// Old reasoning, where the laws allow it, and old images and files.
    Reasoning,
    /// Long old texts to the lines of them that are worth keeping.
    Excerpts,
    /// Whole old results.
    Markers,
    /// Old prose and arguments.
    Writing,
    /// Whole old rounds, to one line each.
    Rounds,
    /// What is protected but too big.
    Protected,
    /// All but the system, the task, the newest user message and the newest round.
    Truncation,
}

/// Why a crease happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The request was above the high-water mark.
    Must,
    /// It pays.
    Worth,
    /// The cache is cold: rewriting costs nothing extra.
    Free,
}

/// What a crease would do.
pub(crate) struct Plan {
    pub(crate) folds: Folds,
    /// Tokens of each message afterwards, notes with the message that they stand before.
    pub(crate) tokens: Vec<Tokens>,
    /// Messages that are rendered otherwise than before.
    pub(crate) touched: BTreeSet<usize>,
    pub(crate) saved: Tokens,
    /// Tokens behind the first changed byte that had been sent, before the change.
    pub(crate) suffix: Tokens,
    /// First changed message.
    pub(crate) first: usize,
    /// What the crease is expected to gain over the rest of the session, at base price, beyond so
    /// many times its cost as the policy asks for.
    pub(crate) gain: f64,
}

impl Plan {
    /// After how many more calls it would gain, at the least one: with each that is made more are expected to come.
    pub(crate) fn pays_in(&self, setup: &Setup) -> u32 {
        let policy = &setup.policy;
        let by_call = policy.remaining / policy.patience * setup.prices.read * self.saved as f64;
        (-self.gain / by_call).ceil().max(1.0) as u32
    }
}

/// Chooses the folds of a crease at the end of `messages` that touches none before `from`; `None` when there is nothing to fold.
pub(crate) fn choose(
    state: &State,
    lexicon: &mut Lexicon,
    setup: &Setup,
    messages: &[Message<'_>],
    reason: Reason,
    from: usize,
    summary: Option<&Summarised>,
) -> Result<Option<Plan>, Error> {
    if setup.policy.creases == Creases::Never {
        return Ok(None);
    }
    let mut draft = Draft::new(state, setup, messages, reason, from, summary);
    if reason == Reason::Must {
        draft.fold_told();
    }
    // What has a price of its own is taken by it.
    for rung in [Rung::Repeats, Rung::Reasoning, Rung::Excerpts] {
        draft.spend(lexicon, rung, 1.0, None)?;
    }
    if reason == Reason::Must {
        let target = draft.target;
        draft.spend(lexicon, Rung::Repack, 1.0, Some(target))?;
        draft.spend(lexicon, Rung::Excerpts, 4.0, Some(target))?;
        draft.spend(lexicon, Rung::Excerpts, 16.0, Some(target))?;
        draft.spend(lexicon, Rung::Markers, 1.0, Some(target))?;
        draft.spend(lexicon, Rung::Writing, 1.0, Some(target))?;
        setup.cancel.check()?;
        draft.fold_rounds(target);
        if draft.context > setup.room_at(1.0) && summary.is_some() {
            // No summary is worth the words of a user.
            draft.write_notes(Rung::Rounds, Detail::Bare);
        }
        draft.shorten_protected()?;
    }
    Ok(draft.finish(reason))
}

struct Draft<'d> {
    state: &'d State,
    setup: &'d Setup,
    messages: &'d [Message<'d>],
    folds: Folds,
    tokens: Vec<Tokens>,
    context: Tokens,
    /// The pieces of messages that were not gone when the rungs began.
    alive: Vec<Alive>,
    summary: Option<&'d Summarised>,
    from: usize,
    /// Tokens to which a forced crease folds.
    target: Tokens,
    crowded: usize,
    newest: usize,
    last_said: usize,
    remaining: f64,
    /// Messages that are rendered otherwise than before.
    touched: BTreeSet<usize>,
    risk: f64,
}

impl<'d> Draft<'d> {
    fn new(
        state: &'d State,
        setup: &'d Setup,
        messages: &'d [Message<'d>],
        reason: Reason,
        from: usize,
        summary: Option<&'d Summarised>,
    ) -> Self {
        let mut draft = Self {
            state,
            setup,
            messages,
            folds: state.folds.clone(),
            tokens: state.tokens.clone(),
            context: state.rendered,
            alive: alive(state, &state.folds),
            summary,
            from,
            target: 0,
            crowded: 0,
            newest: state.newest_round(),
            last_said: state.last_said,
            remaining: state.remaining(setup),
            touched: BTreeSet::new(),
            risk: 0.0,
        };
        if reason == Reason::Must {
            let protected = draft.protected_tokens();
            draft.target = draft.target(protected);
            draft.crowded = state.crowded(setup, draft.newest, protected);
        }
        draft
    }

    /// Takes the proposals of a rung, all of them or until the target is reached.
    fn spend(&mut self, lexicon: &mut Lexicon, rung: Rung, thrift: f64, target: Option<Tokens>) -> Result<(), Error> {
        let reached = |draft: &Self| target.is_some_and(|target| draft.context <= target);
        if rung > self.setup.policy.deepest || reached(self) {
            return Ok(());
        }
        self.setup.cancel.check()?;
        let view = self.view(thrift);
        if rung == Rung::Excerpts {
            *view.cover.borrow_mut() = Some(self.cover(&view, lexicon));
        }
        // All passes of a rung see the request as it was before it.
        let mut proposals = Vec::new();
        for pass in pass::of(rung) {
            self.setup.cancel.check()?;
            let mut of_pass = Vec::new();
            (pass.propose)(&view, &mut of_pass);
            proposals.extend(of_pass.into_iter().map(|proposal| (proposal, pass.name)));
        }
        drop(view);
        for (proposal, pass) in proposals {
            self.take(proposal, rung, pass);
            if reached(self) {
                break;
            }
        }
        Ok(())
    }

    /// What stands beside the pieces that may be cut now.
    fn cover<'l>(&self, view: &View<'_>, lexicon: &'l mut Lexicon) -> Cover<'l> {
        let mut cover = Cover::of(lexicon);
        let mut cut = BTreeSet::new();
        for piece in [Class::Result, Class::Arguments].into_iter().flat_map(|class| view.long(class)) {
            let at = piece.at;
            if self.touched.contains(&at.message) {
                cut.insert(at);
                continue;
            }
            if piece.class == Class::Arguments && cover.count_values(at) {
                continue;
            }
            let part = &self.messages[at.message].parts[at.part];
            self.folds.each_text_to_cut(at, part, |place, text| cover.count(place, text, -1));
        }
        // What earlier rungs have changed is counted as it was and as it is.
        for &at in &self.touched {
            let message = &self.messages[at];
            let left_out = |part| cut.contains(&part);
            self.state.folds.each_standing_text(at, message, |_| false, |place, text| cover.count(place, text, -1));
            self.folds.each_standing_text(at, message, left_out, |place, text| cover.count(place, text, 1));
        }
        cover
    }

    fn view<'v>(&'v self, thrift: f64) -> View<'v> {
        View {
            messages: self.messages,
            pieces: &self.state.pieces,
            alive: &self.alive,
            first_piece: &self.state.first_piece,
            setup: self.setup,
            calls: self.state.calls,
            from: self.from,
            newest: self.newest,
            crowded: self.crowded,
            last_said: self.last_said,
            remaining: self.remaining,
            context: self.context,
            thrift: thrift * self.setup.policy.thrift,
            cover: RefCell::new(None),
        }
    }

    /// Takes a proposal if it leaves fewer tokens than stand there now.
    fn take(&mut self, proposal: Proposal, rung: Rung, pass: &'static str) {
        let at = proposal.at;
        let Some(piece) = self.state.piece(at) else { return };
        let now = self.folds.tokens(at).unwrap_or(piece.tokens);
        if proposal.tokens >= now || self.folds.is_gone(at.message) {
            return;
        }
        self.shrink(at.message, now - proposal.tokens);
        self.risk += proposal.risk;
        self.folds.set(at, Fold { change: proposal.change, tokens: proposal.tokens, rung, pass });
        let pieces = &self.state.pieces;
        if let Ok(index) = self.alive.binary_search_by_key(&at, |it| pieces[it.index].at) {
            self.alive[index].rung = Some(rung);
        }
    }

    fn shrink(&mut self, message: usize, by: Tokens) {
        self.tokens[message] -= by;
        self.context -= by;
        self.touched.insert(message);
    }

    fn finish(mut self, reason: Reason) -> Option<Plan> {
        let first = self.touched.first().copied()?;
        if self.setup.signed {
            self.drop_all_reasoning();
        }
        if self.context >= self.state.rendered {
            return None;
        }
        let saved = self.state.rendered - self.context;
        let suffix = self.state.suffix(first);
        let prices = &self.setup.prices;
        let patience = self.setup.policy.patience;
        let gain = match reason {
            Reason::Free => (self.remaining * prices.read + prices.write) * saved as f64 - self.risk,
            Reason::Must | Reason::Worth => {
                price::worth(suffix, saved, self.remaining / patience, prices, self.risk / patience)
            }
        };
        Some(Plan { folds: self.folds, tokens: self.tokens, touched: self.touched, saved, suffix, first, gain })
    }

    /// Reasoning that is bound to what stood before it does not survive a crease, and what is kept must
    /// be one unbroken run: so all of it goes, and what comes after is bound to what is sent now.
    fn drop_all_reasoning(&mut self) {
        for piece in self.state.pieces.iter().filter(|piece| piece.class == Class::Reasoning) {
            let proposal = Proposal { at: piece.at, change: Change::Drop, tokens: 0, risk: 0.0 };
            self.take(proposal, Rung::Reasoning, "signed");
        }
    }
}

/// The pieces of messages that are not gone.
fn alive(state: &State, folds: &Folds) -> Vec<Alive> {
    let mut folded = folds.all_parts().peekable();
    let mut alive = Vec::new();
    // A part that is folded whole: nothing inside of it shows.
    let mut whole = None;
    // In a long conversation most messages are gone: their pieces are not looked at.
    let standing = (0..state.len()).filter(|&message| !folds.is_gone(message));
    for index in standing.flat_map(|message| state.indices_of(message..message + 1)) {
        let piece = &state.pieces[index];
        // Both are sorted by place.
        while let Some((at, _)) = folded.next_if(|(at, _)| *at < piece.at) {
            whole = if at.inner.is_none() { Some(at) } else { whole };
        }
        let own = folded.peek().filter(|(at, _)| *at == piece.at).map(|(_, fold)| ladder_rung(fold.rung));
        let rung = if whole == Some(PartId { inner: None, ..piece.at }) { Some(Rung::Truncation) } else { own };
        alive.push(Alive { index, class: piece.class, rung });
    }
    alive
}

/// Returns the rung from which a part goes on: what was shortened because it was protected may still become an excerpt or a
/// marker when it is old.
fn ladder_rung(rung: Rung) -> Rung {
    if rung >= Rung::Protected { Rung::Reasoning } else { rung }
}
