//! Folds the bytes of a request: stores the originals first, then splices the edits into the body.
//!
//! This module is the last check before a request is sent, and it must not rely on the other modules. If the archive
//! fails, the original request is sent if it fits, otherwise a rendering without handles. If it refuses single
//! originals, those stay in the request. A rendering that breaks a law that the original request does not break is not sent if the original fits.

use std::sync::Arc;

use crate::conversation::Conversation;
use crate::engine::archive::{OriginalStore, StoreError};
use crate::engine::crease::Crease;
use crate::engine::left_fold::{advance, fold};
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::overlay::RefusedParts;
use crate::engine::passes::AT_INGEST;
use crate::engine::record::FoldRecord;
use crate::engine::rendering::FoldedConversation;
use crate::engine::stage::Stage;
use crate::engine::state::FoldState;
use crate::error::{Error, ErrorKind};
use crate::event::{EventListener, FoldEvent};
use crate::laws::{Law, LawProfile, LawViolation, RewriteContext, ThinkingTreatment, compare};
use crate::tokens::Tokens;
use crate::wire::Request;

/// The request to send instead of the original.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FoldedRequest {
    /// JSON body.
    pub body: Vec<u8>,
    /// Tokens of the body.
    pub tokens: Tokens,
    /// Tokens of the original request.
    pub raw_tokens: Tokens,
    /// The fold; `None` if the body is the original.
    pub folded: Option<FoldedConversation>,
    /// State to continue from if nothing is folded yet.
    unchanged_state: Option<FoldState>,
}

impl FoldedRequest {
    /// Returns the creases of the conversation, oldest first.
    pub fn creases(&self) -> &[Crease] {
        self.folded.as_ref().map_or(&[], |folded| &folded.creases)
    }

    /// Returns the pass that proposed each fold of the rendering.
    pub fn pass_names(&self) -> impl Iterator<Item = &'static str> {
        self.folded.iter().flat_map(FoldedConversation::pass_names)
    }

    /// Returns the state of the fold; `None` if a fold was made and not sent.
    pub(crate) fn state(&self) -> Option<&FoldState> {
        self.folded.as_ref().map(FoldedConversation::state).or(self.unchanged_state.as_ref())
    }

    /// Returns the record of the folds that are new since the last recorded request; `None` if there are none, or if
    /// markers carry no handles. The arguments are those of the fold. Call
    /// [`set_recorded`](FoldedRequest::set_recorded) when it is stored.
    pub fn new_record(&self, request: &Request<'_>, options: &FoldOptions, ledger: &Ledger) -> Option<FoldRecord> {
        let options = FoldOptions { handles: true, ..options.clone() };
        let folded = self.folded.as_ref().filter(|folded| folded.has_handles())?;
        folded.state().new_record(&options, ledger, &request.conversation().messages)
    }

    /// Records that the record of [`new_record`](FoldedRequest::new_record) is stored.
    pub fn set_recorded(&mut self) {
        self.folded.iter_mut().for_each(FoldedConversation::set_recorded);
    }

    /// Returns the state that [`apply_from`] continues from when the conversation has grown; `None` if the fold
    /// was not sent, or if it needed more folds than those in the record of its request: others continue without them.
    pub fn into_state(self) -> Option<FoldState> {
        let state = self.folded.map(FoldedConversation::into_state).or(self.unchanged_state);
        state.filter(|state| !state.has_folds_beyond_record())
    }
}

/// Folds a request. Originals are written to `store` before they leave the request; without a store, markers carry
/// no handles.
///
/// # Errors
///
/// [`ErrorKind::CannotFit`](crate::ErrorKind::CannotFit) if the request cannot be folded to the budget,
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the caller cancelled the fold.
///
/// ```
/// use foldline::wire::{Format, Request};
/// use foldline::{FoldOptions, Ledger, Meter, ModelTable, Prices, apply};
///
/// let body = br#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
/// let request = Request::parse(Format::OpenAiChat, body)?;
/// let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
/// let options = FoldOptions::new(meter, Prices::for_model(ModelTable::builtin(), Some("gpt-4o")), 32_000);
/// let folded = apply(&request, &options, &Ledger::default(), None, &|_| ())?;
/// assert_eq!(folded.body, body); // it fits: unchanged
/// # Ok::<(), foldline::Error>(())
/// ```
pub fn apply(
    request: &Request<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
    store: Option<&dyn OriginalStore>,
    listener: EventListener<'_>,
) -> Result<FoldedRequest, Error> {
    apply_from(FoldState::default(), request, options, ledger, store, listener)
}

