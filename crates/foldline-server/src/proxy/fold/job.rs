//! A request that carries a conversation, and the session that it belongs to.

use std::sync::Arc;

use bytes::Bytes;
use foldline::models::model_name;
use foldline::wire::{ApiFamily, EndpointPurpose, Format, Request};
use foldline_archive::TenantArchive;

use crate::proxy::fold::archive_writer::StoredHandles;
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_facts::{SessionFacts, session_name};
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::state::AppState;

/// A request that carries a conversation.
#[derive(Clone)]
pub(crate) struct FoldJob {
    pub(crate) format: Format,
    pub(crate) purpose: EndpointPurpose,
    pub(crate) family: &'static ApiFamily,
    pub(crate) tenant: Tenant,
    /// Session name sent by the client.
    pub(crate) session: Option<String>,
    /// Name of the client.
    pub(crate) client: String,
    /// Decoded body.
    pub(crate) body: Bytes,
    pub(crate) history: HistoryView,
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
    /// Returns the name under which the tenant's conversations are cached: that of its part of the archive.
    pub(crate) fn owner(&self) -> String {
        let unarchived = || session_name(self.tenant.key.0);
        self.tenant.archive.as_ref().map_or_else(unarchived, |archive| archive.namespace().as_str().to_owned())
    }
}

/// The session of a request, found by the prefixes of its conversation or the id of a stored response.
pub(crate) struct IdentifiedSession {
    /// Name under which the tenant's conversations are cached.
    pub(crate) owner: String,
    pub(crate) model_name: String,
    /// Name of the session in the archive.
    pub(crate) name: String,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) facts: Arc<SessionFacts>,
    /// The archive of the session.
    pub(crate) archive: Option<TenantArchive>,
    /// Originals folded in the history of a stored response, if the request continues one.
    pub(crate) continued: Option<StoredHandles>,
}

impl IdentifiedSession {
    pub(crate) fn new(state: &AppState, job: &FoldJob, client: &Request<'_>) -> Self {
        let model_name = model_name(client.conversation().model.as_deref().unwrap_or_default()).to_owned();
        let (owner, tenant_archive) = (job.owner(), job.tenant.archive.as_ref());
        let scope = [owner.as_str(), &model_name];
        let continues = client.previous_response_id();
        let prefixes = match &continues {
            Some(id) => PrefixHashes::for_response_id(&scope, id),
            None => PrefixHashes::for_conversation(&scope, client.conversation()),
        };
        let facts = state.sessions.facts(&prefixes, tenant_archive);
        let name = job.session.clone().unwrap_or_else(|| session_name(prefixes.root()));
        let archive = tenant_archive.map(|archive| archive.in_session(name.clone()));
        let continued = continues.map(|_| facts.handles(prefixes.full()));
        Self { owner, model_name, name, prefixes, facts, archive, continued }
    }

    pub(crate) fn scope(&self) -> [&str; 2] {
        [&self.owner, &self.model_name]
    }
}
