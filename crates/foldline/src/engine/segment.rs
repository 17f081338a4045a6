//! Pieces: the texts of a conversation that can be folded, with what is known of each at first sight.
//!
//! Nothing here holds text. A piece is some hundred bytes, and two for each line that may be cut, so that the state of a
//! conversation can be kept for every live session, while the text comes with each request.

use std::collections::HashMap;
use std::sync::Arc;

use crate::conversation::{Message, Part, PartId, Role};
use crate::engine::line_index::LineHashes;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;
use crate::engine::tool_action::{ActionKind, ToolAction};
use crate::tokens::{LineCounts, Meter, Tokens};

/// A text that can be folded.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) at: PartId,
    pub(crate) kind: SegmentKind,
    pub(crate) tokens: Tokens,
    /// How many calls had been made when it came.
    pub(crate) call_index: u32,
    /// Hash of its text.
    pub(crate) text_hash: u128,
    /// The call that it belongs to: its own, or the one that it answers.
    pub(crate) tool_call: Option<Arc<ToolCallInfo>>,
    /// It reports that something went wrong.
    pub(crate) failed: bool,
    /// A later call says it better.
    pub(crate) superseded: bool,
    /// A line of it was said by an earlier result.
    pub(crate) repeats_earlier_lines: bool,
    /// A line of it was said again by a later result.
    pub(crate) repeated_later: bool,
    /// The lines of it, if one of them was said twice, until it is cut.
    pub(crate) line_hashes: Option<LineHashes>,
    /// Prose that says something without words: blank lines, dots.
    pub(crate) has_noise: bool,
    /// What the text is, if that was asked already.
    pub(crate) text_kind: Option<TextKind>,
    /// What the lines of a long result add to its tokens.
    pub(crate) line_counts: Option<LineCounts>,
}

/// Foldable pieces smaller than this do not count as grown old.
pub(crate) const MIN_COUNTED_TOKENS: Tokens = 60;

/// What a piece is, as far as folding is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SegmentKind {
    /// Instructions and what a user said: verbatim until nothing else is left.
    InputText,
    /// Text of a tool result.
    Result,
    /// Arguments of a call.
    Arguments,
    /// What the model wrote.
    Prose,
    /// What the model thought.
    Reasoning,
    /// An image or a file.
    Media,
}

/// A call that was made.
#[derive(Clone, Debug)]
pub(crate) struct ToolCallInfo {
    pub(crate) tool: String,
    pub(crate) action: ToolAction,
    /// Hash of its tool and its arguments: two equal calls have one.
    pub(crate) call_hash: u64,
}

impl ToolCallInfo {
    /// The call in a few words, for markers.
    pub(crate) fn description(&self) -> String {
        let target = self.action.target.lines().next().unwrap_or_default();
        if target.is_empty() { self.tool.clone() } else { format!("{} {target}", self.tool) }
    }
}

impl Segment {
    /// The call in a few words, or what the piece is.
    pub(crate) fn description(&self) -> String {
        match (&self.tool_call, self.kind) {
            (Some(done), SegmentKind::Arguments) => format!("arguments of {}", done.description()),
            (Some(done), _) => done.description(),
            (None, SegmentKind::Prose) => "assistant text".to_owned(),
            (None, SegmentKind::InputText) => "user text".to_owned(),
            (None, _) => "text".to_owned(),
        }
    }

    /// Whether a crease is looked for because of such pieces, once they are old.
    pub(crate) fn counts_when_old(&self) -> bool {
        let foldable = matches!(self.kind, SegmentKind::Result | SegmentKind::Arguments | SegmentKind::Reasoning);
        foldable && self.tokens > MIN_COUNTED_TOKENS
    }

    /// Whether it is left whole for long, while it is the newest of its kind: what shows a file that may be edited, and
    /// what went wrong.
    pub(crate) fn is_kept_longer(&self) -> bool {
        self.shows_file_read() || self.shows_file_change() || self.failed && self.kind == SegmentKind::Result
    }

    /// Whether it shows what was written to a file: an edit quotes the one before it as often as it quotes a read.
    fn shows_file_change(&self) -> bool {
        let changes = |act| matches!(act, ActionKind::Edit | ActionKind::Write);
        matches!(self.kind, SegmentKind::Result | SegmentKind::Arguments)
            && self.tool_call.as_ref().is_some_and(|done| changes(done.action.kind))
    }

    /// Whether it shows a file.
    pub(crate) fn shows_file_read(&self) -> bool {
        self.kind == SegmentKind::Result
            && self.tool_call.as_ref().is_some_and(|done| done.action.kind == ActionKind::Read)
    }
}

