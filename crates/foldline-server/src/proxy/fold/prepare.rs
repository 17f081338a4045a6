//! Turns a client's request into the request that is sent: [`FoldJob`] in, [`PreparedRequest`] out.
//!
//! A job owns everything it needs, so that it runs on a blocking thread, and again if the provider refuses the prompt. A
//! decision for the same request is kept unless its budget has changed. On any error the client's request is forwarded
//! unmodified. Nothing here depends on a client, a connection or a credential.

use std::sync::Arc;

use bytes::Bytes;
use foldline::engine::{CancelFlag, Crease, PinPatterns, apply_with_state};
use foldline::laws::{LawProfile, ServerKind};
use foldline::tokens::Tokens;
use foldline::wire::{EndpointPurpose, ReportedId, Request};
use foldline::{Error, ErrorKind, FoldEvent, FoldOptions, FoldState, FoldedRequest, OriginalStore};
use foldline_archive::TenantArchive;
use hyper::http::uri::Scheme;

use crate::proxy::admin::metrics::PassLabels;
use crate::proxy::fold::archive_writer::{ArchiveWriter, PendingSync, StoredHandles};
use crate::proxy::fold::budget::{BudgetChoice, TightBudget};
use crate::proxy::fold::fold_events::{record_crease, record_event};
use crate::proxy::fold::hidden_history::{HiddenRoundsLog, restored_body};
use crate::proxy::fold::job::{FoldJob, HistoryView, IdentifiedSession};
use crate::proxy::fold::parallel_count::count_in_parallel;
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::request_facts::{FactSource, KnownSession, RequestFacts, WindowLimits};
use crate::proxy::fold::session_cache::{CachedState, FoldFailure};
use crate::proxy::fold::session_pins::read_pins;
use crate::proxy::fold::summary_job::{SummaryJob, is_summary_due, target_ratio};
use crate::proxy::settings::{ProxyMode, SummaryMode, ThreadMode, UpstreamUrl};
use crate::proxy::state::AppState;
use crate::proxy::unfold_tool::tool::UNFOLD_TOOL;
use crate::proxy::upstream::models::UpstreamModel;

/// A request that is ready to be sent.
#[derive(Clone)]
pub(crate) struct PreparedRequest {
    /// The job, for folding it again.
    pub(crate) job: Arc<FoldJob>,
    /// Body; none if the client's own bytes are sent.
    pub(crate) body: Option<Bytes>,
    /// Complete conversation, not folded and without the injected tool.
    pub(crate) unfolded_body: Bytes,
    /// Sync of the new originals to disk.
    pub(crate) pending_sync: Option<Arc<PendingSync>>,
    /// True if the unfold tool is offered.
    pub(crate) tool_offered: bool,
    /// Response id that the client gets for a response in several rounds: a client that continues from it must reach the
    /// round after the hidden calls.
    pub(crate) reported_id: ReportedId,
    pub(crate) hidden_rounds: HiddenRoundsLog,
    pub(crate) model: Arc<UpstreamModel>,
    pub(crate) model_name: String,
    /// Tokens as received and as sent.
    pub(crate) received_tokens: Tokens,
    pub(crate) sent_tokens: Tokens,
    /// Folds in the body.
    pub(crate) fold_count: u64,
    /// Maximum tokens of the request.
    pub(crate) budget: Tokens,
    /// Tokens reserved for the response.
    pub(crate) max_output: Option<Tokens>,
    /// The archive of the session.
    pub(crate) archive: Option<TenantArchive>,
    /// Summary that is due for the older rounds.
    pub(crate) summary_job: Option<Arc<SummaryJob>>,
    /// Budget of a retry, which the conversation keeps if the retry is accepted.
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// Originals that the model may unfold.
    pub(crate) stored: StoredHandles,
    /// Facts for the record of the request.
    pub(crate) facts: Option<Arc<RequestFacts>>,
    /// True if it continues a message thread and must not be sent: the client then sends its whole history.
    pub(crate) is_refused_thread: bool,
    /// The field because of which it is not folded: the provider stores the history.
    pub(crate) passthrough: Option<&'static str>,
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
struct CancelOnDrop(CancelFlag);

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
    let client = Request::parse(job.format, &job.body).ok()?;
    let session = IdentifiedSession::new(state, &job, &client);
    let restored = match job.history {
        HistoryView::Client => restored_body(&client, &session.facts, &session.prefixes).map(Bytes::from),
        HistoryView::Model => None,
    };
    let reported_id = if client.is_stored() { ReportedId::Last } else { ReportedId::First };
    let (request, prefixes) = match &restored {
        None => (client, session.prefixes.clone()),
        Some(body) => {
            let request = Request::parse(job.format, body).ok()?;
            let prefixes = PrefixHashes::for_conversation(&session.scope(), request.conversation());
            (request, prefixes)
        }
    };
    let request = match offers_tool(state, &job, &session, &request) {
        true => request.with_injected_tool(&UNFOLD_TOOL),
        false => request,
    };
    let model = state.models.get(job.tenant.key, job.family, &session.model_name);
    let mut inputs = FoldInputs {
        profile: law_profile(&request, state.settings.upstreams.get(job.family)),
        max_output: model.reserved_output(&request),
        model,
        request,
        prefixes,
        session,
        restored: restored.clone(),
        reported_id,
        job: job.clone(),
    };
    let whole = || refold.is_none().then(|| inputs.whole_for_compaction(state)).flatten();
    if let Some(decided) = inputs.threaded(state).or_else(whole) {
        return Some(decided);
    }
    let mut prepared = inputs.fold(state, refold, cancel);
    // A client may reserve more for the response than the window allows.
    if prepared.as_ref().is_err_and(is_too_large) && inputs.lower_reserve() {
        prepared = inputs.fold(state, refold, cancel);
    }
    let prepared = match prepared {
        // A learned window may be wrong; fall back to the stated one.
        Err(error) if refold.is_none() && is_too_large(&error) && inputs.is_lowered(state) => {
            let model = &inputs.session.model_name;
            tracing::warn!(%error, model, "cannot fold to the learned window; using the stated one");
            inputs.fold(state, Some(Refold::Stated), cancel)
        }
        result => result,
    };
    match prepared.inspect_err(|error| report_failure(state, error, &inputs.session.model_name)) {
        Ok(prepared) => Some(prepared),
        Err(error) if matches!(error.kind(), ErrorKind::Cancelled) => None,
        Err(_) => inputs.unfolded(state),
    }
}

