//! Fold on the way in: a client's request becomes what is sent.
//!
//! A turn owns what it needs, so that the work can be done off the threads that serve connections, and
//! done again when the provider says that it was not enough. Whatever goes wrong here leaves the
//! request as it came.

use std::sync::Arc;

use bytes::Bytes;
use foldline::laws::{LawProfile, ServerKind};
use foldline::wire::{Format, HiddenRound, ReportedId, Request, RequestEdit};
use foldline::{CancelFlag, ErrorKind, Tokens, model_name};
use foldline_archive::TenantArchive;
use hyper::http::uri::Scheme;

use crate::proxy::downstream::listener::AppState;
use crate::proxy::downstream::route::UpstreamKind;
use crate::proxy::fold::archive_writer::{PendingSync, StoredHandles};
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::prepare::{FoldInputs, Refold, TightBudget};
use crate::proxy::fold::session_cache;
use crate::proxy::fold::session_cache::SessionFacts;
use crate::proxy::fold::summaries::SummaryJob;
use crate::proxy::fold::tenant::TenantKey;
use crate::proxy::settings::{ProxyMode, UpstreamUrl};
use crate::proxy::unfold_tool::tool::UNFOLD_TOOL;
use crate::proxy::upstream::models::UpstreamModel;

/// A request that carries a conversation.
#[derive(Clone)]
pub(crate) struct FoldJob {
    pub(crate) format: Format,
    pub(crate) upstream: UpstreamKind,
    pub(crate) tenant: TenantKey,
    /// The body, decoded.
    pub(crate) body: Bytes,
    pub(crate) history: HistoryView,
    /// The owner's part of the archive.
    pub(crate) archive: Option<TenantArchive>,
    /// What the client calls its session.
    pub(crate) session: Option<String>,
}

/// Whose conversation a body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryView {
    /// The client's, which lacks what was hidden from it.
    Client,
    /// The one that the model knows.
    Model,
}

/// What is to be sent for a turn.
#[derive(Clone)]
pub(crate) struct PreparedRequest {
    /// The body; none when the client's own bytes go out.
    pub(crate) body: Option<Bytes>,
    /// The conversation as the model knows it, not folded, and without the tool of ours.
    pub(crate) unfolded_body: Bytes,
    /// What was folded is written; this waits until it is on disk.
    pub(crate) pending_sync: Option<Arc<PendingSync>>,
    /// The model was offered a tool of ours.
    pub(crate) tool_offered: bool,
    /// Which id an answer in several rounds is known by: a client that refers to it later must mean the
    /// one behind the hidden calls.
    pub(crate) reported_id: ReportedId,
    pub(crate) hidden_rounds: HiddenRoundsLog,
    pub(crate) model: Arc<UpstreamModel>,
    /// Tokens as they came and as they are sent.
    pub(crate) received_tokens: Tokens,
    pub(crate) sent_tokens: Tokens,
    /// Folds that stand in it.
    pub(crate) fold_count: u64,
    /// Tokens that it may have.
    pub(crate) budget: Tokens,
    /// Tokens of answer that room is left for.
    pub(crate) max_output: Option<Tokens>,
    /// The conversation in the archive.
    pub(crate) archive: Option<TenantArchive>,
    pub(crate) model_name: String,
    /// A summary of its older rounds is to be written.
    pub(crate) summary_job: Option<Arc<SummaryJob>>,
    /// The budget of a retry, which the conversation keeps to if it is accepted.
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// The originals that the model may unfold.
    pub(crate) held: StoredHandles,
}

/// Bytes of a session's name that are looked at.
pub(crate) const MAX_SESSION_NAME_BYTES: usize = 256;

impl FoldJob {
    /// Whether a tool of ours may be offered: what it gives back must be in an archive.
    fn may_offer_tool(&self, proxy: &AppState) -> bool {
        proxy.settings.offer_unfold_tool && proxy.settings.mode == ProxyMode::Fold && self.archive.is_some()
    }

    /// Returns the name under which the tenant's conversations are remembered: that of its part of the archive.
    fn owner(&self) -> String {
        let unarchived = || session_cache::session_name(self.tenant.0);
        self.archive.as_ref().map_or_else(unarchived, |shelf| shelf.namespace().as_str().to_owned())
    }

    /// Remembers what an answer hid from the client. Where the provider holds the answer under an id, the client may go on
    /// from that, and nothing else of the conversation comes back.
    pub(crate) fn record_hidden_rounds(
        &self,
        proxy: &AppState,
        folded: &PreparedRequest,
        gaps: Vec<HiddenRound>,
        held_as: Option<&str>,
    ) {
        if let Some(id) = held_as {
            let lineage = PrefixHashes::for_response_id(&[&self.owner(), &folded.model_name], id);
            proxy.sessions.facts(&lineage, self.archive.as_ref()).record_hidden_rounds(lineage.full(), gaps.clone());
        }
        folded.hidden_rounds.facts.record_hidden_rounds(folded.hidden_rounds.prefix, gaps);
    }

    /// Records which originals a model may unfold after an answer that the provider stores under this id: a request that
    /// continues from there does not carry the markers again.
    pub(crate) fn record_handles(&self, proxy: &AppState, folded: &PreparedRequest, id: &str) {
        let lineage = PrefixHashes::for_response_id(&[&self.owner(), &folded.model_name], id);
        proxy.sessions.facts(&lineage, self.archive.as_ref()).record_handles(lineage.full(), &folded.held);
    }

