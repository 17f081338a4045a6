//! A request that carries a conversation, and the session that it belongs to.
//!
//! Rounds that responses hid from the client are recorded when a response ends, and restored in the client's next request,
//! so that the model sees the conversation that it had.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::models::model_name;
use foldline::tokens::Tokens;
use foldline::wire::{Dialect, EndpointPurpose, Format, HiddenRound, Request, RequestEdit};
use foldline::{Error, Policy};
use foldline_archive::TenantArchive;

use crate::activity::SessionGroup;
use crate::proxy::fold::archive_writer::StoredHandles;
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_facts::{SessionFacts, session_name};
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::named_upstream::UpstreamChoice;
use crate::proxy::settings::{ProxyMode, ProxySettings};
use crate::proxy::state::AppState;

/// A request that carries a conversation.
#[derive(Clone)]
pub(crate) struct FoldJob {
    pub(crate) format: Format,
    pub(crate) purpose: EndpointPurpose,
    /// Path at the provider, which may name the model.
    pub(crate) path: String,
    pub(crate) upstream: UpstreamChoice,
    pub(crate) tenant: Tenant,
    /// The tenant's mode when the request arrived.
    pub(crate) mode: ProxyMode,
    /// The group of its session, if sessions are compared.
    pub(crate) group: Option<SessionGroup>,
    /// Session name sent by the client.
    pub(crate) session: Option<String>,
    /// `User-Agent` of the client.
    pub(crate) user_agent: String,
    /// The span of the client, if traces are exported.
    pub(crate) trace_parent: Option<String>,
    /// Decoded body.
    pub(crate) body: Bytes,
    pub(crate) history: HistoryView,
    /// Set if the caller gets the folded conversation itself, and sends it.
    pub(crate) requested: Option<RequestedFold>,
}

/// A fold whose result is returned to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestedFold {
    /// Maximum tokens of everything that the caller sent; `None` for the window of the model.
    pub(crate) budget: Option<Tokens>,
    /// Tokens that the caller sent and that take no part in the fold.
    pub(crate) withheld: Tokens,
    /// Set if the messages are rows that the caller puts back in their places.
    pub(crate) rows: Option<RowForm>,
}

/// The rows of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowForm {
    /// A conversation.
    Whole,
    /// Results without the turns that requested them.
    Results,
}

/// Maximum bytes of a session name; the rest is ignored.
const MAX_SESSION_NAME_BYTES: usize = 256;

/// Returns a session name as it is stored.
pub(crate) fn session_text(name: &str) -> String {
    name[..name.floor_char_boundary(MAX_SESSION_NAME_BYTES)].to_owned()
}

/// The history that a body contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryView {
    /// The client's, which lacks the hidden rounds.
    Client,
    /// The complete one, as the model saw it.
    Model,
}

impl FoldJob {
    /// Returns true if the request is sent folded.
    pub(crate) fn is_folding(&self) -> bool {
        self.mode == ProxyMode::Fold
    }

    /// Returns the job of a session that is only observed, if it is in the share of the settings; otherwise this one.
    ///
    /// Sessions have the name that the client sends, or begin with the same messages. A conversation that the provider
    /// stores may go on without its begin: without a name it takes no part in the comparison.
    fn assign_group(self: Arc<Self>, settings: &ProxySettings, request: &Request<'_>) -> Arc<Self> {
        let share = settings.observe_share;
        if share.is_empty() || !self.is_folding() || self.group.is_some() || self.requested.is_some() {
            return self;
        }
        let is_observed = match &self.session {
            Some(name) => share.contains(name.as_bytes()),
            None if request.is_stored() || request.previous_response_id().is_some() => return self,
            None => share.contains(&PrefixHashes::conversation_root(request.conversation()).to_le_bytes()),
        };
        let (mode, group) = match is_observed {
            true => (ProxyMode::Observe, SessionGroup::Observe),
            false => (ProxyMode::Fold, SessionGroup::Fold),
        };
        Arc::new(Self { mode, group: Some(group), ..(*self).clone() })
    }

    /// Returns the policy of the tenant.
    pub(crate) fn policy<'s>(&'s self, settings: &'s ProxySettings) -> &'s Policy {
        self.tenant.settings.policy.as_ref().unwrap_or(&settings.policy)
    }

    /// Returns the archive that the conversation is stored in. Only requests that are sent folded have one, so that what
    /// the archive has of a conversation is what was sent.
    pub(crate) fn archive(&self) -> Option<&TenantArchive> {
        self.tenant.archive.as_ref().filter(|_| self.is_folding())
    }

    /// Parses the client's body, or a later form of it, with the facts that the path states.
    ///
    /// # Errors
    ///
    /// The body is not a request of the dialect.
    pub(crate) fn parse<'a>(&'a self, body: &'a [u8]) -> Result<Request<'a>, Error> {
        let request = Request::parse(self.format, body)?;
        Ok(match Dialect::for_path(&self.path) {
            Some((_, endpoint)) => request.with_endpoint(&endpoint),
            None => request,
        })
    }

