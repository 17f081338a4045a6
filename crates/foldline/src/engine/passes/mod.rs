//! Passes: pure functions that propose folds. No pass applies anything, and no pass depends on another: removing one
//! from [`ALL`] breaks nothing.
//!
//! A pass reads a [`PassView`] and pushes [`FoldProposal`]s; only the planner decides which of them are taken. To add
//! a pass: one file with the idea, one line in [`ALL`], one line in the changelog.

pub(crate) mod arguments;
pub(crate) mod duplicate_results;
mod excerpt;
mod media;
pub(crate) mod prose;
mod reasoning;
mod repack;
pub(crate) mod repeated_lines;
pub(crate) mod support;
pub(crate) mod terminal_codes;
pub(crate) mod view;
pub(crate) mod whole_results;

use crate::engine::passes::view::{FoldProposal, PassView};
use crate::engine::stage::Stage;

/// A pass: its name in metrics and explanations, its stage, and its function.
pub(crate) struct FoldPass {
    pub(crate) name: &'static str,
    pub(crate) stage: Stage,
    pub(crate) propose: fn(&PassView<'_>, &mut Vec<FoldProposal>),
}

/// All passes, in the order of the stages.
pub(crate) static ALL: &[FoldPass] = &[
    FoldPass { name: "repack", stage: Stage::Repack, propose: repack::propose },
    FoldPass { name: "duplicate_results", stage: Stage::Duplicates, propose: duplicate_results::propose },
    FoldPass { name: "repeated_lines", stage: Stage::Duplicates, propose: repeated_lines::propose },
    FoldPass { name: "reasoning", stage: Stage::Reasoning, propose: reasoning::propose },
    FoldPass { name: "media", stage: Stage::Reasoning, propose: media::propose },
    FoldPass { name: "excerpt", stage: Stage::Excerpts, propose: excerpt::propose },
    FoldPass { name: "arguments", stage: Stage::Excerpts, propose: arguments::propose },
    FoldPass { name: "prose", stage: Stage::Excerpts, propose: prose::propose },
    FoldPass { name: "whole_results", stage: Stage::WholeResults, propose: whole_results::propose },
    FoldPass {
        name: "prose_and_arguments",
        stage: Stage::ProseAndArguments,
        propose: whole_results::propose_prose_and_arguments,
    },
];

/// Name of the pass that folds repeated results at ingest.
pub(crate) const DUPLICATE_AT_INGEST: &str = "duplicate_at_ingest";
/// Name of the pass that removes terminal control codes at ingest.
pub(crate) const TERMINAL_CODES_AT_INGEST: &str = "terminal_codes";
/// Names of the passes that run at ingest, before a result is first sent.
pub(crate) const AT_INGEST: [&str; 2] = [DUPLICATE_AT_INGEST, TERMINAL_CODES_AT_INGEST];

/// Names under which the planner counts folds that no pass proposes.
const PLANNER_PASS_NAMES: [&str; 3] = ["rounds", "signed_reasoning", "clip"];

/// Returns the name of a pass by its text; `"other"` for a pass of another version.
pub(crate) fn known_name(name: &str) -> &'static str {
    let names = ALL.iter().map(|pass| pass.name).chain(AT_INGEST).chain(PLANNER_PASS_NAMES);
    names.into_iter().find(|known| *known == name).unwrap_or("other")
}

/// Returns the passes of a stage.
pub(crate) fn passes_for_stage(stage: Stage) -> Vec<&'static FoldPass> {
    let passes = ALL.iter().filter(|pass| pass.stage == stage);
    #[cfg(test)]
    if REVERSE_PASS_ORDER.get() {
        return passes.rev().collect();
    }
    passes.collect()
}

#[cfg(test)]
thread_local! {
    /// Reverses the order of the passes of a stage; no guarantee may depend on it.
    pub(crate) static REVERSE_PASS_ORDER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
