//! Forwards a response to the client unchanged, and reads its usage on the way.
//!
//! A task reads the provider's chunks and forwards them; it applies backpressure if the client does not read, and closes
//! the upstream connection if the client disconnects. A response that broke off is aborted for the client too: it must
//! not look complete.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use foldline::wire::{Format, Response, StreamReader, Usage};
use http_body::Frame;
use tokio::sync::mpsc;

use crate::proxy::upstream::response_head::{RemainingBody, ResponseHead, next_chunk};

/// Chunks that may be queued for the client.
const CHANNEL_CAPACITY: usize = 16;
/// Delay before a body is aborted: an aborted connection drops data that is not written yet.
const FLUSH_DELAY: Duration = Duration::from_millis(50);

/// The usage of a response, if it could be read.
pub(crate) type MaybeUsage = Option<ResponseUsage>;

/// The usage of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseUsage {
    pub(crate) usage: Option<Usage>,
    pub(crate) rounds: RoundCount,
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
        Self { usage: response.usage, rounds: RoundCount::One }
    }
}

/// Returns the body of a response for the client. `on_end` is called with its usage when the body ends.
pub(crate) fn relay(
    head: ResponseHead,
    format: Format,
    idle: Duration,
    on_end: impl FnOnce(MaybeUsage) + Send + 'static,
) -> Body {
    let ResponseHead { chunks, remaining, .. } = head;
    match remaining {
        RemainingBody::Complete if chunks.len() <= 1 => {
            let body = chunks.into_iter().next().unwrap_or_default();
            on_end(Response::parse(format, &body).ok().map(ResponseUsage::from));
            Body::from(body)
        }
        remaining => {
            channel_body(|client| async move { on_end(forward(chunks, remaining, format, idle, client).await) })
        }
    }
}

/// Returns a body that a spawned task fills.
pub(crate) fn channel_body<F: Future<Output = ()> + Send + 'static>(fill: impl FnOnce(BodySender) -> F) -> Body {
    let (client, chunks) = mpsc::channel(CHANNEL_CAPACITY);
    tokio::spawn(fill(client));
    Body::new(ChannelBody { first: None, chunks })
}

/// Starts a task that fills a body, and returns the body when its first chunk is available. If the task ends without a
/// chunk, its result is returned, and the response can still be replaced.
pub(crate) async fn piped_once_begun<T, F>(fill: impl FnOnce(BodySender) -> F) -> Result<Body, Option<T>>
where
    T: Send + 'static,
    F: Future<Output = Option<T>> + Send + 'static,
{
    let (client, mut chunks) = mpsc::channel(CHANNEL_CAPACITY);
    let task = tokio::spawn(fill(client));
    match chunks.recv().await {
        Some(first) => Ok(Body::new(ChannelBody { first: Some(first), chunks })),
        None => Err(task.await.ok().flatten()),
    }
}

async fn forward(
    chunks: Vec<Bytes>,
    remaining: RemainingBody,
    format: Format,
    idle: Duration,
    client: BodySender,
) -> MaybeUsage {
    let mut reader = StreamReader::new(format);
    for chunk in chunks {
        reader.push(&chunk);
        client.send(Ok(chunk)).await.ok()?;
    }
    let (mut body, is_readable) = match remaining {
        RemainingBody::Complete => return Some(reader.finish().into()),
        RemainingBody::Failed(reason) => {
            abort_body(&client, reason).await;
            return Some(reader.finish().into());
        }
        RemainingBody::Events(body) => (body, true),
        RemainingBody::Opaque(body) => (body, false),
    };
    loop {
        let chunk = tokio::select! {
        chunk = next_chunk(&mut body, idle) => chunk,
        () = client.closed() => return is_readable.then(|| reader.finish().into()),
        };
        match chunk {
            Ok(Some(chunk)) => {
                if is_readable {
                    reader.push(&chunk);
                }
                client.send(Ok(chunk)).await.ok()?;
            }
            Ok(None) => return is_readable.then(|| reader.finish().into()),
            Err(reason) => {
                abort_body(&client, reason).await;
                return is_readable.then(|| reader.finish().into());
            }
        }
    }
}

/// Aborts the body after the client has received what was queued.
pub(crate) async fn abort_body(client: &BodySender, reason: String) {
    tracing::warn!(%reason, "response aborted");
    // When the whole channel is free, everything was taken from it; it still has to be written to the socket.
    drop(client.reserve_many(CHANNEL_CAPACITY).await);
    tokio::time::sleep(FLUSH_DELAY).await;
    let _ = client.send(Err(BodyAborted(reason))).await;
}

/// The sending half of a response body.
pub(crate) type BodySender = mpsc::Sender<Result<Bytes, BodyAborted>>;

/// Error: the response was aborted.
#[derive(Debug)]
pub(crate) struct BodyAborted(String);

impl std::fmt::Display for BodyAborted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "response aborted: {}", self.0)
    }
}

impl std::error::Error for BodyAborted {}

struct ChannelBody {
    first: Option<Result<Bytes, BodyAborted>>,
    chunks: mpsc::Receiver<Result<Bytes, BodyAborted>>,
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let chunk = match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => self.chunks.poll_recv(context),
        };
        chunk.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}
