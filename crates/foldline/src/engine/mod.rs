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
//! | [`state`] | ingests messages and applies creases |
//! | [`schedule`] | decides when to plan a crease |
//! | [`planner`] | chooses the folds of a crease |
//! | [`passes`] | propose folds |
//! | [`overlay`] | holds the folds and renders them |
//! | [`apply`] | stores originals and edits the bytes of a request |
//! | [`session`] | the same engine for a conversation that grows in memory |
//!
//! Nothing in this module does IO or reads a clock.

pub(crate) mod apply;
pub(crate) mod archive;
pub(crate) mod cancel;
pub(crate) mod handle;
pub(crate) mod identifiers;
pub(crate) mod line_index;
pub mod marker;
pub(crate) mod options;
pub(crate) mod overlay;
pub(crate) mod passes;
pub(crate) mod planner;
pub(crate) mod policy;
pub(crate) mod rendering;
pub(crate) mod schedule;
pub(crate) mod segment;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod summary;
pub(crate) mod superseded;
#[cfg(test)]
mod tests;
pub mod text_kind;
pub(crate) mod tool_action;
