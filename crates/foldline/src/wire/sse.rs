//! Splits a stream into frames: server-sent events, the elements of one JSON array, JSON lines, or binary messages.
//!
//! A frame is one event with its terminating blank line, a comment, or a stray blank line; or one element of an array
//! with the comma before it, or the bracket at its end; or one line; or one message of an event stream. The
//! concatenated frames always equal the input, so that a proxy can forward them unchanged and parse a copy. Network
//! chunk boundaries do not matter. A frame that lies within one pushed chunk is borrowed from it; only a frame that
//! spans two chunks is copied, once.
//!
//! This module is independent of any provider.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};

use crate::wire::event_stream::{EventMessage, MessageScan};
use crate::wire::json_array::ArrayScan;

/// Default for the largest event that is buffered. The last event of a Responses stream repeats the whole output,
/// including generated images.
pub const MAX_EVENT_BYTES: usize = 32 << 20;

/// Splits bytes into [`SseFrame`]s.
///
/// ```
/// use foldline::wire::SseFramer;
///
/// let mut framer = SseFramer::new();
/// let mut seen = Vec::new();
/// for mut bytes in [&b"event: ping\nda"[..], b"ta: {}\n\n: keep-alive\n\n"] {
///     while let Some(frame) = framer.next(&mut bytes) {
///         seen.push((frame.range(), frame.name().map(str::to_owned), frame.data().map(|data| data.into_owned())));
///     }
/// }
/// assert_eq!(seen, [(0..22, Some("ping".into()), Some(b"{}".into())), (22..36, None, None)]);
/// assert!(framer.finish().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct SseFramer {
    /// The beginning of a frame whose end has not been received.
    pending: Vec<u8>,
    /// `pending` was returned as a frame; the next call clears it.
    pending_returned: bool,
    /// Position of the scan.
    scan: FrameScan,
    /// Offset in the stream of the next frame.
    next_frame_offset: u64,
    max_event_bytes: usize,
    /// Chunks of an event longer than `limit` are being returned.
    in_oversized_event: bool,
}

/// One event, or a part of the stream that is not an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseFrame<'a> {
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// The bytes, including the terminating blank line.
    pub raw: &'a [u8],
    /// The kind of end.
    pub end: FrameEnd,
    pub(crate) kind: FrameKind,
}

/// The kind of a stream's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Server-sent events.
    #[default]
    Event,
    /// Elements of one JSON array.
    ArrayElement,
    /// Lines of JSON.
    Line,
    /// Binary messages with checksums (`application/vnd.amazon.eventstream`).
    Message,
}

/// The end of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameEnd {
    /// Terminated by a blank line.
    Complete,
    /// The stream ended first. Some servers omit the last blank line, so the fields are still worth parsing.
    Interrupted,
    /// A chunk of an event longer than the limit; it has no fields.
    Oversized,
}

/// Position of the scan for the end of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameScan {
    /// At the first byte of a stream of any kind, which shows the kind.
    Unknown,
    /// In a stream of events.
    Events(LineState),
    /// In an array.
    Array(ArrayScan),
    /// In a stream of lines.
    Lines,
    /// In a stream of messages.
    Messages(MessageScan),
}

impl FrameScan {
    /// Returns the scan of a stream that begins with this byte. No field of an event begins with a bracket or a brace,
    /// and only a message begins with a control character: the high byte of its length.
    fn for_first_byte(byte: u8) -> Self {
        match byte {
            b'[' => FrameScan::Array(ArrayScan::default()),
            b'{' => FrameScan::Lines,
            0..8 => FrameScan::Messages(MessageScan::default()),
            _ => FrameScan::Events(LineState::Start),
        }
    }

