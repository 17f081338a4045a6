//! Whole old rounds become one line each: what was done, to what, and how it ended.
//!
//! ```text
//! [folded: 3 rounds; unfold 7k3q9p2m4x1c]
//! [folded: Read src/main.rs, ok]
//! [folded: Edit src/main.rs, ok]
//! [folded: Bash cargo test, failed]
//! ```
//! The lines tell what is done, so that nothing is done twice. They hold words of the model's own
//! calls and none of a tool's output. A summary, where a ledger has one, stands behind them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::Handle;
use crate::conversation::Message;
use crate::engine::marker;
use crate::engine::segment::{SegmentKind, ToolCallInfo};

use crate::engine::passes::PassView;

/// With more rounds than this the lines are summed up instead.
const MAX_LISTED_ROUNDS: usize = 200;

/// How much a note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteDetail {
    /// A line for each call, and a summary if there is one.
    Listed,
    /// How many calls there were, and a summary if there is one.
    Counted,
    /// How many calls there were.
    CountsOnly,
}

/// The note for these rounds, oldest first, in which tools were called so often; without a summary.
pub(crate) fn note_text(
    view: &PassView<'_>,
    rounds: &[Range<usize>],
    tools: &BTreeMap<String, usize>,
    detail: NoteDetail,
) -> String {
    let handle = view.options.handles.then(|| Handle::for_content(&original_json(view.messages, rounds)));
    let head = if rounds.len() == 1 { "1 round".to_owned() } else { format!("{} rounds", rounds.len()) };
    if detail != NoteDetail::Listed || rounds.len() > MAX_LISTED_ROUNDS {
        let sums: Vec<String> = tools.iter().map(|(tool, count)| format!("{count} {tool}")).collect();
        return marker::described(&format!("{head}: {}", sums.join(", ")), handle);
    }
    let mut text = marker::described(&head, handle);
    for (done, failed) in rounds.iter().flat_map(|round| calls(view, round.clone())) {
        text.push('\n');
        text.push_str(&marker::call_outcome(&done.description(), if failed { "failed" } else { "ok" }));
    }
    text
}

/// Counts the calls of a round.
pub(crate) fn count_tools(view: &PassView<'_>, round: Range<usize>, tools: &mut BTreeMap<String, usize>) {
    for piece in view.segments_of(round).iter().filter(|piece| piece.kind == SegmentKind::Arguments) {
        let Some(done) = &piece.tool_call else { continue };
        match tools.get_mut(&done.tool) {
            Some(calls) => *calls += 1,
            None => drop(tools.insert(done.tool.clone(), 1)),
        }
    }
}

/// What a handle of these rounds gives back: their messages, as JSON.
pub(crate) fn original_json(messages: &[Message<'_>], rounds: &[Range<usize>]) -> Vec<u8> {
    let messages: Vec<_> = rounds.iter().flat_map(|round| &messages[round.clone()]).collect();
    serde_json::to_vec(&messages).expect("messages have a JSON form")
}

/// The calls of a round, and whether they failed.
fn calls<'v>(view: &PassView<'v>, round: Range<usize>) -> Vec<(&'v Arc<ToolCallInfo>, bool)> {
    let mut calls: Vec<(&Arc<ToolCallInfo>, bool)> = Vec::new();
    for piece in view.segments_of(round) {
        match (&piece.tool_call, piece.kind) {
            (Some(done), SegmentKind::Arguments) => calls.push((done, false)),
            (Some(done), _) if piece.failed => {
                calls.iter_mut().filter(|(call, _)| Arc::ptr_eq(call, done)).for_each(|(_, failed)| *failed = true);
            }
            _ => {}
        }
    }
    calls
}
