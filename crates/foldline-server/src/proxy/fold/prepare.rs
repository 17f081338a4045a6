//! Decides what is folded in a request, given all facts about its conversation, and records the result: log,
//! metrics, journal and session cache.
//!
//! An earlier decision for the same request is kept unless its budget has changed. Nothing here depends on a client,
//! a connection or a credential.

use std::sync::Arc;

use foldline::laws::LawProfile;
use foldline::wire::Request;
use foldline::{
    CancelFlag, Crease, Error, FoldEvent, FoldOptions, FoldState, Ledger, OriginalStore, Policy, Tokens, Trigger,
    apply_from,
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

/// A conversation as the model sees it, with the facts about it.
pub(crate) struct FoldInputs<'r> {
    pub(crate) request: Request<'r>,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) model: Arc<UpstreamModel>,
    pub(crate) profile: LawProfile,
    /// The archive of the session.
    pub(crate) archive: Option<TenantArchive>,
}

/// The result of a fold.
pub(crate) struct FoldOutcome {
    pub(crate) body: Vec<u8>,
    /// True if it contains folds.
    pub(crate) is_folded: bool,
    /// Tokens as received and as sent.
    pub(crate) received_tokens: Tokens,
    pub(crate) sent_tokens: Tokens,
    /// Folds in the body.
    pub(crate) fold_count: u64,
    /// Maximum tokens of the request.
    pub(crate) budget: Tokens,
    /// Tokens reserved for the response.
    pub(crate) max_output: Option<Tokens>,
    pub(crate) pending_sync: Option<Arc<PendingSync>>,
    pub(crate) summary_job: Option<Arc<SummaryJob>>,
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// Originals folded in the conversation so far.
    pub(crate) held: StoredHandles,
}

/// The budget of a retry after a refusal. It becomes a fact of the conversation when the retry is accepted; a retry
/// that is refused as well has no effect.
pub(crate) struct TightBudget {
    facts: Arc<SessionFacts>,
    prefixes: PrefixHashes,
    tokens: Tokens,
}

impl TightBudget {
    /// Records that the retry was accepted.
    pub(crate) fn hold(&self) {
        self.facts.hold_budget(&self.prefixes, self.tokens);
    }
}

/// The reason for folding a request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refold {
    /// The provider refused the prompt; this is the new budget.
    WithBudget(Tokens),
    /// A summary that the request waited for is available.
    WithSummary,
    /// The request cannot be folded to a learned window; the window of the user, the server or the table is used.
    Stated,
}

/// A budget below this share of the old one counts as changed; smaller drops are calibration noise.
const BUDGET_DROP_RATIO: f64 = 0.97;
/// A budget must grow by this factor to count as changed: folds are not undone.
const BUDGET_GROWTH_RATIO: f64 = 1.5;