    fn kind(&self) -> FrameKind {
        match self {
            FrameScan::Unknown | FrameScan::Events(_) => FrameKind::Event,
            FrameScan::Array(_) => FrameKind::ArrayElement,
            FrameScan::Lines => FrameKind::Line,
            FrameScan::Messages(_) => FrameKind::Message,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    /// At the first byte of a line.
    Start,
    /// After the first byte.
    Inside,
    /// After a carriage return that ended a line; a line feed would belong to it.
    AfterCr { blank: bool },
}

impl Default for SseFramer {
    fn default() -> Self {
        Self::new()
    }
}

impl SseFramer {
    /// Creates a framer for a new stream.
    pub fn new() -> Self {
        Self::with_max_event_bytes(MAX_EVENT_BYTES)
    }

    /// Creates a framer that buffers at most `limit` bytes of one event.
    pub fn with_max_event_bytes(limit: usize) -> Self {
        Self {
            pending: Vec::new(),
            pending_returned: false,
            scan: FrameScan::Events(LineState::Start),
            next_frame_offset: 0,
            max_event_bytes: limit.max(1),
            in_oversized_event: false,
        }
    }

    /// Returns a framer that detects the kind of the stream by its first byte.
    pub(crate) fn with_any_kind(self) -> Self {
        Self { scan: FrameScan::Unknown, ..self }
    }

    /// Returns the next frame that ends in `input`, and advances `input` past it. If no frame ends in the rest of
    /// `input`, buffers it and returns `None`.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Option<SseFrame<'s>> {
        if std::mem::take(&mut self.pending_returned) {
            self.pending.clear();
        }
        if let (FrameScan::Unknown, Some(first)) = (self.scan, input.first()) {
            self.scan = FrameScan::for_first_byte(*first);
        }
        let capacity = self.max_event_bytes.saturating_sub(self.pending.len());
        let (taken, end) = match self.find_event_end(&input[..capacity.min(input.len())]) {
            Some(end) => (
                end,
                if std::mem::take(&mut self.in_oversized_event) { FrameEnd::Oversized } else { FrameEnd::Complete },
            ),
            None if capacity <= input.len() => {
                self.in_oversized_event = true;
                (capacity, FrameEnd::Oversized)
            }
            None => {
                self.pending.extend_from_slice(input);
                *input = &[];
                return None;
            }
        };
        if taken == 0 && self.pending.is_empty() {
            // The oversized event ended with the previous chunk, which is only known now.
            return self.next(input);
        }
        let kind = self.scan.kind();
        let (head, rest) = input.split_at(taken);
        *input = rest;
        let raw = if self.pending.is_empty() {
            head
        } else {
            self.pending.extend_from_slice(head);
            self.pending_returned = true;
            &self.pending
        };
        let offset = self.next_frame_offset;
        self.next_frame_offset += raw.len() as u64;
        Some(SseFrame { offset, raw, end, kind })
    }

    /// Returns the rest at the end of the stream: an event without its blank line.
    pub fn finish(&mut self) -> Option<SseFrame<'_>> {
        if std::mem::take(&mut self.pending_returned) {
            self.pending.clear();
        }
        if self.pending.is_empty() {
            return None;
        }
        self.pending_returned = true;
        let kind = self.scan.kind();
        let end = match &mut self.scan {
            _ if std::mem::take(&mut self.in_oversized_event) => FrameEnd::Oversized,
            FrameScan::Events(state) => match std::mem::replace(state, LineState::Start) {
                LineState::AfterCr { blank: true } => FrameEnd::Complete,
                _ => FrameEnd::Interrupted,
            },
            FrameScan::Array(scan) if scan.is_closed() => FrameEnd::Complete,
            FrameScan::Array(_) | FrameScan::Lines | FrameScan::Messages(_) | FrameScan::Unknown => {
                FrameEnd::Interrupted
            }
        };
        let offset = self.next_frame_offset;
        self.next_frame_offset += self.pending.len() as u64;
        Some(SseFrame { offset, raw: &self.pending, end, kind })
    }

    /// Changes the limit of one event. An event that is longer already is returned in chunks from now on.
    pub(crate) fn set_max_event_bytes(&mut self, limit: usize) {
        self.max_event_bytes = limit.max(1);
    }

    /// Returns the number of bytes buffered until their frame ends.
    pub fn buffered_bytes(&self) -> usize {
        if self.pending_returned { 0 } else { self.pending.len() }
    }

