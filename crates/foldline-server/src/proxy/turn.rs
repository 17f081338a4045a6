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
use foldline_archive::Shelf;
use hyper::http::uri::Scheme;

use super::decision::{Again, Known, TightBudget};
use super::keeper::{Held, Settling};
use super::lineage::Lineage;
use super::memory::{self, Facts};
use super::models::Model;
use super::owner::TenantKey;
use super::route::Side;
use super::server::Shared;
use super::settings::{Mode, Upstream};
use super::summaries::Due;
use super::unfold::OFFER;

/// A request that carries a conversation.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) format: Format,
    pub(crate) side: Side,
    pub(crate) tenant: TenantKey,
    /// The body, decoded.
    pub(crate) body: Bytes,
    pub(crate) told_by: ToldBy,
    /// The owner's part of the archive.
    pub(crate) shelf: Option<Shelf>,
    /// What the client calls its session.
    pub(crate) session: Option<String>,
}

/// Whose conversation a body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToldBy {
    /// The client's, which lacks what was hidden from it.
    Client,
    /// The one that the model knows.
    Us,
}

/// What is to be sent for a turn.
#[derive(Clone)]
pub(crate) struct Folded {
    /// The body; none when the client's own bytes go out.
    pub(crate) body: Option<Bytes>,
    /// The conversation as the model knows it, not folded, and without the tool of ours.
    pub(crate) known: Bytes,
    /// What was folded is written; this waits until it is on disk.
    pub(crate) settling: Option<Arc<Settling>>,
    /// The model was offered a tool of ours.
    pub(crate) offered: bool,
    /// Which id an answer in several rounds is known by: a client that refers to it later must mean the
    /// one behind the hidden calls.
    pub(crate) reported: ReportedId,
    pub(crate) hidden: Hidden,
    pub(crate) model: Arc<Model>,
    /// Tokens as they came and as they are sent.
    pub(crate) raw: Tokens,
    pub(crate) sent: Tokens,
    /// Folds that stand in it.
    pub(crate) folds: u64,
    /// Tokens that it may have.
    pub(crate) budget: Tokens,
    /// Tokens of answer that room is left for.
    pub(crate) max_output: Option<Tokens>,
    /// The conversation in the archive.
    pub(crate) journal: Option<Shelf>,
    pub(crate) model_name: String,
    /// A summary of its older rounds is to be written.
    pub(crate) due: Option<Arc<Due>>,
    /// The budget of a retry, which the conversation keeps to if it is accepted.
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// The originals that the model may unfold.
    pub(crate) held: Held,
}

/// Bytes of a session's name that are looked at.
pub(crate) const MAX_SESSION_NAME_BYTES: usize = 256;

impl Turn {
    /// Whether a tool of ours may be offered: what it gives back must be in an archive.
    fn offers(&self, proxy: &Shared) -> bool {
        proxy.settings.unfold && proxy.settings.mode == Mode::Fold && self.shelf.is_some()
    }

    /// Returns the name under which the tenant's conversations are remembered: that of its part of the archive.
    fn owner(&self) -> String {
        let unarchived = || memory::name(self.tenant.0);
        self.shelf.as_ref().map_or_else(unarchived, |shelf| shelf.namespace().as_str().to_owned())
    }

    /// Remembers what an answer hid from the client. Where the provider holds the answer under an id, the client may go on
    /// from that, and nothing else of the conversation comes back.
    pub(crate) fn hide(&self, proxy: &Shared, folded: &Folded, gaps: Vec<HiddenRound>, held_as: Option<&str>) {
        if let Some(id) = held_as {
            let lineage = Lineage::of_answer(&[&self.owner(), &folded.model_name], id);
            proxy.memory.facts(&lineage, self.shelf.as_ref()).hide(lineage.whole(), gaps.clone());
        }
        folded.hidden.facts.hide(folded.hidden.beginning, gaps);
    }

    /// Records which originals a model may unfold after an answer that the provider stores under this id: a request that
    /// continues from there does not carry the markers again.
    pub(crate) fn record_handles(&self, proxy: &Shared, folded: &Folded, id: &str) {
        let lineage = Lineage::of_answer(&[&self.owner(), &folded.model_name], id);
        proxy.memory.facts(&lineage, self.shelf.as_ref()).record_handles(lineage.whole(), &folded.held);
    }