impl FoldInputs<'_> {
    /// Folds the request.
    ///
    /// # Errors
    ///
    /// The conversation cannot be folded to its budget, or the fold is cancelled.
    pub(crate) fn fold(
        &self,
        proxy: &AppState,
        refold: Option<Refold>,
        cancel: &CancelFlag,
    ) -> Result<FoldOutcome, Error> {
        cancel.check()?;
        let Self { request, prefixes, facts, model, archive, .. } = self;
        let mode = proxy.settings.mode;
        let cached = proxy.sessions.take(prefixes);
        if cached.as_ref().is_some_and(|cached| model.prices.cache_ttl.is_some_and(|ttl| cached.age() > ttl)) {
            facts.record_cold_cache(prefixes.full());
        }
        let learned_budget = match refold {
            Some(Refold::WithBudget(budget)) => Some(budget),
            Some(Refold::WithSummary | Refold::Stated) | None => None,
        };
        let max_output = model.reserved_output(request);
        let allowed = match refold {
            Some(Refold::Stated) => model.stated_budget(max_output),
            _ => model.budget(max_output).min(facts.ceiling(proxy.settings.timeouts.learned)),
        };
        let chosen = choose_budget(&facts.ledger(prefixes), prefixes.len(), allowed, learned_budget);
        let budget = chosen.tokens;
        // The decision for this same request is kept, unless the budget has changed or a summary was waited for.
        let is_decided = cached.as_ref().is_some_and(|cached| cached.state.len() == prefixes.len());
        let is_open = !is_decided || chosen.is_changed || refold == Some(Refold::WithSummary);
        if proxy.settings.summary_mode != SummaryMode::Off && mode == ProxyMode::Fold {
            facts.adopt_summary(prefixes, &request.conversation().messages, is_open);
        }

        let mut options = FoldOptions::new(model.meter.clone(), model.prices, budget).with_rules(&self.profile);
        options.policy = proxy.settings.policy.clone();
        options.cancel = cancel.clone();
        let (state, held) = cached.map(|cached| (cached.state, cached.stored)).unwrap_or_default();
        let is_archived = archive.as_ref().is_none_or(|archive| held.is_in(archive));
        let state = if is_decided && is_open || !is_archived { FoldState::default() } else { state };
        let from_scratch = state.is_empty();
        if from_scratch {
            count_in_parallel(request.conversation(), &model.meter, cancel);
        }
        let writer = match (mode, archive) {
            (ProxyMode::Fold, Some(archive)) => Some(ArchiveWriter::new(Some(archive), &held)),
            (ProxyMode::Fold, None) => None,
            (ProxyMode::Observe | ProxyMode::Off, _) => Some(ArchiveWriter::new(None, &held)),
        };
        let store = writer.as_ref().map(|writer| writer as &dyn OriginalStore);
        let on_event = |event: FoldEvent| record_event(proxy, archive.as_ref(), &event);
        let mut ledger = facts.ledger(prefixes);
        ledger.budgets.extend(chosen.from.map(|from| (from, budget)));
        let mut applied = apply_from(state, request, &options, &ledger, store, &on_event)?;

        // The budget of a retry becomes a fact only when the provider accepts it.
        if let Some(from) = chosen.from.filter(|_| learned_budget.is_none()) {
            facts.set_budget(prefixes.prefix(from), budget);
        }
        let tight =
            learned_budget.map(|_| TightBudget { facts: facts.clone(), prefixes: prefixes.clone(), tokens: budget });
        let is_crease = self.report_crease(proxy, applied.creases(), is_open, from_scratch);
        for (pass, count) in facts.count_new_folds(applied.pass_names()) {
            proxy.metrics.folds.get_or_create(&metrics::PassLabels { pass }).inc_by(count);
        }
        let has_written = is_crease || writer.as_ref().is_some_and(ArchiveWriter::has_written);
        let outcome = FoldOutcome {
            body: std::mem::take(&mut applied.body),
            is_folded: applied.folded.is_some(),
            received_tokens: applied.raw_tokens,
            sent_tokens: applied.tokens,
            fold_count: applied.pass_names().count() as u64,
            budget,
            max_output,
            pending_sync: self.pending_sync(has_written && mode == ProxyMode::Fold, &held),
            summary_job: self.summary_job(proxy, applied.creases(), applied.tokens, budget),
            tight: tight.map(Arc::new),
            held: held.clone(),
        };
        if let Some(state) = applied.into_state().filter(|_| learned_budget.is_none()) {
            proxy.sessions.insert(prefixes, CachedState::new(state, held));
        }
        Ok(outcome)
    }

    /// Returns true if the budget is lower than the stated window allows.
    pub(crate) fn is_lowered(&self, proxy: &AppState) -> bool {
        let max_output = self.model.reserved_output(&self.request);
        let ceiling = self.facts.ceiling(proxy.settings.timeouts.learned);
        self.model.budget(max_output).min(ceiling) < self.model.stated_budget(max_output)
    }

    /// Requests a sync of new originals; none if nothing was written.
    fn pending_sync(&self, has_written: bool, held: &StoredHandles) -> Option<Arc<PendingSync>> {
        let archive = self.archive.as_ref().filter(|_| has_written)?;
        Some(Arc::new(PendingSync::new(archive.request_sync(), held.clone())))
    }

    /// Reports a crease that was made for this request to the log, the metrics and the journal. Returns true if there is
    /// one. Earlier creases were reported when they were made, and kept decisions are not reported again.
    fn report_crease(&self, proxy: &AppState, creases: &[Crease], is_open: bool, from_scratch: bool) -> bool {
        let creased = creases.last().filter(|crease| crease.request_point == self.prefixes.len() && is_open);
        if creased.is_some() || from_scratch && !creases.is_empty() {
            self.facts.persist_budgets(&self.prefixes);
        }
        let Some(&Crease { request_point, trigger, saved_tokens, rewrite_cost, .. }) = creased else {
            return false;
        };
        tracing::info!(request_point, trigger = trigger_name(trigger), saved_tokens, rewrite_cost, "crease");
        let labels = metrics::TriggerLabels { trigger: trigger_name(trigger) };
        proxy.metrics.creases.get_or_create(&labels).inc();
        proxy.metrics.crease_cost_usd.inc_by(self.model.prices.dollars(rewrite_cost as f64));
        journal_event(
            self.archive.as_ref(),
            &FoldEvent::Creased { request_point, trigger, saved_tokens, rewrite_cost },
        );
        true
    }

    /// Returns the summary job that is due, if any.
    fn summary_job(
        &self,
        proxy: &AppState,
        creases: &[Crease],
        sent: Tokens,
        budget: Tokens,
    ) -> Option<Arc<SummaryJob>> {
        let Self { request, prefixes, facts, model, profile, archive } = self;
        archive.as_ref().filter(|_| summaries::is_summary_due(proxy, facts, prefixes, creases, sent, budget))?;
        let Policy { trigger_ratio: high, target_ratio: low, .. } = proxy.settings.policy;
        Some(Arc::new(SummaryJob {
            conversation: request.conversation().clone().into_owned(),
            prefixes: prefixes.clone(),
            facts: facts.clone(),
            profile: profile.clone(),
            meter: model.meter.clone(),
            budget,
            // New messages until the crease have to fit below the high-water mark, too.
            target_ratio: (low - high * (1.0 - PREPARE_THRESHOLD)).max(0.2),
            archive: archive.clone(),
        }))
    }
}

