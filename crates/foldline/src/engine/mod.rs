//! The engine: decides which parts of a conversation are folded, and when.
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
//! rendering = state.render()
//! ```
//!
//! A decision at p depends only on the messages before p, the options and the ledger. Therefore new messages cannot
//! change earlier decisions; every replica computes the same bytes, also after a restart; a conversation first seen
//! at turn 400 is folded as if it had been folded from the start; and the state can be cached, so that a turn costs
//! only its new messages.
//!
//! | module | task |
//! |---|---|
//! | [`state`] | ingests messages: segments, rounds, token totals, results |
//! | [`schedule`] | decides when to plan a crease |
//! | [`planner`] | chooses the folds of a crease |
//! | [`passes`] | propose folds |
//! | [`decide`] | decides at a request point: schedule, plan, apply |
//! | [`overlay`] | holds the folds and renders them |
//! | [`apply`] | stores originals and edits the bytes of a request |
//! | [`session`] | the same engine for a conversation that grows in memory |
//!
//! Nothing in this module does IO or reads a clock.

pub(crate) mod apply;
pub(crate) mod archive;
pub(crate) mod argument_values;
pub(crate) mod cancel;
pub(crate) mod crease;
pub(crate) mod decide;
pub(crate) mod fold_details;
pub(crate) mod handle;
pub(crate) mod identifiers;
pub(crate) mod identity_hasher;
pub(crate) mod line_index;
pub mod marker;
pub(crate) mod options;
pub(crate) mod original;
pub(crate) mod overlay;
pub(crate) mod passes;
pub(crate) mod planner;
pub(crate) mod policy;
pub(crate) mod rendering;
pub(crate) mod schedule;
pub(crate) mod segment;
pub(crate) mod session;
pub(crate) mod stage;
pub(crate) mod state;
pub(crate) mod summary;
pub(crate) mod superseded;
#[cfg(test)]
mod tests;
pub mod text_kind;
pub(crate) mod tool_action;

use crate::conversation::{Conversation, Message};
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::rendering::FoldedConversation;
use crate::engine::state::FoldState;
use crate::error::Error;

/// Folds a conversation for the request that is to be sent now.
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
    if !state.is_continued_by(messages) || state.has_failed_at_another_budget(messages.len(), options, ledger) {
        *state = FoldState::default();
    }
    let decided = state.len();
    for (at, message) in messages.iter().enumerate().skip(decided) {
        options.cancel.check()?;
        if at > decided && message.opens_round(Some(&messages[at - 1])) {
            let crease = state.decide_past(options, ledger, &messages[..at]);
            state.creases.extend(crease);
        }
        state.ingest(options, message);
    }
    if messages.len() > decided || decided == 0 {
        let crease = state.decide(options, ledger, messages)?;
        state.creases.extend(crease);
    }
    match state.failure_at(messages.len()) {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    }
}
