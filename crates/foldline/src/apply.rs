//! Where the fold meets the bytes of a request: originals are kept first, then the edits are spliced.
//!
//! This is the one guard that trusts nobody. An archive that fails changes nothing that was promised:
//! the request goes out as it came if it fits, else folded without handles. A rendering that breaks a
//! law which the client's own request did not break is not sent while the client's own would do.

use crate::error::Error;
use crate::event::{Event, Listener};
use crate::fold::{AT_FIRST_SIGHT, Crease, State, fold, resume};
use crate::folded::Folded;
use crate::keep::Keep;
use crate::laws::{Law, Profile, Rewriting, Thinking, Violation, compare};
use crate::measure::Tokens;
use crate::plan::Rung;
use crate::setup::{Ledger, Setup};
use crate::wire::Request;

/// What is sent in the place of a request.
#[derive(Clone)]
#[non_exhaustive]
pub struct Applied {
    /// The body.
    pub body: Vec<u8>,
    /// Its tokens.
    pub tokens: Tokens,
    /// The tokens of the request as it came.
    pub raw_tokens: Tokens,
    /// The fold, unless the body is the client's own.
    pub folded: Option<Folded>,
    /// Where to go on from when nothing is folded yet.
    unfolded: Option<State>,
}

impl Applied {
    /// The creases of the conversation, oldest first.
    pub fn creases(&self) -> &[Crease] {
        self.folded.as_ref().map_or(&[], |folded| &folded.creases)
    }

    /// The pass that proposed each fold that stands.
    pub fn passes(&self) -> impl Iterator<Item = &'static str> {
        self.folded.iter().flat_map(Folded::passes)
    }

    /// What [`apply_from`] needs to go on when the conversation has grown; none when the fold was not
    /// sent.
    pub fn into_state(self) -> Option<State> {
        self.folded.map(Folded::into_state).or(self.unfolded)
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
    setup: &Setup,
    ledger: &Ledger,
    keep: Option<&dyn Keep>,
    listener: Listener<'_>,
) -> Result<Applied, Error> {
    apply_from(State::default(), request, setup, ledger, keep, listener)
}

/// The same, going on from the state of a request with the first messages of this one, so that it
/// costs what the new messages cost.
pub fn apply_from(
    state: State,
    request: &Request<'_>,
    setup: &Setup,
    ledger: &Ledger,
    keep: Option<&dyn Keep>,
    listener: Listener<'_>,
) -> Result<Applied, Error> {
    let conversation = request.conversation();
    let setup = Setup { handles: keep.is_some(), ..setup.clone() }.beside(conversation);
    let untouched = |raw_tokens: Tokens, unfolded: Option<State>| {
        Ok(Applied { body: request.splice(&[])?.into_owned(), tokens: raw_tokens, raw_tokens, folded: None, unfolded })
    };
    // A continuation carries only the newest messages; the provider holds the rest.
    if request.is_continuation() {
        return untouched(setup.meter.conversation(conversation), None);
    }
    let mut folded = resume(state, conversation, &setup, ledger)
        .inspect_err(|error| listener(Event::Failed { why: error.to_string() }))?;
    let raw_tokens = folded.raw_tokens;
    if folded.is_untouched() {
        return untouched(raw_tokens, Some(folded.into_state()));
    }
    setup.cancel.check()?;
    listener(Event::Started { before: raw_tokens, budget: setup.budget });
    let fits = raw_tokens <= setup.budget;

    let kept = keep.map_or(Ok(()), |keep| folded.keep(conversation, keep));
    if let Err(error) = kept {
        listener(Event::Refused { why: error.to_string() });
        if fits {
            return untouched(raw_tokens, None);
        }
        folded = fold(conversation, &Setup { handles: false, ..setup.clone() }, ledger)?;
    }
    let body = request.splice(&folded.edits(conversation))?.into_owned();
    setup.cancel.check()?;
    if let Some(violation) = first_violation(request, &body, &folded) {
        listener(Event::Refused { why: format!("the fold would break a law: {violation}") });
        if fits {
            return untouched(raw_tokens, None);
        }
    }
    for crease in folded.creases.iter().filter(|crease| crease.at == conversation.messages.len()) {
        let Crease { at, reason, saved, price, .. } = *crease;
        listener(Event::Creased { at, reason, saved, price });
    }
    if let Some((dropped, archived)) = folded.truncated() {
        listener(Event::Truncated { dropped, archived });
    }
    if let Some(strategy) = folded.deepest() {
        listener(Event::Completed { strategy, before: raw_tokens, after: folded.tokens, budget: setup.budget });
    }
    Ok(Applied { body, tokens: folded.tokens, raw_tokens, folded: Some(folded), unfolded: None })
}

/// A law that the rewritten request breaks and the client's does not.
fn first_violation(request: &Request<'_>, body: &[u8], folded: &Folded) -> Option<Violation> {
    let rewritten = Request::parse(request.format(), body).ok()?;
    let profile = Profile::of_request(request);
    let settled = folded.creases.last().map(|crease| crease.at);
    let creased_now = settled == Some(request.conversation().messages.len());
    let thinking = if profile.signs_history() && creased_now { Thinking::Stripped } else { Thinking::Kept };
    let rewriting = Rewriting { settled, thinking, ..Rewriting::new(&profile) };
    let knowingly = || changes_the_newest_knowingly(folded);
    compare(request, &rewritten, &rewriting)
        .into_iter()
        .find(|found| !(matches!(found.law, Law::LastMessageKept | Law::NewestTurnKept) && knowingly()))
}

/// Whether folds in the newest round are among those that may be there: made at first sight, before any
/// byte of it was sent, or because nothing else was left to fold.
fn changes_the_newest_knowingly(folded: &Folded) -> bool {
    let newest = folded.newest_round();
    let mut there = folded.explain().into_iter().filter(|fold| fold.at.message >= newest).peekable();
    there.peek().is_some() && there.all(|fold| fold.rung >= Rung::Protected || AT_FIRST_SIGHT.contains(&fold.pass))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::measure::{Meter, ModelTable};
    use crate::price::Prices;
    use crate::wire::Format;

    /// A file is read again: the second copy is folded before it was ever sent, and stays so.
    #[test]
    fn a_repeated_result_is_folded_at_first_sight_although_it_is_the_newest() {
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
            let setup = Setup::new(Meter::for_model(table, model), Prices::for_model(table, model), 100_000);
            let refused = RefCell::new(Vec::new());
            let listen = |event: Event| {
                if let Event::Refused { why } = event {
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
