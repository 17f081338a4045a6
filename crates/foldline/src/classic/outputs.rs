//! Results that an earlier result has already said, whole or in part.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Tally, call_id, changed, names, of, pieces, tail};
use crate::content::{self, Kind};
use crate::conversation::{Message, Part, PartId};
use crate::marker;
use crate::pass::again::{Hashes, Run, Standing, extent};
use crate::piece::{self, Class};

/// What [`dedup_tool_outputs`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupToolOutputs {
    /// The newest messages that are left alone.
    pub keep_last: usize,
    /// Repeats of fewer bytes stay.
    pub at_least: usize,
    /// What counts as a repeat.
    pub repeats: Repeats,
}

/// What counts as a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeats {
    /// A whole result.
    Whole,
    /// A whole result, and a run of whole lines.
    Lines,
}

impl Default for DedupToolOutputs {
    /// The last 8 messages are left alone; repeats of 256 bytes count, whole or as lines.
    fn default() -> Self {
        Self { keep_last: 8, at_least: 256, repeats: Repeats::Lines }
    }
}

/// Old results that repeat an earlier one become a reference to it; the first copy stays. So do runs of lines
/// that stand in an earlier result.
///
/// A reference names the call. Where ids are used again and could mean another result, repeats stay.
///
/// ```
/// use foldline::classic::{DedupToolOutputs, dedup_tool_outputs};
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
pub fn dedup_tool_outputs<'m>(messages: Vec<Message<'m>>, options: &DedupToolOutputs) -> (Vec<Message<'m>>, Tally) {
    let conversation = of(messages);
    let tail = tail(&conversation, options.keep_last);
    let changes = changes(&conversation.messages, tail, options);
    changed(conversation.messages, changes)
}

fn changes(messages: &[Message<'_>], tail: usize, options: &DedupToolOutputs) -> Vec<(PartId, String)> {
    let names = names(messages);
    // By what they say: as they came, and as they stand now.
    let mut whole: HashMap<blake3::Hash, &str> = HashMap::new();
    let mut standing = Standing::default();
    let mut sources: Vec<&str> = Vec::new();
    let mut changes = Vec::new();
    for piece in pieces(&messages[..tail]).iter().filter(|piece| piece.class == Class::Result) {
        let text = piece::text(messages, piece.at);
        // What begins with a marker is what is left of a longer text: two that are left alike may have been different.
        if text.lines().next().is_some_and(marker::is_only_marker) || text.len() < options.at_least {
            continue;
        }
        let hash = blake3::hash(text.as_bytes());
        let folded = match whole.get(&hash) {
            Some(id) => Some(marker::same_result(text, &piece.words(), id)),
            None if options.repeats == Repeats::Lines => without_repeats(text, &standing, &sources, options.at_least),
            None => None,
        };
        let folded = folded.filter(|folded| folded.len() < text.len());
        let stands = folded.clone().map_or(Cow::Borrowed(text), Cow::Owned);
        let id = call_id(messages, piece.at).filter(|id| names.contains(id) && is_alone(messages, piece.at));
        if let Some(id) = id.filter(|_| stands.len() >= options.at_least && !marker::is_only_marker(&stands)) {
            whole.entry(hash).or_insert(id);
            whole.entry(blake3::hash(stands.as_bytes())).or_insert(id);
            let hashes = Hashes::of(&stands);
            standing.add(stands, &hashes);
            sources.push(id);
        }
        changes.extend(folded.map(|folded| (piece.at, folded)));
    }
    changes
}

/// Whether the text is all that the result says, so that the id of the call names it.
fn is_alone(messages: &[Message<'_>], at: PartId) -> bool {
    matches!(&messages[at.message].parts[at.part], Part::ToolResult(result) if result.only_text().is_some())
}

/// The text with a marker in the place of each run of lines that stands elsewhere. JSON stays as it is.
fn without_repeats(text: &str, standing: &Standing<'_>, sources: &[&str], at_least: usize) -> Option<String> {
    let lines = content::lines(text);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for Run { lines: run, source, from } in standing.runs(text, &Hashes::of(text), &lines, at_least) {
        let bytes = extent(&lines, &run);
        let marker = marker::same_lines(from + 1, from + run.len(), sources[source]);
        if marker.len() < bytes.len() {
            out.push_str(&text[at..bytes.start]);
            out.push_str(&marker);
            at = bytes.end;
        }
    }
    if at == 0 || content::kind(text) == Kind::Json {
        return None;
    }
    out.push_str(&text[at..]);
    Some(out)
}
