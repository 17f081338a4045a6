//! Cuts long old results to their head and tail.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, PartId};
use crate::engine::marker;
use crate::engine::passes::support::json_clip;
use crate::engine::segment;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::strategies::stats::StrategyStats;
use crate::strategies::support::{apply_changes, call_id, conversation_of, referenced_ids, segments, tail_start};

/// Options of [`snippet_stale_tool_outputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
/// failure. A marker with the size is where the text was cut first, the number of lines at the other cuts. Lines
/// are kept whole and JSON remains valid JSON. A result that a marker refers to is unchanged.
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
/// assert!(text.starts_with("compiling crate number 0\n"));
/// assert!(text.contains(" kB of sh make]\nerror: no such field\n[+"));
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
    match text_kind::detect_kind(text) {
        TextKind::Json => json_clip::clip_json(text, options.head_bytes + options.tail_bytes),
        _ => Some(line_snippet(text, &segment.description(), options)),
    }
}

/// Returns the head and the tail of a text and the failures between them: whole lines, unless neither the first nor
/// the last one fits.
fn line_snippet(text: &str, description: &str, options: &SnippetToolOutputs) -> String {
    let (head_bytes, tail_bytes) = (options.head_bytes, options.tail_bytes);
    let lines = text_kind::line_ranges(text);
    let is_endless = lines.first().is_some_and(|line| line.len() >= head_bytes)
        && lines.last().is_some_and(|line| line.len() >= tail_bytes);
    if lines.len() < 4 || is_endless {
        let head = text.floor_char_boundary(head_bytes);
        let tail = text.ceil_char_boundary(text.len() - tail_bytes.min(text.len())).max(head);
        return format!(
            "{}\n{}\n{}",
            &text[..head],
            marker::without_handle(&text[head..tail], description),
            &text[tail..]
        );
    }
    let kept = kept_lines(text, &lines, head_bytes, tail_bytes);
    let mut out = String::with_capacity(2 * (head_bytes + tail_bytes));
    let mut is_first_gap = true;
    let mut at = 0;
    while at < lines.len() {
        let end = (at..lines.len()).find(|&line| kept[line] != kept[at]).unwrap_or(lines.len());
        let run = &text[lines[at].start..lines[end - 1].end];
        if at > 0 {
            out.push('\n');
        }
        match kept[at] {
            true => out.push_str(run),
            false if std::mem::take(&mut is_first_gap) => out.push_str(&marker::without_handle(run, description)),
            false => out.push_str(&marker::gap(end - at)),
        }
        at = end;
    }
    out
}

/// Returns for each line whether it is kept: of the head, of the tail, and of the failures between them as many as fit
/// in half of both.
fn kept_lines(text: &str, lines: &[Range<usize>], mut head_bytes: usize, mut tail_bytes: usize) -> Vec<bool> {
    // A line costs its line break; a failure costs the gap marker before it too.
    const LINE_BREAK_BYTES: usize = 1;
    const GAP_BYTES: usize = 9;
    let mut failure_bytes = (head_bytes + tail_bytes) / 2;
    let mut kept = vec![false; lines.len()];
    let mut keep = |at: usize, room: &mut usize, overhead: usize| {
        let size = lines[at].len() + overhead;
        let fits = size <= *room && !kept[at];
        if fits {
            kept[at] = true;
            *room -= size;
        }
        fits
    };
    (0..lines.len()).take_while(|&at| keep(at, &mut head_bytes, LINE_BREAK_BYTES)).for_each(drop);
    (0..lines.len()).rev().take_while(|&at| keep(at, &mut tail_bytes, LINE_BREAK_BYTES)).for_each(drop);
    failure_bytes += head_bytes + tail_bytes;
    for (at, line) in lines.iter().enumerate() {
        if text_kind::is_failure(&text[line.clone()]) {
            keep(at, &mut failure_bytes, LINE_BREAK_BYTES + GAP_BYTES);
        }
    }
    kept
}
