//! Request bodies and responses of the three provider APIs: parsing, editing and streaming.
//!
//! Only this module knows a provider's JSON. A body is parsed into a [`Conversation`] that borrows from it, together
//! with the byte positions of everything that may be edited. [`Request::splice`] writes the edits and copies every
//! other byte: unknown fields, key order, number spelling, duplicate keys and white space are preserved, and without
//! edits the result is identical to the input. A body is never re-serialized.
//!
//! A [`Response`] is parsed from a body, or by a [`StreamReader`] while the stream is forwarded; a [`RequestRejection`]
//! states whether a prompt was too large; a [`StreamSplicer`] answers calls of an injected tool inside the client's
//! stream.

pub(crate) mod compose;
pub(crate) mod dialect;
pub(crate) mod intercept;
pub(crate) mod json;
mod response;
mod sse;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::conversation::{Conversation, Message, Part, PartId, Role, ToolDefinition};
use crate::error::Error;
use crate::wire::json::layout::{BodyLayout, EditSlot, ListName, ReadProgress, ToolsLayout};
use crate::wire::json::scan::JsonScanner;
pub(crate) use crate::wire::json::string::encode;

pub use crate::wire::compose::{OutgoingRequest, ToolSpec};
pub use crate::wire::intercept::{
    AnswerEnd, BodyOutcome, BodySplicer, FinishedAnswer, HiddenCall, HiddenRound, InjectedTool, InterceptedCalls,
    InterruptedRound, ReportedId, RoundOutcome, StreamSplicer,
};
pub use crate::wire::json::scan::MAX_JSON_DEPTH;
pub(crate) use crate::wire::json::scan::{ByteSpan, JsonField, JsonObject, JsonValue, parse_document, string_values};
pub use crate::wire::json::splice::RequestEdit;
pub use crate::wire::response::overflow::{
    ContextOverflow, LearnedLimit, LimitScope, OverflowEvidence, ReportedTokens, RequestRejection,
};
pub use response::{
    ApiError, OutputPosition, PromptAndWindow, Response, ResponseExtent, StopInfo, StopReason, StreamEvent,
    StreamLimits, StreamReader, StreamStep, UnreadableFrame, Usage,
};
pub use sse::{FrameEnd, MAX_EVENT_BYTES, SseFrame, SseFramer};

/// A provider's wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// OpenAI Chat Completions, and the many servers that implement it.
    #[serde(rename = "openai-chat")]
    OpenAiChat,
    /// OpenAI Responses.
    #[serde(rename = "openai-responses")]
    OpenAiResponses,
    /// Anthropic Messages.
    Anthropic,
}

/// A parsed request body.
///
/// ```
/// use foldline::wire::{Format, Request, RequestEdit};
/// use foldline::PartId;
///
/// let body = br#"{ "model": "gpt-4o", "messages": [ {"role":"user", "content":"hi"} ], "x": 1e9 }"#;
/// let request = Request::parse(Format::OpenAiChat, body)?;
/// assert_eq!(*request.splice(&[])?, *body);
///
/// let edited = request.splice(&[RequestEdit::Text { at: PartId::new(0, 0), text: "hello".into() }])?;
/// assert_eq!(*edited, *br#"{ "model": "gpt-4o", "messages": [ {"role":"user", "content":"hello"} ], "x": 1e9 }"#);
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    format: Format,
    body: &'a str,
    conversation: Conversation<'a>,
    layout: BodyLayout,
    top_level: JsonObject<'a>,
    /// The injected tool, which every splice appends.
    injected_tool: Option<RequestEdit>,
}

