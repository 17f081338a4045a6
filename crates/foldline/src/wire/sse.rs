//! Cuts a stream of server-sent events into frames.
//!
//! A frame is one event with the blank line that ends it, or a comment, or a stray blank line:
//! whatever comes, the frames laid end to end are the bytes that went in, so that a proxy may
//! forward them as they are and read a copy on the side. Where the bytes are cut by the network
//! does not matter. A frame that lies whole in the bytes that were pushed is borrowed from them;
//! only one that spans two pushes is copied, once.
//!
//! Nothing here knows a provider.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};

/// The largest event that is held together, unless told otherwise. The last event of a Responses
/// stream repeats the whole output, generated images included.
pub const MAX_EVENT: usize = 32 << 20;

/// Cuts bytes into [`Frame`]s.
///
/// ```
/// use foldline::wire::Framer;
///
/// let mut framer = Framer::new();
/// let mut seen = Vec::new();
/// for mut bytes in [&b"event: ping\nda"[..], b"ta: {}\n\n: keep-alive\n\n"] {
///     while let Some(frame) = framer.next(&mut bytes) {
///         seen.push((frame.range(), frame.name().map(str::to_owned), frame.data().map(|it| it.into_owned())));
///     }
/// }
/// assert_eq!(seen, [(0..22, Some("ping".into()), Some(b"{}".into())), (22..36, None, None)]);
/// assert!(framer.finish().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Framer {
    /// The beginning of a frame whose end has not come yet.
    pending: Vec<u8>,
    /// `pending` was given out as a frame and goes at the next call.
    spent: bool,
    /// Where in a line the scan stands.
    line: Line,
    /// Offset in the stream of the next frame.
    start: u64,
    limit: usize,
    /// Pieces of an event that is longer than `limit` are being given out.
    too_long: bool,
}

/// One event as it came, or a piece of the stream that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Offset of its first byte in the stream.
    pub start: u64,
    /// Its bytes, with the blank line that ends it.
    pub raw: &'a [u8],
    /// How it ended.
    pub ending: Ending,
}

/// How a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// With its blank line.
    Whole,
    /// The stream ended first. Some servers leave out the last blank line, so its fields are worth
    /// reading.
    Cut,
    /// It is a piece of an event that is longer than the limit, and has no fields.
    TooLong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// At the first byte of a line.
    Start,
    /// Behind it.
    Inside,
    /// Behind a carriage return that ended a line; a line feed would belong to it.
    Returned { blank: bool },
}

impl Default for Framer {
    fn default() -> Self {
        Self::new()
    }
}

impl Framer {
    /// A framer at the beginning of a stream.
    pub fn new() -> Self {
        Self::with_limit(MAX_EVENT)
    }

    /// A framer that holds at most `limit` bytes of one event together.
    pub fn with_limit(limit: usize) -> Self {
        Self { pending: Vec::new(), spent: false, line: Line::Start, start: 0, limit: limit.max(1), too_long: false }
    }

    /// The next frame that ends in `input`, which moves on behind it. `None` when the rest of
    /// `input` ends no frame; it is kept then.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Option<Frame<'s>> {
        if std::mem::take(&mut self.spent) {
            self.pending.clear();
        }
        let room = self.limit - self.pending.len();
        let (taken, ending) = match self.end_of_event(&input[..room.min(input.len())]) {
            Some(end) => (end, if std::mem::take(&mut self.too_long) { Ending::TooLong } else { Ending::Whole }),
            None if room <= input.len() => {
                self.too_long = true;
                (room, Ending::TooLong)
            }
            None => {
                self.pending.extend_from_slice(input);
                *input = &[];
                return None;
            }
        };
        if taken == 0 && self.pending.is_empty() {
            // An event that was too long ended with the last piece, which only now became clear.
            return self.next(input);
        }
        let (head, rest) = input.split_at(taken);
        *input = rest;
        let raw = if self.pending.is_empty() {
            head
        } else {
            self.pending.extend_from_slice(head);
            self.spent = true;
            &self.pending
        };
        let start = self.start;
        self.start += raw.len() as u64;
        Some(Frame { start, raw, ending })
    }

    /// What is left when the stream ends: an event without its blank line.
    pub fn finish(&mut self) -> Option<Frame<'_>> {
        if std::mem::take(&mut self.spent) {
            self.pending.clear();
        }
        if self.pending.is_empty() {
            return None;
        }
        self.spent = true;
        let ending = match self.line {
            _ if std::mem::take(&mut self.too_long) => Ending::TooLong,
            Line::Returned { blank: true } => Ending::Whole,
            _ => Ending::Cut,
        };
        let start = self.start;
        self.start += self.pending.len() as u64;
        self.line = Line::Start;
        Some(Frame { start, raw: &self.pending, ending })
    }

    /// The bytes that are held until their frame ends.
    pub fn held(&self) -> usize {
        if self.spent { 0 } else { self.pending.len() }
    }

    /// The length of `bytes` up to the end of the event, when it ends in them. Goes on where the
    /// last call stopped, so that every byte is looked at once however small the pushes are.
    fn end_of_event(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match (self.line, byte) {
                (Line::Start, b'\n') => return Some(at + 1),
                (Line::Start, b'\r') => {
                    self.line = Line::Returned { blank: true };
                    at += 1;
                }
                (Line::Start, _) => self.line = Line::Inside,
                (Line::Returned { blank: true }, _) => {
                    self.line = Line::Start;
                    return Some(at + usize::from(byte == b'\n'));
                }
                (Line::Returned { blank: false }, _) => {
                    self.line = Line::Start;
                    at += usize::from(byte == b'\n');
                }
                (Line::Inside, _) => {
                    at += memchr2(b'\n', b'\r', &bytes[at..])?;
                    self.line = if bytes[at] == b'\n' { Line::Start } else { Line::Returned { blank: false } };
                    at += 1;
                }
            }
        }
        None
    }
}

