//! A streamed response, read while it passes.
//!
//! Each frame of the stream gives normalised events, and says which bytes they came from and which
//! index of the provider they belong to; at the end there is the same [`Response`] that a JSON body
//! would have given. What is kept for that is bounded.

use std::ops::Range;

use super::{ApiError, Extent, Response, Stop, Usage, anthropic, openai_chat, openai_responses};
use crate::conversation::{Message, Part, Role};
use crate::wire::Format;
use crate::wire::overflow::Refusal;
use crate::wire::scan::{self, Object};
use crate::wire::sse::{Ending, Frame, Framer, MAX_EVENT};

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
    framer: Framer,
    dialect: Dialect,
    gathered: Gathered,
}

/// How much a reader holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest event that is read; a longer one passes unread.
    pub event: usize,
    /// The most bytes of the response that are kept for its end; later ones pass but are not kept.
    pub kept: usize,
}

/// A frame with what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The bytes, to be forwarded.
    pub frame: Frame<'a>,
    /// What they say; at least one event.
    pub events: Vec<Event>,
}

/// What happens in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
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
        at: Place,
        /// The piece.
        text: String,
    },
    /// A piece of readable reasoning.
    ReasoningDelta {
        /// Where it belongs.
        at: Place,
        /// The piece.
        text: String,
    },
    /// The signature or encrypted content by which the provider will know this reasoning again.
    ReasoningSealed {
        /// Where it belongs.
        at: Place,
        /// The seal.
        seal: String,
    },
    /// The model begins to call a tool.
    ToolCallOpened {
        /// The provider's index. Some servers give every call the same one.
        at: Place,
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
        at: Place,
        /// The number of the call in this response.
        call: usize,
        /// The piece.
        arguments: String,
    },
    /// The model is done with a call. Its arguments may still be cut when it stopped for length.
    ToolCallClosed {
        /// The provider's index.
        at: Place,
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
        stop: Stop,
    },
    /// The provider gives up in the middle of the stream.
    Error {
        /// What it says.
        error: ApiError,
        /// Whether that means that the prompt was too large.
        refusal: Refusal,
    },
    /// The response is complete.
    Done,
    /// Nothing, to keep the connection open.
    Ping,
    /// Something that needs no reading.
    Other {
        /// Where it belongs, when it says so.
        at: Option<Place>,
        /// Its type, in the provider's words.
        kind: String,
    },
    /// A frame that can not be read; it is forwarded like all others.
    Unreadable(Unreadable),
}

/// Where in a response an event belongs, by the provider's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The choice; zero where there is only one.
    pub choice: u64,
    /// The index of the block (Anthropic), of the item (Responses) or of the tool call (Chat
    /// Completions, where text and reasoning have none and this is zero).
    pub index: u64,
}

/// Why a frame can not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unreadable {
    /// Its data is not JSON, or not UTF-8, or nested too deep.
    NotJson,
    /// Its data is JSON, but no object.
    NotAnObject,
    /// It is longer than [`Limits::event`].
    TooLong,
}

impl Event {
    /// Whether the model has said something by it, so that the answer has begun in earnest. A
    /// provider that opens a stream may still refuse the prompt in it.
    pub fn is_output(&self) -> bool {
        matches!(
            self,
            Event::TextDelta { .. }
                | Event::ReasoningDelta { .. }
                | Event::ReasoningSealed { .. }
                | Event::ToolCallOpened { .. }
        )
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { event: MAX_EVENT, kept: 64 << 20 }
    }
}

impl StreamReader {
    /// A reader at the beginning of a stream.
    pub fn new(format: Format) -> Self {
        Self::with_limits(format, Limits::default())
    }

    /// A reader that keeps no more than it is told to.
    pub fn with_limits(format: Format, limits: Limits) -> Self {
        let dialect = match format {
            Format::OpenAiChat => Dialect::OpenAiChat(Default::default()),
            Format::OpenAiResponses => Dialect::OpenAiResponses(Default::default()),
            Format::Anthropic => Dialect::Anthropic(Default::default()),
        };
        let gathered = Gathered { room: limits.kept, ..Gathered::default() };
        Self { framer: Framer::with_limit(limits.event), dialect, gathered }
    }

