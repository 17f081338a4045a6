//! Pieces: the texts of a conversation that can be folded, with what is known of each at first sight.
//!
//! Nothing here holds text. A piece is some hundred bytes, and two for each line that may be cut, so that the state of a
//! conversation can be kept for every live session, while the text comes with each request.

use std::collections::HashMap;
use std::sync::Arc;

use crate::content::{self, Kind};
use crate::conversation::{Message, Part, PartId, Role};
use crate::deed::{Act, Deed};
use crate::measure::{LineCounts, Meter, Tokens};
use crate::pass::again::Hashes;

/// A text that can be folded.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) at: PartId,
    pub(crate) class: Class,
    pub(crate) tokens: Tokens,
    /// How many calls had been made when it came.
    pub(crate) call: u32,
    /// Hash of its text.
    pub(crate) hash: u128,
    /// The call that it belongs to: its own, or the one that it answers.
    pub(crate) deed: Option<Arc<Done>>,
    /// It reports that something went wrong.
    pub(crate) failed: bool,
    /// A later call says it better.
    pub(crate) outdated: bool,
    /// A line of it was said by an earlier result.
    pub(crate) echoes: bool,
    /// A line of it was said again by a later result.
    pub(crate) said_again: bool,
    /// The lines of it, if one of them was said twice, until it is cut.
    pub(crate) hashes: Option<Hashes>,
    /// Prose that says something without words: blank lines, dots.
    pub(crate) noisy: bool,
    /// What the text is, if that was asked already.
    pub(crate) kind: Option<Kind>,
    /// What the lines of a long result add to its tokens.
    pub(crate) lines: Option<LineCounts>,
}

/// Foldable pieces smaller than this do not count as grown old.
pub(crate) const WORTH_COUNTING: Tokens = 60;

/// What a piece is, as far as folding is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Instructions and what a user said: verbatim until nothing else is left.
    Said,
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
pub(crate) struct Done {
    pub(crate) tool: String,
    pub(crate) deed: Deed,
    /// Hash of its tool and its arguments: two equal calls have one.
    pub(crate) call: u64,
}

impl Done {
    /// The call in a few words, for markers.
    pub(crate) fn words(&self) -> String {
        let target = self.deed.target.lines().next().unwrap_or_default();
        if target.is_empty() { self.tool.clone() } else { format!("{} {target}", self.tool) }
    }
}

impl Piece {
    /// The call in a few words, or what the piece is.
    pub(crate) fn words(&self) -> String {
        match (&self.deed, self.class) {
            (Some(done), Class::Arguments) => format!("arguments of {}", done.words()),
            (Some(done), _) => done.words(),
            (None, Class::Prose) => "assistant text".to_owned(),
            (None, Class::Said) => "user text".to_owned(),
            (None, _) => "text".to_owned(),
        }
    }

    /// Whether a crease is looked for because of such pieces, once they are old.
    pub(crate) fn counts_when_old(&self) -> bool {
        let foldable = matches!(self.class, Class::Result | Class::Arguments | Class::Reasoning);
        foldable && self.tokens > WORTH_COUNTING
    }

    /// Whether it is left whole for long, while it is the newest of its kind: what shows a file that may be edited, and
    /// what went wrong.
    pub(crate) fn stays(&self) -> bool {
        self.is_read() || self.is_of_change() || self.failed && self.class == Class::Result
    }

    /// Whether it shows what was written to a file: an edit quotes the one before it as often as it quotes a read.
    fn is_of_change(&self) -> bool {
        let changes = |act| matches!(act, Act::Edit | Act::Write);
        matches!(self.class, Class::Result | Class::Arguments)
            && self.deed.as_ref().is_some_and(|done| changes(done.deed.act))
    }

    /// Whether it shows a file.
    pub(crate) fn is_read(&self) -> bool {
        self.class == Class::Result && self.deed.as_ref().is_some_and(|done| done.deed.act == Act::Read)
    }
}