/// Returns true if the unfold tool is offered in a request. The originals must be in an archive.
fn offers_tool(state: &AppState, job: &FoldJob, session: &IdentifiedSession, request: &Request<'_>) -> bool {
    let may_offer = state.settings.offer_unfold_tool && job.tenant.archive.is_some();
    let is_known = state.settings.mode == ProxyMode::Fold
        && !request.conversation().tools.is_empty()
        && !is_passed_thread(state, request);
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
/// strictness.
fn law_profile(request: &Request<'_>, upstream: &UpstreamUrl) -> LawProfile {
    let profile = LawProfile::for_request(request);
    if upstream.scheme == Scheme::HTTP { profile.served_by(ServerKind::ChatTemplate) } else { profile }
}

impl PreparedRequest {
    /// Returns the log of a conversation that the provider stores under the id of a response. A client may continue from
    /// it without sending the conversation again.
    pub(crate) fn stored_response_log(&self, state: &AppState, id: &str) -> HiddenRoundsLog {
        let prefixes = PrefixHashes::for_response_id(&[&self.job.owner(), &self.model_name], id);
        let facts = state.sessions.facts(&prefixes, self.job.tenant.archive.as_ref());
        HiddenRoundsLog { facts, prefix: prefixes.full() }
    }

    /// Returns the tokens of the prompt that is sent in a mode: only `Fold` sends the folded one.
    pub(crate) fn prompt_tokens(&self, mode: ProxyMode) -> Tokens {
        if mode == ProxyMode::Fold { self.sent_tokens } else { self.received_tokens }
    }

    /// Returns the request without its bodies, which can be large, for the time after it was sent.
    pub(crate) fn without_bodies(self) -> Self {
        let job = Arc::new(FoldJob { body: Bytes::new(), ..FoldJob::clone(&self.job) });
        Self { job, body: None, unfolded_body: Bytes::new(), ..self }
    }
}

/// A conversation as the model sees it, with the facts about it.
struct FoldInputs<'r> {
    job: Arc<FoldJob>,
    session: IdentifiedSession,
    request: Request<'r>,
    prefixes: PrefixHashes,
    model: Arc<UpstreamModel>,
    profile: LawProfile,
    /// The client's body with hidden rounds restored, if it has any.
    restored: Option<Bytes>,
    reported_id: ReportedId,
    /// Tokens reserved for the response.
    max_output: Option<Tokens>,
}

