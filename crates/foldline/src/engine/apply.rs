//! Where the fold meets the bytes of a request: originals are kept first, then the edits are spliced.
//!
//! This is the one guard that trusts nobody. An archive that fails changes nothing that was promised:
//! the request goes out as it came if it fits, else folded without handles. A rendering that breaks a
//! law which the client's own request did not break is not sent while the client's own would do.

use crate::engine::archive::OriginalStore;
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::planner::Stage;
use crate::engine::rendering::FoldedConversation;
use crate::engine::state::{AT_INGEST, Crease, FoldState, fold, resume};
use crate::error::Error;
use crate::event::{EventListener, FoldEvent};
use crate::laws::{Law, LawProfile, LawViolation, RewriteContext, ThinkingTreatment, compare};
use crate::tokens::Tokens;
use crate::wire::Request;

/// What is sent in the place of a request.
#[derive(Clone)]
#[non_exhaustive]
pub struct FoldedRequest {
    /// The body.
    pub body: Vec<u8>,
    /// Its tokens.
    pub tokens: Tokens,
    /// The tokens of the request as it came.
    pub raw_tokens: Tokens,
    /// The fold, unless the body is the client's own.
    pub folded: Option<FoldedConversation>,
    /// Where to go on from when nothing is folded yet.
    unchanged_state: Option<FoldState>,
}

impl FoldedRequest {
    /// The creases of the conversation, oldest first.
    pub fn creases(&self) -> &[Crease] {
        self.folded.as_ref().map_or(&[], |folded| &folded.creases)
    }

    /// The pass that proposed each fold that stands.
    pub fn pass_names(&self) -> impl Iterator<Item = &'static str> {
        self.folded.iter().flat_map(FoldedConversation::pass_names)
    }

    /// What [`apply_from`] needs to go on when the conversation has grown; none when the fold was not
    /// sent.
    pub fn into_state(self) -> Option<FoldState> {
        self.folded.map(FoldedConversation::into_state).or(self.unchanged_state)
    }
}

/// Folds a request. Its setup says what it may depend on; originals go to `keep` before they leave the
/// request, and markers carry handles only if there is one.
///
/// ```
/// use foldline::wire::{Format, Request};
/// use foldline::{Ledger, Meter, ModelTable, Prices, Setup, apply};
///
/// let body = br#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
/// let request = Request::parse(Format::OpenAiChat, body)?;
/// let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
/// let setup = Setup::new(meter, Prices::for_model(ModelTable::builtin(), Some("gpt-4o")), 32_000);
/// let applied = apply(&request, &setup, &Ledger::default(), None, &|_| ())?;
/// assert_eq!(applied.body, body);
/// # Ok::<(), foldline::Error>(())
/// ```
pub fn apply(
    request: &Request<'_>,
    setup: &FoldOptions,
    ledger: &Ledger,
    keep: Option<&dyn OriginalStore>,
    listener: EventListener<'_>,
) -> Result<FoldedRequest, Error> {
    apply_from(FoldState::default(), request, setup, ledger, keep, listener)
}

