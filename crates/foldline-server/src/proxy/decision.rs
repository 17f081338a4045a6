//! What is folded of a conversation now, given all that is known of it; and what follows from that: it is told, counted
//! and remembered.
//!
//! What was decided for a request before holds, unless its budget is another now. Nothing here looks at a client, a
//! connection or a credential.

use std::sync::Arc;

use foldline::laws::LawProfile;
use foldline::wire::Request;
use foldline::{
    CancelFlag, Crease, Error, FoldEvent, FoldOptions, FoldState, Ledger, OriginalStore, Policy, Tokens, apply_from,
};
use foldline_archive::Shelf;
use foldline_rlm::NEAR;

use super::ahead::count_ahead;
use super::keeper::{Held, Keeper, Settling};
use super::lineage::Lineage;
use super::memory::{Facts, Place};
use super::metrics;
use super::models::Model;
use super::server::Shared;
use super::settings::{Mode, Summarise};
use super::summaries::{self, Due};

/// A conversation as the model knows it, and what is known of it.
pub(crate) struct Known<'r> {
    pub(crate) request: Request<'r>,
    pub(crate) lineage: Lineage,
    pub(crate) facts: Arc<Facts>,
    pub(crate) model: Arc<Model>,
    pub(crate) laws: LawProfile,
    /// The conversation in the archive.
    pub(crate) journal: Option<Shelf>,
}

/// What was decided.
pub(crate) struct Decision {
    pub(crate) body: Vec<u8>,
    /// Something is folded in it.
    pub(crate) folded: bool,
    /// Tokens as they came and as they are sent.
    pub(crate) raw: Tokens,
    pub(crate) sent: Tokens,
    /// Folds that stand in it.
    pub(crate) folds: u64,
    /// Tokens that it may have.
    pub(crate) budget: Tokens,
    /// Tokens of answer that room is left for.
    pub(crate) max_output: Option<Tokens>,
    pub(crate) settling: Option<Arc<Settling>>,
    pub(crate) due: Option<Arc<Due>>,
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// The originals that were folded in the conversation so far.
    pub(crate) held: Held,
}

/// The budget of a retry after a refusal. It becomes a fact of the conversation when the retry is accepted; one that is
/// refused as well leaves no trace.
pub(crate) struct TightBudget {
    facts: Arc<Facts>,
    lineage: Lineage,
    tokens: Tokens,
}

impl TightBudget {
    /// Records that the retry was accepted.
    pub(crate) fn hold(&self) {
        self.facts.hold_budget(&self.lineage, self.tokens);
    }
}

/// Why a turn is folded once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// The provider has just taught that the budget is this.
    Tighter(Tokens),
    /// A summary was waited for, and is there now.
    Told,
    /// It cannot be folded to a learned window, and is folded to the one that the user, the server or the table states.
    Stated,
}

/// A budget that fell by more than this is news to a conversation; less is noise of the calibration.
const FELL: f64 = 0.97;
/// A budget must have grown this much to be believed: what was folded is folded.
const GREW: f64 = 1.5;