impl Format {
    /// Detects the dialect of a body from fields that only one dialect has, and falls back to Chat Completions. Returns
    /// `None` if the body is not a JSON object or array.
    pub fn detect(body: &[u8]) -> Option<Format> {
        let document = crate::wire::json::scan::parse_document(utf8_text(body).ok()?).ok()?;
        let top = match (document.is_object(), document.is_array()) {
            (true, _) => document.object(),
            (_, true) => JsonObject::new(document, Vec::new()),
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
        messages.iter().find_map(Self::detect_from_message).or_else(|| {
            let is_anthropic = top.elements("tools").iter().any(|tool| tool.get("input_schema").is_some());
            Some(if is_anthropic { Format::Anthropic } else { Format::OpenAiChat })
        })
    }

    fn detect_from_message(message: &JsonObject<'_>) -> Option<Format> {
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

    /// Returns the name used in flags and settings.
    pub fn name(self) -> &'static str {
        match self {
            Format::OpenAiChat => "openai-chat",
            Format::OpenAiResponses => "openai-responses",
            Format::Anthropic => "anthropic",
        }
    }
}

impl<'a> Request<'a> {
    /// Parses a body. A bare array, as found in recordings, is parsed as the list of messages.
    pub fn parse(format: Format, body: &'a [u8]) -> Result<Self, Error> {
        if body.len() > crate::wire::json::layout::MAX_BODY_BYTES {
            return Err(Error::too_long(crate::wire::json::layout::MAX_BODY_BYTES));
        }
        let body = utf8_text(body)?;
        let mut scanner = JsonScanner::new(body);
        let mut messages = None;
        let top_level = match scanner.peek_value_start() {
            Some(b'[') => {
                let list = ParsedMessages::parse(format, &mut scanner)?;
                let value = list.value;
                messages = Some(list);
                JsonObject::new(value, Vec::new())
            }
            Some(b'{') => scanner.read_object(|key, scanner| {
                if key == messages_key(format) {
                    messages = Some(ParsedMessages::parse(format, scanner)?);
                } else {
                    scanner.read_value()?;
                }
                Ok(None)
            })?,
            _ => {
                scanner.read_value()?;
                scanner.expect_end()?;
                return Err(Error::not_a_request("expected an object or a list of messages"));
            }
        };
        scanner.expect_end()?;
        let Some(messages) = messages else {
            return Err(Error::not_a_request(format_args!("field \"{}\" is missing", messages_key(format))));
        };
        let ParsedMessages { messages, mut layout, .. } = messages;
        let tools = top_level.elements("tools");
        if let Some(value) = top_level.get("tools").filter(|value| value.is_array()) {
            let elements = tools.iter().map(|tool| tool.value.span).collect();
            layout.tools = Some(ToolsLayout { list_start: value.span.start + 1, elements });
        }
        let conversation = Conversation {
            model: top_level.string("model"),
            system: match format {
                Format::OpenAiChat => Vec::new(),
                Format::OpenAiResponses => instruction_parts(
                    &top_level,
                    "instructions",
                    crate::wire::dialect::openai_responses::request::block_part,
                ),
                Format::Anthropic => {
                    instruction_parts(&top_level, "system", crate::wire::dialect::anthropic::request::block_part)
                }
            },
            tools: tools.iter().map(parse_tool).collect(),
            messages,
        };
        Ok(Request { format, body, conversation, layout, top_level, injected_tool: None })
    }

    /// Returns the dialect.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the original body.
    pub fn body(&self) -> &'a str {
        self.body
    }

