//! Messages of an AWS event stream (`application/vnd.amazon.eventstream`): headers and a payload between checksums.
//!
//! The payload of Converse is JSON. InvokeModel wraps the model's own events: `{"bytes":"BASE64"}`; both are unwrapped
//! here, so that dialects see JSON only. An exception becomes the error event of the Anthropic dialect, which all parsers
//! of such streams accept. A message with a wrong checksum is never parsed; it is forwarded like all others.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::wire::json::scan;
use crate::wire::json::write::quoted;

/// Bytes of the lengths and their checksum.
const PRELUDE_BYTES: usize = 12;
/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 4;
/// The type of messages that wrap an event of the model.
const CHUNK_TYPE: &str = "chunk";

/// Position of the scan for the end of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageScan {
    /// The length so far, of at most four bytes.
    length: u32,
    /// Bytes of the message that were scanned.
    scanned: usize,
}

impl MessageScan {
    /// Returns the length of `bytes` up to the end of the message, if it ends in them. Continues where the last call
    /// stopped. A length that no message can have never ends.
    pub(crate) fn find_frame_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let prefix = bytes.iter().take(4_usize.saturating_sub(self.scanned));
        let prefix_bytes = prefix.clone().count();
        self.length = prefix.fold(self.length, |length, byte| length << 8 | u32::from(*byte));
        let scanned = self.scanned + prefix_bytes;
        let total = usize::try_from(self.length).ok().filter(|total| *total >= PRELUDE_BYTES + CHECKSUM_BYTES);
        let end = match total {
            Some(total) if scanned >= 4 => total - self.scanned.min(total),
            _ => usize::MAX,
        };
        if end <= bytes.len() {
            *self = Self::default();
            return Some(end);
        }
        self.scanned += bytes.len();
        None
    }
}

/// An intact message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventMessage<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
}

impl<'a> EventMessage<'a> {
    /// Parses a whole message; returns `None` if its lengths or checksums are wrong.
    pub(crate) fn parse(raw: &'a [u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_be_bytes(*raw.get(at..at + 4)?.first_chunk()?));
        let (total, headers_length) = (usize::try_from(number(0)?).ok()?, usize::try_from(number(4)?).ok()?);
        let payload_start = PRELUDE_BYTES.checked_add(headers_length)?;
        let payload_end = raw.len().checked_sub(CHECKSUM_BYTES)?;
        let is_intact = total == raw.len()
            && number(8)? == crc32fast::hash(&raw[..8])
            && number(payload_end)? == crc32fast::hash(&raw[..payload_end]);
        let payload = raw.get(payload_start..payload_end).filter(|_| is_intact)?;
        Some(Self { headers: &raw[PRELUDE_BYTES..payload_start], payload })
    }

    /// Returns the value of a header that is a text.
    fn header(&self, wanted: &str) -> Option<&'a str> {
        let mut rest = self.headers;
        while let Some((name_length, after)) = rest.split_first() {
            let (name, after) = after.split_at_checked(usize::from(*name_length))?;
            let (kind, after) = after.split_first()?;
            let (value_length, after) = match kind {
                0 | 1 => (0, after),
                2 => (1, after),
                3 => (2, after),
                4 => (4, after),
                5 | 8 => (8, after),
                6 | 7 => {
                    let (length, after) = after.split_first_chunk::<2>()?;
                    (usize::from(u16::from_be_bytes(*length)), after)
                }
                9 => (16, after),
                _ => return None,
            };
            let (value, after) = after.split_at_checked(value_length)?;
            if name == wanted.as_bytes() && *kind == 7 {
                return std::str::from_utf8(value).ok();
            }
            rest = after;
        }
        None
    }

    /// Returns the type of the event or of the exception.
    pub(crate) fn event_type(&self) -> Option<&'a str> {
        [":event-type", ":exception-type", ":error-code"].into_iter().find_map(|name| self.header(name))
    }

    /// Returns the event as JSON.
    pub(crate) fn data(&self) -> Cow<'a, [u8]> {
        let kind = self.header(":message-type").unwrap_or("event");
        if kind != "event" {
            return Cow::Owned(self.error_json().into_bytes());
        }
        match self.wrapped_event() {
            Some(event) => Cow::Owned(event),
            None => Cow::Borrowed(self.payload),
        }
    }

    /// Returns the event of the model that the message wraps.
    fn wrapped_event(&self) -> Option<Vec<u8>> {
        let payload = std::str::from_utf8(self.payload).ok().filter(|_| self.event_type() == Some(CHUNK_TYPE))?;
        let chunk = scan::parse_document(payload).ok()?.object();
        STANDARD.decode(chunk.string("bytes")?.as_bytes()).ok()
    }

    fn error_json(&self) -> String {
        let payload = std::str::from_utf8(self.payload).ok().and_then(|text| scan::parse_document(text).ok());
        let fields = payload.filter(|value| value.is_object()).map(|value| value.object());
        let message = fields.and_then(|fields| fields.string("message").or_else(|| fields.string("Message")));
        let message = message.or_else(|| self.header(":error-message").map(Cow::Borrowed)).unwrap_or_default();
        let kind = self.event_type().unwrap_or("exception");
        format!(r#"{{"type":"error","error":{{"type":{},"message":{}}}}}"#, quoted(kind), quoted(&message))
    }

    /// Writes the message with another event as its content.
    pub(crate) fn write_with_data(&self, json: &str, out: &mut Vec<u8>) {
        match self.wrapped_event() {
            Some(_) => write_message(self.headers, wrapped(json).as_bytes(), out),
            None => write_message(self.headers, json.as_bytes(), out),
        }
    }
}

