//! Folds whole old rounds to one line per call: the action, its target and its outcome.
//!
//! ```text
//! [folded: 3 rounds; unfold 7k3q9p2m4x1c]
//! [folded: Read src/main.rs, ok]
//! [folded: Edit src/main.rs, ok]
//! [folded: Bash cargo test, failed]
//! ```
//! The lines list what is done, so that the model does not repeat it. They contain text of the model's own calls and
//! none of a tool's output. A summary, if the ledger has one, follows them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::Handle;
use crate::engine::marker;
use crate::engine::passes::view::PassView;
use crate::engine::segment::{SegmentKind, ToolCallInfo};

/// Maximum number of rounds that are listed by line; more are counted instead.
const MAX_LISTED_ROUNDS: usize = 200;

/// Amount of detail in a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteDetail {
    /// A line for each call, and a summary if there is one.
    Listed,
    /// Number of calls per tool, and a summary if there is one.
    Counted,
    /// Number of calls per tool.
    CountsOnly,
}

/// Returns the note for these rounds, oldest first, without a summary. `tools` counts their calls per tool.
pub(crate) fn note_text(
    view: &PassView<'_>,
    rounds: &[Range<usize>],
    tools: &BTreeMap<String, usize>,
    detail: NoteDetail,
    handle: Option<Handle>,
) -> String {
    let head = if rounds.len() == 1 { "1 round".to_owned() } else { format!("{} rounds", rounds.len()) };
    if detail != NoteDetail::Listed || rounds.len() > MAX_LISTED_ROUNDS {
        let sums: Vec<String> = tools.iter().map(|(tool, count)| format!("{count} {tool}")).collect();
        return marker::described(&format!("{head}: {}", sums.join(", ")), handle);
    }
    let mut text = marker::described(&head, handle);
    for (call, failed) in rounds.iter().flat_map(|round| calls(view, round.clone())) {
        text.push('\n');
        text.push_str(&marker::call_outcome(&call.description(), if failed { "failed" } else { "ok" }));
    }
    text
}

/// Counts the calls of a round per tool.
pub(crate) fn count_tools(view: &PassView<'_>, round: Range<usize>, tools: &mut BTreeMap<String, usize>) {
    for segment in view.segments_of(round).iter().filter(|segment| segment.kind == SegmentKind::Arguments) {
        let Some(call) = &segment.tool_call else { continue };
        match tools.get_mut(&call.tool) {
            Some(calls) => *calls += 1,
            None => drop(tools.insert(call.tool.clone(), 1)),
        }
    }
}

/// Returns the calls of a round, each with true if it failed.
fn calls<'v>(view: &PassView<'v>, round: Range<usize>) -> Vec<(&'v Arc<ToolCallInfo>, bool)> {
    let mut calls: Vec<(&Arc<ToolCallInfo>, bool)> = Vec::new();
    for segment in view.segments_of(round) {
        match (&segment.tool_call, segment.kind) {
            (Some(call), SegmentKind::Arguments) => calls.push((call, false)),
            (Some(call), _) if segment.failed => {
                calls.iter_mut().filter(|(other, _)| Arc::ptr_eq(other, call)).for_each(|(_, failed)| *failed = true);
            }
            _ => {}
        }
    }
    calls
}
