//! A parsed request body: its conversation, its fields, and the edits of both.
//!
//! What differs between dialects is in a [`RequestSyntax`], one per dialect.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::conversation::{Conversation, Message, Part, PartId, Role, ToolCall, ToolDefinition, ToolResult};
use crate::error::Error;
use crate::wire::endpoint::ConversationEndpoint;
use crate::wire::format::Format;
use crate::wire::json::layout::{
    AddedField, BodyLayout, EditSlot, ListName, MAX_BODY_BYTES, ReadProgress, ToolsLayout,
};
use crate::wire::json::scan::{JsonObject, JsonScanner, JsonValue, field_value};
use crate::wire::json::splice::{RequestEdit, splice};

/// Maximum number of envelopes around a request.
const MAX_ENVELOPES: usize = 2;

/// The form of a dialect's requests.
#[derive(Debug)]
pub(crate) struct RequestSyntax {
    /// Key of the list of messages.
    pub(crate) list_key: &'static str,
    /// Fields that may contain the whole request, next to facts about it; in each other, up to two levels.
    pub(crate) envelope_keys: &'static [&'static str],
    /// Nested fields of a message that are scanned together with it, level by level.
    pub(crate) nested_fields: &'static [&'static [&'static str]],
    /// Parses one message and records the positions of its parts.
    pub(crate) parse_message: for<'a> fn(&JsonObject<'a>, &mut BodyLayout) -> Message<'a>,
    /// Parses a plain string in place of the list; `None` if that is not a request.
    pub(crate) parse_string_input: Option<for<'a> fn(JsonValue<'a>, &mut BodyLayout) -> Message<'a>>,
    /// Parses the instructions outside the messages.
    pub(crate) parse_instructions: for<'a> fn(&JsonObject<'a>) -> Vec<Part<'a>>,
    /// Parses the declared tools.
    pub(crate) parse_tools: for<'a> fn(&JsonObject<'a>) -> DeclaredTools<'a>,
    /// The ids of calls.
    pub(crate) call_ids: CallIds,
    /// Paths of the output limit; the first that is set applies.
    pub(crate) output_limit_paths: &'static [&'static [&'static str]],
    /// The form of a response that the client did not choose.
    pub(crate) stream_default: StreamDefault,
    /// The window with which a server loads the model, if the client chooses it.
    pub(crate) load_window: Option<LoadWindowSyntax>,
    /// Returns the field that refers to history which the provider stores.
    pub(crate) stored_history: fn(&Request<'_>) -> Option<&'static str>,
    /// Field of a request in a message thread, whose history the provider stores from the first request on.
    pub(crate) thread_field: Option<&'static str>,
    /// Field with the id of the response that a request continues.
    pub(crate) previous_response_field: Option<&'static str>,
    /// Returns true if the provider stores the response to a request with these fields.
    pub(crate) stores_response: fn(&JsonObject<'_>) -> bool,
}

/// The fields by which a client chooses the window of a model that a local server loads.
#[derive(Debug)]
pub(crate) struct LoadWindowSyntax {
    /// Path of the window.
    pub(crate) path: &'static [&'static str],
    /// Returns the fields that set the window, without those that the client has set.
    pub(crate) missing_fields: fn(&JsonObject<'_>, u64) -> Vec<AddedField>,
}

/// The form of a response if neither the path nor the body states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamDefault {
    /// One JSON body.
    Body,
    /// A stream.
    Stream,
}

/// The ids of the calls of a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallIds {
    /// Every call has one.
    Always,
    /// Calls and results may have none; results then answer calls in order.
    MayBeMissing,
}

/// First character of an id that the request does not contain.
pub(crate) const SYNTHETIC_ID_MARK: char = '#';

/// Returns true if an id was assigned by [`number_calls`].
pub(crate) fn is_synthetic_id(id: &str) -> bool {
    id.starts_with(SYNTHETIC_ID_MARK)
}

