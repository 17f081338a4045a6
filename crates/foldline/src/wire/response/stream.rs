//! Reads a streamed response while it is forwarded.
//!
//! Each frame yields normalized events together with its bytes and the provider's index. At the end the reader returns
//! the same [`Response`] that a JSON body would have given. The memory kept for it is bounded.

use std::borrow::Cow;
use std::ops::Range;

use crate::conversation::{Message, Part, Role};
use crate::wire::format::Format;
use crate::wire::json::scan;
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::response::api_error::ApiError;
use crate::wire::response::body::{Response, ResponseExtent, without_empty_parts};
use crate::wire::response::overflow::RequestRejection;
use crate::wire::response::stop::StopInfo;
use crate::wire::response::usage::Usage;
use crate::wire::sse::{FrameEnd, FrameKind, MAX_EVENT_BYTES, SseFrame, SseFramer};

/// Reads a streamed response.
///
/// ```
/// use foldline::wire::{Format, StreamReader};
///
/// let mut reader = StreamReader::new(Format::OpenAiChat);
/// let mut forwarded = Vec::new();
/// for mut bytes in [
///     &b"data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\ndata: {\"cho"[..],
///     b"ices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
/// ] {
///     while let Some(step) = reader.next(&mut bytes) {
///         forwarded.extend_from_slice(step.frame.raw);
///         assert!(!step.events.is_empty());
///     }
/// }
/// assert!(forwarded.ends_with(b"data: [DONE]\n\n"));
/// assert_eq!(reader.finish().text(), "Hello");
/// ```
#[derive(Clone, Debug)]
pub struct StreamReader {
    framer: SseFramer,
    parser: Box<dyn StreamParser>,
    builder: ResponseBuilder,
}

/// Memory limits of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// The longest event that is parsed; a longer one is forwarded without parsing.
    pub max_event_bytes: usize,
    /// The most bytes of the response that are kept for [`StreamReader::finish`]; later ones are forwarded only.
    pub max_kept_bytes: usize,
}

/// A frame with its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStep<'a> {
    /// The bytes to forward.
    pub frame: SseFrame<'a>,
    /// The events in the frame; at least one.
    pub events: Vec<StreamEvent>,
}

/// A normalized event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamEvent {
    /// The start of the response.
    Started {
        /// The response id.
        id: Option<String>,
        /// The model that answers.
        model: Option<String>,
    },
    /// A text delta.
    TextDelta {
        /// The position in the response.
        at: OutputPosition,
        /// The delta.
        text: String,
    },
    /// A delta of readable reasoning.
    ReasoningDelta {
        /// The position in the response.
        at: OutputPosition,
        /// The delta.
        text: String,
    },
    /// The signature or encrypted content that the provider requires with this reasoning.
    ReasoningSignature {
        /// The position in the response.
        at: OutputPosition,
        /// The signature.
        signature: String,
    },
    /// The start of a tool call.
    ToolCallOpened {
        /// The provider's index. Some servers use the same index for every call.
        at: OutputPosition,
        /// The zero-based number of the call in this response.
        call: usize,
        /// The id to which the result refers.
        id: String,
        /// The tool name.
        name: String,
    },
    /// A delta of a call's arguments.
    ToolCallDelta {
        /// The provider's index.
        at: OutputPosition,
        /// The number of the call in this response.
        call: usize,
        /// The delta.
        arguments: String,
    },
    /// The end of a call. Its arguments may be truncated if the model stopped for length.
    ToolCallClosed {
        /// The provider's index.
        at: OutputPosition,
        /// The number of the call in this response.
        call: usize,
    },
    /// The token counts so far; a later event replaces them.
    Usage(Usage),
    /// The stop reason.
    Stopped {
        /// The choice that stopped.
        choice: u64,
        /// The reason.
        stop: StopInfo,
    },
    /// An error in the middle of the stream.
    Error {
        /// The provider's error.
        error: ApiError,
        /// The classification of the error by prompt size.
        refusal: RequestRejection,
    },
    /// The end of a complete response.
    Done,
    /// A keep-alive without content.
    Ping,
    /// An event that needs no parsing.
    Other {
        /// The position, if the event has one.
        at: Option<OutputPosition>,
        /// The provider's event type.
        kind: String,
    },
    /// A frame that cannot be parsed; it is forwarded like all others.
    Unreadable(UnreadableFrame),
}