/// The same, going on from the state of a request with the first messages of this one, so that it
/// costs what the new messages cost.
pub fn apply_from(
    state: FoldState,
    request: &Request<'_>,
    setup: &FoldOptions,
    ledger: &Ledger,
    keep: Option<&dyn OriginalStore>,
    listener: EventListener<'_>,
) -> Result<FoldedRequest, Error> {
    let conversation = request.conversation();
    let setup = FoldOptions { handles: keep.is_some(), ..setup.clone() }.with_overhead_of(conversation);
    let untouched = |raw_tokens: Tokens, unfolded: Option<FoldState>| {
        Ok(FoldedRequest {
            body: request.splice(&[])?.into_owned(),
            tokens: raw_tokens,
            raw_tokens,
            folded: None,
            unchanged_state: unfolded,
        })
    };
    // A continuation carries only the newest messages; the provider holds the rest.
    if request.is_continuation() {
        return untouched(setup.meter.conversation(conversation), None);
    }
    let mut folded = resume(state, conversation, &setup, ledger)
        .inspect_err(|error| listener(FoldEvent::Failed { reason: error.to_string() }))?;
    let raw_tokens = folded.raw_tokens;
    if folded.is_unchanged() {
        return untouched(raw_tokens, Some(folded.into_state()));
    }
    setup.cancel.check()?;
    listener(FoldEvent::Started { received_tokens: raw_tokens, budget: setup.budget });
    let fits = raw_tokens <= setup.budget;

    let kept = keep.map_or(Ok(()), |keep| folded.store_originals(conversation, keep));
    if let Err(error) = kept {
        listener(FoldEvent::Refused { reason: error.to_string() });
        if fits {
            return untouched(raw_tokens, None);
        }
        folded = fold(conversation, &FoldOptions { handles: false, ..setup.clone() }, ledger)?;
    }
    let body = request.splice(&folded.edits(conversation))?.into_owned();
    setup.cancel.check()?;
    if let Some(violation) = first_violation(request, &body, &folded) {
        listener(FoldEvent::Refused { reason: format!("the fold would break a law: {violation}") });
        if fits {
            return untouched(raw_tokens, None);
        }
    }
    for crease in folded.creases.iter().filter(|crease| crease.request_point == conversation.messages.len()) {
        let Crease { request_point: at, trigger: reason, saved_tokens: saved, rewrite_cost: price, .. } = *crease;
        listener(FoldEvent::Creased { request_point: at, trigger: reason, saved_tokens: saved, rewrite_cost: price });
    }
    if let Some((dropped, archived)) = folded.truncated_rounds() {
        listener(FoldEvent::Truncated { dropped_tokens: dropped, handle: archived });
    }
    if let Some(strategy) = folded.deepest_stage() {
        listener(FoldEvent::Completed {
            stage: strategy,
            received_tokens: raw_tokens,
            sent_tokens: folded.tokens,
            budget: setup.budget,
        });
    }
    Ok(FoldedRequest { body, tokens: folded.tokens, raw_tokens, folded: Some(folded), unchanged_state: None })
}

/// A law that the rewritten request breaks and the client's does not.
fn first_violation(request: &Request<'_>, body: &[u8], folded: &FoldedConversation) -> Option<LawViolation> {
    let rewritten = Request::parse(request.format(), body).ok()?;
    let profile = LawProfile::for_request(request);
    let settled = folded.creases.last().map(|crease| crease.request_point);
    let creased_now = settled == Some(request.conversation().messages.len());
    let thinking =
        if profile.signs_history() && creased_now { ThinkingTreatment::Stripped } else { ThinkingTreatment::Kept };
    let rewriting = RewriteContext { thinking_valid_from: settled, thinking, ..RewriteContext::new(&profile) };
    let knowingly = || newest_round_folds_are_allowed(folded);
    compare(request, &rewritten, &rewriting)
        .into_iter()
        .find(|found| !(matches!(found.law, Law::LastMessageKept | Law::NewestTurnKept) && knowingly()))
}

/// Whether folds in the newest round are among those that may be there: made at first sight, before any
/// byte of it was sent, or because nothing else was left to fold.
fn newest_round_folds_are_allowed(folded: &FoldedConversation) -> bool {
    let newest = folded.newest_round_start();
    let mut there = folded.fold_stats().into_iter().filter(|fold| fold.part.message >= newest).peekable();
    there.peek().is_some() && there.all(|fold| fold.stage >= Stage::Protected || AT_INGEST.contains(&fold.pass))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::models::prices::Prices;
    use crate::tokens::{Meter, ModelTable};
    use crate::wire::Format;

    /// A file is read again: the second copy is folded before it was ever sent, and stays so.
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
            let setup = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), 100_000);
            let refused = RefCell::new(Vec::new());
            let listen = |event: FoldEvent| {
                if let FoldEvent::Refused { reason: why } = event {
                    refused.borrow_mut().push(why);
                }
            };
            let applied = apply(&request, &setup, &Ledger::default(), None, &listen).unwrap();
            assert_eq!(*refused.borrow(), Vec::<String>::new());
            String::from_utf8(applied.body).unwrap()
        };
        let second = sent(&body(&["a", "b"]));
        assert_eq!(second.matches("value_79").count(), 1, "{second}");
        let third = sent(&body(&["a", "b", "c"]));
        assert!(third.starts_with(second.strip_suffix("]}").unwrap()), "{third}");
    }
}