impl<'a> Frame<'a> {
    /// Its place in the stream.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.raw.len() as u64
    }

    /// The value of the `event` field.
    pub fn name(&self) -> Option<&'a str> {
        self.last("event").and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The values of the `data` fields, joined by line feeds; `None` when there is no such field.
    pub fn data(&self) -> Option<Cow<'a, [u8]>> {
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

    /// The value of the `id` field.
    pub fn id(&self) -> Option<&'a [u8]> {
        self.last("id")
    }

    /// The value of the `retry` field, in milliseconds.
    pub fn retry(&self) -> Option<u64> {
        self.last("retry").and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
    }

    /// Whether it has no field: a comment, as servers send to keep a connection open, or a stray
    /// blank line.
    pub fn is_silent(&self) -> bool {
        self.fields().next().is_none()
    }

    /// Writes the frame with other data: its other lines stay, and the data is one line.
    pub(crate) fn write_with(&self, data: &str, out: &mut Vec<u8>) {
        let mut written = false;
        for line in Lines(self.unmarked()).filter(|line| !line.is_empty()) {
            if line != b"data" && !line.starts_with(b"data:") {
                out.extend_from_slice(line);
            } else if std::mem::replace(&mut written, true) {
                continue;
            } else {
                out.extend_from_slice(b"data: ");
                // Between the tokens of JSON a line end is as good as a space, and inside them is none.
                out.extend(data.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
            }
            out.push(b'\n');
        }
        out.push(b'\n');
    }

    /// Its bytes without the byte order mark that may stand at the beginning of a stream.
    fn unmarked(&self) -> &'a [u8] {
        let mark = self.raw.strip_prefix(b"\xef\xbb\xbf").filter(|_| self.start == 0);
        mark.unwrap_or(self.raw)
    }

    fn last(&self, wanted: &str) -> Option<&'a [u8]> {
        self.fields().filter(|(name, _)| *name == wanted.as_bytes()).last().map(|(_, value)| value)
    }

    /// The fields in order, without comments.
    fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let raw: &'a [u8] = if self.ending == Ending::TooLong { &[] } else { self.unmarked() };
        Lines(raw).filter(|line| !line.is_empty() && line[0] != b':').map(|line| {
            let colon = memchr(b':', line).unwrap_or(line.len());
            let value = line.get(colon + 1..).unwrap_or_default();
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        })
    }
}

