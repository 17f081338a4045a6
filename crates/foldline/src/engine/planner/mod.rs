//! The planner: chooses among the proposals of the passes, under budget, laws and prices.
//!
//! Passes are not trusted: a fold that does not save tokens is rejected, and a crease that is not
//! forced must be profitable. The last stages end inside the budget or report the floor.

mod builder;
pub(crate) mod plan;
mod protected;
mod rounds;
mod target;

use crate::conversation::Message;
use crate::engine::crease::Trigger;
use crate::engine::identifiers::index::IdentifierIndex;
use crate::engine::options::FoldOptions;
use crate::engine::passes::support::round_note::NoteDetail;
use crate::engine::planner::builder::PlanBuilder;
use crate::engine::planner::plan::CreasePlan;
use crate::engine::policy::CreaseMode;
use crate::engine::stage::Stage;
use crate::engine::state::FoldState;
use crate::engine::summary::PrefixSummary;
use crate::error::Error;

/// Chooses the folds of a crease at the end of `messages` that changes no message before `edit_from`. Returns `None` if
/// there is nothing to fold.
pub(crate) fn choose_folds(
    state: &FoldState,
    identifiers: &mut IdentifierIndex,
    options: &FoldOptions,
    messages: &[Message<'_>],
    trigger: Trigger,
    edit_from: usize,
    summary: Option<&PrefixSummary>,
) -> Result<Option<CreasePlan>, Error> {
    if options.policy.crease_mode == CreaseMode::Never {
        return Ok(None);
    }
    let mut builder = PlanBuilder::new(state, options, messages, edit_from, summary);
    if trigger == Trigger::OverBudget {
        builder.set_target();
        builder.fold_summarized_rounds();
    }
    // If no plan can fit, only the floor matters, and the cheap stages give it.
    let is_hopeless = trigger == Trigger::OverBudget && state.fixed_tokens() > options.message_budget(1.0);
    // The passes of these stages decide by price, without a target, unless no request follows to pay for the text.
    let once_target = (options.policy.crease_mode == CreaseMode::Once).then_some(builder.target);
    for stage in [Stage::Duplicates, Stage::Reasoning, Stage::Excerpts].into_iter().filter(|_| !is_hopeless) {
        builder.run_stage(identifiers, stage, 1.0, once_target)?;
    }
    if trigger == Trigger::OverBudget {
        let target = builder.target;
        if !is_hopeless {
            builder.run_stage(identifiers, Stage::Repack, 1.0, Some(target))?;
            builder.run_stage(identifiers, Stage::Excerpts, 4.0, Some(target))?;
            builder.run_stage(identifiers, Stage::Excerpts, 16.0, Some(target))?;
        }
        builder.run_stage(identifiers, Stage::WholeResults, 1.0, Some(target))?;
        builder.run_stage(identifiers, Stage::ProseAndArguments, 1.0, Some(target))?;
        options.cancel.check()?;
        builder.fold_rounds(target);
        if builder.request_tokens > options.message_budget(1.0) && summary.is_some() {
            // A summary must not displace user text.
            builder.write_notes(Stage::Rounds, NoteDetail::CountsOnly);
        }
        builder.shorten_protected()?;
    }
    Ok(builder.build(trigger))
}
