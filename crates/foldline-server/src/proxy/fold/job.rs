//! A fold job: turns a client's request into the request that is sent.
//!
//! A job owns everything it needs, so that it can run on a blocking thread, and run again if the provider refuses the
//! prompt. On any error the client's request is forwarded unmodified.

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
    /// Decoded body.
    pub(crate) body: Bytes,
    pub(crate) history: HistoryView,
    /// The tenant's part of the archive.
    pub(crate) archive: Option<TenantArchive>,
    /// Session name sent by the client.
    pub(crate) session: Option<String>,
}

/// The history that a body contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryView {
    /// The client's, which lacks the hidden rounds.
    Client,
    /// The complete one, as the model saw it.
    Model,
}

/// A request that is ready to be sent.
#[derive(Clone)]
pub(crate) struct PreparedRequest {
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
    pub(crate) model_name: String,
    /// Summary that is due for the older rounds.
    pub(crate) summary_job: Option<Arc<SummaryJob>>,
    /// Budget of a retry, which the conversation keeps if the retry is accepted.
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// Originals that the model may unfold.
    pub(crate) held: StoredHandles,
}

/// Maximum bytes of a session name; the rest is ignored.
pub(crate) const MAX_SESSION_NAME_BYTES: usize = 256;

impl FoldJob {
    /// Returns true if the unfold tool may be offered: the originals must be in an archive.
    fn may_offer_tool(&self, proxy: &AppState) -> bool {
        proxy.settings.offer_unfold_tool && proxy.settings.mode == ProxyMode::Fold && self.archive.is_some()
    }

    /// Returns the name under which the tenant's conversations are cached: that of its part of the archive.
    fn owner(&self) -> String {
        let unarchived = || session_cache::session_name(self.tenant.0);
        self.archive.as_ref().map_or_else(unarchived, |archive| archive.namespace().as_str().to_owned())
    }

    /// Records the rounds that a response hid from the client. If the provider stores the response under an id, the client
    /// may continue from that id without sending the conversation again.
    pub(crate) fn record_hidden_rounds(
        &self,
        proxy: &AppState,
        folded: &PreparedRequest,
        rounds: Vec<HiddenRound>,
        response_id: Option<&str>,
    ) {
        if let Some(id) = response_id {
            let prefixes = PrefixHashes::for_response_id(&[&self.owner(), &folded.model_name], id);
            proxy
                .sessions
                .facts(&prefixes, self.archive.as_ref())
                .record_hidden_rounds(prefixes.full(), rounds.clone());
        }
        folded.hidden_rounds.facts.record_hidden_rounds(folded.hidden_rounds.prefix, rounds);
    }

    /// Records the originals that a model may unfold after a response that the provider stores under this id: a request
    /// that continues from it does not contain the markers.
    pub(crate) fn record_handles(&self, proxy: &AppState, folded: &PreparedRequest, id: &str) {
        let prefixes = PrefixHashes::for_response_id(&[&self.owner(), &folded.model_name], id);
        proxy.sessions.facts(&prefixes, self.archive.as_ref()).record_handles(prefixes.full(), &folded.held);
    }

