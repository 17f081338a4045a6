//! Segments: the foldable texts of a conversation, with the facts computed when each is ingested.
//!
//! A segment must not hold text. It takes about a hundred bytes, plus two for each line that may be cut, so that a state
//! can be kept for every live session; the text comes with each request.

use std::collections::HashMap;
use std::sync::Arc;

use crate::conversation::{Message, Part, PartId, Role};
use crate::engine::line_index::LineHashes;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::engine::tool_action::{ActionKind, ToolAction};
use crate::tokens::{LineCounts, Meter, Tokens};

/// A foldable text.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) at: PartId,
    pub(crate) kind: SegmentKind,
    pub(crate) tokens: Tokens,
    /// Calls made when it was ingested.
    pub(crate) call_index: u32,
    /// Hash of its text.
    pub(crate) text_hash: u128,
    /// Call of its arguments or of its result.
    pub(crate) tool_call: Option<Arc<ToolCallInfo>>,
    /// True if it reports a failure.
    pub(crate) failed: bool,
    /// True if a later call supersedes it.
    pub(crate) superseded: bool,
    /// True if an earlier result contains one of its lines.
    pub(crate) repeats_earlier_lines: bool,
    /// True if a later result contains one of its lines.
    pub(crate) repeated_later: bool,
    /// Hashes of its lines, if another result shares one of them; removed when it is cut.
    pub(crate) line_hashes: Option<LineHashes>,
    /// True for prose with noise, such as blank lines and rows of dots.
    pub(crate) has_noise: bool,
    /// Kind of the text, if already detected.
    pub(crate) text_kind: Option<TextKind>,
    /// Token counts by line, for long results.
    pub(crate) line_counts: Option<LineCounts>,
}

/// Foldable segments smaller than this do not count as old.
pub(crate) const MIN_COUNTED_TOKENS: Tokens = 60;

/// The kind of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SegmentKind {
    /// Instructions and user text: verbatim until nothing else is left to fold.
    InputText,
    /// Text of a tool result.
    Result,
    /// Arguments of a call.
    Arguments,
    /// Assistant text.
    Prose,
    /// Reasoning of the model.
    Reasoning,
    /// An image or a file.
    Media,
}

/// A tool call.
#[derive(Clone, Debug)]
pub(crate) struct ToolCallInfo {
    pub(crate) tool: String,
    pub(crate) action: ToolAction,
    /// Hash of its tool and arguments.
    pub(crate) call_hash: u64,
}

impl ToolCallInfo {
    /// Describes the call in a few words, for markers.
    pub(crate) fn description(&self) -> String {
        let target = self.action.target.lines().next().unwrap_or_default();
        if target.is_empty() { self.tool.clone() } else { format!("{} {target}", self.tool) }
    }
}

impl Segment {
    /// Describes the segment in a few words.
    pub(crate) fn description(&self) -> String {
        match (&self.tool_call, self.kind) {
            (Some(call), SegmentKind::Arguments) => format!("arguments of {}", call.description()),
            (Some(call), _) => call.description(),
            (None, SegmentKind::Prose) => "assistant text".to_owned(),
            (None, SegmentKind::InputText) => "user text".to_owned(),
            (None, _) => "text".to_owned(),
        }
    }

    /// Returns true if the segment counts towards a profitable crease once it is old.
    pub(crate) fn counts_when_old(&self) -> bool {
        let foldable = matches!(self.kind, SegmentKind::Result | SegmentKind::Arguments | SegmentKind::Reasoning);
        foldable && self.tokens > MIN_COUNTED_TOKENS
    }

    /// Returns true if the segment stays whole for `keep_file_calls`: it shows a file that may be edited, or a failure.
    pub(crate) fn is_kept_longer(&self) -> bool {
        self.may_show_file_read() || self.shows_file_change() || self.failed && self.kind == SegmentKind::Result
    }

    /// Returns true if the segment shows a file that was read, or is a result whose call is not known.
    pub(crate) fn may_show_file_read(&self) -> bool {
        self.shows_file_read() || self.kind == SegmentKind::Result && self.tool_call.is_none()
    }

    /// Returns true if the segment shows text written to a file. An edit quotes the previous edit as often as a read.
    fn shows_file_change(&self) -> bool {
        let is_change = |kind| matches!(kind, ActionKind::Edit | ActionKind::Write);
        matches!(self.kind, SegmentKind::Result | SegmentKind::Arguments)
            && self.tool_call.as_ref().is_some_and(|call| is_change(call.action.kind))
    }

    /// Returns true if the segment shows a file that was read.
    pub(crate) fn shows_file_read(&self) -> bool {
        self.kind == SegmentKind::Result
            && self.tool_call.as_ref().is_some_and(|call| call.action.kind == ActionKind::Read)
    }
}