/// Position of an event in a response, in the provider's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutputPosition {
    /// The choice; zero if there is only one.
    pub choice: u64,
    /// The index of the block (Anthropic), of the item (Responses) or of the tool call (Chat Completions, where text
    /// and reasoning have no index and this is zero).
    pub index: u64,
}

/// The reason why a frame cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnreadableFrame {
    /// The data is not JSON, not UTF-8, or nested too deep.
    NotJson,
    /// The data is JSON but not an object.
    NotAnObject,
    /// The frame is longer than [`StreamLimits::max_event_bytes`].
    Oversized,
    /// A checksum of the frame is wrong, or the stream ended inside it.
    Corrupt,
}

impl StreamEvent {
    /// Returns true if the event contains model output. Before that, a provider that has opened a stream may still
    /// reject the prompt in it.
    pub fn is_output(&self) -> bool {
        matches!(
            self,
            StreamEvent::TextDelta { .. }
                | StreamEvent::ReasoningDelta { .. }
                | StreamEvent::ReasoningSignature { .. }
                | StreamEvent::ToolCallOpened { .. }
        )
    }
}

/// Largest event that is buffered by a reader that keeps nothing more.
const MIN_EVENT_BYTES: usize = 64 << 10;

impl Default for StreamLimits {
    fn default() -> Self {
        Self { max_event_bytes: MAX_EVENT_BYTES, max_kept_bytes: 64 << 20 }
    }
}

impl StreamReader {
    /// Creates a reader for a new stream.
    pub fn new(format: Format) -> Self {
        Self::with_limits(format, StreamLimits::default())
    }

    /// Creates a reader with the given memory limits.
    pub fn with_limits(format: Format, limits: StreamLimits) -> Self {
        let parser = (format.dialect().response.new_stream)();
        let builder = ResponseBuilder { remaining_bytes: limits.max_kept_bytes, ..ResponseBuilder::default() };
        let framer = SseFramer::with_max_event_bytes(limits.max_event_bytes).with_any_kind();
        Self { framer, parser, builder }
    }

    /// Returns the next frame that ends in `input`, and advances `input` past it. If no frame ends in the rest of
    /// `input`, buffers it and returns `None`.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Option<StreamStep<'s>> {
        let frame = self.framer.next(input)?;
        let events = read_frame(&mut *self.parser, &frame, &mut self.builder);
        Some(StreamStep { frame, events })
    }

    /// Returns the last frame, if the stream ended without a blank line after it.
    pub fn flush(&mut self) -> Option<StreamStep<'_>> {
        let frame = self.framer.finish()?;
        let events = read_frame(&mut *self.parser, &frame, &mut self.builder);
        Some(StreamStep { frame, events })
    }

    /// Returns the events of all frames that end in `bytes`, each with the byte range of its frame in the stream. For
    /// callers that forward the bytes elsewhere.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<(Range<u64>, StreamEvent)> {
        let mut events = Vec::new();
        while let Some(step) = self.next(&mut bytes) {
            let range = step.frame.range();
            events.extend(step.events.into_iter().map(|event| (range.clone(), event)));
        }
        events
    }

    /// Returns the bytes in memory: an event whose end has not been received, and the output that is kept.
    pub fn held_bytes(&self) -> usize {
        self.framer.buffered_bytes() + self.builder.kept_bytes
    }

    /// Keeps no further output, and buffers only small events, for callers that have no memory left. The response then
    /// counts as truncated.
    pub fn stop_keeping(&mut self) {
        self.framer.set_max_event_bytes(MIN_EVENT_BYTES);
        self.builder.remaining_bytes = 0;
    }

    /// Returns the model's output as the elements that the next request appends to its list: the assistant's message,
    /// or the items.
    pub(crate) fn turn_json(&self) -> Vec<String> {
        self.parser.turn_json()
    }

    /// Returns the token counts reported so far.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.builder.usage
    }

    /// Returns the response as far as it was received.
    pub fn finish(mut self) -> Response<'static> {
        self.flush();
        let builder = self.builder;
        let parts = self.parser.into_parts();
        Response {
            id: builder.id.map(Into::into),
            model: builder.model.map(Into::into),
            message: Message::new(Role::Assistant, without_empty_parts(parts)),
            stop: builder.stop,
            usage: builder.usage,
            error: builder.error,
            extent: match (builder.truncated, builder.done || builder.has_stop_reason) {
                (true, _) => ResponseExtent::Truncated,
                (false, true) => ResponseExtent::Complete,
                (false, false) => ResponseExtent::Interrupted,
            },
        }
    }
}

