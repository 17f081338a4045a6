//! Turns a client's request into the request that is sent: [`FoldJob`] in, [`PreparedRequest`] out.
//!
//! A job owns everything it needs, so that it runs on a blocking thread, and again if the provider refuses the prompt. A
//! decision for the same request is kept unless its budget has changed. On any error the client's request is forwarded
//! unmodified. Nothing here depends on a client, a connection or a credential.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use foldline::engine::{CancelFlag, Crease, PinPatterns, apply_with_state};
use foldline::laws::{LawProfile, ServerKind};
use foldline::tokens::Tokens;
use foldline::wire::{EndpointPurpose, Format, ReportedId, Request};
use foldline::{Error, ErrorKind, FoldEvent, FoldOptions, FoldState, FoldedRequest, Ledger, OriginalStore};
use hyper::http::uri::Scheme;

use crate::proxy::admin::metrics::PassLabels;
use crate::proxy::fold::archive_writer::{ArchiveWriter, PendingSync, StoredHandles};
use crate::proxy::fold::budget_choice::{BUDGET_DROP_RATIO, BudgetChoice};
use crate::proxy::fold::fold_events::{RecordedSession, record_events};
use crate::proxy::fold::job::{FoldJob, HiddenRoundsLog, HistoryView, IdentifiedSession, RowForm};
use crate::proxy::fold::parallel_count::count_in_parallel;
use crate::proxy::fold::prefix_facts::DecisionBudget;
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::fold::request_facts::{FactSource, RequestFacts, WindowLimits};
use crate::proxy::fold::session_cache::{CachedState, FoldFailure};
use crate::proxy::fold::session_facts::{Adoption, FoldCounts, KnownFacts, ProviderCache, TightBudget};
use crate::proxy::fold::session_pins::read_pins;
use crate::proxy::fold::summary_job::{SummaryJob, SummarySource};
use crate::proxy::settings::{SummaryMode, ThreadMode, UpstreamUrl};
use crate::proxy::state::AppState;
use crate::proxy::unfold_tool::tool::UNFOLD_TOOL;
use crate::proxy::upstream::models::{PromptLimits, UpstreamModel};

/// Share of a window that results may have if the turns that requested them, the system prompt and the tools are not known.
const RESULTS_SHARE: f64 = 0.6;

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

/// Folds a request on a blocking thread. Returns none if it must be forwarded unmodified. The fold is cancelled when this
/// future is dropped, because the client has disconnected. A panic is counted as an internal error.
pub(crate) async fn prepare(
    state: &Arc<AppState>,
    job: &Arc<FoldJob>,
    refold: Option<Refold>,
) -> Option<PreparedRequest> {
    let guard = CancelOnDrop(CancelFlag::default());
    let (shared, job, cancel) = (state.clone(), job.clone(), guard.0.clone());
    let prepared = tokio::task::spawn_blocking(move || prepare_blocking(&shared, job, refold, &cancel)).await;
    prepared.unwrap_or_else(|error| {
        state.metrics.count_internal_error("panic");
        tracing::error!(%error, "fold panicked; forwarding the original request");
        None
    })
}

/// Cancels a fold when it is dropped.
#[derive(Default)]
pub(crate) struct CancelOnDrop(CancelFlag);

