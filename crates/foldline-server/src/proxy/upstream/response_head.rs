//! The start of a response, read until it cannot be an overflow error any more.
//!
//! A provider may refuse a prompt that is too large with an error status, or start a stream with 200 and send the error
//! there. Until the model has produced output, nothing is sent to the client, so the request can be folded again and
//! resent.

use std::time::{Duration, Instant};

use bytes::Bytes;
use foldline::wire::{ContextOverflow, DiagnosticsFilter, Format, RequestRejection, StreamEvent, StreamReader};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;

use crate::proxy::downstream::body_budget::{BodyBudget, BodyBuffer};
use crate::proxy::upstream::diagnosis::VerdictSlot;

/// Maximum time that a stream is held before its head is sent to the client: a prompt is refused quickly, while a model
/// may think for minutes.
const HOLD_TIMEOUT: Duration = Duration::from_secs(5);
/// Content types of streams.
const STREAM_TYPES: [&str; 3] = ["text/event-stream", "application/x-ndjson", "application/vnd.amazon.eventstream"];
/// Maximum bytes of a stream that are held.
const MAX_HELD_BYTES: usize = 256 << 10;
/// Maximum size of a body that is parsed; larger bodies are forwarded unparsed.
const MAX_BUFFERED_BYTES: usize = 32 << 20;

/// A response that has started.
pub(crate) struct ResponseHead {
    pub(crate) parts: Parts,
    /// The part of the body that was received.
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) remaining: RemainingBody,
    /// True if the response is a stream of events, lines, messages or elements of an array.
    pub(crate) is_stream: bool,
    /// Set if the provider reports that the prompt does not fit.
    pub(crate) overflow: Option<ContextOverflow>,
}

/// The kind of response that the path of a request states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// A stream. Without the content type of one it is a JSON array, or else a server that sends one body.
    Stream,
    /// A stream or a body, by the content type.
    Typed,
}

/// The rest of a body.
pub(crate) enum RemainingBody {
    /// Nothing.
    Complete,
    /// The rest of a stream of events.
    Events(ResponseBody),
    /// The rest of something else, which is not read.
    Opaque(ResponseBody),
    /// The body broke off, for this reason.
    Failed(String),
}

impl ResponseHead {
    /// Reads the start of a response. With `hold` a stream is held until the model has produced output.
    /// A buffered body reserves memory in `budget`.
    pub(crate) async fn read(
        response: Response<Incoming>,
        format: Format,
        kind: ResponseKind,
        hold: bool,
        idle: Duration,
        budget: &BodyBudget,
        diagnosis: Option<VerdictSlot>,
    ) -> Self {
        let (mut parts, incoming) = response.into_parts();
        if diagnosis.is_some() {
            parts.headers.remove(CONTENT_LENGTH);
        }
        let rest = ResponseBody { incoming, diagnosis: None };
        let is_identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
        let encoded = parts.headers.get(CONTENT_ENCODING).is_some_and(|value| !is_identity(value));
        let is_stream = has_stream_type(&parts);
        let may_be_array = kind == ResponseKind::Stream && !is_stream && parts.status.is_success();
        let mut head =
            Self { parts, chunks: Vec::new(), remaining: RemainingBody::Complete, is_stream, overflow: None };
        if encoded {
            return Self { remaining: RemainingBody::Opaque(rest), ..head };
        }
        let diagnosis = diagnosis.map(|verdict| (DiagnosticsFilter::new(format), verdict));
        let (in_stream, diagnosis_of_body) = if is_stream { (diagnosis, None) } else { (None, diagnosis) };
        let rest = ResponseBody { diagnosis: in_stream, ..rest };
        let mut body = StartedBody { first: None, rest };
        if may_be_array {
            match body.read_first(idle).await {
                Ok(first) => head.is_stream = first.starts_with(b"["),
                Err(reason) => return Self { remaining: RemainingBody::Failed(reason), ..head },
            }
        }
        match head.is_stream {
            true if hold => head.hold_stream(body, format, idle).await,
            true => {
                Self { chunks: body.first.into_iter().collect(), remaining: RemainingBody::Events(body.rest), ..head }
            }
            false => {
                let mut head = head.read_body(body, idle, budget).await;
                if let (Some((mut filter, verdict)), RemainingBody::Complete) = (diagnosis_of_body, &head.remaining) {
                    head.chunks = head.chunks.iter().map(|body| filter.filter_body(body).into_owned().into()).collect();
                    record_verdict(&filter, &verdict);
                }
                head
            }
        }
    }