/// The form of a dialect's responses.
#[derive(Debug)]
pub(crate) struct ResponseSyntax {
    /// The field that every response has.
    pub(crate) content_key: &'static str,
    /// The usual kind of a stream's frames. The first byte of a stream shows if it has another one.
    pub(crate) framing: FrameKind,
    /// The field that may contain the whole response.
    pub(crate) envelope_key: Option<&'static str>,
    /// Parses a JSON body that has this field.
    pub(crate) parse_body: for<'a> fn(&JsonObject<'a>) -> Response<'a>,
    /// Creates the parser of a new stream.
    pub(crate) new_stream: fn() -> Box<dyn StreamParser>,
}

impl ResponseSyntax {
    /// Returns the response inside its envelope, if it has one.
    pub(crate) fn without_envelope<'a>(&self, body: JsonObject<'a>) -> JsonObject<'a> {
        self.envelope_key.and_then(|key| body.object(key)).unwrap_or(body)
    }
}

/// A dialect's parser of a stream.
pub(crate) trait StreamParser: std::fmt::Debug + Send + Sync {
    /// Parses the data of an event, which may have a name.
    fn read(
        &mut self,
        name: Option<&str>,
        data: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    );

    /// Returns the output so far as the elements that the next request appends to its list.
    fn turn_json(&self) -> Vec<String>;

    /// Returns the output as parts.
    fn into_parts(self: Box<Self>) -> Vec<Part<'static>>;

    /// Returns a copy.
    fn boxed_clone(&self) -> Box<dyn StreamParser>;
}

impl Clone for Box<dyn StreamParser> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// State shared by all dialects.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseBuilder {
    id: Option<String>,
    model: Option<String>,
    pub(crate) stop: Option<StopInfo>,
    usage: Option<Usage>,
    error: Option<ApiError>,
    started: bool,
    /// The provider reported that the response is complete.
    done: bool,
    /// The model reported its stop reason; some servers send no further end event.
    pub(crate) has_stop_reason: bool,
    kept_bytes: usize,
    /// Bytes that may still be kept.
    remaining_bytes: usize,
    truncated: bool,
    /// The last frame was a chunk of an oversized event.
    in_oversized_event: bool,
    /// Number of calls opened so far.
    call_count: usize,
}

fn read_frame(parser: &mut dyn StreamParser, frame: &SseFrame<'_>, builder: &mut ResponseBuilder) -> Vec<StreamEvent> {
    let name = frame.name();
    let mut out = Vec::new();
    let was_too_long = std::mem::replace(&mut builder.in_oversized_event, frame.end == FrameEnd::Oversized);
    match frame.data() {
        // Reported once, however many chunks the event has.
        _ if builder.in_oversized_event && !was_too_long => {
            builder.truncated = true;
            out.push(StreamEvent::Unreadable(UnreadableFrame::Oversized));
        }
        _ if frame.is_corrupt() => out.push(StreamEvent::Unreadable(UnreadableFrame::Corrupt)),
        Some(data) if data.starts_with(b"[DONE]") => builder.record_done("[DONE]", &mut out),
        Some(data) if !data.trim_ascii().is_empty() => match parse_data(&data) {
            Ok(document) => parser.read(name, &document.object(), builder, &mut out),
            Err(fault) => out.push(StreamEvent::Unreadable(fault)),
        },
        _ if name == Some("ping") || frame.has_no_fields() && !builder.in_oversized_event => {
            out.push(StreamEvent::Ping)
        }
        _ => {}
    }
    if out.is_empty() {
        out.push(StreamEvent::Other { at: None, kind: name.unwrap_or_default().to_owned() });
    }
    out
}

