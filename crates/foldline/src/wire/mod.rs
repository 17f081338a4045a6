//! Request bodies of the three APIs, bytes to conversation and back with edits; and their responses.
//!
//! Only this module knows a provider's JSON. A body is read into a [`Conversation`] that borrows
//! from it, together with the places of everything that may be edited; [`Request::splice`] writes
//! the edits and copies every other byte: unknown fields, key order, number spelling, duplicate
//! keys and white space all survive, and no edit gives back the very bytes.
//!
//! A [`Response`] is read from a body, or by a [`StreamReader`] while its stream passes; a
//! [`Refusal`] says whether a prompt was too large; a [`Splicer`] lets a tool of ours be answered
//! inside the client's stream.

mod anthropic;
mod draft;
mod hidden;
mod layout;
mod openai_chat;
mod openai_responses;
mod overflow;
mod response;
pub(crate) mod scan;
mod splice;
mod sse;
#[cfg(test)]
mod tests;
mod write;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::conversation::{Conversation, Message, Part, PartId, Role, Tool};
use crate::error::Error;
pub(crate) use crate::literal::encode;
use layout::{Layout, ListName, Share, Slot, Tools};
use scan::Scanner;

pub use draft::{Draft, OwnTool};
pub use hidden::{
    AnswerEnd, Asked, BodySplicer, Broken, Finished, Gap, HiddenCall, Next, NextBody, Offer, ReportedId, Splicer,
};
pub use overflow::{Bounds, Count, Evidence, Lesson, Overflow, Refusal};
pub use response::{
    ApiError, Event, Extent, Limits, Place, PromptAndWindow, Response, Step, Stop, StopReason, StreamReader,
    Unreadable, Usage,
};
pub use scan::MAX_DEPTH;
pub(crate) use scan::{Field, Object, Span, Value, document, strings};
pub use splice::Edit;
pub use sse::{Ending, Frame, Framer, MAX_EVENT};

/// The dialects that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// OpenAI Chat Completions, and the many servers that speak it.
    #[serde(rename = "openai-chat")]
    OpenAiChat,
    /// OpenAI Responses.
    #[serde(rename = "openai-responses")]
    OpenAiResponses,
    /// Anthropic Messages.
    Anthropic,
}

/// A request body, read.
///
/// ```
/// use foldline::wire::{Edit, Format, Request};
/// use foldline::PartId;
///
/// let body = br#"{ "model": "gpt-4o", "messages": [ {"role":"user", "content":"hi"} ], "x": 1e9 }"#;
/// let request = Request::parse(Format::OpenAiChat, body)?;
/// assert_eq!(*request.splice(&[])?, *body);
///
/// let edited = request.splice(&[Edit::Text { at: PartId::new(0, 0), text: "hello".into() }])?;
/// assert_eq!(*edited, *br#"{ "model": "gpt-4o", "messages": [ {"role":"user", "content":"hello"} ], "x": 1e9 }"#);
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    format: Format,
    body: &'a str,
    conversation: Conversation<'a>,
    layout: Layout,
    top: Object<'a>,
    /// A tool of ours, which every splice appends.
    offered: Option<Edit>,
}

impl Format {
    /// Guesses the dialect of a body from what only one of them has; Chat Completions when nothing
    /// tells. `None` when the body is not a JSON object or array.
    pub fn recognise(body: &[u8]) -> Option<Format> {
        let document = scan::document(text(body).ok()?).ok()?;
        let top = match (document.is_object(), document.is_array()) {
            (true, _) => document.object(),
            (_, true) => Object::new(document, Vec::new()),
            _ => return None,
        };
        let has = |key: &str| top.get(key).is_some();
        if !has("messages") && (has("input") || has("instructions")) {
            return Some(Format::OpenAiResponses);
        }
        if has("system") || has("anthropic_version") || has("stop_sequences") || has("thinking") && has("max_tokens") {
            return Some(Format::Anthropic);
        }
        let messages = top.get("messages").unwrap_or(document).elements();
        messages.iter().find_map(Self::of_message).or_else(|| {
            let of_anthropic = top.elements("tools").iter().any(|tool| tool.get("input_schema").is_some());
            Some(if of_anthropic { Format::Anthropic } else { Format::OpenAiChat })
        })
    }

