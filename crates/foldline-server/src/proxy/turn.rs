//! Fold on the way in: a client's request becomes what is sent.
//!
//! A turn owns what it needs, so that the work can be done off the threads that serve connections, and
//! done again when the provider says that it was not enough. Whatever goes wrong here leaves the
//! request as it came.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use foldline::laws::{Profile, Server};
use foldline::wire::{Edit, Format, Gap, ReportedId, Request};
use foldline::{Applied, Event, Handle, Keep, KeepError, Original, Policy, Setup, State, Tokens, apply_from};
use foldline_archive::Shelf;
use foldline_rlm::NEAR;
use hyper::http::uri::Scheme;

use super::lineage::Lineage;
use super::memory::{self, Facts, Place};
use super::metrics;
use super::models::Model;
use super::route::Side;
use super::server::Shared;
use super::settings::{Mode, Summarise, Upstream};
use super::summaries::{self, Due};
use super::unfold::OFFER;

/// A request that carries a conversation.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) format: Format,
    pub(crate) side: Side,
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
    /// The conversation as the model knows it, not folded.
    pub(crate) known: Bytes,
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
}

/// Why a turn is folded once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// The provider has just taught that the budget is this.
    Tighter(Tokens),
    /// A summary was waited for, and is there now.
    Told,
}

/// A budget that fell by more than this is news to a conversation; less is noise of the calibration.
const FELL: f64 = 0.97;
/// A budget must have grown this much to be believed: what was folded is folded.
const GREW: f64 = 1.5;

impl Turn {
    /// Whether a tool of ours may be offered: what it gives back must be in an archive.
    fn offers(&self, proxy: &Shared) -> bool {
        proxy.settings.unfold && proxy.settings.mode == Mode::Fold && self.shelf.is_some()
    }

