//! The stages of a crease.
//!
//! Only their order is defined here; `passes` assigns each pass to a stage, and `planner` runs them.

use serde::{Deserialize, Serialize};

/// The stages of a crease, in the order in which they run until the target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Lossless rewriting, verified by its inverse.
    Repack,
    /// Text that occurs in the request more than once.
    Duplicates,
    /// Old reasoning, where the laws allow it, and old images and files.
    Reasoning,
    /// Long old texts, reduced to the lines worth keeping.
    Excerpts,
    /// Whole old results.
    WholeResults,
    /// Old prose and arguments.
    ProseAndArguments,
    /// Whole old rounds, reduced to one line each.
    Rounds,
    /// Protected parts that are too large.
    Protected,
    /// Everything except the system, the task, the newest user message and the newest round.
    Truncation,
}