    fn of_message(message: &Object<'_>) -> Option<Format> {
        let role = message.string("role");
        match (message.string("type").as_deref(), role.as_deref()) {
            (Some("message"), Some(_)) | (Some(_), None) => return Some(Format::OpenAiResponses),
            (_, Some("tool" | "developer" | "function")) => return Some(Format::OpenAiChat),
            _ if message.get("tool_calls").is_some() => return Some(Format::OpenAiChat),
            _ => {}
        }
        message.elements("content").iter().find_map(|block| match block.string("type").as_deref() {
            Some("tool_use" | "tool_result" | "thinking" | "redacted_thinking" | "image" | "document") => {
                Some(Format::Anthropic)
            }
            Some("input_text" | "output_text" | "input_image") => Some(Format::OpenAiResponses),
            Some("image_url" | "input_audio" | "file") => Some(Format::OpenAiChat),
            _ => None,
        })
    }

    /// The name as flags and settings spell it.
    pub fn name(self) -> &'static str {
        match self {
            Format::OpenAiChat => "openai-chat",
            Format::OpenAiResponses => "openai-responses",
            Format::Anthropic => "anthropic",
        }
    }
}

impl<'a> Request<'a> {
    /// Reads a body. A bare array is read as the list of messages alone, as recordings have it.
    pub fn parse(format: Format, body: &'a [u8]) -> Result<Self, Error> {
        if body.len() > layout::MAX_BODY {
            return Err(Error::too_long(layout::MAX_BODY));
        }
        let body = text(body)?;
        let mut scanner = Scanner::new(body);
        let mut messages = None;
        let top = match scanner.opening() {
            Some(b'[') => {
                let list = Messages::read(format, &mut scanner)?;
                let value = list.value;
                messages = Some(list);
                Object::new(value, Vec::new())
            }
            Some(b'{') => scanner.object(|key, scanner| {
                if key == messages_key(format) {
                    messages = Some(Messages::read(format, scanner)?);
                } else {
                    scanner.value()?;
                }
                Ok(None)
            })?,
            _ => {
                scanner.value()?;
                scanner.end()?;
                return Err(Error::not_a_request("neither an object nor a list of messages"));
            }
        };
        scanner.end()?;
        let Some(messages) = messages else {
            return Err(Error::not_a_request(format_args!("no \"{}\" in it", messages_key(format))));
        };
        let Messages { messages, mut layout, .. } = messages;
        let tools = top.elements("tools");
        if let Some(value) = top.get("tools").filter(|value| value.is_array()) {
            let elements = tools.iter().map(|tool| tool.value.span).collect();
            layout.tools = Some(Tools { inside: value.span.start + 1, elements });
        }
        let conversation = Conversation {
            model: top.string("model"),
            system: match format {
                Format::OpenAiChat => Vec::new(),
                Format::OpenAiResponses => standing(&top, "instructions", openai_responses::standing_part),
                Format::Anthropic => standing(&top, "system", anthropic::standing_part),
            },
            tools: tools.iter().map(tool).collect(),
            messages,
        };
        Ok(Request { format, body, conversation, layout, top, offered: None })
    }

