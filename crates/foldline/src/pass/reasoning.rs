//! Old reasoning goes, whole, where the provider allows it.

use crate::piece::Class;
use crate::plan::Rung;
use crate::setup::Thoughts;

use super::{Proposal, View};
use crate::folds::Change;

pub(super) fn propose(view: &View<'_>, proposals: &mut Vec<Proposal>) {
    let until = match view.setup.thoughts {
        Thoughts::Stay => return,
        Thoughts::FinishedTurns => view.last_said,
        Thoughts::AnyOld => view.newest,
    };
    for piece in view.old(Class::Reasoning, Rung::Reasoning).take_while(|piece| piece.at.message < until) {
        proposals.push(Proposal { at: piece.at, change: Change::Drop, tokens: 0, risk: 0.0 });
    }
}