    /// Folds the request. Returns none if it must be forwarded unmodified, or if the fold is cancelled.
    pub(crate) fn prepare(
        &self,
        proxy: &AppState,
        refold: Option<Refold>,
        cancel: &CancelFlag,
    ) -> Option<PreparedRequest> {
        let client = Request::parse(self.format, &self.body).ok()?;
        let name = model_name(client.conversation().model.as_deref().unwrap_or_default()).to_owned();
        let owner = self.owner();
        let scope = [owner.as_str(), &name];
        let prefixes = match client.previous_response_id() {
            Some(id) => PrefixHashes::for_response_id(&scope, &id),
            None => PrefixHashes::for_conversation(&scope, client.conversation()),
        };
        let session = || self.session.clone().unwrap_or_else(|| session_cache::session_name(prefixes.root()));
        let archive = self.archive.as_ref().map(|archive| archive.in_session(session()));
        let facts = proxy.sessions.facts(&prefixes, self.archive.as_ref());
        let hidden = HiddenRoundsLog { facts: facts.clone(), prefix: prefixes.full() };

        // The complete conversation: with hidden rounds, and with the injected tool.
        let restored = match self.history {
            HistoryView::Client => restored_body(&client, &facts, &prefixes).map(Bytes::from),
            HistoryView::Model => None,
        };
        let is_stored = client.is_stored();
        let continued = client.previous_response_id().is_some().then(|| facts.handles(prefixes.full()));
        let (request, prefixes) = match &restored {
            Some(body) => {
                let request = Request::parse(self.format, body).ok()?;
                let prefixes = PrefixHashes::for_conversation(&scope, request.conversation());
                (request, prefixes)
            }
            None => (client, prefixes),
        };
        let request = if self.may_offer_tool(proxy) { request.with_injected_tool(&UNFOLD_TOOL) } else { request };
        let tool_offered = request.has_injected_tool();
        let model = proxy.models.get(self.tenant, self.upstream, &name);
        let inputs = FoldInputs {
            profile: law_profile(&request, proxy.upstream(self.upstream)),
            request,
            prefixes,
            facts,
            model,
            archive,
        };
        let failed = |error: &foldline::Error| match error.kind() {
            ErrorKind::Cancelled => {
                proxy.metrics.cancelled.inc();
                tracing::info!(model = name, "fold cancelled: client disconnected");
            }
            _ => {
                proxy.metrics.count_internal_error("cannot_fit");
                tracing::warn!(%error, model = name, "cannot fold; forwarding the original request");
            }
        };
        let outcome = match inputs.fold(proxy, refold, cancel) {
            // A learned window may be wrong; fall back to the stated one.
            Err(error) if refold.is_none() && is_too_large(&error) && inputs.is_lowered(proxy) => {
                tracing::warn!(%error, model = name, "cannot fold to the learned window; using the stated one");
                inputs.fold(proxy, Some(Refold::Stated), cancel)
            }
            outcome => outcome,
        };
        let outcome = outcome.inspect_err(failed).ok()?;
        let is_changed = outcome.is_folded || restored.is_some() || tool_offered;
        Some(PreparedRequest {
            body: is_changed.then(|| outcome.body.into()),
            unfolded_body: restored.clone().unwrap_or_else(|| self.body.clone()),
            pending_sync: outcome.pending_sync,
            tool_offered,
            reported_id: if is_stored { ReportedId::Last } else { ReportedId::First },
            hidden_rounds: hidden,
            received_tokens: outcome.received_tokens,
            sent_tokens: outcome.sent_tokens,
            fold_count: outcome.fold_count,
            budget: outcome.budget,
            max_output: outcome.max_output,
            model_name: name,
            archive: inputs.archive,
            model: inputs.model,
            summary_job: outcome.summary_job,
            tight: outcome.tight,
            held: continued.unwrap_or(outcome.held),
        })
    }
}

/// Returns true if the reason is that the conversation cannot be folded to its budget.
fn is_too_large(error: &foldline::Error) -> bool {
    matches!(error.kind(), ErrorKind::CannotFit { .. })
}

/// Returns the client's body with the hidden rounds of earlier responses restored; none if there are none.
fn restored_body(client: &Request<'_>, facts: &SessionFacts, prefixes: &PrefixHashes) -> Option<Vec<u8>> {
    let mut edits: Vec<RequestEdit> = Vec::new();
    let is_continuation = client.previous_response_id().is_some();
    let restore = |at, rounds: &Arc<[HiddenRound]>| {
        if is_continuation { client.restore_hidden_results(rounds) } else { client.restore_hidden_calls(at, rounds) }
    };
    for (at, responses) in facts.hidden_rounds(prefixes) {
        edits.extend(responses.iter().rev().find_map(|rounds| restore(at, rounds)).into_iter().flatten());
    }
    if edits.is_empty() {
        return None;
    }
    let restored =
        client.splice(&edits).inspect_err(|error| tracing::warn!(%error, "cannot restore hidden rounds")).ok()?;
    Some(restored.into_owned())
}

/// The facts and the prefix to which the hidden rounds of a response are recorded.
#[derive(Clone)]
pub(crate) struct HiddenRoundsLog {
    pub(crate) facts: Arc<SessionFacts>,
    prefix: u128,
}

/// Returns the laws of the server. A server without TLS is assumed to be local, with a chat template of unknown
/// strictness.
fn law_profile(request: &Request<'_>, upstream: &UpstreamUrl) -> LawProfile {
    let profile = LawProfile::for_request(request);
    if upstream.scheme == Scheme::HTTP { profile.served_by(ServerKind::ChatTemplate) } else { profile }
}