    /// Returns the length of `bytes` up to the end of the event, if it ends in them. Continues where the last call
    /// stopped, so that every byte is scanned once however small the chunks are.
    fn find_event_end(&mut self, bytes: &[u8]) -> Option<usize> {
        match &mut self.scan {
            FrameScan::Unknown => None,
            FrameScan::Array(scan) => scan.find_frame_end(bytes),
            FrameScan::Events(state) => state.find_event_end(bytes),
            FrameScan::Lines => memchr(b'\n', bytes).map(|at| at + 1),
            FrameScan::Messages(scan) => scan.find_frame_end(bytes),
        }
    }
}

impl LineState {
    fn find_event_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match (*self, byte) {
                (LineState::Start, b'\n') => return Some(at + 1),
                (LineState::Start, b'\r') => {
                    *self = LineState::AfterCr { blank: true };
                    at += 1;
                }
                (LineState::Start, _) => *self = LineState::Inside,
                (LineState::AfterCr { blank: true }, _) => {
                    *self = LineState::Start;
                    return Some(at + usize::from(byte == b'\n'));
                }
                (LineState::AfterCr { blank: false }, _) => {
                    *self = LineState::Start;
                    at += usize::from(byte == b'\n');
                }
                (LineState::Inside, _) => {
                    at += memchr2(b'\n', b'\r', &bytes[at..])?;
                    *self = if bytes[at] == b'\n' { LineState::Start } else { LineState::AfterCr { blank: false } };
                    at += 1;
                }
            }
        }
        None
    }
}

impl<'a> SseFrame<'a> {
    /// Returns the byte range in the stream.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.raw.len() as u64
    }

    /// Returns the value of the `event` field, or the type of a message.
    pub fn name(&self) -> Option<&'a str> {
        if let Some(message) = self.message() {
            return message.event_type();
        }
        self.last_field("event").and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns the values of the `data` fields, joined by line feeds, or the element of an array, the line, or the
    /// content of the message; `None` if there is none.
    pub fn data(&self) -> Option<Cow<'a, [u8]>> {
        let is_readable = self.end != FrameEnd::Oversized;
        match self.kind {
            FrameKind::Event => {}
            FrameKind::ArrayElement => {
                let element = memchr(b'{', self.raw).map(|start| &self.raw[start..]);
                return element.filter(|_| is_readable).map(Cow::Borrowed);
            }
            FrameKind::Line => {
                let line = self.raw.trim_ascii();
                return (is_readable && !line.is_empty()).then_some(Cow::Borrowed(line));
            }
            FrameKind::Message => return self.message().map(|message| message.data()),
        }
        let mut data: Option<Cow<'a, [u8]>> = None;
        for (_, value) in self.fields().filter(|(name, _)| *name == b"data") {
            match &mut data {
                None => data = Some(Cow::Borrowed(value)),
                Some(before) => {
                    let before = before.to_mut();
                    before.push(b'\n');
                    before.extend_from_slice(value);
                }
            }
        }
        data
    }

    /// Returns the value of the `id` field.
    pub fn id(&self) -> Option<&'a [u8]> {
        self.last_field("id")
    }

    /// Returns the value of the `retry` field, in milliseconds.
    pub fn retry(&self) -> Option<u64> {
        self.last_field("retry").and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
    }

    /// Returns true if the frame has no field: a keep-alive comment or a stray blank line, or the end of an array.
    pub fn has_no_fields(&self) -> bool {
        self.fields().next().is_none() && self.data().is_none()
    }

    /// Returns the message, if the frame is an intact one.
    pub(crate) fn message(&self) -> Option<EventMessage<'a>> {
        let is_whole = self.kind == FrameKind::Message && self.end == FrameEnd::Complete;
        is_whole.then(|| EventMessage::parse(self.raw)).flatten()
    }

    /// Returns true if the frame is a message that is not intact.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.kind == FrameKind::Message && self.end != FrameEnd::Oversized && self.message().is_none()
    }

    /// Writes the event with new data on one line; its other lines are copied.
    pub(crate) fn write_with_data(&self, data: &str, out: &mut Vec<u8>) {
        let mut written = false;
        for line in SseLines(self.without_bom()).filter(|line| !line.is_empty()) {
            if line != b"data" && !line.starts_with(b"data:") {
                out.extend_from_slice(line);
            } else if std::mem::replace(&mut written, true) {
                continue;
            } else {
                out.extend_from_slice(b"data: ");
                out.extend(on_one_line(data));
            }
            out.push(b'\n');
        }
        out.push(b'\n');
    }

    /// Returns the bytes without the byte order mark that may begin a stream.
    fn without_bom(&self) -> &'a [u8] {
        let mark = self.raw.strip_prefix(b"\xef\xbb\xbf").filter(|_| self.offset == 0);
        mark.unwrap_or(self.raw)
    }

    fn last_field(&self, wanted: &str) -> Option<&'a [u8]> {
        self.fields().filter(|(name, _)| *name == wanted.as_bytes()).last().map(|(_, value)| value)
    }

    /// Returns the fields in order, without comments.
    fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let has_fields = self.end != FrameEnd::Oversized && self.kind == FrameKind::Event;
        let raw: &'a [u8] = if has_fields { self.without_bom() } else { &[] };
        SseLines(raw).filter(|line| !line.is_empty() && line[0] != b':').map(|line| {
            let colon = memchr(b':', line).unwrap_or(line.len());
            let value = line.get(colon + 1..).unwrap_or_default();
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        })
    }
}