/// Folds a request like [`apply`], continuing from the state of an earlier request of the same conversation, so that
/// only the new messages are processed.
///
/// # Errors
///
/// The same as for [`apply`].
pub fn apply_from(
    mut state: FoldState,
    request: &Request<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
    store: Option<&dyn OriginalStore>,
    listener: EventListener<'_>,
) -> Result<FoldedRequest, Error> {
    apply_with_state(&mut state, request, options, ledger, store, listener)
}

/// Folds a request like [`apply_from`]. If the request cannot fit, `state` is what the next request of the conversation
/// continues from: the same request fails at once, and a longer one is not planned from the start. Otherwise `state` is
/// left empty, and the state to continue from is that of the [`FoldedRequest`].
///
/// # Errors
///
/// The same as for [`apply`].
pub fn apply_with_state(
    state: &mut FoldState,
    request: &Request<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
    store: Option<&dyn OriginalStore>,
    listener: EventListener<'_>,
) -> Result<FoldedRequest, Error> {
    let mut advanced = std::mem::take(state);
    let conversation = request.conversation();
    let options = FoldOptions { handles: store.is_some(), ..options.clone() }.with_overhead_of(conversation);
    let unchanged = |raw_tokens: Tokens, unchanged_state: Option<FoldState>| {
        Ok(FoldedRequest {
            body: request.splice(&[])?.into_owned(),
            tokens: raw_tokens,
            raw_tokens,
            folded: None,
            unchanged_state,
        })
    };
    // A continuation carries only the newest messages; the provider holds the rest.
    if request.is_continuation() {
        return unchanged(options.meter.conversation(conversation), None);
    }
    if let Err(error) = advance(&mut advanced, &conversation.messages, &options, ledger) {
        listener(FoldEvent::Failed { reason: error.to_string() });
        if matches!(error.kind(), ErrorKind::CannotFit { .. }) {
            advanced.identifiers.release_caches();
            *state = advanced;
        }
        return Err(error);
    }
    let mut folded = FoldedConversation::new(advanced, &options);
    let raw_tokens = folded.raw_tokens;
    if folded.is_unchanged() {
        return unchanged(raw_tokens, Some(folded.into_state()));
    }
    options.cancel.check()?;
    listener(FoldEvent::Started { received_tokens: raw_tokens, budget: options.budget });
    let fits = raw_tokens <= options.budget;

    let stored =
        store.map_or(Ok(()), |store| store_originals(&mut folded, conversation, &options, ledger, store, listener));
    if let Err(error) = stored {
        listener(FoldEvent::Refused { reason: error.to_string() });
        if fits {
            return unchanged(raw_tokens, None);
        }
        folded = fold(conversation, &FoldOptions { handles: false, ..options.clone() }, ledger)?;
    }
    let body = request.splice(&folded.edits(conversation))?.into_owned();
    options.cancel.check()?;
    if let Some(violation) = first_violation(request, &body, &folded) {
        listener(FoldEvent::Refused { reason: format!("the fold would break a law: {violation}") });
        if fits {
            return unchanged(raw_tokens, None);
        }
    }
    for crease in folded.creases.iter().filter(|crease| crease.request_point == conversation.messages.len()) {
        let Crease { request_point, trigger, saved_tokens, rewrite_cost, .. } = *crease;
        listener(FoldEvent::Creased { request_point, trigger, saved_tokens, rewrite_cost });
    }
    if let Some((dropped_tokens, handle)) = folded.truncated_rounds() {
        listener(FoldEvent::Truncated { dropped_tokens, handle });
    }
    if let Some(stage) = folded.deepest_stage() {
        listener(FoldEvent::Completed {
            stage,
            received_tokens: raw_tokens,
            sent_tokens: folded.tokens,
            budget: options.budget,
        });
    }
    Ok(FoldedRequest { body, tokens: folded.tokens, raw_tokens, folded: Some(folded), unchanged_state: None })
}

/// The number of times that a request is folded again because the store refuses originals.
const MAX_REFUSALS: usize = 4;

/// Writes the originals of a fold to the store. Those that the store refuses stay in the request: it is folded again
/// with the parts pinned, so that the others keep their handles.
fn store_originals(
    folded: &mut FoldedConversation,
    conversation: &Conversation<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
    store: &dyn OriginalStore,
    listener: EventListener<'_>,
) -> Result<(), StoreError> {
    let mut refused = RefusedParts::default();
    for _ in 0..MAX_REFUSALS {
        let newly_refused = folded.store_originals(conversation, store)?;
        if newly_refused.is_empty() {
            return Ok(());
        }
        let reason = "the archive refused originals, which stay unfolded: their handles belong to other texts";
        listener(FoldEvent::Refused { reason: reason.to_owned() });
        refused.extend(newly_refused);
        let (kept, pinned) = (refused.clone(), options.pins.parts.clone());
        let mut options = options.clone();
        options.pins.parts =
            Some(Arc::new(move |at| kept.contains(at) || pinned.as_ref().is_some_and(|pinned| pinned(at))));
        *folded = fold(conversation, &options, &ledger.undecided()).map_err(|error| StoreError(error.to_string()))?;
    }
    Err(StoreError("the archive refused too many originals".into()))
}