    /// Returns the name that separates conversations with this model from others with the same messages: rows are folded
    /// by other rules than requests.
    fn scope_name(&self, model_name: &str) -> String {
        match self.requested.map(|requested| requested.rows) {
            None => model_name.to_owned(),
            Some(None) => format!("fold {model_name}"),
            Some(Some(RowForm::Whole)) => format!("rows {model_name}"),
            Some(Some(RowForm::Results)) => format!("results {model_name}"),
        }
    }

    /// Returns the name under which the tenant's conversations are cached: that of its part of the archive.
    pub(crate) fn owner(&self) -> String {
        let unarchived = || session_name(self.tenant.key.0);
        self.archive().map_or_else(unarchived, |archive| archive.namespace().as_str().to_owned())
    }
}

/// The session of a request, found by the prefixes of its conversation or the id of a stored response.
pub(crate) struct IdentifiedSession {
    /// The request, with the group of the session.
    pub(crate) job: Arc<FoldJob>,
    /// Name under which the tenant's conversations are cached.
    pub(crate) owner: String,
    pub(crate) model_name: String,
    /// Name of the session in the archive.
    pub(crate) name: String,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) facts: Arc<SessionFacts>,
    /// Time since the provider received the conversation; `None` if it is not known.
    pub(crate) idle_time: Option<Duration>,
    /// The archive of the session.
    pub(crate) archive: Option<TenantArchive>,
    /// Originals folded in the history of a stored response, if the request continues one.
    pub(crate) continued: Option<StoredHandles>,
    /// The client's body with the hidden rounds of earlier responses, if there are any.
    pub(crate) restored: Option<Bytes>,
}

impl IdentifiedSession {
    pub(crate) fn new(state: &AppState, job: &Arc<FoldJob>, client: &Request<'_>) -> Self {
        let job = job.clone().assign_group(&state.settings, client);
        let model_name = model_name(client.conversation().model.as_deref().unwrap_or_default()).to_owned();
        let (owner, tenant_archive) = (job.owner(), job.archive());
        let scope_name = job.scope_name(&model_name);
        let scope = [owner.as_str(), &scope_name];
        let continues = client.previous_response_id();
        let prefixes = PrefixHashes::for_request(&scope, client);
        let facts = state.sessions.facts(&prefixes, tenant_archive);
        let name = job.session.clone().unwrap_or_else(|| session_name(prefixes.root()));
        // A later round of a response follows at once, and its facts are in memory.
        let is_turn = job.history == HistoryView::Client;
        if is_turn {
            match facts.refresh(&prefixes, job.session.as_deref()) {
                Ok(true) => state.pins.refresh(job.tenant.key, &name, facts.recorded_pins()),
                Ok(false) => {}
                Err(error) => {
                    state.metrics.count_internal_error("archive");
                    tracing::warn!(%error, "cannot read the ledger; using the facts in memory");
                }
            }
        }
        let idle_time = is_turn.then(|| facts.idle_time(&prefixes)).flatten();
        let archive = tenant_archive.map(|archive| archive.in_session(name.clone()));
        let continued = continues.map(|_| facts.handles(prefixes.full()));
        let restored = match job.history {
            HistoryView::Client => restored_body(client, &facts.hidden_rounds(&prefixes)),
            HistoryView::Model => None,
        };
        Self { job, owner, model_name, name, prefixes, facts, idle_time, archive, continued, restored }
    }

    pub(crate) fn scope(&self) -> [&str; 2] {
        [&self.owner, &self.model_name]
    }
}

/// The facts and the prefix to which the hidden rounds of a response are recorded.
#[derive(Clone)]
pub(crate) struct HiddenRoundsLog {
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) prefix: u128,
}

impl HiddenRoundsLog {
    /// Records the hidden rounds of a response. They are on disk when this returns.
    pub(crate) fn record_rounds(&self, rounds: &[HiddenRound]) {
        self.facts.record_hidden_rounds(self.prefix, rounds);
    }

    /// Records that all facts of the response are recorded.
    pub(crate) fn note_answered(&self) {
        self.facts.note_answered(self.prefix);
    }

    /// Records the originals that a model may unfold after a response that the provider stores: a request that
    /// continues from it does not contain the markers.
    pub(crate) fn record_handles(&self, handles: &StoredHandles) {
        self.facts.record_handles(self.prefix, handles);
    }
}

/// Returns the client's body with the hidden rounds of earlier responses restored; none if there are none.
fn restored_body(client: &Request<'_>, hidden: &[(usize, Vec<Arc<[HiddenRound]>>)]) -> Option<Bytes> {
    let mut edits: Vec<RequestEdit> = Vec::new();
    let is_continuation = client.previous_response_id().is_some();
    let restore = |at, rounds: &Arc<[HiddenRound]>| {
        if is_continuation { client.restore_hidden_results(rounds) } else { client.restore_hidden_calls(at, rounds) }
    };
    for (at, responses) in hidden {
        edits.extend(responses.iter().rev().find_map(|rounds| restore(*at, rounds)).into_iter().flatten());
    }
    if edits.is_empty() {
        return None;
    }
    let restored =
        client.splice(&edits).inspect_err(|error| tracing::warn!(%error, "cannot restore hidden rounds")).ok()?;
    Some(restored.into_owned().into())
}