    /// The next frame that ends in `input`, which moves on behind it. `None` when the rest of
    /// `input` ends no frame; it is kept then.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Option<Step<'s>> {
        let frame = self.framer.next(input)?;
        let events = self.dialect.read(&frame, &mut self.gathered);
        Some(Step { frame, events })
    }

    /// The last frame, when the stream ended without a blank line behind it.
    pub fn end(&mut self) -> Option<Step<'_>> {
        let frame = self.framer.finish()?;
        let events = self.dialect.read(&frame, &mut self.gathered);
        Some(Step { frame, events })
    }

    /// The events of all frames that end in `bytes`, each with the place of its frame in the stream:
    /// for readers who forward the bytes elsewhere.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<(Range<u64>, Event)> {
        let mut events = Vec::new();
        while let Some(step) = self.next(&mut bytes) {
            let range = step.frame.range();
            events.extend(step.events.into_iter().map(|event| (range.clone(), event)));
        }
        events
    }

    /// What the model said, as the elements that a next request appends to its list: the assistant's
    /// message, or the items.
    pub(in crate::wire) fn turn(&self) -> Vec<String> {
        match &self.dialect {
            Dialect::OpenAiChat(stream) => stream.turn(),
            Dialect::OpenAiResponses(stream) => stream.turn(),
            Dialect::Anthropic(stream) => stream.turn(),
        }
    }

    /// The cost, as far as it was told.
    pub(in crate::wire) fn usage(&self) -> Option<Usage> {
        self.gathered.usage
    }

    /// The response, as far as it came.
    pub fn finish(mut self) -> Response<'static> {
        self.end();
        let gathered = self.gathered;
        let parts = match self.dialect {
            Dialect::OpenAiChat(stream) => stream.into_parts(),
            Dialect::OpenAiResponses(stream) => stream.into_parts(),
            Dialect::Anthropic(stream) => stream.into_parts(),
        };
        Response {
            id: gathered.id.map(Into::into),
            model: gathered.model.map(Into::into),
            message: Message::new(Role::Assistant, super::spoken(parts)),
            stop: gathered.stop,
            usage: gathered.usage,
            error: gathered.error,
            extent: match (gathered.shortened, gathered.done || gathered.ended) {
                (true, _) => Extent::Shortened,
                (false, true) => Extent::Whole,
                (false, false) => Extent::Cut,
            },
        }
    }
}

#[derive(Clone, Debug)]
enum Dialect {
    OpenAiChat(openai_chat::Stream),
    OpenAiResponses(openai_responses::Stream),
    Anthropic(anthropic::Stream),
}

/// What all dialects gather on the way.
#[derive(Clone, Debug, Default)]
pub(super) struct Gathered {
    id: Option<String>,
    model: Option<String>,
    pub(super) stop: Option<Stop>,
    usage: Option<Usage>,
    error: Option<ApiError>,
    started: bool,
    /// The provider said that the response is complete.
    done: bool,
    /// The model said why it stopped; some servers leave it at that.
    pub(super) ended: bool,
    /// How many bytes may still be kept.
    room: usize,
    shortened: bool,
    /// The last frame was a piece of an event that is too long.
    in_too_long: bool,
    /// How many calls were opened.
    calls: usize,
}

impl Dialect {
    fn read(&mut self, frame: &Frame<'_>, gathered: &mut Gathered) -> Vec<Event> {
        let name = frame.name();
        let mut out = Vec::new();
        let was_too_long = std::mem::replace(&mut gathered.in_too_long, frame.ending == Ending::TooLong);
        match frame.data() {
            // Reported once, however many pieces it has.
            _ if gathered.in_too_long && !was_too_long => {
                gathered.shortened = true;
                out.push(Event::Unreadable(Unreadable::TooLong));
            }
            Some(data) if data.starts_with(b"[DONE]") => gathered.done("[DONE]", &mut out),
            Some(data) if !data.trim_ascii().is_empty() => self.read_data(name, &data, gathered, &mut out),
            _ if name == Some("ping") || frame.is_silent() && !gathered.in_too_long => out.push(Event::Ping),
            _ => {}
        }
        if out.is_empty() {
            out.push(Event::Other { at: None, kind: name.unwrap_or_default().to_owned() });
        }
        out
    }