impl FoldInputs<'_> {
    /// Returns the refusal of a request that continues a message thread, or the unmodified request if threads are left
    /// alone. Returns `None` if the request is to be folded.
    fn threaded(&self, state: &AppState) -> Option<PreparedRequest> {
        let is_turn = self.job.purpose == EndpointPurpose::Turn && self.job.history == HistoryView::Client;
        if !is_turn || state.settings.mode != ProxyMode::Fold || !self.request.is_threaded() {
            return None;
        }
        match state.settings.threads {
            ThreadMode::Refuse if self.request.is_continuation() => {
                state.metrics.count_refused_thread();
                let unsent = self.with_body(None, 0, 0, None, &StoredHandles::default());
                Some(PreparedRequest { is_refused_thread: true, ..unsent })
            }
            ThreadMode::Refuse => None,
            ThreadMode::Pass => {
                let tokens = self.model.meter.conversation(self.request.conversation());
                let budget = self.model.budget(self.max_output);
                let unmodified = self.with_body(None, tokens, budget, self.max_output, &StoredHandles::default());
                Some(PreparedRequest { passthrough: Some("thread"), ..unmodified })
            }
        }
    }

    /// Returns the whole request if the client compacts its history with it and it fits.
    fn whole_for_compaction(&self, state: &AppState) -> Option<PreparedRequest> {
        if state.settings.mode != ProxyMode::Fold || !self.request.is_compaction() {
            return None;
        }
        let tokens = self.model.meter.conversation(self.request.conversation());
        let budget =
            self.model.budget(self.max_output).min(self.session.facts.ceiling(state.settings.timeouts.learned));
        if tokens > budget {
            return None;
        }
        tracing::info!(model = self.session.model_name, tokens, "the client compacts its history; sent unfolded");
        self.whole(tokens, budget)
    }

    /// Lowers the reserve for the response to the default. Returns false if that makes no difference.
    fn lower_reserve(&mut self) -> bool {
        let is_lower = self.model.budget(None) > self.model.budget(self.max_output);
        if is_lower {
            self.max_output = None;
        }
        is_lower
    }

    /// Folds the request, and records the result: metrics, journal and session cache.
    ///
    /// # Errors
    ///
    /// The conversation cannot be folded to its budget, or the fold is cancelled.
    fn fold(&self, state: &AppState, refold: Option<Refold>, cancel: &CancelFlag) -> Result<PreparedRequest, Error> {
        cancel.check()?;
        let Self { request, prefixes, model, .. } = self;
        let (mode, facts) = (state.settings.mode, &self.session.facts);
        let cached = state.sessions.take(prefixes);
        if cached.as_ref().is_some_and(|cached| model.prices.cache_ttl.is_some_and(|ttl| cached.age() > ttl)) {
            facts.record_cold_cache(prefixes.full());
        }
        let max_output = self.max_output;
        let budget = self.choose_budget(state, refold, max_output);
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
        if state.settings.summary_mode != SummaryMode::Off && mode == ProxyMode::Fold {
            facts.adopt_summary(prefixes, &request.conversation().messages, is_open);
        }
        if is_open {
            facts.adopt_pins(prefixes, &self.session_pins(state));
        }

        let mut options = FoldOptions::new(model.meter.clone(), model.prices, budget.tokens).with_rules(&self.profile);
        options.policy = state.settings.policy.clone();
        options.cancel = cancel.clone();
        let (fold_state, stored) = cached.map(|cached| (cached.state, cached.stored)).unwrap_or_default();
        let is_archived = self.session.archive.as_ref().is_none_or(|archive| stored.is_in(archive));
        let is_dropped = is_decided && is_open || !is_archived;
        let mut fold_state = if is_dropped { FoldState::default() } else { fold_state };
        let from_scratch = fold_state.is_empty();
        if from_scratch {
            count_in_parallel(request.conversation(), &model.meter, cancel);
        }
        let writer = self.archive_writer(mode, &stored);
        let store = writer.as_ref().map(|writer| writer as &dyn OriginalStore);
        let on_event = |event: FoldEvent| record_event(&state.metrics, self.session.archive.as_ref(), &event);
        let mut ledger = facts.ledger(prefixes);
        ledger.budgets.extend(budget.from.map(|from| (from, budget.tokens)));
        let is_retry = matches!(refold, Some(Refold::WithBudget(_)));
        let mut applied = match apply_with_state(&mut fold_state, request, &options, &ledger, store, &on_event) {
            Ok(applied) => applied,
            Err(error) => {
                if is_too_large(&error) && !is_retry {
                    let failure = FoldFailure { budget: budget.tokens, error: error.clone() };
                    state.sessions.insert(prefixes, CachedState::failed(fold_state, stored, failure));
                }
                return Err(error);
            }
        };

        // The budget of a retry becomes a fact only when the provider accepts it.
        if let Some(from) = budget.from.filter(|_| !is_retry) {
            facts.set_budget(prefixes.prefix(from), budget.tokens);
        }
        let crease = self.report_folds(state, &applied, is_open, from_scratch);
        let has_written = crease.is_some() || writer.as_ref().is_some_and(ArchiveWriter::has_written);
        let mut prepared = self.prepared(state, &mut applied, budget.tokens, max_output, &stored);
        prepared.facts = self.request_facts(state, &applied, &prepared, crease.as_ref(), from_scratch);
        prepared.pending_sync = self.pending_sync(has_written && mode == ProxyMode::Fold, &stored);
        if is_retry {
            let (facts, prefixes) = (facts.clone(), prefixes.clone());
            prepared.tight = Some(Arc::new(TightBudget { facts, prefixes, tokens: budget.tokens }));
        } else if let Some(fold_state) = applied.into_state() {
            state.sessions.insert(prefixes, CachedState::new(fold_state, stored));
        }
        Ok(prepared)
    }

    /// Returns a request that could not be folded, with the tools and the rounds that the conversation has otherwise; none
    /// if it is the client's own.
    fn unfolded(&self, state: &AppState) -> Option<PreparedRequest> {
        let tool_offered = self.request.has_injected_tool();
        if state.settings.mode != ProxyMode::Fold || !tool_offered && self.restored.is_none() {
            return None;
        }
        let tokens = self.model.meter.conversation(self.request.conversation());
        self.whole(tokens, self.model.budget(self.max_output))
    }

    /// Returns the request with all its messages.
    fn whole(&self, tokens: Tokens, budget: Tokens) -> Option<PreparedRequest> {
        let body = self.request.splice(&[]).ok()?.into_owned();
        Some(self.with_body(Some(body.into()), tokens, budget, self.max_output, &StoredHandles::default()))
    }

    /// Returns the result of a fold; the body is taken out of it.
    fn prepared(
        &self,
        state: &AppState,
        applied: &mut FoldedRequest,
        budget: Tokens,
        max_output: Option<Tokens>,
        stored: &StoredHandles,
    ) -> PreparedRequest {
        let is_changed = applied.folded.is_some() || self.restored.is_some() || self.request.has_injected_tool();
        let body = std::mem::take(&mut applied.body);
        PreparedRequest {
            sent_tokens: applied.tokens,
            fold_count: applied.pass_names().count() as u64,
            summary_job: self.summary_job(state, applied, budget),
            ..self.with_body(is_changed.then(|| body.into()), applied.raw_tokens, budget, max_output, stored)
        }
    }

    /// Returns a request with this body, without folds.
    fn with_body(
        &self,
        body: Option<Bytes>,
        tokens: Tokens,
        budget: Tokens,
        max_output: Option<Tokens>,
        stored: &StoredHandles,
    ) -> PreparedRequest {
        let Self { session, restored, .. } = self;
        PreparedRequest {
            job: self.job.clone(),
            body,
            unfolded_body: restored.clone().unwrap_or_else(|| self.job.body.clone()),
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
            budget,
            max_output,
            archive: session.archive.clone(),
            summary_job: None,
            tight: None,
            facts: None,
            is_refused_thread: false,
            passthrough: self.request.stored_history(),
            stored: session.continued.clone().unwrap_or_else(|| stored.clone()),
        }
    }

    fn choose_budget(&self, state: &AppState, refold: Option<Refold>, max_output: Option<Tokens>) -> BudgetChoice {
        let (facts, lifetime) = (&self.session.facts, state.settings.timeouts.learned);
        let allowed = match refold {
            Some(Refold::Stated) => self.model.stated_budget(max_output),
            _ => self.model.budget(max_output).min(facts.ceiling(lifetime)),
        };
        let learned = match refold {
            Some(Refold::WithBudget(budget)) => Some(budget),
            Some(Refold::WithSummary | Refold::Stated) | None => None,
        };
        BudgetChoice::new(&facts.ledger(&self.prefixes), self.prefixes.len(), allowed, learned)
    }

    /// Returns the pins of the session.
    fn session_pins(&self, state: &AppState) -> Arc<PinPatterns> {
        let Self { session, job, .. } = self;
        state.pins.get(job.tenant.key, &session.name, || match job.session {
            Some(_) => read_pins(session.archive.as_ref()),
            None => session.facts.recorded_pins(),
        })
    }

    /// Returns true if the budget is lower than the stated window allows.
    fn is_lowered(&self, state: &AppState) -> bool {
        let max_output = self.max_output;
        let ceiling = self.session.facts.ceiling(state.settings.timeouts.learned);
        self.model.budget(max_output).min(ceiling) < self.model.stated_budget(max_output)
    }

    /// Returns the writer of originals. Without an archive nothing is folded whose original could not be restored; in
    /// observe mode nothing folded is sent.
    fn archive_writer<'k>(&'k self, mode: ProxyMode, stored: &'k StoredHandles) -> Option<ArchiveWriter<'k>> {
        match (mode, &self.session.archive) {
            (ProxyMode::Fold, Some(archive)) => Some(ArchiveWriter::new(Some(archive), stored)),
            (ProxyMode::Fold, None) => None,
            (ProxyMode::Observe | ProxyMode::Off, _) => Some(ArchiveWriter::new(None, stored)),
        }
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
        let Self { session, job, model, prefixes, .. } = self;
        let name = session.name.clone();
        let log = state.activity.get(job.tenant.key.0, job.tenant.archive.as_ref());
        let known = log.known_session(&name);
        let (messages, tools_hash) = known.unwrap_or_default();
        let known = KnownSession { is_new: known.is_none(), messages, tools_hash };
        let is_folded = state.settings.mode == ProxyMode::Fold;
        let limits = WindowLimits {
            meter: &model.meter,
            prices: &model.prices,
            policy: &state.settings.policy,
            budget: prepared.budget,
            is_folded,
        };
        let body = prepared.body.as_ref().filter(|_| is_folded).unwrap_or(&job.body);
        let request = &self.request;
        let source = FactSource { request, applied, prefixes, crease, from_scratch, limits, body };
        Some(Arc::new(RequestFacts::gather(name, known, source)))
    }

    /// Reports new folds and a crease that was made for this request. Returns the crease, if there is one. Earlier creases
    /// were reported when they were made, and kept decisions are not reported again.
    fn report_folds(
        &self,
        state: &AppState,
        applied: &FoldedRequest,
        is_open: bool,
        from_scratch: bool,
    ) -> Option<Crease> {
        let (session, creases) = (&self.session, applied.creases());
        let crease = creases.last().filter(|crease| crease.request_point == self.prefixes.len() && is_open);
        if crease.is_some() || from_scratch && !creases.is_empty() {
            session.facts.persist_budgets(&self.prefixes);
        }
        if let Some(crease) = crease {
            let names = (session.name.as_str(), session.model_name.as_str());
            record_crease(&state.metrics, session.archive.as_ref(), names, crease);
            if state.settings.mode == ProxyMode::Observe {
                let cost =
                    self.model.dollars(crease.rewrite_cost as f64, state.settings.upstreams.get(self.model.family));
                state.metrics.would_crease_cost_usd.inc_by(cost);
            }
        }
        for (pass, count) in session.facts.count_new_folds(applied.pass_names()) {
            state.metrics.folds.get_or_create(&PassLabels { pass }).inc_by(count);
        }
        crease.cloned()
    }

    /// Returns the summary job that is due, if any.
    fn summary_job(&self, state: &AppState, applied: &FoldedRequest, budget: Tokens) -> Option<Arc<SummaryJob>> {
        let Self { request, prefixes, model, profile, session, .. } = self;
        let (settings, facts) = (&state.settings, &session.facts);
        let archive = session.archive.clone()?;
        is_summary_due(settings, facts, prefixes, applied.creases(), applied.tokens, budget).then(|| {
            Arc::new(SummaryJob {
                conversation: request.conversation().clone().into_owned(),
                prefixes: prefixes.clone(),
                facts: facts.clone(),
                profile: profile.clone(),
                meter: model.meter.clone(),
                budget,
                target_ratio: target_ratio(&settings.policy),
                archive: Some(archive),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use foldline::wire::Format;

    use super::*;
    use crate::proxy::settings::ProxySettings;

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
                family: Format::OpenAiChat.dialect().family,
                tenant: state.tenants.identify(&headers).unwrap(),
                session: None,
                client: String::new(),
                body: body(turns),
                history: HistoryView::Client,
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