    /// The dialect.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The body that was read.
    pub fn body(&self) -> &'a str {
        self.body
    }

    /// The conversation in it.
    pub fn conversation(&self) -> &Conversation<'a> {
        &self.conversation
    }

    /// The JSON text of a top-level field.
    pub fn field(&self, key: &str) -> Option<&'a str> {
        self.top.get(key).map(Value::raw)
    }

    /// The JSON text of a message.
    pub fn raw_message(&self, at: usize) -> Option<&'a str> {
        self.message_value(at).map(Value::raw)
    }

    /// How many tokens of answer the client asks for at most.
    pub fn max_output(&self) -> Option<u64> {
        ["max_completion_tokens", "max_output_tokens", "max_tokens"]
            .iter()
            .find_map(|key| self.top.get(key).and_then(Value::u64))
    }

    /// Whether the client wants a stream.
    pub fn stream(&self) -> bool {
        self.top.get("stream").and_then(Value::bool).unwrap_or(false)
    }

    /// Whether the provider holds the history and this body carries only the newest messages
    /// (`previous_response_id`, `conversation`, item references, a continued thread). There is
    /// nothing to fold in it, and pairs look broken that are not.
    pub fn is_continuation(&self) -> bool {
        let set = |key: &str| self.top.get(key).is_some_and(|value| !value.is_null());
        match self.format {
            Format::OpenAiChat => false,
            Format::OpenAiResponses => {
                let refers = |message: &Message<'_>| {
                    message.parts.iter().any(|part| matches!(part, Part::Opaque(it) if it.kind == "item_reference"))
                };
                set("previous_response_id") || set("conversation") || self.conversation.messages.iter().any(refers)
            }
            Format::Anthropic => {
                self.top.object("thread").is_some_and(|it| it.string("type").as_deref() == Some("continue"))
            }
        }
    }

    /// The answer that this request goes on from, where the provider holds it.
    pub fn previous_response(&self) -> Option<Cow<'a, str>> {
        self.top.string("previous_response_id").filter(|_| self.format == Format::OpenAiResponses)
    }

    /// Whether the provider keeps the answer, so that a later request may refer to it by its id. Responses
    /// are kept unless the client says otherwise.
    pub fn is_stored(&self) -> bool {
        self.format == Format::OpenAiResponses && self.top.get("store").and_then(Value::bool) != Some(false)
    }

    /// The fields of the body beside the messages.
    pub(crate) fn top(&self) -> &Object<'a> {
        &self.top
    }

    /// The message (or item) as it stands in the body.
    pub(crate) fn message_value(&self, at: usize) -> Option<Value<'a>> {
        Some(Value { body: self.body, span: self.layout.message(at)? })
    }

    /// A field of a message, found without another scan of the message.
    pub(crate) fn message_field(&self, at: usize, key: &str) -> Option<Value<'a>> {
        let fields = self.layout.list(at, ListName::Fields)?;
        fields.elements().rev().find_map(|span| scan::value_of(self.body, span, key))
    }

    /// The block of a part, where the part is an element of one of its message's lists.
    pub(crate) fn block(&self, at: PartId) -> Option<Value<'a>> {
        let element = self.layout.part(at.message, at.part)?.element?;
        let list = self.layout.list(at.message, element.list).filter(|_| element.list != ListName::Fields)?;
        Some(Value { body: self.body, span: list.elements().nth(element.index())? })
    }

    /// Whether the content of a result is a plain string, not a list.
    pub(crate) fn is_plain_result(&self, at: PartId) -> bool {
        let part = self.layout.part(at.message, at.part);
        part.is_some_and(
            |part| matches!((part.slot, part.inner), (Slot::Text(whole), [Slot::Text(text)]) if whole == *text),
        )
    }

    /// Whether the arguments of a call are a string.
    pub(crate) fn has_text_arguments(&self, at: PartId) -> bool {
        self.layout
            .part(at.message, at.part)
            .is_some_and(|part| matches!(part.slot, Slot::JsonInText(_) | Slot::FreeArguments(_)))
    }

    /// The message in which a byte of the body stands.
    pub(crate) fn message_at(&self, byte: usize) -> Option<usize> {
        self.layout.message_at(byte)
    }

    /// Writes the edits, and the tool that is offered, and copies every other byte. Where nothing changes it is the body
    /// itself.
    pub fn splice(&self, edits: &[Edit]) -> Result<Cow<'a, [u8]>, Error> {
        splice::splice(self.body, self.format, &self.layout, edits.iter().chain(&self.offered))
    }
}