impl CancelOnDrop {
    /// Returns the flag that is set.
    pub(crate) fn flag(&self) -> CancelFlag {
        self.0.clone()
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn prepare_blocking(
    state: &AppState,
    job: Arc<FoldJob>,
    refold: Option<Refold>,
    cancel: &CancelFlag,
) -> Option<PreparedRequest> {
    let client = job.parse(&job.body);
    let client = client.inspect_err(|error| report_unparsed(&job, error)).ok()?;
    let session = IdentifiedSession::new(state, &job, &client);
    let (job, restored) = (session.job.clone(), session.restored.clone());
    let reported_id = if client.is_stored() { ReportedId::Last } else { ReportedId::First };
    let (request, prefixes) = match &restored {
        None => (client, session.prefixes.clone()),
        Some(body) => {
            let request = job.parse(body).ok()?;
            let prefixes = PrefixHashes::for_conversation(&session.scope(), request.conversation());
            (request, prefixes)
        }
    };
    let request = match offers_tool(state, &job, &session, &request) {
        true => request.with_injected_tool(&UNFOLD_TOOL),
        false => request,
    };
    let request = match state.settings.ollama_num_ctx {
        Some(window) if job.is_folding() => request.with_load_window(window),
        _ => request,
    };
    if job.purpose == EndpointPurpose::Turn && job.history == HistoryView::Client {
        session.facts.note_sent(session.prefixes.full(), !request.has_injected_tool());
    }
    let model = state.models.get(job.tenant.key, &job.upstream, &session.model_name);
    model.set_requested_window(request.load_window());
    let mut inputs = FoldInputs {
        profile: law_profile(&request, job.upstream.url(&state.settings.upstreams)),
        limits: model.limits_for(&request),
        model,
        request,
        prefixes,
        session,
        reported_id,
        job: job.clone(),
    };
    let whole = || refold.is_none().then(|| inputs.whole_for_compaction(state)).flatten();
    if let Some(decided) = inputs.threaded(state).or_else(whole) {
        return Some(decided);
    }
    let mut prepared = inputs.fold_request(state, refold, cancel);
    // A client may reserve more for the response than the window allows.
    if prepared.as_ref().is_err_and(is_too_large) && inputs.lower_reserve() {
        prepared = inputs.fold_request(state, refold, cancel);
    }
    let prepared = match prepared {
        // A learned window may be wrong; fall back to the stated one.
        Err(error) if refold.is_none() && is_too_large(&error) && inputs.is_lowered(state) => {
            let model = &inputs.session.model_name;
            tracing::warn!(%error, model, "cannot fold to the learned window; using the stated one");
            inputs.fold_request(state, Some(Refold::Stated), cancel)
        }
        result => result,
    };
    match prepared.inspect_err(|error| report_failure(state, error, &inputs.session.model_name)) {
        Ok(prepared) => Some(prepared),
        Err(error) if matches!(error.kind(), ErrorKind::Cancelled) => None,
        Err(_) => inputs.unfolded(),
    }
}

/// Folds a conversation that the caller sends itself.
///
/// # Errors
///
/// The body is not a request, cannot be folded to its budget, or the fold is cancelled.
pub(crate) fn fold_requested(
    state: &AppState,
    job: &Arc<FoldJob>,
    cancel: &CancelFlag,
) -> Result<PreparedRequest, Error> {
    let request = job.parse(&job.body)?;
    let session = IdentifiedSession::new(state, job, &request);
    session.facts.note_sent(session.prefixes.full(), true);
    let model = state.models.get(job.tenant.key, &job.upstream, &session.model_name);
    let inputs = FoldInputs {
        profile: law_profile(&request, job.upstream.url(&state.settings.upstreams)),
        limits: model.limits_for(&request),
        model,
        request,
        prefixes: session.prefixes.clone(),
        session,
        reported_id: ReportedId::First,
        job: job.clone(),
    };
    let folded = inputs.fold_request(state, None, cancel);
    folded.inspect_err(|error| {
        if matches!(error.kind(), ErrorKind::Cancelled) {
            state.metrics.cancelled.inc();
        }
    })
}

/// Returns a listener that collects events.
fn collect_into(events: &RefCell<Vec<FoldEvent>>) -> impl Fn(FoldEvent) + '_ {
    |event| events.borrow_mut().push(event)
}

/// Returns true if the unfold tool is offered in a request. The originals must be in an archive.
fn offers_tool(state: &AppState, job: &FoldJob, session: &IdentifiedSession, request: &Request<'_>) -> bool {
    let may_offer = state.settings.offer_unfold_tool && job.archive().is_some();
    let is_known = job.is_folding() && !request.conversation().tools.is_empty() && !is_passed_thread(state, request);
    match session.continued {
        // The provider has the history, and only this request has the tools.
        Some(_) => is_known && may_offer,
        // A user who turns the tool off does not want it in running conversations either.
        None => is_known && session.facts.has_tool(may_offer) && state.settings.offer_unfold_tool,
    }
}

/// Returns true if a request belongs to a message thread that is left alone, from its first request on: later ones do
/// not declare the tools of the thread.
fn is_passed_thread(state: &AppState, request: &Request<'_>) -> bool {
    state.settings.threads == ThreadMode::Pass && request.is_threaded()
}

/// Logs that a body is not a request of its dialect. The provider answers it.
fn report_unparsed(job: &FoldJob, error: &Error) {
    let (format, path) = (job.format.name(), job.path.split('?').next());
    tracing::info!(%error, format, path, "cannot parse the request; forwarding it unmodified");
}

/// Reports why a request is forwarded unmodified.
fn report_failure(state: &AppState, error: &Error, model: &str) {
    match error.kind() {
        ErrorKind::Cancelled => {
            state.metrics.cancelled.inc();
            tracing::info!(model, "fold cancelled: client disconnected");
        }
        _ => {
            state.metrics.count_internal_error("cannot_fit");
            tracing::warn!(%error, model, "cannot fold; forwarding the original request");
        }
    }
}

/// Returns true if the reason is that the conversation cannot be folded to its budget.
fn is_too_large(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::CannotFit { .. })
}

