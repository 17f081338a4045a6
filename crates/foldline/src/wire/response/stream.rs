//! A streamed response, read while it passes.
//!
//! Each frame of the stream gives normalised events, and says which bytes they came from and which
//! index of the provider they belong to; at the end there is the same [`Response`] that a JSON body
//! would have given. What is kept for that is bounded.

use std::ops::Range;

use super::{ApiError, Response, ResponseExtent, StopInfo, Usage};
use crate::conversation::{Message, Part, Role};
use crate::wire::Format;
use crate::wire::dialect::{anthropic, openai_chat, openai_responses};
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::response::overflow::RequestRejection;
use crate::wire::sse::{FrameEnd, MAX_EVENT_BYTES, SseFrame, SseFramer};

/// Reads a streamed response.
///
/// ```
/// use foldline::wire::{Event, Format, StreamReader};
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
    reader: DialectReader,
    builder: ResponseBuilder,
}

/// How much a reader holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// The longest event that is read; a longer one passes unread.
    pub max_event_bytes: usize,
    /// The most bytes of the response that are kept for its end; later ones pass but are not kept.
    pub max_kept_bytes: usize,
}

/// A frame with what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStep<'a> {
    /// The bytes, to be forwarded.
    pub frame: SseFrame<'a>,
    /// What they say; at least one event.
    pub events: Vec<StreamEvent>,
}

/// What happens in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamEvent {
    /// The response begins.
    Started {
        /// Its id.
        id: Option<String>,
        /// The model that answers.
        model: Option<String>,
    },
    /// A piece of text.
    TextDelta {
        /// Where it belongs.
        at: OutputPosition,
        /// The piece.
        text: String,
    },
    /// A piece of readable reasoning.
    ReasoningDelta {
        /// Where it belongs.
        at: OutputPosition,
        /// The piece.
        text: String,
    },
    /// The signature or encrypted content by which the provider will know this reasoning again.
    ReasoningSignature {
        /// Where it belongs.
        at: OutputPosition,
        /// The seal.
        signature: String,
    },
    /// The model begins to call a tool.
    ToolCallOpened {
        /// The provider's index. Some servers give every call the same one.
        at: OutputPosition,
        /// The number of the call in this response, counted from zero.
        call: usize,
        /// By which its result will refer to it.
        id: String,
        /// Which tool.
        name: String,
    },
    /// A piece of the arguments of a call.
    ToolCallDelta {
        /// The provider's index.
        at: OutputPosition,
        /// The number of the call in this response.
        call: usize,
        /// The piece.
        arguments: String,
    },
    /// The model is done with a call. Its arguments may still be cut when it stopped for length.
    ToolCallClosed {
        /// The provider's index.
        at: OutputPosition,
        /// The number of the call in this response.
        call: usize,
    },
    /// The cost so far; a later one replaces it.
    Usage(Usage),
    /// Why the model stopped.
    Stopped {
        /// Of which choice.
        choice: u64,
        /// Why.
        stop: StopInfo,
    },
    /// The provider gives up in the middle of the stream.
    Error {
        /// What it says.
        error: ApiError,
        /// Whether that means that the prompt was too large.
        refusal: RequestRejection,
    },
    /// The response is complete.
    Done,
    /// Nothing, to keep the connection open.
    Ping,
    /// Something that needs no reading.
    Other {
        /// Where it belongs, when it says so.
        at: Option<OutputPosition>,
        /// Its type, in the provider's words.
        kind: String,
    },
    /// A frame that can not be read; it is forwarded like all others.
    Unreadable(UnreadableFrame),
}

/// Where in a response an event belongs, by the provider's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutputPosition {
    /// The choice; zero where there is only one.
    pub choice: u64,
    /// The index of the block (Anthropic), of the item (Responses) or of the tool call (Chat
    /// Completions, where text and reasoning have none and this is zero).
    pub index: u64,
}

/// Why a frame can not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnreadableFrame {
    /// Its data is not JSON, or not UTF-8, or nested too deep.
    NotJson,
    /// Its data is JSON, but no object.
    NotAnObject,
    /// It is longer than [`StreamLimits::event`].
    Oversized,
}