    /// Returns the parsed conversation.
    pub fn conversation(&self) -> &Conversation<'a> {
        &self.conversation
    }

    /// Returns the JSON text of a top-level field.
    pub fn field(&self, key: &str) -> Option<&'a str> {
        self.top_level.get(key).map(JsonValue::raw)
    }

    /// Returns the JSON text of a message.
    pub fn raw_message(&self, at: usize) -> Option<&'a str> {
        self.message_value(at).map(JsonValue::raw)
    }

    /// Returns the maximum number of output tokens that the client requested.
    pub fn max_output_tokens(&self) -> Option<u64> {
        ["max_completion_tokens", "max_output_tokens", "max_tokens"]
            .iter()
            .find_map(|key| self.top_level.get(key).and_then(JsonValue::u64))
    }

    /// Returns true if the client requested a stream.
    pub fn is_streaming(&self) -> bool {
        self.top_level.get("stream").and_then(JsonValue::bool).unwrap_or(false)
    }

    /// Returns true if the provider stores the history and this body contains only the newest messages
    /// (`previous_response_id`, `conversation`, item references, a continued thread). Such a body has nothing to fold,
    /// and its call/result pairs look broken although they are not.
    pub fn is_continuation(&self) -> bool {
        let set = |key: &str| self.top_level.get(key).is_some_and(|value| !value.is_null());
        match self.format {
            Format::OpenAiChat => false,
            Format::OpenAiResponses => {
                let refers = |message: &Message<'_>| {
                    message.parts.iter().any(|part| matches!(part, Part::Opaque(item) if item.kind == "item_reference"))
                };
                set("previous_response_id") || set("conversation") || self.conversation.messages.iter().any(refers)
            }
            Format::Anthropic => {
                self.top_level.object("thread").is_some_and(|item| item.string("type").as_deref() == Some("continue"))
            }
        }
    }

    /// Returns the id of the response that this request continues, where the provider stores it.
    pub fn previous_response_id(&self) -> Option<Cow<'a, str>> {
        self.top_level.string("previous_response_id").filter(|_| self.format == Format::OpenAiResponses)
    }

    /// Returns true if the provider stores the response, so that a later request may refer to it by id. Responses are
    /// stored unless the client sets `store` to false.
    pub fn is_stored(&self) -> bool {
        self.format == Format::OpenAiResponses && self.top_level.get("store").and_then(JsonValue::bool) != Some(false)
    }

    /// Returns the fields of the body.
    pub(crate) fn top_level(&self) -> &JsonObject<'a> {
        &self.top_level
    }

    /// Returns the JSON value of a message (or item).
    pub(crate) fn message_value(&self, at: usize) -> Option<JsonValue<'a>> {
        Some(JsonValue { body: self.body, span: self.layout.message(at)? })
    }

    /// Returns a field of a message without scanning the message again.
    pub(crate) fn message_field(&self, at: usize, key: &str) -> Option<JsonValue<'a>> {
        let fields = self.layout.list(at, ListName::Fields)?;
        fields.elements().rev().find_map(|span| crate::wire::json::scan::field_value(self.body, span, key))
    }

    /// Returns the block of a part, if the part is an element of one of its message's lists.
    pub(crate) fn block(&self, at: PartId) -> Option<JsonValue<'a>> {
        let element = self.layout.part(at.message, at.part)?.element?;
        let list = self.layout.list(at.message, element.list).filter(|_| element.list != ListName::Fields)?;
        Some(JsonValue { body: self.body, span: list.elements().nth(element.index())? })
    }

    /// Returns true if the content of a result is a plain string, not a list.
    pub(crate) fn is_string_result(&self, at: PartId) -> bool {
        let part = self.layout.part(at.message, at.part);
        part.is_some_and(
            |part| matches!((part.slot, part.inner), (EditSlot::Text(content), [EditSlot::Text(text)]) if content == *text),
        )
    }

    /// Returns true if the arguments of a call are a string.
    pub(crate) fn has_string_arguments(&self, at: PartId) -> bool {
        self.layout
            .part(at.message, at.part)
            .is_some_and(|part| matches!(part.slot, EditSlot::JsonInString(_) | EditSlot::TextArguments(_)))
    }

    /// Returns the index of the message that contains a byte of the body.
    pub(crate) fn message_at_offset(&self, byte: usize) -> Option<usize> {
        self.layout.message_at_offset(byte)
    }

    /// Writes the edits and the injected tool, and copies every other byte. Borrows the body if nothing changes.
    pub fn splice(&self, edits: &[RequestEdit]) -> Result<Cow<'a, [u8]>, Error> {
        crate::wire::json::splice::splice(self.body, self.format, &self.layout, edits.iter().chain(&self.injected_tool))
    }
}