/// The list of messages, read.
struct Messages<'a> {
    value: Value<'a>,
    messages: Vec<Message<'a>>,
    layout: Layout,
}

impl<'a> Messages<'a> {
    fn read(format: Format, scanner: &mut Scanner<'a>) -> Result<Self, Error> {
        let mut messages = Vec::new();
        let mut layout = Layout::default();
        if format == Format::OpenAiResponses && scanner.opening() == Some(b'"') {
            let value = scanner.value()?;
            messages.push(openai_responses::lone_text(value, &mut layout));
            return Ok(Self { value, messages, layout });
        }
        if scanner.opening() != Some(b'[') {
            scanner.value()?;
            return Err(Error::not_a_request(format_args!("\"{}\" is not a list", messages_key(format))));
        }
        let enter = match format {
            Format::OpenAiChat => openai_chat::ENTER,
            Format::OpenAiResponses => openai_responses::ENTER,
            Format::Anthropic => anthropic::ENTER,
        };
        let start = scanner.rest();
        let value = scanner.array(|scanner| {
            // The first few say little about the rest.
            if messages.len() == messages.capacity() && messages.len() >= 64 {
                let share = Share { read: start - scanner.rest(), left: scanner.rest() };
                share.make_room(&mut messages);
                layout.make_room(share);
            }
            let element = scanner.element(enter)?;
            if !element.value.is_object() {
                return Err(Error::not_a_request(format_args!("message {} is not an object", messages.len())));
            }
            messages.push(read(format, &element, &mut layout));
            scanner.reuse(element);
            Ok(())
        })?;
        layout.inside = Some(value.span.start + 1);
        Ok(Self { value, messages, layout })
    }
}

fn read<'a>(format: Format, element: &Object<'a>, layout: &mut Layout) -> Message<'a> {
    match format {
        Format::OpenAiChat => openai_chat::message(element, layout),
        Format::OpenAiResponses => openai_responses::message(element, layout),
        Format::Anthropic => anthropic::message(element, layout),
    }
}

/// One message or item by itself, as session logs hold it.
pub(crate) fn message<'a>(format: Format, element: &Object<'a>) -> Message<'a> {
    read(format, element, &mut Layout::default())
}

/// The bytes as text. What other languages write (and every arrow and quotation mark) slows the standard library's check
/// to a share of a request's time that can be seen (docs/decisions/0001); only for where it fails is it asked.
fn text(body: &[u8]) -> Result<&str, Error> {
    simdutf8::basic::from_utf8(body).map_err(|_| {
        let at = std::str::from_utf8(body).map_or_else(|error| error.valid_up_to(), str::len);
        Error::not_json(at, "text that is not UTF-8")
    })
}

fn messages_key(format: Format) -> &'static str {
    match format {
        Format::OpenAiChat | Format::Anthropic => "messages",
        Format::OpenAiResponses => "input",
    }
}

/// Instructions that stand outside the messages, as a string or as blocks.
fn standing<'a>(top: &Object<'a>, key: &str, part: impl Fn(&Object<'a>) -> Part<'a>) -> Vec<Part<'a>> {
    match top.text(key) {
        Some(text) => vec![Part::text(text)],
        None => top.elements(key).iter().map(part).collect(),
    }
}

pub(crate) fn tool<'a>(declaration: &Object<'a>) -> Tool<'a> {
    let named = ["function", "custom"].iter().find_map(|key| declaration.object(key));
    let name = named.as_ref().unwrap_or(declaration).string("name");
    Tool { name: name.unwrap_or_default(), definition: Cow::Borrowed(declaration.value.raw()) }
}

/// A role by its name on the wire.
fn role(name: Option<&str>) -> Role {
    match name {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        _ => Role::Other,
    }
}