/// Returns the laws of the server. A server without TLS is assumed to be local, with a chat template of unknown
/// strictness; Ollama has one anywhere.
fn law_profile(request: &Request<'_>, upstream: &UpstreamUrl) -> LawProfile {
    let profile = LawProfile::for_request(request);
    let has_template = upstream.scheme == Scheme::HTTP || request.format() == Format::Ollama;
    if has_template { profile.served_by(ServerKind::ChatTemplate) } else { profile }
}

/// A conversation as the model sees it, with the facts about it.
struct FoldInputs<'r> {
    job: Arc<FoldJob>,
    session: IdentifiedSession,
    request: Request<'r>,
    prefixes: PrefixHashes,
    model: Arc<UpstreamModel>,
    profile: LawProfile,
    reported_id: ReportedId,
    limits: PromptLimits,
}

impl FoldInputs<'_> {
    /// Returns the refusal of a request that continues a message thread, or the unmodified request if threads are left
    /// alone. Returns `None` if the request is to be folded.
    fn threaded(&self, state: &AppState) -> Option<PreparedRequest> {
        let is_turn = self.job.purpose == EndpointPurpose::Turn && self.job.history == HistoryView::Client;
        if !is_turn || !self.job.is_folding() || !self.request.is_threaded() {
            return None;
        }
        match state.settings.threads {
            ThreadMode::Refuse if self.request.is_continuation() => {
                let unsent = self.with_body(None, 0, 0, &StoredHandles::default());
                Some(PreparedRequest { is_refused_thread: true, ..unsent })
            }
            ThreadMode::Refuse => None,
            ThreadMode::Pass => {
                let tokens = self.model.meter.conversation(self.request.conversation());
                let unmodified = self.with_body(None, tokens, self.limits.tokens, &StoredHandles::default());
                Some(PreparedRequest { passthrough: Some("thread"), ..unmodified })
            }
        }
    }

    /// Returns the whole request if the client compacts its history with it and it fits.
    fn whole_for_compaction(&self, state: &AppState) -> Option<PreparedRequest> {
        if !self.job.is_folding() || !self.request.is_compaction() {
            return None;
        }
        let tokens = self.model.meter.conversation(self.request.conversation());
        let known = self.session.facts.known(&self.prefixes, ProviderCache::Warm);
        let budget = self.allowed_tokens(state, &known);
        if tokens > budget {
            return None;
        }
        tracing::info!(model = self.session.model_name, tokens, "the client compacts its history; sent unfolded");
        self.whole(tokens, budget)
    }

    /// Lowers the reserve for the response to the default. Returns false if that makes no difference.
    fn lower_reserve(&mut self) -> bool {
        let limits = self.model.limits(None);
        let is_lower = limits.tokens > self.limits.tokens;
        if is_lower {
            self.limits = limits;
        }
        is_lower
    }

    /// Folds the request, and records the result: metrics, journal and session cache.
    ///
    /// # Errors
    ///
    /// The conversation cannot be folded to its budget, or the fold is cancelled.
    fn fold_request(
        &self,
        state: &AppState,
        refold: Option<Refold>,
        cancel: &CancelFlag,
    ) -> Result<PreparedRequest, Error> {
        cancel.check()?;
        let Self { request, prefixes, model, .. } = self;
        let facts = &self.session.facts;
        let cached = state.sessions.take(prefixes);
        let is_cold = self.session.idle_time.zip(model.prices.cache_ttl).is_some_and(|(idle, ttl)| idle > ttl);
        let known = facts.known(prefixes, if is_cold { ProviderCache::Cold } else { ProviderCache::Warm });
        let cached = cached.filter(|cached| cached.follows_from(&known.ledger));
        let mut options = self.fold_options(state, cancel);
        let rules = options.decision_rules();
        let budget = self.choose_budget(state, &known, refold, rules);
        options.budget = budget.tokens;
        // A failure is remembered for its budget; with another one everything is decided again.
        let mut cached =
            cached.filter(|cached| cached.failure.as_ref().is_none_or(|failure| failure.budget == budget.tokens));
        // The decision for this same request is kept, unless the budget has changed or a summary was waited for.
        let is_decided = cached.as_ref().is_some_and(|cached| cached.state.len() == prefixes.len());
        let is_open = !is_decided || budget.is_changed || refold == Some(Refold::WithSummary);
        if let Some(cached) = cached.take_if(|cached| cached.failure.is_some() && !is_open)
            && let Some(FoldFailure { error, .. }) = cached.failure.clone()
        {
            state.sessions.insert(prefixes, cached);
            return Err(error);
        }
        let known = self.adopt_facts(state, is_open);
        let mut ledger = known.ledger.clone();
        ledger.budgets.extend(budget.from.map(|from| (from, budget.tokens)));
        ledger.rules.extend(budget.from.map(|from| (from, rules)));
        let (fold_state, stored) = cached.map(|cached| (cached.state, cached.stored)).unwrap_or_default();
        let is_archived = self.session.archive.as_ref().is_none_or(|archive| stored.is_in(archive));
        let is_dropped = is_decided && is_open || !is_archived;
        let mut fold_state = if is_dropped { FoldState::default() } else { fold_state };
        let from_scratch = fold_state.is_empty();
        if from_scratch {
            count_in_parallel(request.conversation(), &model.meter, cancel);
        }
        let writer = self.archive_writer(state, &stored);
        let store = writer.as_ref().map(|writer| writer as &dyn OriginalStore);
        let events = RefCell::new(Vec::new());
        // The facts of a retry are recorded when the provider accepts it.
        let is_retry = matches!(refold, Some(Refold::WithBudget(_)));
        let applied = match is_retry {
            true => apply_with_state(&mut fold_state, request, &options, &ledger, store, &collect_into(&events)),
            false => self.apply_recorded(&mut fold_state, &options, &mut ledger, store, &events),
        };
        let crease = applied.as_ref().ok().and_then(|applied| self.new_crease(applied, is_open));
        record_events(&state.metrics, self.recorded_session(), &events.take(), crease.as_ref());
        let mut applied = match applied {
            Ok(applied) => applied,
            Err(error) => {
                if is_too_large(&error) && !is_retry {
                    // So that it is not planned from the start again.
                    let failure = Some(FoldFailure { budget: budget.tokens, error: error.clone() });
                    let ledger = known.ledger;
                    state.sessions.insert(prefixes, CachedState { state: fold_state, stored, failure, ledger });
                }
                return Err(error);
            }
        };

        let decision_budget = DecisionBudget { tokens: budget.tokens, rules };
        let new_budget = budget.from.filter(|_| !is_retry).map(|from| (from, decision_budget));
        // Earlier creases were recorded when they were made.
        let has_new_crease = crease.is_some() || from_scratch && !applied.creases().is_empty();
        let new_folds = facts.record_fold(prefixes, new_budget, has_new_crease, applied.pass_names());
        self.count_folds(state, &new_folds, crease.as_ref());
        let has_written = crease.is_some() || writer.as_ref().is_some_and(ArchiveWriter::has_written);
        let mut prepared = self.prepared(state, &known, &mut applied, budget.tokens, &stored);
        prepared.facts = self.request_facts(state, &applied, &prepared, crease.as_ref(), from_scratch);
        prepared.pending_sync = self.pending_sync(has_written && self.job.is_folding(), &stored);
        if is_retry {
            let record = applied.new_record(request, &options, &ledger);
            let (facts, prefixes) = (facts.clone(), prefixes.clone());
            prepared.tight = Some(Arc::new(TightBudget { facts, prefixes, budget: decision_budget, record }));
        } else if let Some(fold_state) = applied.into_state() {
            state.sessions.insert(prefixes, CachedState { state: fold_state, stored, failure: None, ledger });
        }
        Ok(prepared)
    }

    /// Folds the request, and records the new folds in the ledger. If another proxy has recorded others for the same
    /// request, those are adopted.
    fn apply_recorded(
        &self,
        fold_state: &mut FoldState,
        options: &FoldOptions,
        ledger: &mut Ledger,
        store: Option<&dyn OriginalStore>,
        events: &RefCell<Vec<FoldEvent>>,
    ) -> Result<FoldedRequest, Error> {
        let Self { request, prefixes, session, .. } = self;
        let mut applied = apply_with_state(fold_state, request, options, ledger, store, &collect_into(events))?;
        let record = session.archive.as_ref().and_then(|_| applied.new_record(request, options, ledger));
        let Some((record, stored)) = record
            .and_then(|record| session.facts.record_folds(prefixes.full(), &record).map(|stored| (record, stored)))
        else {
            return Ok(applied);
        };
        let is_own = *stored == record;
        if is_own {
            applied.set_recorded();
        }
        let records = ledger.records.entry(prefixes.len()).or_default();
        // A known record that was not adopted does not continue the last one; it would not be adopted now.
        let is_known = records.contains(&stored);
        records.extend((!is_known).then_some(stored));
        if is_own || is_known {
            return Ok(applied);
        }
        events.borrow_mut().clear();
        apply_with_state(fold_state, request, options, ledger, store, &collect_into(events))
    }

    /// Returns the options of the fold, without its budget.
    fn fold_options(&self, state: &AppState, cancel: &CancelFlag) -> FoldOptions {
        let Self { model, job, .. } = self;
        let mut options = FoldOptions::new(model.meter.clone(), model.prices, 0).with_rules(&self.profile);
        options.policy = job.policy(&state.settings).clone();
        options.cancel = cancel.clone();
        let rows = job.requested.and_then(|requested| requested.rows);
        (options.keep_messages, options.hex_handles) = (rows.is_some(), rows.is_some());
        options.results_only = rows == Some(RowForm::Results);
        options
    }

    /// Returns a request that could not be folded, with the tools and the rounds that the conversation has otherwise; none
    /// if it is the client's own.
    fn unfolded(&self) -> Option<PreparedRequest> {
        let tool_offered = self.request.has_injected_tool();
        let is_own = !tool_offered && self.session.restored.is_none() && !self.request.has_added_fields();
        if !self.job.is_folding() || is_own {
            return None;
        }
        let tokens = self.model.meter.conversation(self.request.conversation());
        self.whole(tokens, self.limits.tokens)
    }

    /// Returns the request with all its messages.
    fn whole(&self, tokens: Tokens, budget: Tokens) -> Option<PreparedRequest> {
        let body = self.request.splice(&[]).ok()?.into_owned();
        Some(self.with_body(Some(body.into()), tokens, budget, &StoredHandles::default()))
    }

    /// Returns the result of a fold; the body is taken out of it.
    fn prepared(
        &self,
        state: &AppState,
        known: &KnownFacts,
        applied: &mut FoldedRequest,
        budget: Tokens,
        stored: &StoredHandles,
    ) -> PreparedRequest {
        let is_changed = applied.folded.is_some()
            || self.session.restored.is_some()
            || self.request.has_injected_tool()
            || self.request.has_added_fields();
        let body = std::mem::take(&mut applied.body);
        PreparedRequest {
            sent_tokens: applied.tokens,
            fold_count: applied.pass_names().count() as u64,
            pass_names: applied.pass_names().collect(),
            summary_job: self.summary_job(state, known, applied, budget),
            ..self.with_body(is_changed.then(|| body.into()), applied.raw_tokens, budget, stored)
        }
    }

    /// Returns a request with this body, without folds.
    fn with_body(
        &self,
        body: Option<Bytes>,
        tokens: Tokens,
        budget: Tokens,
        stored: &StoredHandles,
    ) -> PreparedRequest {
        let Self { session, .. } = self;
        PreparedRequest {
            job: self.job.clone(),
            body,
            unfolded_body: session.restored.clone().unwrap_or_else(|| self.job.body.clone()),
            pending_sync: None,
            tool_offered: self.request.has_injected_tool(),
            reported_id: self.reported_id,
            // Hidden rounds belong to the client's own history.
            hidden_rounds: HiddenRoundsLog { facts: session.facts.clone(), prefix: session.prefixes.full() },
            model: self.model.clone(),
            model_name: session.model_name.clone(),
            received_tokens: tokens,
            sent_tokens: tokens,
            fold_count: 0,
            pass_names: BTreeSet::new(),
            budget,
            max_output: self.limits.max_output,
            archive: session.archive.clone(),
            summary_job: None,
            tight: None,
            facts: None,
            is_refused_thread: false,
            diagnosis: None,
            passthrough: self.request.stored_history(),
            stored: session.continued.clone().unwrap_or_else(|| stored.clone()),
        }
    }

    fn choose_budget(&self, state: &AppState, known: &KnownFacts, refold: Option<Refold>, rules: u64) -> BudgetChoice {
        let allowed = match refold {
            Some(Refold::Stated) => self.limits.stated_tokens,
            _ => self.allowed_tokens(state, known),
        };
        let learned = match refold {
            Some(Refold::WithBudget(budget)) => Some(budget),
            Some(Refold::WithSummary | Refold::Stated) | None => None,
        };
        let drop_ratio = if self.has_exact_budget() { 1.0 } else { BUDGET_DROP_RATIO };
        BudgetChoice::new(&known.ledger, self.prefixes.len(), allowed, learned, drop_ratio, rules)
    }

    /// Adopts the summary and the pins that apply from this request on.
    fn adopt_facts(&self, state: &AppState, is_open: bool) -> KnownFacts {
        let uses_summaries = state.settings.summary_mode != SummaryMode::Off && self.job.is_folding();
        let pins = is_open.then(|| self.session_pins(state));
        let adoption = Adoption {
            summarized: uses_summaries.then_some(self.request.conversation().messages.as_slice()),
            pins: pins.as_deref(),
            is_open,
        };
        self.session.facts.adopt(&self.prefixes, &adoption)
    }

    /// Returns the pins of the session.
    fn session_pins(&self, state: &AppState) -> Arc<PinPatterns> {
        let Self { session, job, .. } = self;
        state.pins.get(job.tenant.key, &session.name, || match job.session {
            Some(_) => read_pins(session.archive.as_ref()),
            None => session.facts.recorded_pins(),
        })
    }

    /// Returns the maximum tokens of the request: by its model, and by what the provider accepted of the conversation.
    fn allowed_tokens(&self, state: &AppState, known: &KnownFacts) -> Tokens {
        match self.job.requested {
            None => self.limits.tokens.min(known.ceiling(state.settings.timeouts.learned)),
            Some(requested) => {
                let share = if requested.rows == Some(RowForm::Results) { RESULTS_SHARE } else { 1.0 };
                let by_model = || (self.limits.tokens as f64 * share) as Tokens;
                requested.budget.unwrap_or_else(by_model).saturating_sub(requested.withheld)
            }
        }
    }

    /// Returns true if the caller stated the budget, which then must hold to the token.
    fn has_exact_budget(&self) -> bool {
        self.job.requested.is_some_and(|requested| requested.budget.is_some())
    }

    /// Returns true if the budget is lower than the stated window allows.
    fn is_lowered(&self, state: &AppState) -> bool {
        let known = self.session.facts.known(&self.prefixes, ProviderCache::Warm);
        self.allowed_tokens(state, &known) < self.limits.stated_tokens
    }

    /// Returns the writer of originals. Without an archive nothing is folded whose original could not be restored; in
    /// observe mode nothing folded is sent.
    fn archive_writer<'k>(&'k self, state: &AppState, stored: &'k StoredHandles) -> Option<ArchiveWriter<'k>> {
        let archive = self.session.archive.as_ref();
        let exceeded = archive.and_then(|archive| state.quotas.exceeded_bytes(self.job.tenant.key, archive));
        let refusal = exceeded.map(|limit| format!("the tenant has reached its quota of {limit} stored bytes"));
        (archive.is_some() || !self.job.is_folding()).then(|| ArchiveWriter::new(archive, stored).refusing(refusal))
    }

    /// Requests a sync of new originals; none if nothing was written.
    fn pending_sync(&self, has_written: bool, stored: &StoredHandles) -> Option<Arc<PendingSync>> {
        let archive = self.session.archive.as_ref().filter(|_| has_written)?;
        Some(Arc::new(PendingSync::new(archive.request_sync(), stored.clone())))
    }

    /// Gathers the facts for the record of the request; none for requests that only count tokens.
    fn request_facts(
        &self,
        state: &AppState,
        applied: &FoldedRequest,
        prepared: &PreparedRequest,
        crease: Option<&Crease>,
        from_scratch: bool,
    ) -> Option<Arc<RequestFacts>> {
        if self.job.purpose != EndpointPurpose::Turn || self.job.history == HistoryView::Model {
            return None;
        }
        let Self { session, job, model, prefixes, request, .. } = self;
        let is_folded = self.job.is_folding();
        let limits = WindowLimits {
            meter: &model.meter,
            prices: &model.prices,
            policy: job.policy(&state.settings),
            budget: prepared.budget,
            is_folded,
        };
        let body = prepared.body.as_ref().filter(|_| is_folded).unwrap_or(&job.body);
        let source = FactSource { request, applied, prefixes, crease, from_scratch, limits, body };
        let log = state.activity.get(job.tenant.key.0, job.tenant.archive.as_ref());
        Some(Arc::new(RequestFacts::gather(session.name.clone(), log.known_session(&session.name), source)))
    }

    /// Returns the crease that was made for this request, if there is one. Earlier creases were recorded when they were
    /// made, and kept decisions are not recorded again.
    fn new_crease(&self, applied: &FoldedRequest, is_open: bool) -> Option<Crease> {
        let newest = applied.creases().last();
        newest.filter(|crease| crease.request_point == self.prefixes.len() && is_open).cloned()
    }

    fn recorded_session(&self) -> RecordedSession<'_> {
        let IdentifiedSession { name, model_name, archive, .. } = &self.session;
        RecordedSession { name, model: model_name, archive: archive.as_ref() }
    }

    /// Counts new folds, and what a crease would cost in observe mode.
    fn count_folds(&self, state: &AppState, new_folds: &FoldCounts, crease: Option<&Crease>) {
        if let Some(crease) = crease.filter(|_| !self.job.is_folding()) {
            let upstream = self.model.upstream.url(&state.settings.upstreams);
            state.metrics.would_crease_cost_usd.inc_by(self.model.dollars(crease.rewrite_cost as f64, upstream));
        }
        for (&pass, &count) in new_folds {
            state.metrics.folds.get_or_create(&PassLabels { pass }).inc_by(count);
        }
    }

    /// Returns the summary job that is due, if any.
    fn summary_job(
        &self,
        state: &AppState,
        known: &KnownFacts,
        applied: &FoldedRequest,
        budget: Tokens,
    ) -> Option<Arc<SummaryJob>> {
        let source = SummarySource {
            conversation: self.request.conversation(),
            prefixes: &self.prefixes,
            facts: &self.session.facts,
            known,
            profile: &self.profile,
            meter: &self.model.meter,
            creases: applied.creases(),
            policy: self.job.policy(&state.settings),
            sent: applied.tokens,
            budget,
            archive: self.session.archive.as_ref(),
        };
        SummaryJob::if_due(&source, &state.settings).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::settings::{ProxyMode, ProxySettings};

    /// The newest user message alone is larger than the window: every turn fails, and is not planned from the start.
    #[test]
    fn failed_fold_is_remembered_as_the_state_is() {
        let state = AppState::new(ProxySettings { window: Some(4_000), ..ProxySettings::default() }, None).unwrap();
        let body = |turns: usize| {
            let turn = |at| {
                format!(
                    r#"{{"role":"assistant","content":"Answer {at}."}},{{"role":"user","content":"And {at}? {}"}}"#,
                    "word ".repeat(9_000)
                )
            };
            let turns: String = (0..turns).map(|at| format!(",{}", turn(at))).collect();
            Bytes::from(format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"Begin."}}{turns}]}}"#))
        };
        let job = |turns| {
            let headers = hyper::Request::new(()).into_parts().0;
            Arc::new(FoldJob {
                format: Format::OpenAiChat,
                purpose: EndpointPurpose::Turn,
                path: String::new(),
                upstream: Format::OpenAiChat.dialect().family.into(),
                tenant: state.tenants.find_tenant(&headers).unwrap(),
                mode: ProxyMode::Fold,
                session: None,
                user_agent: String::new(),
                trace_parent: None,
                body: body(turns),
                history: HistoryView::Client,
                group: None,
                requested: None,
            })
        };
        for turns in [1, 1, 2] {
            assert!(prepare_blocking(&state, job(turns), None, &CancelFlag::default()).is_none());
            let body = body(turns);
            let request = Request::parse(Format::OpenAiChat, &body).unwrap();
            let prefixes = IdentifiedSession::new(&state, &job(turns), &request).prefixes;
            let cached = state.sessions.take(&prefixes).expect("remembered");
            assert_eq!((cached.state.len(), cached.failure.is_some()), (prefixes.len(), true));
            state.sessions.insert(&prefixes, cached);
        }
    }
}