    /// Folds the request. Returns none if it must go out as it came, or if the fold is cancelled.
    pub(crate) fn prepare(
        &self,
        proxy: &AppState,
        again: Option<Refold>,
        cancel: &CancelFlag,
    ) -> Option<PreparedRequest> {
        let client = Request::parse(self.format, &self.body).ok()?;
        let name = model_name(client.conversation().model.as_deref().unwrap_or_default()).to_owned();
        let owner = self.owner();
        let between = [owner.as_str(), &name];
        let told = match client.previous_response_id() {
            Some(id) => PrefixHashes::for_response_id(&between, &id),
            None => PrefixHashes::for_conversation(&between, client.conversation()),
        };
        let session = || self.session.clone().unwrap_or_else(|| session_cache::session_name(told.root()));
        let journal = self.archive.as_ref().map(|shelf| shelf.in_session(session()));
        let facts = proxy.sessions.facts(&told, self.archive.as_ref());
        let hidden = HiddenRoundsLog { facts: facts.clone(), prefix: told.full() };

        // The conversation as the model knows it: with what was hidden, and with the tool of ours.
        let healed = match self.history {
            HistoryView::Client => restored_body(&client, &facts, &told).map(Bytes::from),
            HistoryView::Model => None,
        };
        let stored = client.is_stored();
        let continued = client.previous_response_id().is_some().then(|| facts.handles(told.full()));
        let (request, lineage) = match &healed {
            Some(body) => {
                let request = Request::parse(self.format, body).ok()?;
                let lineage = PrefixHashes::for_conversation(&between, request.conversation());
                (request, lineage)
            }
            None => (client, told),
        };
        let request = if self.may_offer_tool(proxy) { request.with_injected_tool(&UNFOLD_TOOL) } else { request };
        let offered = request.has_injected_tool();
        let model = proxy.models.get(self.tenant, self.upstream, &name);
        let known = FoldInputs {
            profile: law_profile(&request, proxy.upstream(self.upstream)),
            request,
            prefixes: lineage,
            facts,
            model,
            archive: journal,
        };
        let failed = |error: &foldline::Error| match error.kind() {
            ErrorKind::Cancelled => {
                proxy.metrics.cancelled.inc();
                tracing::info!(model = name, "fold cancelled: the connection is closed");
            }
            _ => {
                proxy.metrics.count_internal_error("cannot_fit");
                tracing::warn!(%error, model = name, "sent as it came");
            }
        };
        let decided = match known.fold(proxy, again, cancel) {
            // A learned window may be wrong: the request is sent as the stated one allows.
            Err(error) if again.is_none() && is_too_large(&error) && known.is_lowered(proxy) => {
                tracing::warn!(%error, model = name, "cannot be folded to a learned window; folded to the stated one");
                known.fold(proxy, Some(Refold::Stated), cancel)
            }
            decided => decided,
        };
        let decision = decided.inspect_err(failed).ok()?;
        let changed = decision.is_folded || healed.is_some() || offered;
        Some(PreparedRequest {
            body: changed.then(|| decision.body.into()),
            unfolded_body: healed.clone().unwrap_or_else(|| self.body.clone()),
            pending_sync: decision.pending_sync,
            tool_offered: offered,
            reported_id: if stored { ReportedId::Last } else { ReportedId::First },
            hidden_rounds: hidden,
            received_tokens: decision.received_tokens,
            sent_tokens: decision.sent_tokens,
            fold_count: decision.fold_count,
            budget: decision.budget,
            max_output: decision.max_output,
            model_name: name,
            archive: known.archive,
            model: known.model,
            summary_job: decision.summary_job,
            tight: decision.tight,
            held: continued.unwrap_or(decision.held),
        })
    }
}

/// Returns true if the reason is that the conversation cannot be folded to its budget.
fn is_too_large(error: &foldline::Error) -> bool {
    matches!(error.kind(), ErrorKind::CannotFit { .. })
}

/// The client's request with the hidden calls of earlier answers back in their places. `None` when there are none.
fn restored_body(client: &Request<'_>, facts: &SessionFacts, lineage: &PrefixHashes) -> Option<Vec<u8>> {
    let mut edits: Vec<RequestEdit> = Vec::new();
    let goes_on = client.previous_response_id().is_some();
    let heal = |at, gaps: &Arc<[HiddenRound]>| {
        if goes_on { client.restore_hidden_results(gaps) } else { client.restore_hidden_calls(at, gaps) }
    };
    for (at, answers) in facts.hidden_rounds(lineage) {
        edits.extend(answers.iter().rev().find_map(|gaps| heal(at, gaps)).into_iter().flatten());
    }
    if edits.is_empty() {
        return None;
    }
    let healed =
        client.splice(&edits).inspect_err(|error| tracing::warn!(%error, "hidden calls were not put back")).ok()?;
    Some(healed.into_owned())
}

/// Where what an answer hides is remembered.
#[derive(Clone)]
pub(crate) struct HiddenRoundsLog {
    pub(crate) facts: Arc<SessionFacts>,
    prefix: u128,
}

/// The laws of whoever answers. A server on a plain connection is a local one, behind a template of
/// unknown strictness.
fn law_profile(request: &Request<'_>, upstream: &UpstreamUrl) -> LawProfile {
    let profile = LawProfile::for_request(request);
    if upstream.scheme == Scheme::HTTP { profile.served_by(ServerKind::ChatTemplate) } else { profile }
}
