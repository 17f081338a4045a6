//! Long old results keep their head and their tail.

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

/// What [`snippet_stale_tool_outputs`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnippetToolOutputs {
    /// The newest messages that are left alone.
    pub keep_last: usize,
    /// Results of fewer bytes stay.
    pub min_bytes: usize,
    /// Bytes of the head that stay.
    pub head_bytes: usize,
    /// Bytes of the tail that stay.
    pub tail_bytes: usize,
}

impl Default for SnippetToolOutputs {
    /// The last 8 messages are left alone; results of 4096 bytes and more keep 1024 at either end.
    fn default() -> Self {
        Self { keep_last: 8, min_bytes: 4096, head_bytes: 1024, tail_bytes: 1024 }
    }
}

/// Long old results keep the head, the tail, and half as much again of the lines between them that report a
/// failure. Lines stay whole and JSON stays JSON. A result to which a marker refers stays as it is.
///
/// ```
/// use foldline::strategies::{Snippets, snippet_stale_tool_outputs};
/// use foldline::{Message, Part, Role};
///
/// let mut log: String = (0..400).map(|at| format!("compiling crate number {at}\n")).collect();
/// log.insert_str(log.find("compiling crate number 200").unwrap(), "error: no such field\n");
/// let messages = vec![
///     Message::new(Role::Assistant, vec![Part::call("c1", "sh", r#"{"command":"make"}"#)]),
///     Message::new(Role::Tool, vec![Part::result("c1", log)]),
///     Message::new(Role::Assistant, vec![Part::text("it failed")]),
/// ];
/// let options = Snippets { keep_last: 1, ..Snippets::default() };
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
    let mut referred: HashSet<String> = messages[tail..].iter().flat_map(referenced_ids).map(str::to_owned).collect();
    referred.extend(calls.flat_map(marker::referenced_ids).map(str::to_owned));
    // What is left is below this, so that it is not cut again.
    let limit = options.min_bytes.max(2 * (options.head_bytes + options.tail_bytes));
    let mut changes = Vec::new();
    // From the newest to the oldest, since references lead back, and one that is cut away holds nothing.
    for piece in segments(&messages[..tail]).iter().rev().filter(|piece| piece.kind == SegmentKind::Result) {
        let text = segment::segment_text(messages, piece.at);
        let holds = call_id(messages, piece.at).is_some_and(|id| referred.contains(id));
        let cut = (text.len() >= limit && !holds).then(|| snippet(text, piece, options)).flatten();
        let snippet = cut.filter(|snippet| snippet.len() < limit);
        referred.extend(marker::referenced_ids(snippet.as_deref().unwrap_or(text)).map(str::to_owned));
        changes.extend(snippet.map(|snippet| (piece.at, snippet)));
    }
    changes
}

fn snippet(text: &str, piece: &Segment, options: &SnippetToolOutputs) -> Option<String> {
    let SnippetToolOutputs { head_bytes: head, tail_bytes: tail, .. } = *options;
    match text_kind::detect_kind(text) {
        TextKind::Json => json_clip::clip_json(text, head + tail),
        _ => {
            let shares = ClipShares { head, tail, failures: (head + tail) / 2 };
            Some(clip_lines(text, shares, &marker::without_handle(text, &piece.description())))
        }
    }
}