impl Known<'_> {
    /// Decides, unless the conversation can not be brought to its budget or the decision is cancelled.
    pub(crate) fn decide(&self, proxy: &Shared, again: Option<Again>, cancel: &CancelFlag) -> Result<Decision, Error> {
        cancel.check()?;
        let Self { request, lineage, facts, model, journal, .. } = self;
        let mode = proxy.settings.mode;
        let place = proxy.memory.take(lineage);
        if place.as_ref().is_some_and(|place| model.prices.cache_ttl.is_some_and(|life| place.age() > life)) {
            facts.cold(lineage.whole());
        }
        let taught = match again {
            Some(Again::Tighter(at_most)) => Some(at_most),
            Some(Again::Told | Again::Stated) | None => None,
        };
        let max_output = model.answer_beside(request);
        let now = match again {
            Some(Again::Stated) => model.stated_budget(max_output),
            _ => model.budget(max_output).min(facts.ceiling(proxy.settings.patience.learned)),
        };
        let chosen = choose_budget(&facts.ledger(lineage), lineage.len(), now, taught);
        let budget = chosen.tokens;
        // What was decided for this very request holds, unless the budget is another now or a summary was waited for.
        let decided = place.as_ref().is_some_and(|place| place.state.len() == lineage.len());
        let open = !decided || chosen.is_news || again == Some(Again::Told);
        if proxy.settings.summarise != Summarise::Off && mode == Mode::Fold {
            facts.tell(lineage, &request.conversation().messages, open);
        }

        let mut setup = FoldOptions::new(model.meter.clone(), model.prices, budget).with_rules(&self.laws);
        setup.policy = proxy.settings.policy.clone();
        setup.cancel = cancel.clone();
        let (state, held) = place.map(|place| (place.state, place.held)).unwrap_or_default();
        let state = if decided && open { FoldState::default() } else { state };
        let anew = state.is_empty();
        if anew {
            count_ahead(request.conversation(), &model.meter, cancel);
        }
        let keeper = match (mode, journal) {
            (Mode::Fold, Some(shelf)) => Some(Keeper::new(Some(shelf), &held)),
            (Mode::Fold, None) => None,
            (Mode::Observe | Mode::Off, _) => Some(Keeper::new(None, &held)),
        };
        let keep = keeper.as_ref().map(|keeper| keeper as &dyn OriginalStore);
        let tell = |event: FoldEvent| tell(proxy, journal.as_ref(), &event);
        let mut ledger = facts.ledger(lineage);
        ledger.budgets.extend(chosen.from.map(|from| (from, budget)));
        let mut applied = apply_from(state, request, &setup, &ledger, keep, &tell)?;

        // The budget of a retry is not a fact before the provider has accepted it.
        if let Some(from) = chosen.from.filter(|_| taught.is_none()) {
            facts.budget(lineage.beginning(from), budget);
        }
        let tight = taught.map(|_| TightBudget { facts: facts.clone(), lineage: lineage.clone(), tokens: budget });
        let creased = self.told_of_crease(proxy, applied.creases(), open, anew);
        for (pass, count) in facts.new_folds(applied.pass_names()) {
            proxy.metrics.folds.get_or_create(&metrics::Pass { pass }).inc_by(count);
        }
        let wrote = creased || keeper.as_ref().is_some_and(Keeper::wrote);
        let decision = Decision {
            body: std::mem::take(&mut applied.body),
            folded: applied.folded.is_some(),
            raw: applied.raw_tokens,
            sent: applied.tokens,
            folds: applied.pass_names().count() as u64,
            budget,
            max_output,
            settling: self.settling(wrote && mode == Mode::Fold, &held),
            due: self.due(proxy, applied.creases(), applied.tokens, budget),
            tight: tight.map(Arc::new),
            held: held.clone(),
        };
        if let Some(state) = applied.into_state().filter(|_| taught.is_none()) {
            proxy.memory.remember(lineage, Place::new(state, held));
        }
        Ok(decision)
    }

    /// Returns true if the budget is lower than the stated window allows.
    pub(crate) fn is_lowered(&self, proxy: &Shared) -> bool {
        let max_output = self.model.answer_beside(&self.request);
        let ceiling = self.facts.ceiling(proxy.settings.patience.learned);
        self.model.budget(max_output).min(ceiling) < self.model.stated_budget(max_output)
    }

    /// What was written, until it is on disk.
    fn settling(&self, wrote: bool, held: &Held) -> Option<Arc<Settling>> {
        let shelf = self.journal.as_ref().filter(|_| wrote)?;
        Some(Arc::new(Settling::new(shelf.on_disk(), held.clone())))
    }

    /// Tells of a crease that was made for this very request: the log, the metrics and the journal say so together. Says
    /// whether there was one. Those of the past were told of when they were due, and what was decided before is not
    /// decided again.
    fn told_of_crease(&self, proxy: &Shared, creases: &[Crease], open: bool, anew: bool) -> bool {
        let creased = creases.last().filter(|crease| crease.request_point == self.lineage.len() && open);
        if creased.is_some() || anew && !creases.is_empty() {
            self.facts.settle(&self.lineage);
        }
        let Some(&Crease { request_point: at, trigger: reason, saved_tokens: saved, rewrite_cost: price, .. }) =
            creased
        else {
            return false;
        };
        tracing::info!(at, saved, price, "creased");
        proxy.metrics.creases.get_or_create(&metrics::Reason { reason: format!("{reason:?}").to_lowercase() }).inc();
        proxy.metrics.spent.inc_by(self.model.prices.dollars(price as f64));
        note(
            self.journal.as_ref(),
            &FoldEvent::Creased { request_point: at, trigger: reason, saved_tokens: saved, rewrite_cost: price },
        );
        true
    }

    /// What is to be summarised now, if anything.
    fn due(&self, proxy: &Shared, creases: &[Crease], sent: Tokens, budget: Tokens) -> Option<Arc<Due>> {
        let Self { request, lineage, facts, model, laws, journal } = self;
        journal.as_ref().filter(|_| summaries::is_due(proxy, facts, lineage, creases, sent, budget))?;
        let Policy { trigger_ratio: high, target_ratio: low, .. } = proxy.settings.policy;
        Some(Arc::new(Due {
            conversation: request.conversation().clone().into_owned(),
            lineage: lineage.clone(),
            facts: facts.clone(),
            profile: laws.clone(),
            meter: model.meter.clone(),
            budget,
            // What comes until the crease has to fit below the mark, too.
            low: (low - high * (1.0 - NEAR)).max(0.2),
            journal: journal.clone(),
        }))
    }
}