/// Assigns ids to calls without one and to their results, as in a conversation of these messages alone.
pub(crate) fn number_calls(messages: &mut [Message<'_>]) {
    CallNumbering::default().assign_ids(messages);
}

/// Returns the id of a result without one until the calls before it are known: the name of its tool, or nothing, after
/// the mark.
pub(crate) fn unanswered_id(name: Cow<'_, str>) -> Cow<'_, str> {
    Cow::Owned(format!("{SYNTHETIC_ID_MARK}{name}"))
}

/// Returns the tool name in an id that was assigned to a call without one.
pub(crate) fn synthetic_name(id: &str) -> &str {
    let name = id.strip_prefix(SYNTHETIC_ID_MARK).unwrap_or_default();
    match name.rsplit_once('.') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

/// Ids for calls without one, numbered by name, and for their results: a result without an id answers the first
/// unanswered call of its tool in the round before it, or the first of all if it has no name either. So does a result
/// with an id that no call has, if the call has none. An id depends only on earlier messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallNumbering {
    counts: HashMap<String, usize>,
    open: OpenCalls,
    /// True if the last message was the model's.
    in_assistant_turn: bool,
}

/// The calls of the newest round. Every lookup continues after the calls that are known to be answered.
#[derive(Clone, Debug, Default)]
struct OpenCalls {
    calls: Vec<OpenCall>,
    by_id: HashMap<String, usize>,
    by_name: HashMap<String, VecDeque<usize>>,
    /// The first call that may be unanswered; the next field is the first of those without an id of their own.
    next: usize,
    next_synthetic: usize,
}

#[derive(Clone, Debug)]
struct OpenCall {
    id: String,
    is_answered: bool,
}

impl OpenCalls {
    fn push(&mut self, name: &str, id: &str) {
        let at = self.calls.len();
        self.by_id.entry(id.to_owned()).or_insert(at);
        self.by_name.entry(name.to_owned()).or_default().push_back(at);
        self.calls.push(OpenCall { id: id.to_owned(), is_answered: false });
    }

    /// Answers the call that a result refers to, and returns its id.
    fn answer(&mut self, result_id: &str) -> Option<String> {
        let is_open = |at: &usize| !self.calls[*at].is_answered;
        let at = match result_id.strip_prefix(SYNTHETIC_ID_MARK) {
            Some("") => (self.next..self.calls.len()).find(is_open).inspect(|at| self.next = *at)?,
            Some(name) => {
                let same_name = self.by_name.get_mut(name)?;
                while same_name.front().is_some_and(|at| self.calls[*at].is_answered) {
                    same_name.pop_front();
                }
                same_name.pop_front()?
            }
            None => match self.by_id.get(result_id) {
                Some(at) => *at,
                None => {
                    let is_candidate = |at: &usize| is_open(at) && is_synthetic_id(&self.calls[*at].id);
                    let rest = self.next_synthetic..self.calls.len();
                    let found = rest.into_iter().find(is_candidate);
                    self.next_synthetic = found.unwrap_or(self.calls.len());
                    found?
                }
            },
        };
        self.calls[at].is_answered = true;
        Some(self.calls[at].id.clone())
    }
}

impl CallNumbering {
    /// Assigns the ids of the next messages of a conversation.
    pub(crate) fn assign_ids(&mut self, messages: &mut [Message<'_>]) {
        for message in messages {
            let was_in_turn = std::mem::replace(&mut self.in_assistant_turn, message.is_assistant());
            if message.is_assistant() && !was_in_turn {
                self.open = OpenCalls::default();
            }
            for part in &mut message.parts {
                match part {
                    Part::ToolCall(call) => self.number_call(call),
                    Part::ToolResult(result) => self.pair_result(result),
                    _ => {}
                }
            }
        }
    }

    fn number_call(&mut self, call: &mut ToolCall<'_>) {
        if call.id.is_empty() {
            let number = self.counts.entry(call.name.to_string()).or_default();
            call.id = Cow::Owned(format!("{SYNTHETIC_ID_MARK}{}.{number}", call.name));
            *number += 1;
        }
        self.open.push(&call.name, &call.id);
    }

    fn pair_result(&mut self, result: &mut ToolResult<'_>) {
        if let Some(id) = self.open.answer(&result.call_id) {
            result.call_id = Cow::Owned(id);
        }
    }
}

/// The declared tools, and the list to which another one can be appended.
pub(crate) struct DeclaredTools<'a> {
    pub(crate) definitions: Vec<ToolDefinition<'a>>,
    pub(crate) layout: Option<ToolsLayout>,
}

/// A parsed request body.
///
/// ```
/// use foldline::wire::{Format, Request, RequestEdit};
/// use foldline::conversation::PartId;
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
    /// True if the response is a stream, false if not; `None` if the path does not state it.
    streaming: Option<bool>,
    /// The window that an added field sets.
    added_window: Option<u64>,
}

impl<'a> Request<'a> {
    /// Parses a body. A bare array, as found in recordings, is parsed as the list of messages.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotJson`](crate::ErrorKind::NotJson) or [`ErrorKind::TooDeep`](crate::ErrorKind::TooDeep) if the body is not
    /// valid JSON, [`ErrorKind::NotARequest`](crate::ErrorKind::NotARequest) if it has no list of messages,
    /// [`ErrorKind::TooLong`](crate::ErrorKind::TooLong) if it exceeds 4 GB.
    pub fn parse(format: Format, body: &'a [u8]) -> Result<Self, Error> {
        Self::parse_continued(format, body, &mut CallNumbering::default())
    }

    /// Parses a body whose messages continue those that this numbering has seen.
    pub(crate) fn parse_continued(
        format: Format,
        body: &'a [u8],
        numbering: &mut CallNumbering,
    ) -> Result<Self, Error> {
        if body.len() > MAX_BODY_BYTES {
            return Err(Error::too_long(MAX_BODY_BYTES));
        }
        let syntax = &format.dialect().request;
        let body = utf8_text(body)?;
        let mut scanner = JsonScanner::new(body);
        let mut messages = None;
        let mut model = None;
        let top_level = match scanner.peek_value_start() {
            Some(b'[') => {
                let list = ParsedMessages::parse(syntax, &mut scanner)?;
                let value = list.value;
                messages = Some(list);
                JsonObject::new(value, Vec::new())
            }
            Some(b'{') => {
                let mut content = None;
                let outer = read_envelope(syntax, &mut scanner, MAX_ENVELOPES, &mut messages, &mut content)?;
                model = outer.string("model");
                content.unwrap_or(outer)
            }
            _ => {
                scanner.read_value()?;
                scanner.expect_end()?;
                return Err(Error::not_a_request("expected an object or a list of messages"));
            }
        };
        scanner.expect_end()?;
        let Some(messages) = messages else {
            return Err(Error::not_a_request(format_args!("field \"{}\" is missing", syntax.list_key)));
        };
        let ParsedMessages { mut messages, mut layout, .. } = messages;
        if syntax.call_ids == CallIds::MayBeMissing {
            numbering.assign_ids(&mut messages);
        }
        let tools = (syntax.parse_tools)(&top_level);
        layout.tools = tools.layout;
        let conversation = Conversation {
            model: model.or_else(|| top_level.string("model")),
            system: (syntax.parse_instructions)(&top_level),
            tools: tools.definitions,
            messages,
        };
        let (injected_tool, streaming, added_window) = (None, None, None);
        Ok(Request { format, body, conversation, layout, top_level, injected_tool, streaming, added_window })
    }

    /// Adds the facts that the path of the request states: the model, unless the body names one, and whether the
    /// response is a stream.
    pub fn with_endpoint(mut self, endpoint: &ConversationEndpoint<'a>) -> Self {
        let model = self.conversation.model.take();
        self.conversation.model = model.or(endpoint.model.map(Cow::Borrowed));
        self.streaming = endpoint.streaming;
        self
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

    /// Returns the parsed conversation and drops the rest.
    pub fn into_conversation(self) -> Conversation<'a> {
        self.conversation
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
        self.syntax().output_limit_paths.iter().find_map(|path| self.top_level.u64(path))
    }

    /// Returns the window with which the server loads the model for this request; none if the server decides.
    pub fn load_window(&self) -> Option<u64> {
        let syntax = self.syntax().load_window.as_ref()?;
        self.top_level.u64(syntax.path).or(self.added_window)
    }

    /// Returns the request with a window for the model, in a dialect whose clients choose it, unless the client has. A
    /// server reloads the model when the window changes, so all requests must have the same.
    pub fn with_load_window(mut self, window: u64) -> Self {
        if let Some(syntax) = &self.syntax().load_window {
            self.layout.added_fields = (syntax.missing_fields)(&self.top_level, window);
            self.added_window = Some(window);
        }
        self
    }

    /// Returns true if every splice adds fields.
    pub fn has_added_fields(&self) -> bool {
        !self.layout.added_fields.is_empty()
    }

    /// Returns true if the client requested a stream.
    pub fn is_streaming(&self) -> bool {
        let stated = self.streaming.or_else(|| self.top_level.get("stream").and_then(JsonValue::bool));
        stated.unwrap_or(self.syntax().stream_default == StreamDefault::Stream)
    }

    /// Returns true if the provider stores the history and this body contains only the newest messages. Such a body has
    /// nothing to fold, and its call/result pairs look broken although they are not.
    pub fn is_continuation(&self) -> bool {
        self.stored_history().is_some()
    }

    /// Returns the field by which this body refers to a history that the provider stores: `previous_response_id`,
    /// `conversation`, `previous_interaction_id`, or `thread` for a continued thread.
    pub fn stored_history(&self) -> Option<&'static str> {
        (self.syntax().stored_history)(self)
    }

    /// Returns true if the request creates or continues a message thread.
    pub fn is_threaded(&self) -> bool {
        self.syntax().thread_field.is_some_and(|field| self.top_level.object(field).is_some())
    }

    /// Returns true if the provider stores a part of the history: the request continues one, or refers to single items.
    /// Its call/result pairs look broken although they are not.
    pub fn is_partial(&self) -> bool {
        let is_reference = |part: &Part<'_>| matches!(part, Part::Opaque(block) if block.is_reference());
        self.is_continuation()
            || self.conversation().messages.iter().any(|message| message.parts.iter().any(is_reference))
    }

    /// Returns the id of the response that this request continues, where the provider stores it.
    pub fn previous_response_id(&self) -> Option<Cow<'a, str>> {
        self.syntax().previous_response_field.and_then(|key| self.top_level.string(key))
    }

    /// Returns true if the provider stores the response, so that a later request may refer to it by id. Responses are
    /// stored unless the client sets `store` to false.
    pub fn is_stored(&self) -> bool {
        (self.syntax().stores_response)(&self.top_level)
    }

    fn syntax(&self) -> &'static RequestSyntax {
        &self.format.dialect().request
    }

    /// Makes a tool, declared by this edit, one of the request's tools. Every splice writes it.
    pub(crate) fn inject_tool(&mut self, tool: ToolDefinition<'a>, edit: RequestEdit) {
        self.conversation.tools.push(tool);
        self.injected_tool = Some(edit);
    }

    /// Returns true if a tool is injected.
    pub fn has_injected_tool(&self) -> bool {
        self.injected_tool.is_some()
    }

    /// Returns the fields of the body.
    pub(crate) fn top_level(&self) -> &JsonObject<'a> {
        &self.top_level
    }

    /// Returns the number of bytes of the body.
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// Returns the byte range of the messages in the body.
    pub fn messages_range(&self) -> Option<Range<usize>> {
        let last = self.conversation.messages.len().checked_sub(1)?;
        Some(self.layout.message(0)?.start..self.layout.message(last)?.end)
    }

    /// Returns the JSON value of a message (or item).
    pub(crate) fn message_value(&self, at: usize) -> Option<JsonValue<'a>> {
        Some(JsonValue { body: self.body, span: self.layout.message(at)? })
    }

    /// Returns a field of a message without scanning the message again.
    pub(crate) fn message_field(&self, at: usize, key: &str) -> Option<JsonValue<'a>> {
        let fields = self.layout.list(at, ListName::Fields)?;
        fields.elements().rev().find_map(|span| field_value(self.body, span, key))
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
        part.is_some_and(|part| match (part.slot, part.inner) {
            (EditSlot::Text(content), [EditSlot::Text(text)]) => content == *text,
            (EditSlot::ResultObject(_), [EditSlot::Text(_)]) => true,
            _ => false,
        })
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
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadEdit`](crate::ErrorKind::BadEdit) if a position does not exist, two edits change the same bytes, or the
    /// format cannot express an edit.
    pub fn splice(&self, edits: &[RequestEdit]) -> Result<Cow<'a, [u8]>, Error> {
        let syntax = &self.format.dialect().edits;
        splice(self.body, syntax, &self.layout, edits.iter().chain(&self.injected_tool))
    }
}

/// Reads an object that is the request, or contains it in fields of an envelope. The object inside that has the list of
/// messages is stored in `content`.
fn read_envelope<'a>(
    syntax: &RequestSyntax,
    scanner: &mut JsonScanner<'a>,
    levels: usize,
    messages: &mut Option<ParsedMessages<'a>>,
    content: &mut Option<JsonObject<'a>>,
) -> Result<JsonObject<'a>, Error> {
    scanner.read_object(|key, scanner| {
        let is_envelope = levels > 0 && syntax.envelope_keys.contains(&key);
        if !is_envelope || scanner.peek_value_start() != Some(b'{') {
            return read_field(syntax, key, scanner, messages);
        }
        let inner = read_envelope(syntax, scanner, levels - 1, messages, content)?;
        if inner.get(syntax.list_key).is_some() {
            *content = Some(inner);
        }
        Ok(None)
    })
}

/// Reads a field of a body, and its messages if it is their list.
fn read_field<'a>(
    syntax: &RequestSyntax,
    key: &str,
    scanner: &mut JsonScanner<'a>,
    messages: &mut Option<ParsedMessages<'a>>,
) -> Result<Option<Vec<JsonObject<'a>>>, Error> {
    if key == syntax.list_key {
        *messages = Some(ParsedMessages::parse(syntax, scanner)?);
    } else {
        scanner.read_value()?;
    }
    Ok(None)
}

/// The parsed list of messages.
struct ParsedMessages<'a> {
    value: JsonValue<'a>,
    messages: Vec<Message<'a>>,
    layout: BodyLayout,
}

impl<'a> ParsedMessages<'a> {
    fn parse(syntax: &RequestSyntax, scanner: &mut JsonScanner<'a>) -> Result<Self, Error> {
        let mut messages = Vec::new();
        let mut layout = BodyLayout::default();
        if let Some(parse_string) = syntax.parse_string_input.filter(|_| scanner.peek_value_start() == Some(b'"')) {
            let value = scanner.read_value()?;
            messages.push(parse_string(value, &mut layout));
            return Ok(Self { value, messages, layout });
        }
        if scanner.peek_value_start() != Some(b'[') {
            scanner.read_value()?;
            return Err(Error::not_a_request(format_args!("\"{}\" is not a list", syntax.list_key)));
        }
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
            let element = scanner.read_element(syntax.nested_fields)?;
            if !element.value.is_object() {
                return Err(Error::not_a_request(format_args!("message {} is not an object", messages.len())));
            }
            messages.push((syntax.parse_message)(&element, &mut layout));
            scanner.recycle(element);
            Ok(())
        })?;
        layout.messages_start = Some(value.span.start + 1);
        Ok(Self { value, messages, layout })
    }
}

/// Parses a single message or item, as stored in session logs.
pub(crate) fn parse_message<'a>(format: Format, element: &JsonObject<'a>) -> Message<'a> {
    (format.dialect().request.parse_message)(element, &mut BodyLayout::default())
}

/// Validates that a body is UTF-8. The standard library's check is measurably slow on non-ASCII text
/// (docs/decisions/0001), so it runs only to locate an error.
pub(crate) fn utf8_text(body: &[u8]) -> Result<&str, Error> {
    simdutf8::basic::from_utf8(body).map_err(|_| {
        let at = std::str::from_utf8(body).map_or_else(|error| error.valid_up_to(), str::len);
        Error::not_json(at, "text that is not UTF-8")
    })
}

/// Parses instructions outside the messages: a string, or blocks.
pub(crate) fn instruction_parts<'a>(
    top_level: &JsonObject<'a>,
    key: &str,
    part: impl Fn(&JsonObject<'a>) -> Part<'a>,
) -> Vec<Part<'a>> {
    match top_level.text(key) {
        Some(text) => vec![Part::text(text)],
        None => top_level.elements(key).iter().map(part).collect(),
    }
}

/// Returns true if a field is set to anything but null.
pub(crate) fn is_set(top_level: &JsonObject<'_>, key: &str) -> bool {
    top_level.get(key).is_some_and(|value| !value.is_null())
}

/// Parses a list of tools, each with its name at the top or in `function` or `custom`.
pub(crate) fn parse_tool_list<'a>(top_level: &JsonObject<'a>) -> DeclaredTools<'a> {
    let tools = top_level.elements("tools");
    let layout = top_level.get("tools").filter(|value| value.is_array()).map(|value| ToolsLayout {
        list_start: value.span.start + 1,
        elements: tools.iter().map(|tool| tool.value.span).collect(),
    });
    DeclaredTools { definitions: tools.iter().map(parse_tool).collect(), layout }
}

pub(crate) fn parse_tool<'a>(declaration: &JsonObject<'a>) -> ToolDefinition<'a> {
    let named = ["function", "custom"].iter().find_map(|key| declaration.object(key));
    let name = named.as_ref().unwrap_or(declaration).string("name");
    ToolDefinition { name: name.unwrap_or_default(), definition: Cow::Borrowed(declaration.value.raw()) }
}

/// Parses a role from its wire name.
pub(crate) fn parse_role(name: Option<&str>) -> Role {
    match name {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        _ => Role::Other,
    }
}