    /// Folds the request.
    pub(crate) fn fold(&self, proxy: &Shared, again: Option<Again>) -> Option<Folded> {
        let client = Request::parse(self.format, &self.body).ok()?;
        let name = client.conversation().model.as_deref().unwrap_or_default();
        let upstream = proxy.upstream(self.side);
        let model = proxy.models.get(self.side, name);
        let owner = self.shelf.as_ref().map_or("", |shelf| shelf.namespace().as_str());
        let between = [owner, name];
        let told = Lineage::of(&between, client.conversation());
        let session = || self.session.clone().unwrap_or_else(|| memory::name(told.root()));
        let journal = self.shelf.as_ref().map(|shelf| shelf.in_session(session()));
        let facts = proxy.memory.facts(&told, self.shelf.as_ref());
        let hidden = Hidden { facts: facts.clone(), beginning: told.whole() };

        // The conversation as the model knows it: with the tool of ours, and with what was hidden.
        let offer = OFFER.edit(&client).filter(|_| self.offers(proxy));
        let offered = offer.is_some();
        let known = match self.told_by {
            ToldBy::Client => known_to_the_model(&client, &facts, &told, offer).map(Bytes::from),
            ToldBy::Us => None,
        };
        let request = match &known {
            Some(body) => Request::parse(self.format, body).ok()?,
            None => client.clone(),
        };
        let lineage = Lineage::of(&between, request.conversation());
        let place = proxy.memory.place(&lineage);
        if place.as_ref().is_some_and(|place| model.prices.life.is_some_and(|life| place.age() > life)) {
            facts.cold(lineage.whole());
        }
        let taught = match again {
            Some(Again::Tighter(at_most)) => Some(at_most),
            Some(Again::Told) | None => None,
        };
        let max_output = model.answer_beside(&request);
        let (budget, news) = budget(&facts, &lineage, model.budget(max_output), taught);
        // What was decided for this very request holds, unless the budget is another now or a summary was waited for.
        let decided = place.as_ref().is_some_and(|place| place.state.len() == lineage.len());
        let open = !decided || news || again == Some(Again::Told);
        if proxy.settings.summarise != Summarise::Off && proxy.settings.mode == Mode::Fold {
            facts.tell(&lineage, &request.conversation().messages, open);
        }

        let laws = profile(&request, upstream);
        let mut setup = Setup::new(model.meter.clone(), model.prices, budget).under(&laws);
        setup.policy = proxy.settings.policy.clone();
        let held = place.as_ref().map(|place| place.held.clone()).unwrap_or_default();
        let keep = match (proxy.settings.mode, &journal) {
            (Mode::Fold, Some(shelf)) => Some(Keeper { shelf: Some(shelf), held: &held }),
            (Mode::Fold, None) => None,
            // Nothing is sent, so nothing has to be kept.
            (Mode::Observe | Mode::Off, _) => Some(Keeper { shelf: None, held: &held }),
        };
        let keep = keep.as_ref().map(|keep| keep as &dyn Keep);
        let tell = |event: Event| tell(proxy, journal.as_ref(), &event);
        let resumed = place.as_ref().filter(|_| !(decided && open));
        let state = resumed.map_or_else(State::default, |place| place.state.clone());
        let applied = match apply_from(state, &request, &setup, &facts.ledger(&lineage), keep, &tell) {
            Ok(applied) => applied,
            Err(error) => {
                proxy.metrics.fault("cannot_fit");
                tracing::warn!(%error, model = name, "sent as it came");
                return None;
            }
        };

        let creases = applied.creases();
        let new_creases = &creases[place.as_ref().map_or(0, |place| place.creases).min(creases.len())..];
        if !new_creases.is_empty() {
            facts.settle(&lineage);
        }
        for crease in new_creases {
            let reason = metrics::Reason { reason: format!("{:?}", crease.reason).to_lowercase() };
            proxy.metrics.creases.get_or_create(&reason).inc();
            proxy.metrics.spent.inc_by(model.prices.dollars(crease.price));
        }
        let due = self.shelf.is_some() && summaries::is_due(proxy, &facts, &lineage, creases, applied.tokens, budget);
        let due = due.then(|| {
            let Policy { high, low, .. } = proxy.settings.policy;
            Arc::new(Due {
                conversation: request.conversation().clone().into_owned(),
                lineage: lineage.clone(),
                facts: facts.clone(),
                profile: laws,
                meter: model.meter.clone(),
                budget,
                // What comes until the crease has to fit below the mark, too.
                low: (low - high * (1.0 - NEAR)).max(0.2),
                journal: journal.clone(),
            })
        });
        let by_pass = by_pass(&applied);
        for (&pass, &count) in &by_pass {
            let known = place.as_ref().and_then(|place| place.folds.get(pass)).copied().unwrap_or(0);
            proxy.metrics.folds.get_or_create(&metrics::Pass { pass }).inc_by(count.saturating_sub(known));
        }
        let folded = Folded {
            body: (applied.folded.is_some() || known.is_some()).then(|| Bytes::copy_from_slice(&applied.body)),
            known: known.clone().unwrap_or_else(|| self.body.clone()),
            offered,
            reported: if client.is_stored() { ReportedId::Last } else { ReportedId::First },
            hidden,
            raw: applied.raw_tokens,
            sent: applied.tokens,
            folds: by_pass.values().sum(),
            budget,
            max_output,
            model_name: name.to_owned(),
            journal,
            model,
            due,
        };
        let creases = creases.len();
        if let Some(state) = applied.into_state() {
            proxy.memory.remember(&lineage, place.as_deref(), Place::new(state, by_pass, creases, held));
        }
        Some(folded)
    }
}

