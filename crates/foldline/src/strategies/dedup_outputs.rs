//! Results that an earlier result has already said, whole or in part.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::conversation::{Message, Part, PartId};
use crate::engine::line_index::{LineHashes, LineIndex, LineRun, byte_range};
use crate::engine::marker;
use crate::engine::segment;
use crate::engine::segment::SegmentKind;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::strategies::{
    StrategyStats, apply_changes, call_id, conversation_of, segments, tail_start, unique_call_ids,
};

/// What [`dedup_tool_outputs`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupToolOutputs {
    /// The newest messages that are left alone.
    pub keep_last: usize,
    /// Repeats of fewer bytes stay.
    pub min_bytes: usize,
    /// What counts as a repeat.
    pub scope: RepeatScope,
}

/// What counts as a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepeatScope {
    /// A whole result.
    Whole,
    /// A whole result, and a run of whole lines.
    Lines,
}

impl Default for DedupToolOutputs {
    /// The last 8 messages are left alone; repeats of 256 bytes count, whole or as lines.
    fn default() -> Self {
        Self { keep_last: 8, min_bytes: 256, scope: RepeatScope::Lines }
    }
}

/// Old results that repeat an earlier one become a reference to it; the first copy stays. So do runs of lines
/// that stand in an earlier result.
///
/// A reference names the call. Where ids are used again and could mean another result, repeats stay.
///
/// ```
/// use foldline::strategies::{DedupToolOutputs, dedup_tool_outputs};
/// use foldline::{Message, Part, Role};
///
/// let page = "a line of the file\n".repeat(20);
/// let longer = format!("{page}a line that is new\n");
/// let mut messages = Vec::new();
/// for (id, text) in [("c1", &page), ("c2", &page), ("c3", &longer)] {
///     messages.push(Message::new(Role::Assistant, vec![Part::call(id, "cat", r#"{"path":"a.txt"}"#)]));
///     messages.push(Message::new(Role::Tool, vec![Part::result(id, text.clone())]));
/// }
/// messages.push(Message::text(Role::User, "go on"));
///
/// let options = DedupToolOutputs { keep_last: 1, ..DedupToolOutputs::default() };
/// let (messages, tally) = dedup_tool_outputs(messages, &options);
/// assert_eq!(messages[3].parts, [Part::result("c2", "[folded: 20 lines, 380 bytes of cat a.txt; same as result c1]")]);
/// # assert_eq!(tally.hits, 1);
///
/// # let mut messages = messages;
/// // The newest round is never touched; once it is old, only what is new in it stays.
/// messages.push(Message::new(Role::Assistant, vec![Part::text("done")]));
/// let (messages, _) = dedup_tool_outputs(messages, &options);
/// assert_eq!(messages[5].parts, [
///     Part::result("c3", "[folded: 20 lines; same as lines 1 to 20 of result c1]\na line that is new\n"),
/// ]);
/// ```
pub fn dedup_tool_outputs<'m>(
    messages: Vec<Message<'m>>,
    options: &DedupToolOutputs,
) -> (Vec<Message<'m>>, StrategyStats) {
    let conversation = conversation_of(messages);
    let tail = tail_start(&conversation, options.keep_last);
    let changes = changes(&conversation.messages, tail, options);
    apply_changes(conversation.messages, changes)
}

fn changes(messages: &[Message<'_>], tail: usize, options: &DedupToolOutputs) -> Vec<(PartId, String)> {
    let names = unique_call_ids(messages);
    // By what they say: as they came, and as they stand now.
    let mut whole: HashMap<blake3::Hash, &str> = HashMap::new();
    let mut standing = LineIndex::default();
    let mut sources: Vec<&str> = Vec::new();
    let mut changes = Vec::new();
    for piece in segments(&messages[..tail]).iter().filter(|piece| piece.kind == SegmentKind::Result) {
        let text = segment::segment_text(messages, piece.at);
        // What begins with a marker is what is left of a longer text: two that are left alike may have been different.
        if text.lines().next().is_some_and(marker::is_only_marker) || text.len() < options.min_bytes {
            continue;
        }
        let hash = blake3::hash(text.as_bytes());
        let folded = match whole.get(&hash) {
            Some(id) => Some(marker::same_result(text, &piece.description(), id)),
            None if options.scope == RepeatScope::Lines => {
                without_repeated_lines(text, &standing, &sources, options.min_bytes)
            }
            None => None,
        };
        let folded = folded.filter(|folded| folded.len() < text.len());
        let stands = folded.clone().map_or(Cow::Borrowed(text), Cow::Owned);
        let id = call_id(messages, piece.at).filter(|id| names.contains(id) && is_only_text(messages, piece.at));
        if let Some(id) = id.filter(|_| stands.len() >= options.min_bytes && !marker::is_only_marker(&stands)) {
            whole.entry(hash).or_insert(id);
            whole.entry(blake3::hash(stands.as_bytes())).or_insert(id);
            let hashes = LineHashes::new(&stands);
            standing.add(stands, &hashes);
            sources.push(id);
        }
        changes.extend(folded.map(|folded| (piece.at, folded)));
    }
    changes
}

/// Whether the text is all that the result says, so that the id of the call names it.
fn is_only_text(messages: &[Message<'_>], at: PartId) -> bool {
    matches!(&messages[at.message].parts[at.part], Part::ToolResult(result) if result.only_text().is_some())
}

/// The text with a marker in the place of each run of lines that stands elsewhere. JSON stays as it is.
fn without_repeated_lines(text: &str, standing: &LineIndex<'_>, sources: &[&str], at_least: usize) -> Option<String> {
    let lines = text_kind::line_ranges(text);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for LineRun { lines: run, source, source_line: from } in
        standing.matching_runs(text, &LineHashes::new(text), &lines, at_least)
    {
        let bytes = byte_range(&lines, &run);
        let marker = marker::same_lines(from + 1, from + run.len(), sources[source]);
        if marker.len() < bytes.len() {
            out.push_str(&text[at..bytes.start]);
            out.push_str(&marker);
            at = bytes.end;
        }
    }
    if at == 0 || text_kind::detect_kind(text) == TextKind::Json {
        return None;
    }
    out.push_str(&text[at..]);
    Some(out)
}