/// The lines of a frame, without what ends them.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = memchr2(b'\n', b'\r', self.0).unwrap_or(self.0.len());
        let line = &self.0[..end];
        let behind = &self.0[end..];
        self.0 = behind.strip_prefix(b"\r\n").unwrap_or_else(|| behind.get(1..).unwrap_or_default());
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames of a stream that comes in these pieces: bytes, data, ending.
    fn frames(limit: usize, pieces: &[&[u8]]) -> Vec<(Vec<u8>, Option<Vec<u8>>, Ending)> {
        let own = |it: Frame<'_>| (it.raw.to_vec(), it.data().map(Cow::into_owned), it.ending);
        let mut framer = Framer::with_limit(limit);
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
        frames(MAX_EVENT, &[stream])
            .into_iter()
            .map(|(_, data, _)| data.map(|data| String::from_utf8(data).unwrap()))
            .collect()
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn all_line_ends_are_known() {
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
    fn comments_and_other_fields_are_no_data() {
        let stream = b": keep-alive\n\nid: 7\nretry: 250\nevent: x\nevent: y\nunknown: z\n: in between\ndata: d\n\n\n";
        let mut input = &stream[..];
        let mut framer = Framer::new();
        let comment = framer.next(&mut input).unwrap();
        assert!(comment.is_silent() && comment.data().is_none());
        let event = framer.next(&mut input).unwrap();
        assert_eq!((event.id(), event.retry(), event.name()), (Some(&b"7"[..]), Some(250), Some("y")));
        assert_eq!(event.data().as_deref(), Some(&b"d"[..]));
        let blank = framer.next(&mut input).unwrap();
        assert_eq!((blank.raw, blank.is_silent()), (&b"\n"[..], true));
        assert_eq!(framer.next(&mut input), None);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_field() {
        assert_eq!(data(b"\xef\xbb\xbfdata: a\n\ndata: b\n\n"), [some("a"), some("b")]);
    }

    #[test]
    fn a_frame_is_written_with_other_data_and_its_other_lines() {
        let stream = b"\xef\xbb\xbfevent: x\r\n: note\r\ndata: {\r\ndata: }\r\ndatabase: y\r\n\r\n";
        let mut out = Vec::new();
        Framer::new().next(&mut &stream[..]).unwrap().write_with("[1,\n2]", &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "event: x\n: note\ndata: [1, 2]\ndatabase: y\n\n");
    }

    #[test]
    fn an_event_without_its_blank_line_is_given_at_the_end() {
        let seen = frames(MAX_EVENT, &[b"data: a\n\ndata: [DO", b"NE]\n"]);
        assert_eq!(seen[1], (b"data: [DONE]\n".to_vec(), Some(b"[DONE]".to_vec()), Ending::Cut));
        assert_eq!(frames(MAX_EVENT, &[b"data: a\r\r"])[0].2, Ending::Whole);
    }

    #[test]
    fn an_event_over_the_limit_passes_in_pieces_and_the_next_is_read() {
        let stream = b"data: 0123456789abcdef\n\ndata: b\n\n";
        let expected = frames(10, &[stream]);
        let endings: Vec<_> = expected.iter().map(|frame| (frame.0.len(), frame.2)).collect();
        assert_eq!(endings, [(10, Ending::TooLong), (10, Ending::TooLong), (4, Ending::TooLong), (9, Ending::Whole)]);
        assert_eq!(expected[3].1.as_deref(), Some(&b"b"[..]));
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(frames(10, &bytes), expected);
    }

    #[test]
    fn an_event_that_ends_exactly_at_the_limit_is_whole() {
        assert_eq!(frames(9, &[b"data: b\n\n"])[0].2, Ending::Whole);
        // With returns, only the byte behind the limit tells that the event had ended there.
        let seen = frames(9, &[b"data: b\r\rdata: c\n\n"]);
        assert_eq!(seen.iter().map(|it| it.2).collect::<Vec<_>>(), [Ending::TooLong, Ending::Whole]);
    }

    #[test]
    fn a_frame_that_lies_whole_in_the_input_is_not_copied() {
        let bytes = b"data: a\n\ndata: b\n\nda".to_vec();
        let mut input = &bytes[..];
        let mut framer = Framer::new();
        for at in [0, 9] {
            let frame = framer.next(&mut input).unwrap();
            assert_eq!(frame.raw.as_ptr(), bytes[at..].as_ptr());
        }
        assert_eq!(framer.next(&mut input), None);
        assert_eq!(framer.held(), 2);
        let mut rest = &b"ta: c\n\n"[..];
        assert_eq!(framer.next(&mut rest).unwrap().raw, b"data: c\n\n");
        assert_eq!(framer.held(), 0);
    }

    #[test]
    fn a_long_event_in_tiny_pieces_is_looked_at_once() {
        // Half a megabyte byte by byte would take minutes if each push scanned from the start.
        let mut stream = b"data: ".to_vec();
        stream.resize(500_000, b'x');
        stream.extend_from_slice(b"\n\n");
        let pieces: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(frames(MAX_EVENT, &pieces).len(), 1);
    }
}