impl StreamEvent {
    /// Whether the model has said something by it, so that the answer has begun in earnest. A
    /// provider that opens a stream may still refuse the prompt in it.
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

impl Default for StreamLimits {
    fn default() -> Self {
        Self { max_event_bytes: MAX_EVENT_BYTES, max_kept_bytes: 64 << 20 }
    }
}

impl StreamReader {
    /// A reader at the beginning of a stream.
    pub fn new(format: Format) -> Self {
        Self::with_limits(format, StreamLimits::default())
    }

    /// A reader that keeps no more than it is told to.
    pub fn with_limits(format: Format, limits: StreamLimits) -> Self {
        let dialect = match format {
            Format::OpenAiChat => DialectReader::OpenAiChat(Default::default()),
            Format::OpenAiResponses => DialectReader::OpenAiResponses(Default::default()),
            Format::Anthropic => DialectReader::Anthropic(Default::default()),
        };
        let gathered = ResponseBuilder { remaining_bytes: limits.max_kept_bytes, ..ResponseBuilder::default() };
        Self { framer: SseFramer::with_max_event_bytes(limits.max_event_bytes), reader: dialect, builder: gathered }
    }

    /// The next frame that ends in `input`, which moves on behind it. `None` when the rest of
    /// `input` ends no frame; it is kept then.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Option<StreamStep<'s>> {
        let frame = self.framer.next(input)?;
        let events = self.reader.read(&frame, &mut self.builder);
        Some(StreamStep { frame, events })
    }

    /// The last frame, when the stream ended without a blank line behind it.
    pub fn flush(&mut self) -> Option<StreamStep<'_>> {
        let frame = self.framer.finish()?;
        let events = self.reader.read(&frame, &mut self.builder);
        Some(StreamStep { frame, events })
    }

    /// The events of all frames that end in `bytes`, each with the place of its frame in the stream:
    /// for readers who forward the bytes elsewhere.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<(Range<u64>, StreamEvent)> {
        let mut events = Vec::new();
        while let Some(step) = self.next(&mut bytes) {
            let range = step.frame.range();
            events.extend(step.events.into_iter().map(|event| (range.clone(), event)));
        }
        events
    }

    /// What the model said, as the elements that a next request appends to its list: the assistant's
    /// message, or the items.
    pub(crate) fn turn_json(&self) -> Vec<String> {
        match &self.reader {
            DialectReader::OpenAiChat(stream) => stream.turn_json(),
            DialectReader::OpenAiResponses(stream) => stream.turn_json(),
            DialectReader::Anthropic(stream) => stream.turn_json(),
        }
    }

    /// The cost, as far as it was told.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.builder.usage
    }

    /// The response, as far as it came.
    pub fn finish(mut self) -> Response<'static> {
        self.flush();
        let gathered = self.builder;
        let parts = match self.reader {
            DialectReader::OpenAiChat(stream) => stream.into_parts(),
            DialectReader::OpenAiResponses(stream) => stream.into_parts(),
            DialectReader::Anthropic(stream) => stream.into_parts(),
        };
        Response {
            id: gathered.id.map(Into::into),
            model: gathered.model.map(Into::into),
            message: Message::new(Role::Assistant, super::without_empty_parts(parts)),
            stop: gathered.stop,
            usage: gathered.usage,
            error: gathered.error,
            extent: match (gathered.truncated, gathered.done || gathered.has_stop_reason) {
                (true, _) => ResponseExtent::Truncated,
                (false, true) => ResponseExtent::Complete,
                (false, false) => ResponseExtent::Interrupted,
            },
        }
    }
}

#[derive(Clone, Debug)]
enum DialectReader {
    OpenAiChat(openai_chat::response::ChatStream),
    OpenAiResponses(openai_responses::response::ResponsesStream),
    Anthropic(anthropic::response::AnthropicStream),
}

/// What all dialects gather on the way.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseBuilder {
    id: Option<String>,
    model: Option<String>,
    pub(crate) stop: Option<StopInfo>,
    usage: Option<Usage>,
    error: Option<ApiError>,
    started: bool,
    /// The provider said that the response is complete.
    done: bool,
    /// The model said why it stopped; some servers leave it at that.
    pub(crate) has_stop_reason: bool,
    /// How many bytes may still be kept.
    remaining_bytes: usize,
    truncated: bool,
    /// The last frame was a piece of an event that is too long.
    in_oversized_event: bool,
    /// How many calls were opened.
    call_count: usize,
}