/// The text at a place; nothing where there is none.
pub(crate) fn text<'m>(messages: &'m [Message<'_>], at: PartId) -> &'m str {
    messages.get(at.message).map_or("", |message| text_of(message, at))
}

/// The text at a place in a message.
pub(crate) fn text_of<'m>(message: &'m Message<'_>, at: PartId) -> &'m str {
    match (message.parts.get(at.part), at.inner) {
        (Some(Part::Text { text }), None) => text,
        (Some(Part::Reasoning(it)), None) => &it.text,
        (Some(Part::ToolCall(it)), None) => it.arguments.as_str(),
        (Some(Part::ToolResult(it)), Some(inner)) => it.content.get(inner).and_then(Part::as_text).unwrap_or_default(),
        _ => "",
    }
}

/// The calls whose results may still come, by id, with their message.
pub(crate) type Open = HashMap<String, (Arc<Done>, usize)>;

/// The pieces of a message, in order.
pub(crate) fn pieces(at: usize, message: &Message<'_>, call: u32, open: &mut Open, meter: &Meter) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let piece = |at: PartId, class: Class, text: &str, tokens: Tokens| Piece {
        at,
        class,
        tokens,
        call,
        hash: xxhash_rust::xxh3::xxh3_128(text.as_bytes()),
        deed: None,
        failed: false,
        outdated: false,
        echoes: false,
        said_again: false,
        hashes: None,
        noisy: false,
        kind: None,
        lines: None,
    };
    for (index, part) in message.parts.iter().enumerate() {
        let id = PartId::new(at, index);
        match part {
            Part::Text { text } => {
                let class = if message.role == Role::Assistant { Class::Prose } else { Class::Said };
                pieces.push(piece(id, class, text, meter.text(text)));
            }
            Part::Reasoning(it) => pieces.push(piece(id, Class::Reasoning, &it.text, meter.part(part))),
            Part::ToolCall(it) => {
                let call = xxhash_rust::xxh3::xxh3_64(it.arguments.as_str().as_bytes());
                let call = xxhash_rust::xxh3::xxh3_64_with_seed(it.name.as_bytes(), call);
                let done = Arc::new(Done { tool: it.name.to_string(), deed: Deed::of(it), call });
                open.insert(it.id.to_string(), (done.clone(), at));
                let text = it.arguments.as_str();
                pieces.push(Piece { deed: Some(done), ..piece(id, Class::Arguments, text, meter.text(text)) });
            }
            Part::ToolResult(it) => {
                let deed = open.get(it.call_id.as_ref()).map(|(done, _)| done.clone());
                for (inner, part) in it.content.iter().enumerate() {
                    let (id, deed) = (id.inner(inner), deed.clone());
                    match part {
                        Part::Text { text } => {
                            let asks = !it.is_error && !deed.as_ref().is_some_and(|done| done.deed.is_look());
                            let (failed, kind) = if asks { content::failure(text) } else { (it.is_error, None) };
                            let piece = piece(id, Class::Result, text, 0);
                            let (tokens, lines) = meter.by_lines(text, piece.hash);
                            pieces.push(Piece { tokens, deed, failed, kind, lines, ..piece });
                        }
                        Part::Image(_) | Part::File(_) => {
                            pieces.push(Piece { deed, ..piece(id, Class::Media, "", meter.part(part)) });
                        }
                        _ => {}
                    }
                }
            }
            Part::Image(_) | Part::File(_) => pieces.push(piece(id, Class::Media, "", meter.part(part))),
            _ => {}
        }
    }
    pieces
}

/// The tokens of a message beside those of its pieces.
pub(crate) fn tokens_beside(message: &Message<'_>, meter: &Meter) -> Tokens {
    let of_part = |part: &Part<'_>| match part {
        Part::Text { .. } | Part::Reasoning(_) | Part::Image(_) | Part::File(_) => 0,
        Part::ToolCall(call) => meter.call(call),
        Part::ToolResult(result) => {
            let is_piece = |part: &&Part<'_>| matches!(part, Part::Text { .. } | Part::Image(_) | Part::File(_));
            result.content.iter().filter(|part| !is_piece(part)).map(|part| meter.part(part)).sum()
        }
        Part::Opaque(_) => meter.part(part),
    };
    message.parts.iter().map(of_part).sum::<Tokens>() + meter.per_message()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the arguments and the result of a call are left whole for long.
    fn stay(tool: &'static str, arguments: &'static str, result: &'static str) -> [bool; 2] {
        let call = Message::new(Role::Assistant, vec![Part::call("c", tool, arguments)]);
        let answer = Message::new(Role::Tool, vec![Part::result("c", result)]);
        let (mut open, meter) = (Open::new(), Meter::by_bytes());
        [call, answer].map(|message| pieces(0, &message, 0, &mut open, &meter)[0].stays())
    }

    /// An edit quotes what was read, what an edit before it wrote, and what was shown of that.
    #[test]
    fn what_shows_a_file_stays_for_long() {
        let change = r#"{"path":"a.rs","old_string":"let a = 1;","new_string":"let a = 2;"}"#;
        assert_eq!(stay("edit_file", change, "1  let a = 2;"), [true, true]);
        assert_eq!(stay("write_file", r#"{"path":"a.rs","content":"let a = 2;"}"#, "written"), [true, true]);
        assert_eq!(stay("read_file", r#"{"path":"a.rs"}"#, "let a = 1;"), [false, true]);
    }

    #[test]
    fn what_a_command_says_stays_for_long_only_if_it_failed() {
        assert_eq!(stay("bash", r#"{"command":"make"}"#, "all is well"), [false, false]);
        assert_eq!(stay("bash", r#"{"command":"make"}"#, "Exit code 2\nerror: no rule"), [false, true]);
        assert_eq!(stay("grep", r#"{"pattern":"value"}"#, "a.rs:1:let value = 1;"), [false, false]);
    }
}
