//! The beginning of an answer, until it is sure to be one.
//!
//! A provider may refuse a prompt that is too large with an error status, or open a stream with 200 and
//! refuse it there. As long as the model has said nothing, nothing has been shown to the client, and
//! the request can be folded more and sent again.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use foldline::wire::{ContextOverflow, Format, RequestRejection, StreamEvent, StreamReader};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use hyper::http::response::Parts;

/// How long the first words of a stream are waited for before the client is shown its head: a prompt
/// is refused at once, while a model may think for minutes.
const HOLD_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of a stream is held meanwhile.
const MAX_HELD_BYTES: usize = 256 << 10;
/// A body that is longer passes without being read.
const MAX_BUFFERED_BYTES: usize = 32 << 20;

/// An answer that has begun.
pub(crate) struct ResponseHead {
    pub(crate) parts: Parts,
    /// What has come of the body.
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) remaining: RemainingBody,
    /// The provider says that the prompt does not fit.
    pub(crate) overflow: Option<ContextOverflow>,
}

/// What is left of a body.
pub(crate) enum RemainingBody {
    /// Nothing.
    Complete,
    /// The rest of a stream of events.
    Events(Incoming),
    /// The rest of something else, which is not read.
    Opaque(Incoming),
    /// It broke off.
    Failed(String),
}

impl ResponseHead {
    /// Waits until the answer is sure to be one; with `hold` also inside of a stream.
    pub(crate) async fn read(answered: Response<Incoming>, format: Format, hold: bool, stall: Duration) -> Self {
        let (head, body) = answered.into_parts();
        let encoded = head.headers.get(CONTENT_ENCODING).is_some_and(|it| it != "identity");
        let opening = Self { parts: head, chunks: Vec::new(), remaining: RemainingBody::Complete, overflow: None };
        match (encoded, opening.is_event_stream()) {
            (true, _) => Self { remaining: RemainingBody::Opaque(body), ..opening },
            (false, true) if hold => opening.hold_stream(body, format, stall).await,
            (false, true) => Self { remaining: RemainingBody::Events(body), ..opening },
            (false, false) => opening.read_body(body, stall).await,
        }
    }

    /// Whether it is a stream of events.
    pub(crate) fn is_event_stream(&self) -> bool {
        let kind = self.parts.headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// Reads a body to its end.
    async fn read_body(mut self, mut body: Incoming, stall: Duration) -> Self {
        let mut whole = BytesMut::new();
        self.remaining = loop {
            match next_chunk(&mut body, stall).await {
                Ok(Some(piece)) => whole.extend_from_slice(&piece),
                Ok(None) => break RemainingBody::Complete,
                Err(why) => break RemainingBody::Failed(why),
            }
            if whole.len() > MAX_BUFFERED_BYTES {
                break RemainingBody::Opaque(body);
            }
        };
        let status = self.parts.status.as_u16();
        if status >= 400 && matches!(self.remaining, RemainingBody::Complete) {
            self.overflow = overflow_of(RequestRejection::from_body(status, &whole));
        }
        self.chunks.push(whole.freeze());
        self
    }

    /// Reads a stream until the model says something.
    async fn hold_stream(mut self, mut body: Incoming, format: Format, stall: Duration) -> Self {
        let mut reader = StreamReader::new(format);
        let (began, mut length) = (Instant::now(), 0);
        self.remaining = loop {
            let left = HOLD_TIMEOUT.saturating_sub(began.elapsed());
            let Ok(piece) = tokio::time::timeout(left, next_chunk(&mut body, stall)).await else {
                break RemainingBody::Events(body);
            };
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Ok(None) => break RemainingBody::Complete,
                Err(why) => break RemainingBody::Failed(why),
            };
            length += piece.len();
            let events = reader.push(&piece);
            self.chunks.push(piece);
            for (_, event) in &events {
                if let StreamEvent::Error { refusal, .. } = event {
                    self.overflow = overflow_of(*refusal);
                }
            }
            let opened = |event: &StreamEvent| {
                !matches!(
                    event,
                    StreamEvent::Started { .. } | StreamEvent::Ping | StreamEvent::Other { .. } | StreamEvent::Usage(_)
                )
            };
            if length > MAX_HELD_BYTES || events.iter().any(|(_, event)| opened(event)) {
                break RemainingBody::Events(body);
            }
        };
        self
    }
}

fn overflow_of(refusal: RequestRejection) -> Option<ContextOverflow> {
    match refusal {
        RequestRejection::Overflow(overflow) => Some(overflow),
        RequestRejection::PayloadTooLarge | RequestRejection::Other => None,
    }
}

/// The next piece of a body, unless it stalls or breaks.
pub(crate) async fn next_chunk(body: &mut Incoming, stall: Duration) -> Result<Option<Bytes>, String> {
    loop {
        let piece = tokio::time::timeout(stall, body.frame()).await;
        let piece = piece.map_err(|_| format!("nothing came for {} s", stall.as_secs()))?;
        match piece {
            None => return Ok(None),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if !data.is_empty() => return Ok(Some(data)),
                _ => continue,
            },
        }
    }
}
