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
use foldline_archive::TenantArchive;
use foldline_summarize::PREPARE_THRESHOLD;

use crate::proxy::admin::metrics;
use crate::proxy::downstream::listener::AppState;
use crate::proxy::fold::archive_writer::{ArchiveWriter, PendingSync, StoredHandles};
use crate::proxy::fold::parallel_count::count_in_parallel;
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_cache::{CachedState, SessionFacts};
use crate::proxy::fold::summaries;
use crate::proxy::fold::summaries::SummaryJob;
use crate::proxy::settings::{ProxyMode, SummaryMode};
use crate::proxy::upstream::models::UpstreamModel;

/// A conversation as the model knows it, and what is known of it.
pub(crate) struct FoldInputs<'r> {
    pub(crate) request: Request<'r>,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) model: Arc<UpstreamModel>,
    pub(crate) profile: LawProfile,
    /// The conversation in the archive.
    pub(crate) archive: Option<TenantArchive>,
}

/// What was decided.
pub(crate) struct FoldOutcome {
    pub(crate) body: Vec<u8>,
    /// Something is folded in it.
    pub(crate) is_folded: bool,
    /// Tokens as they came and as they are sent.
    pub(crate) received_tokens: Tokens,
    pub(crate) sent_tokens: Tokens,
    /// Folds that stand in it.
    pub(crate) fold_count: u64,
    /// Tokens that it may have.
    pub(crate) budget: Tokens,
    /// Tokens of answer that room is left for.
    pub(crate) max_output: Option<Tokens>,
    pub(crate) pending_sync: Option<Arc<PendingSync>>,
    pub(crate) summary_job: Option<Arc<SummaryJob>>,
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// The originals that were folded in the conversation so far.
    pub(crate) held: StoredHandles,
}

/// The budget of a retry after a refusal. It becomes a fact of the conversation when the retry is accepted; one that is
/// refused as well leaves no trace.
pub(crate) struct TightBudget {
    facts: Arc<SessionFacts>,
    lineage: PrefixHashes,
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
pub(crate) enum Refold {
    /// The provider has just taught that the budget is this.
    WithBudget(Tokens),
    /// A summary was waited for, and is there now.
    WithSummary,
    /// It cannot be folded to a learned window, and is folded to the one that the user, the server or the table states.
    Stated,
}

/// A budget that fell by more than this is news to a conversation; less is noise of the calibration.
const BUDGET_DROP_RATIO: f64 = 0.97;
/// A budget must have grown this much to be believed: what was folded is folded.
const BUDGET_GROWTH_RATIO: f64 = 1.5;

impl FoldInputs<'_> {
    /// Decides, unless the conversation can not be brought to its budget or the decision is cancelled.
    pub(crate) fn fold(
        &self,
        proxy: &AppState,
        again: Option<Refold>,
        cancel: &CancelFlag,
    ) -> Result<FoldOutcome, Error> {
        cancel.check()?;
        let Self { request, prefixes: lineage, facts, model, archive: journal, .. } = self;
        let mode = proxy.settings.mode;
        let place = proxy.sessions.take(lineage);
        if place.as_ref().is_some_and(|place| model.prices.cache_ttl.is_some_and(|life| place.age() > life)) {
            facts.record_cold_cache(lineage.full());
        }
        let taught = match again {
            Some(Refold::WithBudget(at_most)) => Some(at_most),
            Some(Refold::WithSummary | Refold::Stated) | None => None,
        };
        let max_output = model.reserved_output(request);
        let now = match again {
            Some(Refold::Stated) => model.stated_budget(max_output),
            _ => model.budget(max_output).min(facts.ceiling(proxy.settings.timeouts.learned)),
        };
        let chosen = choose_budget(&facts.ledger(lineage), lineage.len(), now, taught);
        let budget = chosen.tokens;
        // What was decided for this very request holds, unless the budget is another now or a summary was waited for.
        let decided = place.as_ref().is_some_and(|place| place.state.len() == lineage.len());
        let open = !decided || chosen.is_news || again == Some(Refold::WithSummary);
        if proxy.settings.summary_mode != SummaryMode::Off && mode == ProxyMode::Fold {
            facts.adopt_summary(lineage, &request.conversation().messages, open);
        }

        let mut setup = FoldOptions::new(model.meter.clone(), model.prices, budget).with_rules(&self.profile);
        setup.policy = proxy.settings.policy.clone();
        setup.cancel = cancel.clone();
        let (state, held) = place.map(|place| (place.state, place.stored)).unwrap_or_default();
        let state = if decided && open { FoldState::default() } else { state };
        let anew = state.is_empty();
        if anew {
            count_in_parallel(request.conversation(), &model.meter, cancel);
        }
        let keeper = match (mode, journal) {
            (ProxyMode::Fold, Some(shelf)) => Some(ArchiveWriter::new(Some(shelf), &held)),
            (ProxyMode::Fold, None) => None,
            (ProxyMode::Observe | ProxyMode::Off, _) => Some(ArchiveWriter::new(None, &held)),
        };
        let keep = keeper.as_ref().map(|keeper| keeper as &dyn OriginalStore);
        let tell = |event: FoldEvent| record_event(proxy, journal.as_ref(), &event);
        let mut ledger = facts.ledger(lineage);
        ledger.budgets.extend(chosen.from.map(|from| (from, budget)));
        let mut applied = apply_from(state, request, &setup, &ledger, keep, &tell)?;

        // The budget of a retry is not a fact before the provider has accepted it.
        if let Some(from) = chosen.from.filter(|_| taught.is_none()) {
            facts.set_budget(lineage.prefix(from), budget);
        }
        let tight = taught.map(|_| TightBudget { facts: facts.clone(), lineage: lineage.clone(), tokens: budget });
        let creased = self.report_crease(proxy, applied.creases(), open, anew);
        for (pass, count) in facts.count_new_folds(applied.pass_names()) {
            proxy.metrics.folds.get_or_create(&metrics::PassLabels { pass }).inc_by(count);
        }
        let wrote = creased || keeper.as_ref().is_some_and(ArchiveWriter::has_written);
        let decision = FoldOutcome {
            body: std::mem::take(&mut applied.body),
            is_folded: applied.folded.is_some(),
            received_tokens: applied.raw_tokens,
            sent_tokens: applied.tokens,
            fold_count: applied.pass_names().count() as u64,
            budget,
            max_output,
            pending_sync: self.pending_sync(wrote && mode == ProxyMode::Fold, &held),
            summary_job: self.summary_job(proxy, applied.creases(), applied.tokens, budget),
            tight: tight.map(Arc::new),
            held: held.clone(),
        };
        if let Some(state) = applied.into_state().filter(|_| taught.is_none()) {
            proxy.sessions.insert(lineage, CachedState::new(state, held));
        }
        Ok(decision)
    }