/// The parsed list of messages.
struct ParsedMessages<'a> {
    value: JsonValue<'a>,
    messages: Vec<Message<'a>>,
    layout: BodyLayout,
}

impl<'a> ParsedMessages<'a> {
    fn parse(format: Format, scanner: &mut JsonScanner<'a>) -> Result<Self, Error> {
        let mut messages = Vec::new();
        let mut layout = BodyLayout::default();
        if format == Format::OpenAiResponses && scanner.peek_value_start() == Some(b'"') {
            let value = scanner.read_value()?;
            messages.push(crate::wire::dialect::openai_responses::request::parse_string_input(value, &mut layout));
            return Ok(Self { value, messages, layout });
        }
        if scanner.peek_value_start() != Some(b'[') {
            scanner.read_value()?;
            return Err(Error::not_a_request(format_args!("\"{}\" is not a list", messages_key(format))));
        }
        let enter = match format {
            Format::OpenAiChat => crate::wire::dialect::openai_chat::request::NESTED_FIELDS,
            Format::OpenAiResponses => crate::wire::dialect::openai_responses::request::NESTED_FIELDS,
            Format::Anthropic => crate::wire::dialect::anthropic::request::NESTED_FIELDS,
        };
        let start = scanner.remaining_bytes();
        let value = scanner.read_array(|scanner| {
            // The first few messages predict the rest poorly.
            if messages.len() == messages.capacity() && messages.len() >= 64 {
                let share = ReadProgress {
                    read_bytes: start - scanner.remaining_bytes(),
                    remaining_bytes: scanner.remaining_bytes(),
                };
                share.reserve_remaining(&mut messages);
                layout.reserve_remaining(share);
            }
            let element = scanner.read_element(enter)?;
            if !element.value.is_object() {
                return Err(Error::not_a_request(format_args!("message {} is not an object", messages.len())));
            }
            messages.push(read_message(format, &element, &mut layout));
            scanner.recycle(element);
            Ok(())
        })?;
        layout.messages_start = Some(value.span.start + 1);
        Ok(Self { value, messages, layout })
    }
}

fn read_message<'a>(format: Format, element: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    match format {
        Format::OpenAiChat => crate::wire::dialect::openai_chat::request::parse_message(element, layout),
        Format::OpenAiResponses => crate::wire::dialect::openai_responses::request::parse_message(element, layout),
        Format::Anthropic => crate::wire::dialect::anthropic::request::parse_message(element, layout),
    }
}

/// Parses a single message or item, as stored in session logs.
pub(crate) fn parse_message<'a>(format: Format, element: &JsonObject<'a>) -> Message<'a> {
    read_message(format, element, &mut BodyLayout::default())
}

/// Validates that a body is UTF-8. The standard library's check is measurably slow on non-ASCII text
/// (docs/decisions/0001), so it runs only to locate an error.
fn utf8_text(body: &[u8]) -> Result<&str, Error> {
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

/// Parses instructions outside the messages: a string, or blocks.
fn instruction_parts<'a>(
    top_level: &JsonObject<'a>,
    key: &str,
    part: impl Fn(&JsonObject<'a>) -> Part<'a>,
) -> Vec<Part<'a>> {
    match top_level.text(key) {
        Some(text) => vec![Part::text(text)],
        None => top_level.elements(key).iter().map(part).collect(),
    }
}

pub(crate) fn parse_tool<'a>(declaration: &JsonObject<'a>) -> ToolDefinition<'a> {
    let named = ["function", "custom"].iter().find_map(|key| declaration.object(key));
    let name = named.as_ref().unwrap_or(declaration).string("name");
    ToolDefinition { name: name.unwrap_or_default(), definition: Cow::Borrowed(declaration.value.raw()) }
}

/// Parses a role from its wire name.
fn parse_role(name: Option<&str>) -> Role {
    match name {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        _ => Role::Other,
    }
}