/// The budget of a request.
struct BudgetChoice {
    tokens: Tokens,
    /// The request point from which it is in force, unless the ledger has it already.
    from: Option<usize>,
    /// The conversation had another one before.
    is_news: bool,
}

/// Chooses the budget of a request: the one that the conversation has, unless the one of `now` is clearly another.
fn choose_budget(ledger: &Ledger, len: usize, now: Tokens, at_most: Option<Tokens>) -> BudgetChoice {
    let now = now.min(at_most.unwrap_or(Tokens::MAX));
    let Some((_, &known)) = ledger.budgets.last_key_value() else {
        return BudgetChoice { tokens: now, from: Some(0), is_news: false };
    };
    let taught = at_most.is_some_and(|at_most| at_most < known);
    let changed = (now as f64) < known as f64 * FELL || now as f64 > known as f64 * GREW;
    match taught || changed {
        true => BudgetChoice { tokens: now, from: Some(len), is_news: true },
        false => BudgetChoice { tokens: known, from: None, is_news: false },
    }
}

/// Says what happened: to the log, the metrics and the journal, without any content.
fn tell(proxy: &Shared, journal: Option<&Shelf>, event: &FoldEvent) {
    match event {
        FoldEvent::Refused { reason: why } => {
            proxy.metrics.fault("refused");
            tracing::warn!(%why, "a fold was not made");
        }
        // A crease is told of once, by whoever knows that it is new.
        FoldEvent::Failed { .. } | FoldEvent::Started { .. } | FoldEvent::Creased { .. } => return,
        _ => {}
    }
    note(journal, event);
}

/// Notes what happened in the journal, which is for reading; nothing depends on it.
fn note(journal: Option<&Shelf>, event: &FoldEvent) {
    if let (Some(shelf), Ok(payload)) = (journal, serde_json::to_vec(event)) {
        let kind = match event {
            FoldEvent::Creased { .. } => "creased",
            FoldEvent::Completed { .. } => "completed",
            FoldEvent::Truncated { .. } => "truncated",
            FoldEvent::Refused { .. } => "refused",
            _ => "other",
        };
        let _ = shelf.note_event(kind, &payload);
    }
}