/// Returns the name of a trigger as metrics and logs show it.
fn trigger_name(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::OverBudget => "over_budget",
        Trigger::Profitable => "profitable",
        Trigger::ColdCache => "cold_cache",
        _ => "other",
    }
}

/// The budget of a request.
struct BudgetChoice {
    tokens: Tokens,
    /// Request point from which it applies, unless the ledger contains it already.
    from: Option<usize>,
    /// True if the conversation had another budget before.
    is_changed: bool,
}

/// Chooses the budget of a request: the conversation's current one, unless `allowed` clearly differs from it.
fn choose_budget(ledger: &Ledger, len: usize, allowed: Tokens, learned: Option<Tokens>) -> BudgetChoice {
    let allowed = allowed.min(learned.unwrap_or(Tokens::MAX));
    let Some((_, &current)) = ledger.budgets.last_key_value() else {
        return BudgetChoice { tokens: allowed, from: Some(0), is_changed: false };
    };
    let is_refused = learned.is_some_and(|learned| learned < current);
    let ratio_changed =
        (allowed as f64) < current as f64 * BUDGET_DROP_RATIO || allowed as f64 > current as f64 * BUDGET_GROWTH_RATIO;
    match is_refused || ratio_changed {
        true => BudgetChoice { tokens: allowed, from: Some(len), is_changed: true },
        false => BudgetChoice { tokens: current, from: None, is_changed: false },
    }
}

/// Records an event of the engine in the log, the metrics and the journal, without content.
fn record_event(proxy: &AppState, archive: Option<&TenantArchive>, event: &FoldEvent) {
    match event {
        FoldEvent::Refused { reason } => {
            proxy.metrics.count_internal_error("fold_refused");
            tracing::warn!(%reason, "fold refused");
        }
        // Creases are reported by `report_crease`, which knows whether they are new.
        FoldEvent::Failed { .. } | FoldEvent::Started { .. } | FoldEvent::Creased { .. } => return,
        _ => {}
    }
    journal_event(archive, event);
}

/// Appends an event to the journal, which is informational: nothing depends on it.
fn journal_event(archive: Option<&TenantArchive>, event: &FoldEvent) {
    if let (Some(archive), Ok(payload)) = (archive, serde_json::to_vec(event)) {
        let kind = match event {
            FoldEvent::Creased { .. } => "creased",
            FoldEvent::Completed { .. } => "completed",
            FoldEvent::Truncated { .. } => "truncated",
            FoldEvent::Refused { .. } => "refused",
            _ => "other",
        };
        let _ = archive.append_event(kind, &payload);
    }
}