fn parse_data(data: &[u8]) -> Result<JsonValue<'_>, UnreadableFrame> {
    let document = std::str::from_utf8(data).ok().and_then(|text| scan::parse_document(text).ok());
    let document = document.ok_or(UnreadableFrame::NotJson)?;
    if document.is_object() { Ok(document) } else { Err(UnreadableFrame::NotAnObject) }
}

/// Returns the type of an event: the `type` field, or else the event name.
pub(crate) fn event_type(name: Option<&str>, data: &JsonObject<'_>) -> String {
    data.string("type").map_or_else(|| name.unwrap_or_default().to_owned(), |text| text.into_owned())
}

impl ResponseBuilder {
    /// Appends to a kept text while the limit allows it.
    pub(crate) fn append_text(&mut self, kept: &mut String, text: &str) {
        if self.try_reserve(text.len()) {
            kept.push_str(text);
        }
    }

    /// Returns true if `bytes` more may be kept. After the first refusal nothing more is kept, so that the kept data
    /// has no gaps.
    pub(crate) fn try_reserve(&mut self, bytes: usize) -> bool {
        match self.remaining_bytes.checked_sub(bytes) {
            Some(remaining) if !self.truncated => {
                self.remaining_bytes = remaining;
                self.kept_bytes += bytes;
            }
            _ => self.truncated = true,
        }
        !self.truncated
    }

    /// Returns the number of a call that opens now.
    pub(crate) fn next_call_number(&mut self) -> usize {
        self.call_count += 1;
        self.call_count - 1
    }

    /// Records the start of the response, or repeated identity fields.
    pub(crate) fn record_start(&mut self, response: &JsonObject<'_>, out: &mut Vec<StreamEvent>) {
        self.record_identity(response.string("id"), response.string("model"), out);
    }

    /// Records the id and the model of the response.
    pub(crate) fn record_identity(
        &mut self,
        id: Option<Cow<'_, str>>,
        model: Option<Cow<'_, str>>,
        out: &mut Vec<StreamEvent>,
    ) {
        let text = |value: Option<Cow<'_, str>>| value.filter(|text| !text.is_empty()).map(Cow::into_owned);
        self.id = self.id.take().or_else(|| text(id));
        self.model = self.model.take().or_else(|| text(model));
        if !std::mem::replace(&mut self.started, true) {
            out.push(StreamEvent::Started { id: self.id.clone(), model: self.model.clone() });
        }
    }

    pub(crate) fn record_usage(&mut self, usage: Option<Usage>, out: &mut Vec<StreamEvent>) {
        if let Some(usage) = usage.map(Usage::bounded) {
            self.usage = Some(usage);
            out.push(StreamEvent::Usage(usage));
        }
    }

    pub(crate) fn record_stop(&mut self, choice: u64, stop: StopInfo, out: &mut Vec<StreamEvent>) {
        if choice == 0 {
            self.stop = Some(stop.clone());
            self.has_stop_reason = true;
        }
        out.push(StreamEvent::Stopped { choice, stop });
    }

    pub(crate) fn record_error(&mut self, error: ApiError, out: &mut Vec<StreamEvent>) {
        let refusal = RequestRejection::from_error(None, &error);
        self.error = Some(error.clone());
        out.push(StreamEvent::Error { error, refusal });
    }

    /// Records the end of a complete response; emits the event once.
    pub(crate) fn record_done(&mut self, kind: &str, out: &mut Vec<StreamEvent>) {
        out.push(match std::mem::replace(&mut self.done, true) {
            false => StreamEvent::Done,
            true => StreamEvent::Other { at: None, kind: kind.to_owned() },
        });
    }
}

/// Parses parts assembled from a stream into owned parts.
pub(crate) fn parse_owned_parts(
    json: &str,
    read: impl Fn(&JsonObject<'_>) -> Vec<Part<'static>>,
) -> Vec<Part<'static>> {
    scan::parse_document(json).map(|document| read(&document.object())).unwrap_or_default()
}
