//! The left fold over request points: when folds are decided.
//!
//! A *request point* is a position in the conversation at which a request was sent: before each assistant turn,
//! and at the end. A *crease* is a request at which new folds are decided, so that the provider's cached prefix is
//! rewritten from the first changed byte. Between creases every request extends the previous one.
//!
//! Compaction is a left fold over request points:
//!
//! ```text
//! state = empty
//! for each request point p, oldest first:
//!     state = ingest(state, messages since the previous point)
//!     if over budget, profitable, or the cache was cold at p:
//!         state = crease(state)
//!     if the ledger has a record of other folds at p:
//!         state = state with those folds
//! rendering = state.render()
//! ```
//!
//! A decision at p depends only on the messages before p, the options and the ledger. Therefore new messages cannot
//! change earlier decisions; every replica computes the same bytes, also after a restart; a conversation first seen
//! at turn 400 is folded as if it had been folded from the start; and the state can be cached, so that a turn costs
//! only its new messages.

use crate::conversation::{Conversation, Message};
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::rendering::FoldedConversation;
use crate::engine::state::FoldState;
use crate::error::Error;

/// Folds a conversation for the request that is to be sent now.
///
/// ```
/// use foldline::{Conversation, FoldOptions, Ledger, Message, Part, Role, fold};
///
/// let mut conversation = Conversation::default();
/// conversation.messages.push(Message::text(Role::User, "Read them all."));
/// for at in 0..40 {
///     let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"{at}.txt"}}"#));
///     conversation.messages.push(Message::new(Role::Assistant, vec![call]));
///     let result = Part::result(format!("c{at}"), format!("line {at}\n").repeat(100));
///     conversation.messages.push(Message::new(Role::Tool, vec![result]));
/// }
/// let folded = fold(&conversation, &FoldOptions::for_model("gpt-4o", 4_000), &Ledger::default())?;
/// assert!(folded.tokens <= 4_000);
/// # Ok::<(), foldline::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::CannotFit`](crate::ErrorKind::CannotFit) if the conversation cannot be folded to the budget,
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the caller cancelled the fold.
pub fn fold(
    conversation: &Conversation<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
) -> Result<FoldedConversation, Error> {
    resume(FoldState::default(), conversation, options, ledger)
}

/// Folds a conversation whose first messages were folded before; only the new messages are processed. `state` comes
/// from [`FoldedConversation::into_state`] after those messages, with the same options and ledger. The result is the
/// same as that of [`fold`].
///
/// # Errors
///
/// The same as for [`fold`].
pub fn resume(
    mut state: FoldState,
    conversation: &Conversation<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
) -> Result<FoldedConversation, Error> {
    advance(&mut state, &conversation.messages, options, ledger)?;
    Ok(FoldedConversation::new(state, options))
}

/// The left fold: decides at every request point since the last one of the state. After
/// [`CannotFit`](crate::ErrorKind::CannotFit) the state can be continued with later messages.
pub(crate) fn advance(
    state: &mut FoldState,
    messages: &[Message<'_>],
    options: &FoldOptions,
    ledger: &Ledger,
) -> Result<(), Error> {
    if !state.is_continued_by(messages, options) || state.has_failed_at_another_budget(messages.len(), options, ledger)
    {
        *state = FoldState::default();
    }
    let (decided, rules) = (state.len(), options.decision_rules());
    let mut next_point = 0;
    for (at, message) in messages.iter().enumerate().skip(decided) {
        options.cancel.check()?;
        if !options.meter.cache_large_texts(message, &|| options.cancel.is_cancelled()) {
            options.cancel.check()?;
        }
        if at > decided && options.has_request_point_before(message, Some(&messages[at - 1])) {
            if ledger.is_decided_by(rules, at) {
                let crease = state.decide_past(options, ledger, &messages[..at]);
                state.creases.extend(crease);
            } else {
                state.pass_undecided(options, ledger, at);
            }
            state.adopt_record(options, ledger, &messages[..at])?;
        }
        if at >= next_point {
            next_point = options.next_request_point(messages, at);
        }
        state.ingest(options, message, ledger.is_decided_by(rules, next_point));
    }
    if messages.len() > decided || decided == 0 {
        decide_newest(state, messages, options, ledger, rules)?;
    }
    match state.failure_at(messages.len()) {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    }
}

/// Decides at the newest request point. A record of this point replaces the decision; if its folds exceed the budget, more
/// are decided on top of them.
fn decide_newest(
    state: &mut FoldState,
    messages: &[Message<'_>],
    options: &FoldOptions,
    ledger: &Ledger,
    rules: u64,
) -> Result<(), Error> {
    let point = messages.len();
    let mut decision = Ok(());
    let is_own = ledger.is_decided_by(rules, point);
    if is_own {
        decision = state.decide(options, ledger, messages).map(|crease| state.creases.extend(crease));
    } else {
        state.pass_undecided(options, ledger, point);
    }
    let is_adopted = state.adopt_record(options, ledger, messages)?;
    if is_own && !is_adopted {
        decision?;
    } else if state.is_over_budget(options, ledger, point) {
        let crease = state.decide(options, ledger, messages)?;
        state.creases.extend(crease);
    }
    Ok(())
}
