//! Folds whole old rounds to one line per call: the action, its target and its outcome.
//!
//! ```text
//! [folded: 3 rounds; unfold 7k3q9p2m4x1c]
//! [folded: Read src/main.rs, ok; unfold 9w2m4x1c7k3q]
//! [folded: Edit src/main.rs, ok]
//! [folded: Bash cargo test, failed]
//! ```
//! The lines list what is done, so that the model does not repeat it, with the handle of each result that had one. They
//! contain text of the model's own calls and none of a tool's output. A summary, if the ledger has one, follows them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::Handle;
use crate::conversation::PartId;
use crate::engine::marker;
use crate::engine::passes::view::PassView;
use crate::engine::segment::{SegmentKind, ToolCallInfo};

/// Maximum number of rounds of a note that are listed by line; older ones are counted.
pub(crate) const MAX_LISTED_ROUNDS: usize = 200;

/// Number of rounds that are listed in all notes together when space is short.
const NEWEST_LISTED_ROUNDS: usize = 24;

/// Maximum number of tools whose calls are counted separately in a note. Few sessions call more than a dozen.
const MAX_COUNTED_TOOLS: usize = 48;
/// Name under which the calls of other tools are counted.
const OTHER_TOOLS: &str = "others";
/// Maximum length of a tool's name in a count; providers permit 64 or 128 characters.
const MAX_TOOL_NAME_BYTES: usize = 128;

/// Amount of detail in a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteDetail {
    /// A line for each call, and a summary if there is one.
    Listed,
    /// A line for each call of the newest rounds, and a summary if there is one.
    NewestListed,
    /// Number of calls per tool, and a summary if there is one.
    Counted,
    /// Number of calls per tool.
    CountsOnly,
}

/// Returns the number of rounds that each note lists by line, for notes that replace this many rounds, oldest first.
pub(crate) fn listed_rounds(detail: NoteDetail, round_counts: &[usize]) -> Vec<usize> {
    let mut left = match detail {
        NoteDetail::Listed => usize::MAX,
        NoteDetail::NewestListed => NEWEST_LISTED_ROUNDS,
        NoteDetail::Counted | NoteDetail::CountsOnly => 0,
    };
    let newest_first = round_counts.iter().rev().map(|&rounds| {
        let listed = rounds.min(MAX_LISTED_ROUNDS).min(left);
        left -= listed;
        listed
    });
    let mut listed: Vec<usize> = newest_first.collect();
    listed.reverse();
    listed
}

/// Facts about the rounds of a note.
pub(crate) struct NoteFacts<'n> {
    /// Number of calls per tool.
    pub(crate) tools: &'n BTreeMap<String, usize>,
    /// Handle of the rounds.
    pub(crate) handle: Option<Handle>,
    /// Handles of results that were folded before.
    pub(crate) results: &'n BTreeMap<PartId, Handle>,
}

/// Returns the note for these rounds, oldest first, without a summary. The newest `listed` of them are listed by line.
pub(crate) fn note_text(view: &PassView<'_>, rounds: &[Range<usize>], listed: usize, facts: &NoteFacts<'_>) -> String {
    let mut head = if rounds.len() == 1 { "1 round".to_owned() } else { format!("{} rounds", rounds.len()) };
    if listed < rounds.len() {
        let sums: Vec<String> = facts.tools.iter().map(|(tool, count)| format!("{count} {tool}")).collect();
        head = format!("{head}: {}", sums.join(", "));
    }
    let in_marker = |handle: Option<Handle>| handle.and_then(|handle| view.options.marker_handle(|| handle));
    let mut text = marker::described(&head, in_marker(facts.handle));
    for call in rounds[rounds.len() - listed..].iter().flat_map(|round| calls(view, round.clone(), facts.results)) {
        text.push('\n');
        let outcome = if call.failed { "failed" } else { "ok" };
        text.push_str(&marker::call_outcome(&call.info.description(), outcome, in_marker(call.handle)));
    }
    text
}

/// Counts the calls of a round per tool.
pub(crate) fn count_tools(view: &PassView<'_>, round: Range<usize>, tools: &mut BTreeMap<String, usize>) {
    for segment in view.segments_of(round).iter().filter(|segment| segment.kind == SegmentKind::Arguments) {
        let Some(call) = &segment.tool_call else { continue };
        add_calls(tools, &call.tool, 1);
    }
}

/// Adds calls of a tool. Tools beyond [`MAX_COUNTED_TOOLS`] are counted together, and long names are cut: a note has to be
/// short whatever the tools are called.
pub(crate) fn add_calls(tools: &mut BTreeMap<String, usize>, tool: &str, calls: usize) {
    let name = &tool[..tool.floor_char_boundary(MAX_TOOL_NAME_BYTES)];
    let name = if tools.len() < MAX_COUNTED_TOOLS || tools.contains_key(name) { name } else { OTHER_TOOLS };
    match tools.get_mut(name) {
        Some(sum) => *sum += calls,
        None => drop(tools.insert(name.to_owned(), calls)),
    }
}

/// A call of a dropped round.
struct NotedCall<'v> {
    info: &'v Arc<ToolCallInfo>,
    failed: bool,
    /// Handle of its result.
    handle: Option<Handle>,
}

/// Returns the calls of a round.
fn calls<'v>(view: &PassView<'v>, round: Range<usize>, results: &BTreeMap<PartId, Handle>) -> Vec<NotedCall<'v>> {
    let mut calls: Vec<NotedCall<'_>> = Vec::new();
    let mut by_info: HashMap<*const ToolCallInfo, usize> = HashMap::new();
    for segment in view.segments_of(round) {
        match (&segment.tool_call, segment.kind) {
            (Some(info), SegmentKind::Arguments) => {
                by_info.insert(Arc::as_ptr(info), calls.len());
                calls.push(NotedCall { info, failed: false, handle: None });
            }
            (Some(info), _) => {
                if let Some(call) = by_info.get(&Arc::as_ptr(info)).and_then(|&index| calls.get_mut(index)) {
                    call.failed |= segment.failed;
                    call.handle = call.handle.or_else(|| results.get(&segment.at).copied());
                }
            }
            _ => {}
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_rounds_are_listed_first() {
        assert_eq!(listed_rounds(NoteDetail::Listed, &[230, 3]), [200, 3]);
        assert_eq!(listed_rounds(NoteDetail::NewestListed, &[5, 30, 10]), [0, 14, 10]);
        assert_eq!(listed_rounds(NoteDetail::Counted, &[5, 30]), [0, 0]);
    }
}
