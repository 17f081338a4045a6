//! Cuts long old results to their head and tail.

use std::collections::HashSet;

use crate::conversation::{Message, PartId};
use crate::engine::marker;
use crate::engine::passes::support::clip::{ClipShares, clip_lines};
use crate::engine::passes::support::json_clip;
use crate::engine::segment;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::strategies::{StrategyStats, apply_changes, call_id, conversation_of, referenced_ids, segments, tail_start};

/// Options of [`snippet_stale_tool_outputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnippetToolOutputs {
    /// Number of newest messages that are never changed.
    pub keep_last: usize,
    /// Minimum size of a result that is cut, in bytes.
    pub min_bytes: usize,
    /// Bytes kept of the head.
    pub head_bytes: usize,
    /// Bytes kept of the tail.
    pub tail_bytes: usize,
}

impl Default for SnippetToolOutputs {
    /// Returns the defaults: the last 8 messages are unchanged; results of at least 4096 bytes keep 1024 at either end.
    fn default() -> Self {
        Self { keep_last: 8, min_bytes: 4096, head_bytes: 1024, tail_bytes: 1024 }
    }
}

/// Cuts long old results to the head, the tail, and half as much again of the lines between them that report a
/// failure. Lines are kept whole and JSON remains valid JSON. A result that a marker refers to is unchanged.
///
/// ```
/// use foldline::strategies::{SnippetToolOutputs, snippet_stale_tool_outputs};
/// use foldline::{Message, Part, Role};
///
/// let mut log: String = (0..400).map(|at| format!("compiling crate number {at}\n")).collect();
/// log.insert_str(log.find("compiling crate number 200").unwrap(), "error: no such field\n");
/// let messages = vec![
///     Message::new(Role::Assistant, vec![Part::call("c1", "sh", r#"{"command":"make"}"#)]),
///     Message::new(Role::Tool, vec![Part::result("c1", log)]),
///     Message::new(Role::Assistant, vec![Part::text("it failed")]),
/// ];
/// let options = SnippetToolOutputs { keep_last: 1, ..SnippetToolOutputs::default() };
/// let (messages, tally) = snippet_stale_tool_outputs(messages, &options);
/// let text = messages[1].results().next().unwrap().only_text().unwrap();
/// assert!(text.starts_with("[folded: 401 lines, 10.7 kB of sh make]\ncompiling crate number 0\n"));
/// assert!(text.contains("\n[+161]\nerror: no such field\n[+163]\n"));
/// assert!(text.ends_with("compiling crate number 399"));
/// assert_eq!(tally.hits, 1);
/// ```
pub fn snippet_stale_tool_outputs<'m>(
    messages: Vec<Message<'m>>,
    options: &SnippetToolOutputs,
) -> (Vec<Message<'m>>, StrategyStats) {
    let conversation = conversation_of(messages);
    let tail = tail_start(&conversation, options.keep_last);
    let changes = changes(&conversation.messages, tail, options);
    apply_changes(conversation.messages, changes)
}

fn changes(messages: &[Message<'_>], tail: usize, options: &SnippetToolOutputs) -> Vec<(PartId, String)> {
    let calls = messages[..tail].iter().flat_map(Message::calls).map(|call| call.arguments.as_str());
    let mut referenced: HashSet<String> = messages[tail..].iter().flat_map(referenced_ids).map(str::to_owned).collect();
    referenced.extend(calls.flat_map(marker::referenced_ids).map(str::to_owned));
    // Snippets are below this limit, so that they are not cut again.
    let limit = options.min_bytes.max(2 * (options.head_bytes + options.tail_bytes));
    let mut changes = Vec::new();
    // Newest to oldest: references point backwards, and a reference that was cut away does not count.
    for segment in segments(&messages[..tail]).iter().rev().filter(|segment| segment.kind == SegmentKind::Result) {
        let text = segment::segment_text(messages, segment.at);
        let is_referenced = call_id(messages, segment.at).is_some_and(|id| referenced.contains(id));
        let cut = (text.len() >= limit && !is_referenced).then(|| snippet(text, segment, options)).flatten();
        let snippet = cut.filter(|snippet| snippet.len() < limit);
        referenced.extend(marker::referenced_ids(snippet.as_deref().unwrap_or(text)).map(str::to_owned));
        changes.extend(snippet.map(|snippet| (segment.at, snippet)));
    }
    changes
}

fn snippet(text: &str, segment: &Segment, options: &SnippetToolOutputs) -> Option<String> {
    let (head, tail) = (options.head_bytes, options.tail_bytes);
    match text_kind::detect_kind(text) {
        TextKind::Json => json_clip::clip_json(text, head + tail),
        _ => {
            let shares = ClipShares { head, tail, failures: (head + tail) / 2 };
            Some(clip_lines(text, shares, &marker::without_handle(text, &segment.description())))
        }
    }
}