/// Returns JSON without line ends: between tokens a line end equals a space, and valid tokens contain none.
pub(crate) fn on_one_line(json: &str) -> impl Iterator<Item = u8> {
    json.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte })
}

/// The lines of a frame, without their terminators.
struct SseLines<'a>(&'a [u8]);

impl<'a> Iterator for SseLines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = memchr2(b'\n', b'\r', self.0).unwrap_or(self.0.len());
        let line = &self.0[..end];
        let rest = &self.0[end..];
        self.0 = rest.strip_prefix(b"\r\n").unwrap_or_else(|| rest.get(1..).unwrap_or_default());
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frames of a stream received in these chunks: bytes, data, end.
    fn frames(limit: usize, pieces: &[&[u8]]) -> Vec<(Vec<u8>, Option<Vec<u8>>, FrameEnd)> {
        let own = |frame: SseFrame<'_>| (frame.raw.to_vec(), frame.data().map(Cow::into_owned), frame.end);
        let mut framer = SseFramer::with_max_event_bytes(limit);
        let mut frames = Vec::new();
        for mut piece in pieces.iter().copied() {
            while let Some(frame) = framer.next(&mut piece) {
                frames.push(own(frame));
            }
        }
        frames.extend(framer.finish().map(own));
        frames
    }

    fn data(stream: &[u8]) -> Vec<Option<String>> {
        frames(MAX_EVENT_BYTES, &[stream])
            .into_iter()
            .map(|(_, data, _)| data.map(|data| String::from_utf8(data).unwrap()))
            .collect()
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn all_line_endings_are_accepted() {
        for stream in [
            &b"data: a\n\ndata: b\n\n"[..],
            b"data: a\r\n\r\ndata: b\r\n\r\n",
            b"data: a\r\rdata: b\r\r",
            b"data: a\r\n\ndata: b\n\r\n",
        ] {
            assert_eq!(data(stream), [some("a"), some("b")], "{stream:?}");
        }
    }

    #[test]
    fn several_data_lines_are_joined_and_one_space_is_dropped() {
        assert_eq!(data(b"data: a\ndata:b\ndata:  c\ndata\n\n"), [some("a\nb\n c\n")]);
    }

    #[test]
    fn comments_and_other_fields_are_not_data() {
        let stream = b": keep-alive\n\nid: 7\nretry: 250\nevent: x\nevent: y\nunknown: z\n: in between\ndata: d\n\n\n";
        let mut input = &stream[..];
        let mut framer = SseFramer::new();
        let comment = framer.next(&mut input).unwrap();
        assert!(comment.has_no_fields() && comment.data().is_none());
        let event = framer.next(&mut input).unwrap();
        assert_eq!((event.id(), event.retry(), event.name()), (Some(&b"7"[..]), Some(250), Some("y")));
        assert_eq!(event.data().as_deref(), Some(&b"d"[..]));
        let blank = framer.next(&mut input).unwrap();
        assert_eq!((blank.raw, blank.has_no_fields()), (&b"\n"[..], true));
        assert_eq!(framer.next(&mut input), None);
    }

    #[test]
    fn byte_order_mark_is_skipped() {
        assert_eq!(data(b"\xef\xbb\xbfdata: a\n\ndata: b\n\n"), [some("a"), some("b")]);
    }

    #[test]
    fn frame_is_rewritten_with_new_data_and_other_lines() {
        let stream = b"\xef\xbb\xbfevent: x\r\n: note\r\ndata: {\r\ndata: }\r\ndatabase: y\r\n\r\n";
        let mut out = Vec::new();
        SseFramer::new().next(&mut &stream[..]).unwrap().write_with_data("[1,\n2]", &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "event: x\n: note\ndata: [1, 2]\ndatabase: y\n\n");
    }

    #[test]
    fn final_event_without_blank_line_is_returned() {
        let seen = frames(MAX_EVENT_BYTES, &[b"data: a\n\ndata: [DO", b"NE]\n"]);
        assert_eq!(seen[1], (b"data: [DONE]\n".to_vec(), Some(b"[DONE]".to_vec()), FrameEnd::Interrupted));
        assert_eq!(frames(MAX_EVENT_BYTES, &[b"data: a\r\r"])[0].2, FrameEnd::Complete);
    }

    #[test]
    fn oversized_event_is_forwarded_in_chunks_next_event_is_read() {
        let stream = b"data: 0123456789abcdef\n\ndata: b\n\n";
        let expected = frames(10, &[stream]);
        let endings: Vec<_> = expected.iter().map(|frame| (frame.0.len(), frame.2)).collect();
        assert_eq!(
            endings,
            [(10, FrameEnd::Oversized), (10, FrameEnd::Oversized), (4, FrameEnd::Oversized), (9, FrameEnd::Complete)]
        );
        assert_eq!(expected[3].1.as_deref(), Some(&b"b"[..]));
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(frames(10, &bytes), expected);
    }

    #[test]
    fn event_of_exactly_the_limit_is_complete() {
        assert_eq!(frames(9, &[b"data: b\n\n"])[0].2, FrameEnd::Complete);
        // With carriage returns, only the byte after the limit shows that the event had ended there.
        let seen = frames(9, &[b"data: b\r\rdata: c\n\n"]);
        assert_eq!(seen.iter().map(|frame| frame.2).collect::<Vec<_>>(), [FrameEnd::Oversized, FrameEnd::Complete]);
    }

    #[test]
    fn frame_within_one_input_is_not_copied() {
        let bytes = b"data: a\n\ndata: b\n\nda".to_vec();
        let mut input = &bytes[..];
        let mut framer = SseFramer::new();
        for at in [0, 9] {
            let frame = framer.next(&mut input).unwrap();
            assert_eq!(frame.raw.as_ptr(), bytes[at..].as_ptr());
        }
        assert_eq!(framer.next(&mut input), None);
        assert_eq!(framer.buffered_bytes(), 2);
        let mut rest = &b"ta: c\n\n"[..];
        assert_eq!(framer.next(&mut rest).unwrap().raw, b"data: c\n\n");
        assert_eq!(framer.buffered_bytes(), 0);
    }

    #[test]
    fn long_event_in_tiny_chunks_is_scanned_once() {
        // Half a megabyte in one-byte chunks would take minutes if each push scanned from the start.
        let mut stream = b"data: ".to_vec();
        stream.resize(500_000, b'x');
        stream.extend_from_slice(b"\n\n");
        let pieces: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(frames(MAX_EVENT_BYTES, &pieces).len(), 1);
    }
}
