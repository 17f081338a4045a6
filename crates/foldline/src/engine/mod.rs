//! The engine: decides which parts of a conversation are folded, and when.
//!
//! Compaction is a left fold over request points. [`state`] ingests messages and creases, [`schedule`] decides when, [`planner`]
//! decides which folds, [`passes`] propose them, [`overlay`] holds them, and [`apply`] meets the bytes of a request. Nothing in
//! here does IO or reads a clock.

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
