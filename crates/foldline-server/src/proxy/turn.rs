//! Fold on the way in: a client's request becomes what is sent.
//!
//! A turn owns what it needs, so that the work can be done off the threads that serve connections, and
//! done again when the provider says that it was not enough. Whatever goes wrong here leaves the
//! request as it came.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use foldline::laws::{Profile, Server};
use foldline::wire::{Edit, Format, Gap, ReportedId, Request};
use foldline::{Crease, Event, Handle, Keep, KeepError, Original, Policy, Setup, State, Tokens, apply_from};
use foldline_archive::{OnDisk, Shelf};
use foldline_rlm::NEAR;
use hyper::http::uri::Scheme;

use super::ahead::count_ahead;
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
}

/// Why a turn is folded once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// The provider has just taught that the budget is this.
    Tighter(Tokens),
    /// A summary was waited for, and is there now.
    Told,
}

/// Bytes of a model's name, and of a session's, that are looked at.
pub(crate) const LONGEST_NAME: usize = 256;
/// A budget that fell by more than this is news to a conversation; less is noise of the calibration.
const FELL: f64 = 0.97;
/// A budget must have grown this much to be believed: what was folded is folded.
const GREW: f64 = 1.5;

impl Turn {
    /// Whether a tool of ours may be offered: what it gives back must be in an archive.
    fn offers(&self, proxy: &Shared) -> bool {
        proxy.settings.unfold && proxy.settings.mode == Mode::Fold && self.shelf.is_some()
    }