    /// Folds the request. Returns none if it must go out as it came, or if the fold is cancelled.
    pub(crate) fn fold(&self, proxy: &Shared, again: Option<Again>, cancel: &CancelFlag) -> Option<Folded> {
        let client = Request::parse(self.format, &self.body).ok()?;
        let name = model_name(client.conversation().model.as_deref().unwrap_or_default()).to_owned();
        let owner = self.owner();
        let between = [owner.as_str(), &name];
        let told = match client.previous_response_id() {
            Some(id) => Lineage::of_answer(&between, &id),
            None => Lineage::of(&between, client.conversation()),
        };
        let session = || self.session.clone().unwrap_or_else(|| memory::name(told.root()));
        let journal = self.shelf.as_ref().map(|shelf| shelf.in_session(session()));
        let facts = proxy.memory.facts(&told, self.shelf.as_ref());
        let hidden = Hidden { facts: facts.clone(), beginning: told.whole() };

        // The conversation as the model knows it: with what was hidden, and with the tool of ours.
        let healed = match self.told_by {
            ToldBy::Client => healed(&client, &facts, &told).map(Bytes::from),
            ToldBy::Us => None,
        };
        let stored = client.is_stored();
        let continued = client.previous_response_id().is_some().then(|| facts.handles(told.whole()));
        let (request, lineage) = match &healed {
            Some(body) => {
                let request = Request::parse(self.format, body).ok()?;
                let lineage = Lineage::of(&between, request.conversation());
                (request, lineage)
            }
            None => (client, told),
        };
        let request = if self.offers(proxy) { request.with_injected_tool(&OFFER) } else { request };
        let offered = request.has_injected_tool();
        let model = proxy.models.get(self.tenant, self.side, &name);
        let known = Known { laws: laws(&request, proxy.upstream(self.side)), request, lineage, facts, model, journal };
        let failed = |error: &foldline::Error| match error.kind() {
            ErrorKind::Cancelled => {
                proxy.metrics.cancelled.inc();
                tracing::info!(model = name, "fold cancelled: the connection is closed");
            }
            _ => {
                proxy.metrics.fault("cannot_fit");
                tracing::warn!(%error, model = name, "sent as it came");
            }
        };
        let decided = match known.decide(proxy, again, cancel) {
            // A learned window may be wrong: the request is sent as the stated one allows.
            Err(error) if again.is_none() && is_too_large(&error) && known.is_lowered(proxy) => {
                tracing::warn!(%error, model = name, "cannot be folded to a learned window; folded to the stated one");
                known.decide(proxy, Some(Again::Stated), cancel)
            }
            decided => decided,
        };
        let decision = decided.inspect_err(failed).ok()?;
        let changed = decision.folded || healed.is_some() || offered;
        Some(Folded {
            body: changed.then(|| decision.body.into()),
            known: healed.clone().unwrap_or_else(|| self.body.clone()),
            settling: decision.settling,
            offered,
            reported: if stored { ReportedId::Last } else { ReportedId::First },
            hidden,
            raw: decision.raw,
            sent: decision.sent,
            folds: decision.folds,
            budget: decision.budget,
            max_output: decision.max_output,
            model_name: name,
            journal: known.journal,
            model: known.model,
            due: decision.due,
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
fn healed(client: &Request<'_>, facts: &Facts, lineage: &Lineage) -> Option<Vec<u8>> {
    let mut edits: Vec<RequestEdit> = Vec::new();
    let goes_on = client.previous_response_id().is_some();
    let heal = |at, gaps: &Arc<[HiddenRound]>| {
        if goes_on { client.restore_hidden_results(gaps) } else { client.restore_hidden_calls(at, gaps) }
    };
    for (at, answers) in facts.hidden(lineage) {
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
pub(crate) struct Hidden {
    pub(crate) facts: Arc<Facts>,
    beginning: u128,
}

/// The laws of whoever answers. A server on a plain connection is a local one, behind a template of
/// unknown strictness.
fn laws(request: &Request<'_>, upstream: &Upstream) -> LawProfile {
    let profile = LawProfile::for_request(request);
    if upstream.scheme == Scheme::HTTP { profile.served_by(ServerKind::ChatTemplate) } else { profile }
}
