//! The client's stream: every frame and error is written in the form that the stream has.

use crate::wire::event_stream::write_exception;
use crate::wire::json_array::{ArrayState, write_array_frame};
use crate::wire::sse::{FrameKind, SseFrame, on_one_line};

/// The form of a client's stream, and what of it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientStream {
    /// Server-sent events.
    #[default]
    Events,
    /// One JSON array.
    Array(ArrayState),
    /// Lines of JSON.
    Lines,
    /// Binary messages.
    Messages,
}

/// The event that ends a stream with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorEvent {
    /// The name, in dialects whose events have names.
    pub(crate) name: Option<&'static str>,
    /// The data as JSON.
    pub(crate) data: String,
}

impl ClientStream {
    /// Creates the state of a stream with frames of this kind.
    pub(crate) fn new(kind: FrameKind) -> Self {
        match kind {
            FrameKind::Event => ClientStream::Events,
            FrameKind::ArrayElement => ClientStream::Array(ArrayState::Unopened),
            FrameKind::Line => ClientStream::Lines,
            FrameKind::Message => ClientStream::Messages,
        }
    }

    /// Returns the kind of the stream's frames.
    pub(crate) fn kind(&self) -> FrameKind {
        match self {
            ClientStream::Events => FrameKind::Event,
            ClientStream::Array(_) => FrameKind::ArrayElement,
            ClientStream::Lines => FrameKind::Line,
            ClientStream::Messages => FrameKind::Message,
        }
    }

    /// Writes a frame, with new data if there is any. An element of an array gets the separator that the array needs.
    pub(crate) fn write_frame(&mut self, frame: &SseFrame<'_>, data: Option<&str>, out: &mut Vec<u8>) {
        match (self, data) {
            (ClientStream::Array(array), _) if frame.kind == FrameKind::ArrayElement => {
                write_array_frame(frame.raw, data, array, out);
            }
            (_, None) => out.extend_from_slice(frame.raw),
            (_, Some(data)) => match (frame.kind, frame.message()) {
                (FrameKind::Line, _) => write_line(data, out),
                (_, Some(message)) => message.write_with_data(data, out),
                _ => frame.write_with_data(data, out),
            },
        }
    }

    /// Writes the end of a stream with an error of this type.
    pub(crate) fn write_error(&mut self, event: &ErrorEvent, kind: &str, message: &str, out: &mut Vec<u8>) {
        match self {
            ClientStream::Events => {
                if let Some(name) = event.name {
                    out.extend_from_slice(format!("event: {name}\n").as_bytes());
                }
                out.extend_from_slice(format!("data: {}\n\n", event.data).as_bytes());
            }
            ClientStream::Array(array) => {
                for frame in [event.data.as_str(), "]"] {
                    write_array_frame(frame.as_bytes(), None, array, out);
                }
            }
            ClientStream::Lines => write_line(&event.data, out),
            ClientStream::Messages => write_exception(exception_type(kind), message, out),
        }
    }

    /// Returns the bytes that keep a waiting client's stream open; `own` are those of the dialect.
    pub(crate) fn keep_alive(&self, own: &'static [u8]) -> &'static [u8] {
        match self {
            ClientStream::Events => own,
            ClientStream::Array(_) => b"\n",
            // Clients parse every line, and an empty one is not JSON; the space begins the next line.
            ClientStream::Lines => b" ",
            // No message is without effect.
            ClientStream::Messages => b"",
        }
    }
}

fn write_line(json: &str, out: &mut Vec<u8>) {
    out.extend(on_one_line(json));
    out.push(b'\n');
}

/// Returns the exception of a stream for an error type of any dialect.
fn exception_type(kind: &str) -> &'static str {
    match kind {
        "throttlingException" | "ThrottlingException" | "rate_limit_error" => "throttlingException",
        "validationException" | "ValidationException" | "invalid_request_error" => "validationException",
        "serviceUnavailableException" | "ServiceUnavailableException" | "overloaded_error" => {
            "serviceUnavailableException"
        }
        "modelStreamErrorException" => "modelStreamErrorException",
        _ => "internalServerException",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::event_stream::EventMessage;
    use crate::wire::sse::SseFramer;

    #[test]
    fn error_has_the_form_of_the_stream() {
        let event = ErrorEvent { name: Some("error"), data: r#"{"error":"busy"}"#.into() };
        let written = |mut stream: ClientStream| {
            let mut out = Vec::new();
            stream.write_error(&event, "overloaded_error", "busy", &mut out);
            out
        };
        assert_eq!(written(ClientStream::Events), b"event: error\ndata: {\"error\":\"busy\"}\n\n");
        assert_eq!(written(ClientStream::Lines), b"{\"error\":\"busy\"}\n");
        assert_eq!(written(ClientStream::Array(ArrayState::Opened)), b",{\"error\":\"busy\"}]");
        let message = written(ClientStream::Messages);
        assert_eq!(EventMessage::parse(&message).unwrap().event_type(), Some("serviceUnavailableException"));
    }

    #[test]
    fn line_is_rewritten_as_one_line() {
        let mut framer = SseFramer::new().with_any_kind();
        let mut out = Vec::new();
        let frame = framer.next(&mut &b"{\"a\":1}\n"[..]).unwrap();
        ClientStream::Lines.write_frame(&frame, Some("{\n\"b\":2}"), &mut out);
        assert_eq!(out, b"{ \"b\":2}\n");
    }
}