    /// Whose conversation it is, and with which model.
    fn between<'t>(&'t self, model: &'t str) -> [&'t str; 2] {
        [self.shelf.as_ref().map_or("", |shelf| shelf.namespace().as_str()), model]
    }

    /// Remembers what an answer hid from the client. Where the provider holds the answer under an id, the client may go on
    /// from that, and nothing else of the conversation comes back.
    pub(crate) fn hide(&self, proxy: &Shared, folded: &Folded, gaps: Vec<Gap>, held_as: Option<&str>) {
        if let Some(id) = held_as {
            let lineage = Lineage::of_answer(&self.between(&folded.model_name), id);
            proxy.memory.facts(&lineage, self.shelf.as_ref()).hide(lineage.whole(), gaps.clone());
        }
        folded.hidden.facts.hide(folded.hidden.beginning, gaps);
    }

    /// Folds the request.
    pub(crate) fn fold(&self, proxy: &Shared, again: Option<Again>) -> Option<Folded> {
        let client = Request::parse(self.format, &self.body).ok()?;
        let name = client.conversation().model.as_deref().unwrap_or_default();
        // Names are remembered and logged, and a client can make up any.
        let name = name[..name.floor_char_boundary(LONGEST_NAME)].to_owned();
        let upstream = proxy.upstream(self.side);
        let model = proxy.models.get(self.side, &name);
        let between = self.between(&name);
        let told = match client.previous_response() {
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
        let (stored, known) = (client.is_stored(), healed.clone().unwrap_or_else(|| self.body.clone()));
        let (mut request, lineage) = match &healed {
            Some(body) => {
                let request = Request::parse(self.format, body).ok()?;
                let lineage = Lineage::of(&between, request.conversation());
                (request, lineage)
            }
            None => (client, told),
        };
        if self.offers(proxy) {
            request = request.offering(&OFFER);
        }
        let place = proxy.memory.take(&lineage);
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
        let (state, held) = place.map(|place| (place.state, place.held)).unwrap_or_default();
        let state = if decided && open { State::default() } else { state };
        let anew = state.is_empty();
        if anew {
            count_ahead(request.conversation(), &model.meter);
        }
        let keep = match (proxy.settings.mode, &journal) {
            (Mode::Fold, Some(shelf)) => Some(Keeper { shelf: Some(shelf), held: &held, wrote: Cell::new(false) }),
            (Mode::Fold, None) => None,
            // Nothing is sent, so nothing has to be kept.
            (Mode::Observe | Mode::Off, _) => Some(Keeper { shelf: None, held: &held, wrote: Cell::new(false) }),
        };
        let tell = |event: Event| tell(proxy, journal.as_ref(), &event);
        let keeping = keep.as_ref().map(|keep| keep as &dyn Keep);
        let mut applied = match apply_from(state, &request, &setup, &facts.ledger(&lineage), keeping, &tell) {
            Ok(applied) => applied,
            Err(error) => {
                proxy.metrics.fault("cannot_fit");
                tracing::warn!(%error, model = name, "sent as it came");
                return None;
            }
        };

        let creases = applied.creases();
        // Those of the past were made, and told of, when they were due; and what was decided before is not decided again.
        let creased = creases.last().filter(|crease| crease.at == lineage.len() && open);
        if creased.is_some() || anew && !creases.is_empty() {
            facts.settle(&lineage);
        }
        if let Some(crease) = creased {
            tell_crease(proxy, journal.as_ref(), &model, crease);
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
        for (pass, count) in facts.new_folds(applied.passes()) {
            proxy.metrics.folds.get_or_create(&metrics::Pass { pass }).inc_by(count);
        }
        let wrote = creased.is_some() || keep.as_ref().is_some_and(|keep| keep.wrote.get());
        let settling = journal.as_ref().filter(|_| wrote && proxy.settings.mode == Mode::Fold);
        let settling = settling.map(|shelf| Arc::new(Settling::new(shelf.on_disk(), held.clone())));
        let changed = applied.folded.is_some() || healed.is_some() || request.offers();
        let folded = Folded {
            body: changed.then(|| std::mem::take(&mut applied.body).into()),
            known,
            settling,
            offered: request.offers(),
            reported: if stored { ReportedId::Last } else { ReportedId::First },
            hidden,
            raw: applied.raw_tokens,
            sent: applied.tokens,
            folds: applied.passes().count() as u64,
            budget,
            max_output,
            model_name: name,
            journal,
            model,
            due,
        };
        if let Some(state) = applied.into_state() {
            proxy.memory.remember(&lineage, Place::new(state, held));
        }
        Some(folded)
    }
}

/// The client's request with the hidden calls of earlier answers back in their places. `None` when there are none.
fn healed(client: &Request<'_>, facts: &Facts, lineage: &Lineage) -> Option<Vec<u8>> {
    let mut edits: Vec<Edit> = Vec::new();
    let goes_on = client.previous_response().is_some();
    let heal = |at, gaps: &Arc<[Gap]>| if goes_on { client.heal_continuation(gaps) } else { client.heal(at, gaps) };
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

/// The laws of whoever answers. A server on a plain connection is a local one, behind a template of
/// unknown strictness.
fn profile(request: &Request<'_>, upstream: &Upstream) -> Profile {
    let profile = Profile::of_request(request);
    if upstream.scheme == Scheme::HTTP { profile.served_by(Server::Local) } else { profile }
}

/// Handles of originals that the archive is known to hold.
pub(crate) type Held = Arc<Mutex<HashSet<Handle>>>;

/// Originals on their way to the disk. They are written before a request leaves; nobody is answered before they are on
/// disk, so that whoever has seen a marker can have its original again, after a loss of power, too.
pub(crate) struct Settling {
    on_disk: Mutex<Option<OnDisk>>,
    held: Held,
}

impl Settling {
    fn new(on_disk: OnDisk, held: Held) -> Self {
        Self { on_disk: Mutex::new(Some(on_disk)), held }
    }

    /// Waits, whoever is first. What did not come to the disk is not held: the next request hands it over again.
    pub(crate) fn wait(&self) -> Result<(), foldline_archive::Error> {
        let on_disk = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).take();
        let settled = on_disk.map_or(Ok(()), OnDisk::wait);
        if settled.is_err() {
            self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        settled
    }
}

/// Hands originals to the archive once: a marker is carried by every later request, and its original
/// is held already. So an archive that is gone costs new folds and none of the old ones.
struct Keeper<'k> {
    shelf: Option<&'k Shelf>,
    held: &'k Held,
    /// Something was handed over.
    wrote: Cell<bool>,
}

impl Keep for Keeper<'_> {
    fn keep(&self, originals: &[Original<'_>]) -> Result<(), KeepError> {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh: Vec<Original<'_>> = {
            let held = held();
            originals.iter().filter(|original| !held.contains(&original.handle)).copied().collect()
        };
        if let (Some(shelf), false) = (self.shelf, fresh.is_empty()) {
            shelf.write(&fresh).map_err(|error| KeepError(error.to_string()))?;
            self.wrote.set(true);
        }
        held().extend(fresh.iter().map(|original| original.handle));
        Ok(())
    }
}

/// A crease was made for this very request: the log, the metrics and the journal say so together.
fn tell_crease(proxy: &Shared, journal: Option<&Shelf>, model: &Model, crease: &Crease) {
    let Crease { at, reason, saved, price, .. } = *crease;
    tracing::info!(at, saved, price, "creased");
    proxy.metrics.creases.get_or_create(&metrics::Reason { reason: format!("{reason:?}").to_lowercase() }).inc();
    proxy.metrics.spent.inc_by(model.prices.dollars(price as f64));
    note(journal, &Event::Creased { at, reason, saved, price });
}

/// Says what happened: to the log, the metrics and the journal, without any content.
fn tell(proxy: &Shared, journal: Option<&Shelf>, event: &Event) {
    match event {
        Event::Refused { why } => {
            proxy.metrics.fault("refused");
            tracing::warn!(%why, "a fold was not made");
        }
        // A crease is told of once, by whoever knows that it is new.
        Event::Failed { .. } | Event::Started { .. } | Event::Creased { .. } => return,
        _ => {}
    }
    note(journal, event);
}

/// Notes what happened in the journal, which is for reading; nothing depends on it.
fn note(journal: Option<&Shelf>, event: &Event) {
    if let (Some(shelf), Ok(payload)) = (journal, serde_json::to_vec(event)) {
        let kind = match event {
            Event::Creased { .. } => "creased",
            Event::Completed { .. } => "completed",
            Event::Truncated { .. } => "truncated",
            Event::Refused { .. } => "refused",
            _ => "other",
        };
        let _ = shelf.note_event(kind, &payload);
    }
}