/// Returns the text at a position; empty if there is none.
pub(crate) fn segment_text<'m>(messages: &'m [Message<'_>], at: PartId) -> &'m str {
    messages.get(at.message).map_or("", |message| text_in_message(message, at))
}

/// Returns the text at a position in a message; empty if there is none.
pub(crate) fn text_in_message<'m>(message: &'m Message<'_>, at: PartId) -> &'m str {
    match (message.parts.get(at.part), at.inner) {
        (Some(Part::Text { text }), None) => text,
        (Some(Part::Reasoning(reasoning)), None) => &reasoning.text,
        (Some(Part::ToolCall(call)), None) => call.arguments.as_str(),
        (Some(Part::ToolResult(result)), Some(inner)) => {
            result.content.get(inner).and_then(Part::as_text).unwrap_or_default()
        }
        _ => "",
    }
}

/// Calls by id, with the message of each.
pub(crate) type PendingCalls = HashMap<String, (Arc<ToolCallInfo>, usize)>;

/// Returns the segments of a message, in order.
pub(crate) fn message_segments(
    at: usize,
    message: &Message<'_>,
    call_index: u32,
    pending_calls: &mut PendingCalls,
    meter: &Meter,
) -> Vec<Segment> {
    let mut segments = Vec::new();
    let new_segment = |at: PartId, kind: SegmentKind, text: &str, tokens: Tokens| Segment {
        at,
        kind,
        tokens,
        call_index,
        text_hash: xxhash_rust::xxh3::xxh3_128(text.as_bytes()),
        tool_call: None,
        failed: false,
        superseded: false,
        repeats_earlier_lines: false,
        repeated_later: false,
        line_hashes: None,
        has_noise: false,
        text_kind: None,
        line_counts: None,
    };
    for (index, part) in message.parts.iter().enumerate() {
        let id = PartId::new(at, index);
        match part {
            Part::Text { text } => {
                let kind = if message.role == Role::Assistant { SegmentKind::Prose } else { SegmentKind::InputText };
                segments.push(new_segment(id, kind, text, meter.text(text)));
            }
            Part::Reasoning(reasoning) => {
                segments.push(new_segment(id, SegmentKind::Reasoning, &reasoning.text, meter.part(part)))
            }
            Part::ToolCall(call) => {
                let text = call.arguments.as_str();
                let arguments_hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
                let info = Arc::new(ToolCallInfo {
                    tool: call.name.to_string(),
                    action: ToolAction::from_call(call),
                    call_hash: xxhash_rust::xxh3::xxh3_64_with_seed(call.name.as_bytes(), arguments_hash),
                });
                pending_calls.insert(call.id.to_string(), (info.clone(), at));
                segments.push(Segment {
                    tool_call: Some(info),
                    ..new_segment(id, SegmentKind::Arguments, text, meter.text(text))
                });
            }
            Part::ToolResult(result) => {
                let tool_call = pending_calls.get(result.call_id.as_ref()).map(|(info, _)| info.clone());
                for (inner, part) in result.content.iter().enumerate() {
                    let (id, tool_call) = (id.inner(inner), tool_call.clone());
                    match part {
                        Part::Text { text } => {
                            let is_read_only = tool_call.as_ref().is_some_and(|call| call.action.is_read_only());
                            let (failed, text_kind) = if result.is_error || is_read_only {
                                (result.is_error, None)
                            } else {
                                text_kind::detect_failure(text)
                            };
                            let segment = new_segment(id, SegmentKind::Result, text, 0);
                            let (tokens, line_counts) = meter.texts().text_and_line_counts(text, segment.text_hash);
                            segments.push(Segment { tokens, tool_call, failed, text_kind, line_counts, ..segment });
                        }
                        Part::Image(_) | Part::File(_) => {
                            segments.push(Segment {
                                tool_call,
                                ..new_segment(id, SegmentKind::Media, "", meter.part(part))
                            });
                        }
                        _ => {}
                    }
                }
            }
            Part::Image(_) | Part::File(_) => segments.push(new_segment(id, SegmentKind::Media, "", meter.part(part))),
            _ => {}
        }
    }
    segments
}

/// Returns the tokens of a message that are not in its segments.
pub(crate) fn overhead_tokens(message: &Message<'_>, meter: &Meter) -> Tokens {
    let part_overhead = |part: &Part<'_>| match part {
        Part::Text { .. } | Part::Reasoning(_) | Part::Image(_) | Part::File(_) => 0,
        Part::ToolCall(call) => meter.call_overhead(call),
        Part::ToolResult(result) => {
            let is_segment = |part: &&Part<'_>| matches!(part, Part::Text { .. } | Part::Image(_) | Part::File(_));
            result.content.iter().filter(|part| !is_segment(part)).map(|part| meter.part(part)).sum()
        }
        Part::Opaque(_) => meter.part(part),
    };
    message.parts.iter().map(part_overhead).sum::<Tokens>() + meter.message_overhead()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the arguments and the result of a call are kept longer.
    fn kept_longer(tool: &'static str, arguments: &'static str, result: &'static str) -> [bool; 2] {
        let call = Message::new(Role::Assistant, vec![Part::call("c", tool, arguments)]);
        let answer = Message::new(Role::Tool, vec![Part::result("c", result)]);
        let (mut pending, meter) = (PendingCalls::new(), Meter::for_byte_estimate());
        [call, answer].map(|message| message_segments(0, &message, 0, &mut pending, &meter)[0].is_kept_longer())
    }

    /// An edit may quote file content from a read, an earlier edit, or the result of that edit.
    #[test]
    fn file_contents_are_kept_longer() {
        let change = r#"{"path":"a.rs","old_string":"let a = 1;","new_string":"let a = 2;"}"#;
        assert_eq!(kept_longer("edit_file", change, "1  let a = 2;"), [true, true]);
        assert_eq!(kept_longer("write_file", r#"{"path":"a.rs","content":"let a = 2;"}"#, "written"), [true, true]);
        assert_eq!(kept_longer("read_file", r#"{"path":"a.rs"}"#, "let a = 1;"), [false, true]);
    }

    #[test]
    fn command_output_is_kept_longer_only_on_failure() {
        assert_eq!(kept_longer("bash", r#"{"command":"make"}"#, "all is well"), [false, false]);
        assert_eq!(kept_longer("bash", r#"{"command":"make"}"#, "Exit code 2\nerror: no rule"), [false, true]);
        assert_eq!(kept_longer("grep", r#"{"pattern":"value"}"#, "a.rs:1:let value = 1;"), [false, false]);
    }
}
