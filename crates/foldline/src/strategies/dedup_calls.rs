//! Replaces repeated calls by a reference to the first one.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::conversation::{CallArguments, Message, Part, PartId};
use crate::engine::marker;
use crate::engine::segment::SegmentKind;
use crate::strategies::stats::StrategyStats;
use crate::strategies::support::{apply_changes, conversation_of, segments, tail_start, unique_call_ids};
use crate::wire;

/// Options of [`dedup_tool_calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DedupToolCalls {
    /// Number of newest messages that are never changed.
    pub keep_last: usize,
    /// Minimum length of arguments that are replaced, in bytes.
    pub min_bytes: usize,
}

impl Default for DedupToolCalls {
    /// Returns the defaults: the last 8 messages are unchanged; arguments of at least 64 bytes are replaced.
    fn default() -> Self {
        Self { keep_last: 8, min_bytes: 64 }
    }
}

/// Replaces the arguments of old calls of the same tool with the same arguments by a reference to the first of them.
/// JSON arguments remain valid JSON.
///
/// ```
/// use foldline::strategies::{DedupToolCalls, dedup_tool_calls};
/// use foldline::{Message, Part, Role};
///
/// let arguments = r#"{"command":"cargo test --workspace --all-features -- --nocapture --test-threads 1"}"#;
/// let mut messages = Vec::new();
/// for id in ["c1", "c2"] {
///     messages.push(Message::new(Role::Assistant, vec![Part::call(id, "sh", arguments)]));
///     messages.push(Message::new(Role::Tool, vec![Part::result(id, "ok")]));
/// }
/// messages.push(Message::new(Role::Assistant, vec![Part::text("done")]));
/// let (messages, tally) = dedup_tool_calls(messages, &DedupToolCalls { keep_last: 1, ..Default::default() });
/// assert_eq!(messages[2].parts, [Part::call("c2", "sh", r#"{"folded":"[folded: 83 bytes; same as call c1]"}"#)]);
/// assert_eq!(tally.hits, 1);
/// ```
pub fn dedup_tool_calls<'m>(messages: Vec<Message<'m>>, options: &DedupToolCalls) -> (Vec<Message<'m>>, StrategyStats) {
    let conversation = conversation_of(messages);
    let tail = tail_start(&conversation, options.keep_last);
    let changes = changes(&conversation.messages, tail, options);
    apply_changes(conversation.messages, changes)
}

fn changes(messages: &[Message<'_>], tail: usize, options: &DedupToolCalls) -> Vec<(PartId, String)> {
    let unique_ids = unique_call_ids(messages);
    let mut first: HashMap<(&str, &str), &str> = HashMap::new();
    let mut changes = Vec::new();
    for segment in segments(&messages[..tail]).iter().filter(|segment| segment.kind == SegmentKind::Arguments) {
        let Part::ToolCall(call) = &messages[segment.at.message].parts[segment.at.part] else { continue };
        let arguments = call.arguments.as_str();
        // Arguments that already refer to another call are skipped.
        if arguments.len() < options.min_bytes || marker::referenced_ids(arguments).next().is_some() {
            continue;
        }
        match first.get(&(&*call.name, arguments)) {
            Some(id) => {
                let marker = marker::same_call(&format!("{} bytes", arguments.len()), id);
                let folded = match &call.arguments {
                    CallArguments::Json(_) => format!(r#"{{"folded":{}}}"#, wire::encode(&marker)),
                    CallArguments::Text(_) => marker,
                };
                if folded.len() < arguments.len() {
                    changes.push((segment.at, folded));
                }
            }
            None if unique_ids.contains(&*call.id) => {
                first.insert((&call.name, arguments), &call.id);
            }
            None => {}
        }
    }
    changes
}