/// The text at a place; nothing where there is none.
pub(crate) fn segment_text<'m>(messages: &'m [Message<'_>], at: PartId) -> &'m str {
    messages.get(at.message).map_or("", |message| text_in_message(message, at))
}

/// The text at a place in a message.
pub(crate) fn text_in_message<'m>(message: &'m Message<'_>, at: PartId) -> &'m str {
    match (message.parts.get(at.part), at.inner) {
        (Some(Part::Text { text }), None) => text,
        (Some(Part::Reasoning(it)), None) => &it.text,
        (Some(Part::ToolCall(it)), None) => it.arguments.as_str(),
        (Some(Part::ToolResult(it)), Some(inner)) => it.content.get(inner).and_then(Part::as_text).unwrap_or_default(),
        _ => "",
    }
}

/// The calls whose results may still come, by id, with their message.
pub(crate) type PendingCalls = HashMap<String, (Arc<ToolCallInfo>, usize)>;

/// The pieces of a message, in order.
pub(crate) fn message_segments(
    at: usize,
    message: &Message<'_>,
    call: u32,
    open: &mut PendingCalls,
    meter: &Meter,
) -> Vec<Segment> {
    let mut pieces = Vec::new();
    let piece = |at: PartId, class: SegmentKind, text: &str, tokens: Tokens| Segment {
        at,
        kind: class,
        tokens,
        call_index: call,
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
                let class = if message.role == Role::Assistant { SegmentKind::Prose } else { SegmentKind::InputText };
                pieces.push(piece(id, class, text, meter.text(text)));
            }
            Part::Reasoning(it) => pieces.push(piece(id, SegmentKind::Reasoning, &it.text, meter.part(part))),
            Part::ToolCall(it) => {
                let call = xxhash_rust::xxh3::xxh3_64(it.arguments.as_str().as_bytes());
                let call = xxhash_rust::xxh3::xxh3_64_with_seed(it.name.as_bytes(), call);
                let done = Arc::new(ToolCallInfo {
                    tool: it.name.to_string(),
                    action: ToolAction::from_call(it),
                    call_hash: call,
                });
                open.insert(it.id.to_string(), (done.clone(), at));
                let text = it.arguments.as_str();
                pieces.push(Segment {
                    tool_call: Some(done),
                    ..piece(id, SegmentKind::Arguments, text, meter.text(text))
                });
            }
            Part::ToolResult(it) => {
                let deed = open.get(it.call_id.as_ref()).map(|(done, _)| done.clone());
                for (inner, part) in it.content.iter().enumerate() {
                    let (id, deed) = (id.inner(inner), deed.clone());
                    match part {
                        Part::Text { text } => {
                            let asks = !it.is_error && !deed.as_ref().is_some_and(|done| done.action.is_read_only());
                            let (failed, kind) =
                                if asks { text_kind::detect_failure(text) } else { (it.is_error, None) };
                            let piece = piece(id, SegmentKind::Result, text, 0);
                            let (tokens, lines) = meter.text_and_line_counts(text, piece.text_hash);
                            pieces.push(Segment {
                                tokens,
                                tool_call: deed,
                                failed,
                                text_kind: kind,
                                line_counts: lines,
                                ..piece
                            });
                        }
                        Part::Image(_) | Part::File(_) => {
                            pieces.push(Segment {
                                tool_call: deed,
                                ..piece(id, SegmentKind::Media, "", meter.part(part))
                            });
                        }
                        _ => {}
                    }
                }
            }
            Part::Image(_) | Part::File(_) => pieces.push(piece(id, SegmentKind::Media, "", meter.part(part))),
            _ => {}
        }
    }
    pieces
}

/// The tokens of a message beside those of its pieces.
pub(crate) fn overhead_tokens(message: &Message<'_>, meter: &Meter) -> Tokens {
    let of_part = |part: &Part<'_>| match part {
        Part::Text { .. } | Part::Reasoning(_) | Part::Image(_) | Part::File(_) => 0,
        Part::ToolCall(call) => meter.call_overhead(call),
        Part::ToolResult(result) => {
            let is_piece = |part: &&Part<'_>| matches!(part, Part::Text { .. } | Part::Image(_) | Part::File(_));
            result.content.iter().filter(|part| !is_piece(part)).map(|part| meter.part(part)).sum()
        }
        Part::Opaque(_) => meter.part(part),
    };
    message.parts.iter().map(of_part).sum::<Tokens>() + meter.message_overhead()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the arguments and the result of a call are left whole for long.
    fn kept_longer(tool: &'static str, arguments: &'static str, result: &'static str) -> [bool; 2] {
        let call = Message::new(Role::Assistant, vec![Part::call("c", tool, arguments)]);
        let answer = Message::new(Role::Tool, vec![Part::result("c", result)]);
        let (mut open, meter) = (PendingCalls::new(), Meter::for_byte_estimate());
        [call, answer].map(|message| message_segments(0, &message, 0, &mut open, &meter)[0].is_kept_longer())
    }

    /// An edit quotes what was read, what an edit before it wrote, and what was shown of that.
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