/// The client's request with the tool of ours, and with the hidden calls of earlier answers back in
/// their places. `None` when that is the client's own.
fn known_to_the_model(client: &Request<'_>, facts: &Facts, lineage: &Lineage, offer: Option<Edit>) -> Option<Vec<u8>> {
    let mut edits: Vec<Edit> = offer.into_iter().collect();
    for (at, answers) in facts.hidden(lineage) {
        edits.extend(answers.iter().rev().find_map(|gaps| client.heal(at, gaps)).into_iter().flatten());
    }
    if edits.is_empty() {
        return None;
    }
    client.splice(&edits).inspect_err(|error| tracing::warn!(%error, "hidden calls were not put back")).ok()
}

/// Where what an answer hides is remembered.
#[derive(Clone)]
pub(crate) struct Hidden {
    pub(crate) facts: Arc<Facts>,
    beginning: u128,
}

impl Hidden {
    pub(crate) fn record(&self, gaps: Vec<Gap>) {
        self.facts.hide(self.beginning, gaps);
    }
}

/// The budget in force, and whether it is news to the conversation; then it is noted.
fn budget(facts: &Facts, lineage: &Lineage, now: Tokens, at_most: Option<Tokens>) -> (Tokens, bool) {
    let now = now.min(at_most.unwrap_or(Tokens::MAX));
    let Some((_, known)) = facts.ledger(lineage).budgets.into_iter().next_back() else {
        facts.budget(lineage.beginning(0), now);
        return (now, false);
    };
    let taught = at_most.is_some_and(|at_most| at_most < known);
    let changed = (now as f64) < known as f64 * FELL || now as f64 > known as f64 * GREW;
    if !taught && !changed {
        return (known, false);
    }
    facts.budget(lineage.whole(), now);
    (now, true)
}

/// How many folds each pass has made.
fn by_pass(applied: &Applied) -> HashMap<&'static str, u64> {
    let mut by_pass = HashMap::new();
    for fold in applied.folded.iter().flat_map(|folded| folded.explain()) {
        *by_pass.entry(fold.pass).or_default() += 1;
    }
    by_pass
}

/// The laws of whoever answers. A server on a plain connection is a local one, behind a template of
/// unknown strictness.
fn profile(request: &Request<'_>, upstream: &Upstream) -> Profile {
    let profile = Profile::of_request(request);
    if upstream.scheme == Scheme::HTTP { profile.served_by(Server::Local) } else { profile }
}

/// Handles of originals that the archive is known to hold.
pub(crate) type Held = Arc<Mutex<HashSet<Handle>>>;

/// Hands originals to the archive once: a marker is carried by every later request, and its original
/// is held already. So an archive that is gone costs new folds and none of the old ones.
struct Keeper<'k> {
    shelf: Option<&'k Shelf>,
    held: &'k Held,
}

impl Keep for Keeper<'_> {
    fn keep(&self, originals: &[Original<'_>]) -> Result<(), KeepError> {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh: Vec<Original<'_>> = {
            let held = held();
            originals.iter().filter(|original| !held.contains(&original.handle)).copied().collect()
        };
        if let (Some(shelf), false) = (self.shelf, fresh.is_empty()) {
            shelf.keep(&fresh)?;
        }
        held().extend(fresh.iter().map(|original| original.handle));
        Ok(())
    }
}

/// Says what happened: to the log, the metrics and the journal, without any content.
fn tell(proxy: &Shared, journal: Option<&Shelf>, event: &Event) {
    match event {
        Event::Refused { why } => {
            proxy.metrics.fault("refused");
            tracing::warn!(%why, "a fold was not made");
        }
        Event::Failed { .. } | Event::Started { .. } => return,
        Event::Creased { at, saved, price, .. } => tracing::info!(at, saved, price, "creased"),
        _ => {}
    }
    if let (Some(shelf), Ok(payload)) = (journal, serde_json::to_vec(event)) {
        let kind = match event {
            Event::Creased { .. } => "creased",
            Event::Completed { .. } => "completed",
            Event::Truncated { .. } => "truncated",
            Event::Refused { .. } => "refused",
            _ => "other",
        };
        // The journal is for reading; nothing depends on it.
        let _ = shelf.note_event(kind, &payload);
    }
}