    /// Reads a body to its end, or up to the limit, or as far as there is memory.
    async fn read_body(mut self, mut body: StartedBody, idle: Duration, budget: &BodyBudget) -> Self {
        let announced = self.parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut buffer = BodyBuffer::for_response(announced.unwrap_or(MAX_BUFFERED_BYTES), budget);
        let mut unbuffered = None;
        self.remaining = loop {
            let chunk = match body.next_chunk(idle).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break RemainingBody::Complete,
                Err(reason) => break RemainingBody::Failed(reason),
            };
            if buffer.push(&chunk).await.is_err() {
                tracing::warn!("no memory to buffer a response; forwarding it unparsed");
                unbuffered = Some(chunk);
                break RemainingBody::Opaque(body.rest);
            }
            if buffer.len() > MAX_BUFFERED_BYTES {
                break RemainingBody::Opaque(body.rest);
            }
        };
        let buffer = buffer.into_bytes();
        let status = self.parts.status.as_u16();
        if status >= 400 && matches!(self.remaining, RemainingBody::Complete) {
            self.overflow = overflow_of(RequestRejection::from_body(status, &buffer));
        }
        self.chunks.push(buffer);
        self.chunks.extend(unbuffered);
        self
    }

    /// Reads a stream until the model has produced output.
    async fn hold_stream(mut self, mut body: StartedBody, format: Format, idle: Duration) -> Self {
        let mut reader = StreamReader::new(format);
        let (started_at, mut length) = (Instant::now(), 0);
        self.remaining = loop {
            let left = HOLD_TIMEOUT.saturating_sub(started_at.elapsed());
            let Ok(chunk) = tokio::time::timeout(left, body.next_chunk(idle)).await else {
                break RemainingBody::Events(body.rest);
            };
            let chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break RemainingBody::Complete,
                Err(reason) => break RemainingBody::Failed(reason),
            };
            length += chunk.len();
            let events = reader.push(&chunk);
            self.chunks.push(chunk);
            for (_, event) in &events {
                if let StreamEvent::Error { refusal, .. } = event {
                    self.overflow = overflow_of(*refusal);
                }
            }
            let is_output = |event: &StreamEvent| {
                !matches!(
                    event,
                    StreamEvent::Started { .. } | StreamEvent::Ping | StreamEvent::Other { .. } | StreamEvent::Usage(_)
                )
            };
            if length > MAX_HELD_BYTES || events.iter().any(|(_, event)| is_output(event)) {
                break RemainingBody::Events(body.rest);
            }
        };
        self
    }
}

/// Returns true if the content type is that of a stream.
fn has_stream_type(parts: &Parts) -> bool {
    let kind = parts.headers.get(CONTENT_TYPE).map(|value| value.as_bytes().trim_ascii_start());
    let has_start = |kind: &[u8], stream: &str| {
        kind.get(..stream.len()).is_some_and(|start| start.eq_ignore_ascii_case(stream.as_bytes()))
    };
    kind.is_some_and(|kind| STREAM_TYPES.iter().any(|stream| has_start(kind, stream)))
}

fn overflow_of(refusal: RequestRejection) -> Option<ContextOverflow> {
    match refusal {
        RequestRejection::Overflow(overflow) => Some(overflow),
        RequestRejection::PayloadTooLarge | RequestRejection::Other => None,
    }
}

/// A body whose first chunk may have been read.
struct StartedBody {
    first: Option<Bytes>,
    rest: ResponseBody,
}

impl StartedBody {
    /// Reads the first chunk, and returns a copy of it; empty if there is none.
    async fn read_first(&mut self, idle: Duration) -> Result<Bytes, String> {
        self.first = next_chunk(&mut self.rest, idle).await?;
        Ok(self.first.clone().unwrap_or_default())
    }

    async fn next_chunk(&mut self, idle: Duration) -> Result<Option<Bytes>, String> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => next_chunk(&mut self.rest, idle).await,
        }
    }
}

/// A body as it arrives, without a diagnosis that the proxy requested.
pub(crate) struct ResponseBody {
    incoming: Incoming,
    diagnosis: Option<(DiagnosticsFilter, VerdictSlot)>,
}

fn record_verdict(filter: &DiagnosticsFilter, slot: &VerdictSlot) {
    if let Some(verdict) = filter.verdict() {
        // The first one counts.
        let _ = slot.set(verdict.clone());
    }
}

/// Returns the next chunk of a body; none at its end.
pub(crate) async fn next_chunk(body: &mut ResponseBody, idle: Duration) -> Result<Option<Bytes>, String> {
    loop {
        let frame = tokio::time::timeout(idle, body.incoming.frame()).await;
        let frame = frame.map_err(|_| format!("no data for {} s", idle.as_secs()))?;
        let chunk = match frame {
            None => {
                let held = body.diagnosis.take().map(|(mut filter, slot)| {
                    let held = filter.finish();
                    record_verdict(&filter, &slot);
                    held
                });
                return Ok(held.filter(|held| !held.is_empty()).map(Bytes::from));
            }
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if !data.is_empty() => data,
                _ => continue,
            },
        };
        let Some((filter, slot)) = &mut body.diagnosis else { return Ok(Some(chunk)) };
        let filtered = filter.filter_chunk(&chunk);
        record_verdict(filter, slot);
        if !filtered.is_empty() {
            return Ok(Some(filtered.into()));
        }
    }
}
