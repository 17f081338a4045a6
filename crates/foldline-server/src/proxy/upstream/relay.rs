//! Forwards a response to the client unchanged, and reads its usage on the way.
//!
//! A task reads the provider's chunks and forwards them; it applies backpressure if the client does not read, and closes
//! the upstream connection if the client disconnects. A response that broke off is aborted for the client too: it must
//! not look complete.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use foldline::Handle;
use foldline::wire::{Format, Response, StreamLimits, StreamReader, Usage};

use crate::proxy::downstream::body_budget::StreamReservation;
use crate::proxy::downstream::channel_body::{BodySender, abort_body, channel_body};
use crate::proxy::upstream::response_head::{RemainingBody, ResponseHead, next_chunk};

/// The usage of a response, if it could be read.
pub(crate) type MaybeUsage = Option<ResponseUsage>;

/// The usage of a response.
#[derive(Clone, Debug)]
pub(crate) struct ResponseUsage {
    pub(crate) usage: Option<Usage>,
    pub(crate) rounds: RoundCount,
    /// Originals that the model requested and received.
    pub(crate) unfolded: Vec<Handle>,
    /// Id of the response.
    pub(crate) response_id: Option<String>,
}

/// The number of rounds of a response. The usage of several rounds cannot be compared with the one prompt that was
/// counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundCount {
    One,
    Several,
}

impl From<Response<'_>> for ResponseUsage {
    fn from(response: Response<'_>) -> Self {
        let response_id = response.id.map(|id| id.into_owned());
        Self { usage: response.usage, rounds: RoundCount::One, unfolded: Vec::new(), response_id }
    }
}

/// Returns the body of a response for the client. `on_end` is called with its usage when the body ends. An incomplete event
/// is held in `memory`.
pub(crate) fn relay(
    head: ResponseHead,
    format: Format,
    idle: Duration,
    memory: StreamReservation,
    on_end: impl FnOnce(MaybeUsage) + Send + 'static,
) -> Body {
    let ResponseHead { chunks, remaining, is_stream, .. } = head;
    match remaining {
        RemainingBody::Complete if chunks.len() <= 1 && !is_stream => {
            let body = chunks.into_iter().next().unwrap_or_default();
            on_end(Response::parse(format, &body).ok().map(ResponseUsage::from));
            Body::from(body)
        }
        remaining => {
            let reader = UsageReader::new(format, memory);
            channel_body(|client| async move { on_end(forward(chunks, remaining, reader, idle, client).await) })
        }
    }
}

/// Reads the usage of a stream.
struct UsageReader {
    reader: StreamReader,
    memory: StreamReservation,
}

impl UsageReader {
    fn new(format: Format, memory: StreamReservation) -> Self {
        let limits = StreamLimits { max_kept_bytes: 0, ..StreamLimits::default() };
        Self { reader: StreamReader::with_limits(format, limits), memory }
    }

    fn push(&mut self, chunk: &[u8]) {
        self.reader.push(chunk);
        if !self.memory.resize(self.reader.held_bytes()) {
            self.reader.stop_keeping();
        }
    }

    fn finish(self) -> ResponseUsage {
        self.reader.finish().into()
    }
}

async fn forward(
    chunks: Vec<Bytes>,
    remaining: RemainingBody,
    mut reader: UsageReader,
    idle: Duration,
    client: BodySender,
) -> MaybeUsage {
    for chunk in chunks {
        reader.push(&chunk);
        client.send(Ok(chunk)).await.ok()?;
    }
    let (mut body, is_readable) = match remaining {
        RemainingBody::Complete => return Some(reader.finish()),
        RemainingBody::Failed(reason) => {
            abort_body(&client, reason).await;
            return Some(reader.finish());
        }
        RemainingBody::Events(body) => (body, true),
        RemainingBody::Opaque(body) => (body, false),
    };
    loop {
        let chunk = tokio::select! {
            chunk = next_chunk(&mut body, idle) => chunk,
            () = client.closed() => return is_readable.then(|| reader.finish()),
        };
        match chunk {
            Ok(Some(chunk)) => {
                if is_readable {
                    reader.push(&chunk);
                }
                client.send(Ok(chunk)).await.ok()?;
            }
            Ok(None) => return is_readable.then(|| reader.finish()),
            Err(reason) => {
                abort_body(&client, reason).await;
                return is_readable.then(|| reader.finish());
            }
        }
    }
}