impl DialectReader {
    fn read(&mut self, frame: &SseFrame<'_>, gathered: &mut ResponseBuilder) -> Vec<StreamEvent> {
        let name = frame.name();
        let mut out = Vec::new();
        let was_too_long = std::mem::replace(&mut gathered.in_oversized_event, frame.end == FrameEnd::Oversized);
        match frame.data() {
            // Reported once, however many pieces it has.
            _ if gathered.in_oversized_event && !was_too_long => {
                gathered.truncated = true;
                out.push(StreamEvent::Unreadable(UnreadableFrame::Oversized));
            }
            Some(data) if data.starts_with(b"[DONE]") => gathered.record_done("[DONE]", &mut out),
            Some(data) if !data.trim_ascii().is_empty() => self.read_data(name, &data, gathered, &mut out),
            _ if name == Some("ping") || frame.has_no_fields() && !gathered.in_oversized_event => {
                out.push(StreamEvent::Ping)
            }
            _ => {}
        }
        if out.is_empty() {
            out.push(StreamEvent::Other { at: None, kind: name.unwrap_or_default().to_owned() });
        }
        out
    }

    fn read_data(
        &mut self,
        name: Option<&str>,
        data: &[u8],
        gathered: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let document = std::str::from_utf8(data).ok().and_then(|text| scan::parse_document(text).ok());
        let Some(document) = document else { return out.push(StreamEvent::Unreadable(UnreadableFrame::NotJson)) };
        if !document.is_object() {
            return out.push(StreamEvent::Unreadable(UnreadableFrame::NotAnObject));
        }
        let data = document.object();
        match self {
            DialectReader::OpenAiChat(stream) => stream.read(&data, gathered, out),
            DialectReader::OpenAiResponses(stream) => stream.read(&event_type(name, &data), &data, gathered, out),
            DialectReader::Anthropic(stream) => stream.read(&event_type(name, &data), &data, gathered, out),
        }
    }
}

/// The type of an event: in its body, or else its name.
fn event_type(name: Option<&str>, data: &JsonObject<'_>) -> String {
    data.string("type").map_or_else(|| name.unwrap_or_default().to_owned(), |it| it.into_owned())
}

impl ResponseBuilder {
    /// Appends to a text that is kept, as long as there is room.
    pub(crate) fn append_text(&mut self, kept: &mut String, text: &str) {
        if self.try_reserve(text.len()) {
            kept.push_str(text);
        }
    }

    /// Whether so many more bytes may be kept. From the first refusal on nothing is, so that what is
    /// kept has no holes.
    pub(crate) fn try_reserve(&mut self, bytes: usize) -> bool {
        match self.remaining_bytes.checked_sub(bytes) {
            Some(room) if !self.truncated => self.remaining_bytes = room,
            _ => self.truncated = true,
        }
        !self.truncated
    }

    /// The number of a call that opens now.
    pub(crate) fn next_call_number(&mut self) -> usize {
        self.call_count += 1;
        self.call_count - 1
    }

    /// The response begins, or says again what it is.
    pub(crate) fn record_start(&mut self, response: &JsonObject<'_>, out: &mut Vec<StreamEvent>) {
        let text = |key| response.string(key).filter(|it| !it.is_empty()).map(|it| it.into_owned());
        self.id = self.id.take().or_else(|| text("id"));
        self.model = self.model.take().or_else(|| text("model"));
        if !std::mem::replace(&mut self.started, true) {
            out.push(StreamEvent::Started { id: self.id.clone(), model: self.model.clone() });
        }
    }

    pub(crate) fn record_usage(&mut self, usage: Option<Usage>, out: &mut Vec<StreamEvent>) {
        if let Some(usage) = usage {
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

    /// The response is complete; said once.
    pub(crate) fn record_done(&mut self, kind: &str, out: &mut Vec<StreamEvent>) {
        out.push(match std::mem::replace(&mut self.done, true) {
            false => StreamEvent::Done,
            true => StreamEvent::Other { at: None, kind: kind.to_owned() },
        });
    }
}

/// A part that was put together from a stream, owned.
pub(crate) fn parse_owned_parts(
    json: &str,
    read: impl Fn(&JsonObject<'_>) -> Vec<Part<'static>>,
) -> Vec<Part<'static>> {
    scan::parse_document(json).map(|document| read(&document.object())).unwrap_or_default()
}