/// Returns the first law that the rewritten request breaks and the original does not.
fn first_violation(request: &Request<'_>, body: &[u8], folded: &FoldedConversation) -> Option<LawViolation> {
    let rewritten = Request::parse(request.format(), body).ok()?;
    let profile = LawProfile::for_request(request);
    let last_crease = folded.creases.last().map(|crease| crease.request_point);
    let creased_now = last_crease == Some(request.conversation().messages.len());
    let thinking =
        if profile.signs_history() && creased_now { ThinkingTreatment::Stripped } else { ThinkingTreatment::Kept };
    let context = RewriteContext { thinking_valid_from: last_crease, thinking, ..RewriteContext::new(&profile) };
    let is_allowed = || newest_round_folds_are_allowed(folded);
    compare(request, &rewritten, &context)
        .into_iter()
        .find(|found| !(matches!(found.law, Law::LastMessageKept | Law::NewestTurnKept) && is_allowed()))
}

/// Returns true if the newest round has folds and all of them were made at ingest, before any byte of the round was
/// sent, or because nothing else was left to fold.
fn newest_round_folds_are_allowed(folded: &FoldedConversation) -> bool {
    let newest = folded.newest_round_start();
    let mut folds = folded.fold_stats().into_iter().filter(|fold| fold.part.message >= newest).peekable();
    folds.peek().is_some() && folds.all(|fold| fold.stage >= Stage::Protected || AT_INGEST.contains(&fold.pass))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::engine::archive::Original;
    use crate::engine::handle::Handle;
    use crate::engine::marker;
    use crate::models::ModelTable;
    use crate::models::prices::Prices;
    use crate::tokens::Meter;
    use crate::wire::Format;

    /// Returns a request with this many user messages, too many for a small budget.
    fn unfittable_body(users: usize) -> String {
        let user = |at: usize| format!(r#"{{"role":"user","content":"point {at}, as agreed"}}"#);
        let turn = |at: usize| format!(r#"{},{{"role":"assistant","content":"yes, {at}"}},"#, user(at));
        let turns: String = (1..users).map(turn).collect();
        format!(r#"{{"model":"gpt-4o","messages":[{turns}{}]}}"#, user(users))
    }

    /// A conversation that could not fit is continued: with the same request, with a longer one, and with one that fits.
    #[test]
    fn failed_fold_is_continued() {
        let (table, model) = (ModelTable::builtin(), Some("gpt-4o"));
        let options = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), 500);
        let (short, long) = (unfittable_body(100), unfittable_body(103));
        let [short, long] = [&short, &long].map(|body| Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap());
        let ledger = Ledger::default();
        let mut state = FoldState::default();
        let first = apply_with_state(&mut state, &short, &options, &ledger, None, &|_| ()).err().unwrap();
        assert!(matches!(first.kind(), ErrorKind::CannotFit { floor, .. } if *floor > 500), "{first}");
        assert_eq!(state.len(), short.conversation().messages.len());
        let again = apply_with_state(&mut state, &short, &options, &ledger, None, &|_| ()).err().unwrap();
        assert_eq!(again, first);
        // A longer request fails too, with a floor that is not below that of a fold from the start.
        let longer = apply_with_state(&mut state, &long, &options, &ledger, None, &|_| ()).err().unwrap();
        let fresh = apply(&long, &options, &ledger, None, &|_| ()).err().unwrap();
        let floor = |error: &Error| match error.kind() {
            ErrorKind::CannotFit { floor, .. } => *floor,
            kind => panic!("{kind:?}"),
        };
        assert!((floor(&fresh)..floor(&fresh) * 9 / 8).contains(&floor(&longer)), "{longer} {fresh}");
        // The same request with a larger budget is decided again.
        let larger = FoldOptions { budget: 5_000, ..options.clone() };
        let mut failed = state.clone();
        let fitted = apply_with_state(&mut failed, &long, &larger, &ledger, None, &|_| ()).unwrap();
        assert_eq!(fitted.body, apply(&long, &larger, &ledger, None, &|_| ()).unwrap().body);
        // With a larger budget from the last point on, the continued state gives the same bytes as a new one.
        let budgets = [(long.conversation().messages.len(), 5_000)].into();
        let ledger = Ledger { budgets, ..Ledger::default() };
        let mut state = FoldState::default();
        drop(apply_with_state(&mut state, &short, &options, &ledger, None, &|_| ()));
        assert!(!state.is_empty());
        let continued = apply_with_state(&mut state, &long, &options, &ledger, None, &|_| ()).unwrap();
        assert_eq!(continued.body, apply(&long, &options, &ledger, None, &|_| ()).unwrap().body);
        assert!(state.is_empty());
    }

    /// A store in which the handles of some texts belong to other texts.
    struct RefusingStore {
        is_refused: fn(&str) -> bool,
        stored: RefCell<Vec<Handle>>,
    }

    impl OriginalStore for RefusingStore {
        fn store(&self, _: &[Original<'_>]) -> Result<(), StoreError> {
            panic!("the engine asks for what is accepted");
        }

        fn store_accepted(&self, originals: &[Original<'_>]) -> Result<Vec<usize>, StoreError> {
            let is_refused = |original: &Original<'_>| (self.is_refused)(std::str::from_utf8(original.bytes).unwrap());
            let stored = originals.iter().filter(|original| !is_refused(original)).map(|original| original.handle);
            self.stored.borrow_mut().extend(stored);
            Ok((0..originals.len()).filter(|index| is_refused(&originals[*index])).collect())
        }
    }

    /// A handle of another text was issued for the second of two texts, which was lost.
    #[test]
    fn refused_original_stays_and_the_others_keep_their_handles() {
        let source = |file: usize| -> String {
            (0..80).map(|line| format!("let value_{file}_{line} = compute_{line}(input_{file});\\n")).collect()
        };
        let rounds: Vec<String> = (0..30)
            .map(|file| {
                let text = source(file);
                format!(
                    r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{file}","type":"function","function":{{"name":"read","arguments":"{{\"path\":\"{file}.rs\"}}"}}}}]}},{{"role":"tool","tool_call_id":"c{file}","content":"{text}"}}"#
                )
            })
            .collect();
        let body =
            format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"go"}},{}]}}"#, rounds.join(","));
        let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
        let (table, model) = (ModelTable::builtin(), Some("gpt-4o"));
        let options = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), 20_000);
        let send = |is_refused: fn(&str) -> bool| {
            let store = RefusingStore { is_refused, stored: RefCell::default() };
            let applied = apply(&request, &options, &Ledger::default(), Some(&store), &|_| ()).unwrap();
            assert!(applied.tokens <= 20_000);
            let text = String::from_utf8(applied.body).unwrap();
            let handles: Vec<Handle> = marker::handles(&text).collect();
            assert!(handles.iter().all(|handle| store.stored.borrow().contains(handle)));
            (text, handles)
        };
        let (text, all) = send(|_| false);
        assert!(all.len() > 5 && !text.contains("value_3_40"), "{text}");
        let (text, handles) = send(|original| original.contains("value_3_40"));
        assert!(text.contains(&source(3)), "{text}");
        assert!(handles.len() > 5 && handles.len() < all.len() + 5, "{} of {}", handles.len(), all.len());
        // Nothing can be stored: the request fits without handles.
        assert_eq!(send(|_| true).1, []);
    }

    /// A file is read twice: the second copy is folded before it is first sent, and stays folded.
    #[test]
    fn newest_repeated_result_is_folded_at_ingest() {
        let source: String = (0..80).map(|at| format!("let value_{at} = compute_{at}(input);\\n")).collect();
        let round = |id: &str| {
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"read","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"{id}","content":"{source}"}}"#
            )
        };
        let body = |rounds: &[&str]| {
            let rounds: Vec<String> = rounds.iter().map(|id| round(id)).collect();
            format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"go"}},{}]}}"#, rounds.join(","))
        };
        let sent = |body: &str| {
            let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
            let (table, model) = (ModelTable::builtin(), Some("gpt-4o"));
            let options = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), 100_000);
            let refused = RefCell::new(Vec::new());
            let listen = |event: FoldEvent| {
                if let FoldEvent::Refused { reason } = event {
                    refused.borrow_mut().push(reason);
                }
            };
            let applied = apply(&request, &options, &Ledger::default(), None, &listen).unwrap();
            assert_eq!(*refused.borrow(), Vec::<String>::new());
            String::from_utf8(applied.body).unwrap()
        };
        let second = sent(&body(&["a", "b"]));
        assert_eq!(second.matches("value_79").count(), 1, "{second}");
        let third = sent(&body(&["a", "b", "c"]));
        assert!(third.starts_with(second.strip_suffix("]}").unwrap()), "{third}");
    }
}