/// Returns the payload that wraps an event of the model.
fn wrapped(json: &str) -> String {
    format!(r#"{{"bytes":"{}"}}"#, STANDARD.encode(json))
}

/// Writes a message with these headers and payload.
fn write_message(headers: &[u8], payload: &[u8], out: &mut Vec<u8>) {
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
    let start = out.len();
    out.extend(length(PRELUDE_BYTES + headers.len() + payload.len() + CHECKSUM_BYTES));
    out.extend(length(headers.len()));
    out.extend(crc32fast::hash(&out[start..]).to_be_bytes());
    out.extend_from_slice(headers);
    out.extend_from_slice(payload);
    out.extend(crc32fast::hash(&out[start..]).to_be_bytes());
}

/// Writes headers with texts as values.
fn text_headers(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(7);
        bytes.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes
}

/// Writes the exception that ends a stream.
pub(crate) fn write_exception(kind: &str, message: &str, out: &mut Vec<u8>) {
    let headers = text_headers(&[
        (":exception-type", kind),
        (":content-type", "application/json"),
        (":message-type", "exception"),
    ]);
    write_message(&headers, format!(r#"{{"message":{}}}"#, quoted(message)).as_bytes(), out);
}

/// Returns an event of this type as a message: that of Converse, or wrapped as InvokeModel does if the type is `chunk`.
#[cfg(any(test, feature = "testing"))]
pub fn event_message(event_type: &str, json: &str) -> Vec<u8> {
    let headers =
        text_headers(&[(":event-type", event_type), (":content-type", "application/json"), (":message-type", "event")]);
    let mut out = Vec::new();
    match event_type {
        CHUNK_TYPE => write_message(&headers, wrapped(json).as_bytes(), &mut out),
        _ => write_message(&headers, json.as_bytes(), &mut out),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the format's specification: headers, payload and checksums.
    #[test]
    fn message_is_written_and_read() {
        let raw = event_message("messageStart", r#"{"role":"assistant"}"#);
        assert_eq!(raw.len(), usize::try_from(u32::from_be_bytes(*raw.first_chunk().unwrap())).unwrap());
        let message = EventMessage::parse(&raw).unwrap();
        assert_eq!(message.event_type(), Some("messageStart"));
        assert_eq!(&*message.data(), br#"{"role":"assistant"}"#);
        let mut out = Vec::new();
        message.write_with_data("{}", &mut out);
        assert_eq!(&*EventMessage::parse(&out).unwrap().data(), b"{}");
    }

    #[test]
    fn wrapped_event_is_decoded_and_encoded() {
        let raw = event_message("chunk", r#"{"type":"ping"}"#);
        let message = EventMessage::parse(&raw).unwrap();
        assert_eq!(&*message.data(), br#"{"type":"ping"}"#);
        let mut out = Vec::new();
        message.write_with_data(r#"{"type":"pong"}"#, &mut out);
        assert_eq!(&*EventMessage::parse(&out).unwrap().data(), br#"{"type":"pong"}"#);
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let raw = event_message("messageStop", r#"{"stopReason":"end_turn"}"#);
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(EventMessage::parse(&damaged).is_none(), "bit {bit}");
        }
        assert!((0..raw.len()).all(|end| EventMessage::parse(&raw[..end]).is_none()));
    }

    #[test]
    fn exception_becomes_an_error_event() {
        let mut raw = Vec::new();
        write_exception("throttlingException", "Too many \"requests\"", &mut raw);
        let message = EventMessage::parse(&raw).unwrap();
        assert_eq!(
            std::str::from_utf8(&message.data()).unwrap(),
            r#"{"type":"error","error":{"type":"throttlingException","message":"Too many \"requests\""}}"#
        );
    }

    #[test]
    fn ends_are_found_in_chunks_of_any_size() {
        let stream = [event_message("a", "{}"), event_message("b", r#"{"x":1}"#)].concat();
        let first = event_message("a", "{}").len();
        for size in 1..stream.len() {
            let (mut scan, mut ends, mut before) = (MessageScan::default(), Vec::new(), 0);
            for chunk in stream.chunks(size) {
                let mut rest = chunk;
                while let Some(end) = scan.find_frame_end(rest) {
                    ends.push(before + chunk.len() - rest.len() + end);
                    rest = &rest[end..];
                }
                before += chunk.len();
            }
            assert_eq!(ends, [first, stream.len()], "chunks of {size}");
        }
        assert_eq!(MessageScan::default().find_frame_end(&[0, 0, 0, 1, 0, 0, 0, 0]), None);
    }
}