    /// Returns true if the budget is lower than the stated window allows.
    pub(crate) fn is_lowered(&self, proxy: &AppState) -> bool {
        let max_output = self.model.reserved_output(&self.request);
        let ceiling = self.facts.ceiling(proxy.settings.timeouts.learned);
        self.model.budget(max_output).min(ceiling) < self.model.stated_budget(max_output)
    }

    /// What was written, until it is on disk.
    fn pending_sync(&self, wrote: bool, held: &StoredHandles) -> Option<Arc<PendingSync>> {
        let shelf = self.archive.as_ref().filter(|_| wrote)?;
        Some(Arc::new(PendingSync::new(shelf.request_sync(), held.clone())))
    }

    /// Tells of a crease that was made for this very request: the log, the metrics and the journal say so together. Says
    /// whether there was one. Those of the past were told of when they were due, and what was decided before is not
    /// decided again.
    fn report_crease(&self, proxy: &AppState, creases: &[Crease], open: bool, anew: bool) -> bool {
        let creased = creases.last().filter(|crease| crease.request_point == self.prefixes.len() && open);
        if creased.is_some() || anew && !creases.is_empty() {
            self.facts.persist_budgets(&self.prefixes);
        }
        let Some(&Crease { request_point: at, trigger: reason, saved_tokens: saved, rewrite_cost: price, .. }) =
            creased
        else {
            return false;
        };
        tracing::info!(at, saved, price, "creased");
        proxy
            .metrics
            .creases
            .get_or_create(&metrics::TriggerLabels { trigger: format!("{reason:?}").to_lowercase() })
            .inc();
        proxy.metrics.crease_cost_usd.inc_by(self.model.prices.dollars(price as f64));
        journal_event(
            self.archive.as_ref(),
            &FoldEvent::Creased { request_point: at, trigger: reason, saved_tokens: saved, rewrite_cost: price },
        );
        true
    }

    /// What is to be summarised now, if anything.
    fn summary_job(
        &self,
        proxy: &AppState,
        creases: &[Crease],
        sent: Tokens,
        budget: Tokens,
    ) -> Option<Arc<SummaryJob>> {
        let Self { request, prefixes: lineage, facts, model, profile: laws, archive: journal } = self;
        journal.as_ref().filter(|_| summaries::is_summary_due(proxy, facts, lineage, creases, sent, budget))?;
        let Policy { trigger_ratio: high, target_ratio: low, .. } = proxy.settings.policy;
        Some(Arc::new(SummaryJob {
            conversation: request.conversation().clone().into_owned(),
            prefixes: lineage.clone(),
            facts: facts.clone(),
            profile: laws.clone(),
            meter: model.meter.clone(),
            budget,
            // What comes until the crease has to fit below the mark, too.
            target_ratio: (low - high * (1.0 - PREPARE_THRESHOLD)).max(0.2),
            archive: journal.clone(),
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
    let changed = (now as f64) < known as f64 * BUDGET_DROP_RATIO || now as f64 > known as f64 * BUDGET_GROWTH_RATIO;
    match taught || changed {
        true => BudgetChoice { tokens: now, from: Some(len), is_news: true },
        false => BudgetChoice { tokens: known, from: None, is_news: false },
    }
}

/// Says what happened: to the log, the metrics and the journal, without any content.
fn record_event(proxy: &AppState, journal: Option<&TenantArchive>, event: &FoldEvent) {
    match event {
        FoldEvent::Refused { reason: why } => {
            proxy.metrics.count_internal_error("refused");
            tracing::warn!(%why, "a fold was not made");
        }
        // A crease is told of once, by whoever knows that it is new.
        FoldEvent::Failed { .. } | FoldEvent::Started { .. } | FoldEvent::Creased { .. } => return,
        _ => {}
    }
    journal_event(journal, event);
}

/// Notes what happened in the journal, which is for reading; nothing depends on it.
fn journal_event(journal: Option<&TenantArchive>, event: &FoldEvent) {
    if let (Some(shelf), Ok(payload)) = (journal, serde_json::to_vec(event)) {
        let kind = match event {
            FoldEvent::Creased { .. } => "creased",
            FoldEvent::Completed { .. } => "completed",
            FoldEvent::Truncated { .. } => "truncated",
            FoldEvent::Refused { .. } => "refused",
            _ => "other",
        };
        let _ = shelf.append_event(kind, &payload);
    }
}