    fn read_data(&mut self, name: Option<&str>, data: &[u8], gathered: &mut Gathered, out: &mut Vec<Event>) {
        let document = std::str::from_utf8(data).ok().and_then(|text| scan::document(text).ok());
        let Some(document) = document else { return out.push(Event::Unreadable(Unreadable::NotJson)) };
        if !document.is_object() {
            return out.push(Event::Unreadable(Unreadable::NotAnObject));
        }
        let data = document.object();
        match self {
            Dialect::OpenAiChat(stream) => stream.read(&data, gathered, out),
            Dialect::OpenAiResponses(stream) => stream.read(&kind(name, &data), &data, gathered, out),
            Dialect::Anthropic(stream) => stream.read(&kind(name, &data), &data, gathered, out),
        }
    }
}

/// The type of an event: in its body, or else its name.
fn kind(name: Option<&str>, data: &Object<'_>) -> String {
    data.string("type").map_or_else(|| name.unwrap_or_default().to_owned(), |it| it.into_owned())
}

impl Gathered {
    /// Appends to a text that is kept, as long as there is room.
    pub(super) fn append(&mut self, kept: &mut String, text: &str) {
        if self.admits(text.len()) {
            kept.push_str(text);
        }
    }

    /// Whether so many more bytes may be kept. From the first refusal on nothing is, so that what is
    /// kept has no holes.
    pub(super) fn admits(&mut self, bytes: usize) -> bool {
        match self.room.checked_sub(bytes) {
            Some(room) if !self.shortened => self.room = room,
            _ => self.shortened = true,
        }
        !self.shortened
    }

    /// The number of a call that opens now.
    pub(super) fn next_call(&mut self) -> usize {
        self.calls += 1;
        self.calls - 1
    }

    /// The response begins, or says again what it is.
    pub(super) fn started(&mut self, response: &Object<'_>, out: &mut Vec<Event>) {
        let text = |key| response.string(key).filter(|it| !it.is_empty()).map(|it| it.into_owned());
        self.id = self.id.take().or_else(|| text("id"));
        self.model = self.model.take().or_else(|| text("model"));
        if !std::mem::replace(&mut self.started, true) {
            out.push(Event::Started { id: self.id.clone(), model: self.model.clone() });
        }
    }

    pub(super) fn used(&mut self, usage: Option<Usage>, out: &mut Vec<Event>) {
        if let Some(usage) = usage {
            self.usage = Some(usage);
            out.push(Event::Usage(usage));
        }
    }

    pub(super) fn stopped(&mut self, choice: u64, stop: Stop, out: &mut Vec<Event>) {
        if choice == 0 {
            self.stop = Some(stop.clone());
            self.ended = true;
        }
        out.push(Event::Stopped { choice, stop });
    }

    pub(super) fn failed(&mut self, error: ApiError, out: &mut Vec<Event>) {
        let refusal = Refusal::of(None, &error);
        self.error = Some(error.clone());
        out.push(Event::Error { error, refusal });
    }

    /// The response is complete; said once.
    pub(super) fn done(&mut self, kind: &str, out: &mut Vec<Event>) {
        out.push(match std::mem::replace(&mut self.done, true) {
            false => Event::Done,
            true => Event::Other { at: None, kind: kind.to_owned() },
        });
    }
}

/// A part that was put together from a stream, owned.
pub(super) fn owned_parts(json: &str, read: impl Fn(&Object<'_>) -> Vec<Part<'static>>) -> Vec<Part<'static>> {
    scan::document(json).map(|document| read(&document.object())).unwrap_or_default()
}
