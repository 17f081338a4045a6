//! Replaces results that repeat an earlier one, whole or in part, by a reference.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, Part, PartId};
use crate::engine::line_index::{LineHashes, LineIndex, LineRun, byte_range};
use crate::engine::marker;
use crate::engine::segment;
use crate::engine::segment::SegmentKind;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::strategies::stats::StrategyStats;
use crate::strategies::support::{apply_changes, call_id, conversation_of, segments, tail_start, unique_call_ids};

/// Options of [`dedup_tool_outputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DedupToolOutputs {
    /// Number of newest messages that are never changed.
    pub keep_last: usize,
    /// Minimum length of a repeat that is replaced, in bytes.
    pub min_bytes: usize,
    /// Unit of repetition.
    pub scope: RepeatScope,
}

/// The unit of repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepeatScope {
    /// Only whole results.
    Whole,
    /// Whole results and runs of whole lines.
    Lines,
}

impl Default for DedupToolOutputs {
    /// Returns the defaults: the last 8 messages are unchanged; repeats of at least 256 bytes are replaced, whole or
    /// as lines.
    fn default() -> Self {
        Self { keep_last: 8, min_bytes: 256, scope: RepeatScope::Lines }
    }
}

/// Replaces old results that repeat an earlier one by a reference to it; the first copy is kept. Runs of lines that
/// appear in an earlier result are replaced too.
///
/// A reference names the call. Repeats are kept where reused ids could refer to another result.
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
    let unique_ids = unique_call_ids(messages);
    // Results by content: original and current.
    let mut first_ids: HashMap<blake3::Hash, &str> = HashMap::new();
    let mut earlier_lines = LineIndex::default();
    let mut sources: Vec<&str> = Vec::new();
    let mut changes = Vec::new();
    for segment in segments(&messages[..tail]).iter().filter(|segment| segment.kind == SegmentKind::Result) {
        let text = segment::segment_text(messages, segment.at);
        if text.len() < options.min_bytes || is_rest(text, &segment.description()) {
            continue;
        }
        let hash = blake3::hash(text.as_bytes());
        let folded = match first_ids.get(&hash) {
            Some(id) => Some(marker::same_result(text, &segment.description(), id)),
            None if options.scope == RepeatScope::Lines => {
                without_repeated_lines(text, &earlier_lines, &sources, options.min_bytes)
            }
            None => None,
        };
        let folded = folded.filter(|folded| folded.len() < text.len());
        let current = folded.clone().map_or(Cow::Borrowed(text), Cow::Owned);
        let id =
            call_id(messages, segment.at).filter(|id| unique_ids.contains(id) && is_only_text(messages, segment.at));
        if let Some(id) = id.filter(|_| current.len() >= options.min_bytes && !marker::is_only_marker(&current)) {
            first_ids.entry(hash).or_insert(id);
            first_ids.entry(blake3::hash(current.as_bytes())).or_insert(id);
            let hashes = LineHashes::new(&current);
            earlier_lines.add(current, &hashes);
            sources.push(id);
        }
        changes.extend(folded.map(|folded| (segment.at, folded)));
    }
    changes
}

/// Returns true if the text is what was left of a longer one: two equal rests may have had different originals. Such a
/// rest contains a marker that names its own call, or begins with the marker of an excerpt; a text that quotes any
/// other marker is not a rest.
fn is_rest(text: &str, description: &str) -> bool {
    let own_marker = marker::without_handle("", description);
    let own_suffix = own_marker.split_once(" of ").map_or("]", |(_, suffix)| suffix);
    let is_own = |line: &str| {
        marker::is_only_marker(line)
            && line
                .split_once(" of ")
                .is_some_and(|(_, suffix)| suffix == own_suffix || line.starts_with(EXCERPT_PREFIX))
    };
    memchr::memmem::find(text.as_bytes(), b"[folded: ").is_some() && text.lines().any(is_own)
}

/// The beginning of an excerpt's marker.
const EXCERPT_PREFIX: &str = "[folded: kept ";

/// Returns true if the text is the whole result, so that the id of the call identifies it.
fn is_only_text(messages: &[Message<'_>], at: PartId) -> bool {
    matches!(&messages[at.message].parts[at.part], Part::ToolResult(result) if result.only_text().is_some())
}

/// Returns the text with a marker in place of each run of lines that appears elsewhere. JSON is unchanged.
fn without_repeated_lines(
    text: &str,
    earlier_lines: &LineIndex<'_>,
    sources: &[&str],
    min_bytes: usize,
) -> Option<String> {
    let lines = text_kind::line_ranges(text);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for LineRun { lines: run, source, source_line } in
        earlier_lines.matching_runs(text, &LineHashes::new(text), &lines, min_bytes)
    {
        let bytes = byte_range(&lines, &run);
        let marker = marker::same_lines(source_line + 1, source_line + run.len(), sources[source]);
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
