//! The answer on its way to the client: forwarded as it comes, read on the side.
//!
//! A task of its own reads the provider's pieces and hands them on; it waits when the client does not
//! take them, and when the client is gone it lets the provider go. An answer that broke off is cut off
//! for the client too: it must not look like one that ended.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use foldline::wire::{Format, Response, StreamReader, Usage};
use http_body::Frame;
use tokio::sync::mpsc;

use crate::proxy::upstream::response_head::{RemainingBody, ResponseHead, next_chunk};

/// Pieces that may wait for the client.
const CHANNEL_CAPACITY: usize = 16;
/// A connection that is cut drops what it has not written yet.
const FLUSH_DELAY: Duration = Duration::from_millis(50);

/// What was heard of an answer, unless nothing was.
pub(crate) type MaybeUsage = Option<ResponseUsage>;

/// What was heard of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseUsage {
    pub(crate) usage: Option<Usage>,
    pub(crate) rounds: RoundCount,
}

/// Of how many rounds an answer was put together. The cost of several says nothing about the one prompt
/// that was counted here.
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

/// The body of an answer for the client. `heard` is called with what was read of it, once it is over.
pub(crate) fn relay(
    opening: ResponseHead,
    format: Format,
    stall: Duration,
    heard: impl FnOnce(MaybeUsage) + Send + 'static,
) -> Body {
    let ResponseHead { chunks: begun, remaining: rest, .. } = opening;
    match rest {
        RemainingBody::Complete if begun.len() <= 1 => {
            let whole = begun.into_iter().next().unwrap_or_default();
            heard(Response::parse(format, &whole).ok().map(ResponseUsage::from));
            Body::from(whole)
        }
        rest => channel_body(|client| async move { heard(forward(begun, rest, format, stall, client).await) }),
    }
}

/// A body that a task of its own fills.
pub(crate) fn channel_body<F: Future<Output = ()> + Send + 'static>(fill: impl FnOnce(BodySender) -> F) -> Body {
    let (client, pieces) = mpsc::channel(CHANNEL_CAPACITY);
    tokio::spawn(fill(client));
    Body::new(ChannelBody { first: None, pieces })
}

/// Starts a task that fills a body, and returns the body once its first piece is there. Where the task ends without a
/// piece, its result is returned: the response is still open.
pub(crate) async fn piped_once_begun<T, F>(fill: impl FnOnce(BodySender) -> F) -> Result<Body, Option<T>>
where
    T: Send + 'static,
    F: Future<Output = Option<T>> + Send + 'static,
{
    let (client, mut pieces) = mpsc::channel(CHANNEL_CAPACITY);
    let task = tokio::spawn(fill(client));
    match pieces.recv().await {
        Some(first) => Ok(Body::new(ChannelBody { first: Some(first), pieces })),
        None => Err(task.await.ok().flatten()),
    }
}

async fn forward(
    begun: Vec<Bytes>,
    rest: RemainingBody,
    format: Format,
    stall: Duration,
    client: BodySender,
) -> MaybeUsage {
    let mut reader = StreamReader::new(format);
    for piece in begun {
        reader.push(&piece);
        client.send(Ok(piece)).await.ok()?;
    }
    let (mut body, read) = match rest {
        RemainingBody::Complete => return Some(reader.finish().into()),
        RemainingBody::Failed(why) => {
            abort_body(&client, why).await;
            return Some(reader.finish().into());
        }
        RemainingBody::Events(body) => (body, true),
        RemainingBody::Opaque(body) => (body, false),
    };
    loop {
        let piece = tokio::select! {
            piece = next_chunk(&mut body, stall) => piece,
            () = client.closed() => return read.then(|| reader.finish().into()),
        };
        match piece {
            Ok(Some(piece)) => {
                if read {
                    reader.push(&piece);
                }
                client.send(Ok(piece)).await.ok()?;
            }
            Ok(None) => return read.then(|| reader.finish().into()),
            Err(why) => {
                abort_body(&client, why).await;
                return read.then(|| reader.finish().into());
            }
        }
    }
}

/// Breaks the answer off for the client, once it has what came before.
pub(crate) async fn abort_body(client: &BodySender, why: String) {
    tracing::warn!(%why, "an answer broke off");
    // When every place is free everything was taken; it still has to be written.
    drop(client.reserve_many(CHANNEL_CAPACITY).await);
    tokio::time::sleep(FLUSH_DELAY).await;
    let _ = client.send(Err(BodyAborted(why))).await;
}

/// Where the pieces of an answer go.
pub(crate) type BodySender = mpsc::Sender<Result<Bytes, BodyAborted>>;

/// The answer broke off.
#[derive(Debug)]
pub(crate) struct BodyAborted(String);

impl std::fmt::Display for BodyAborted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the answer broke off: {}", self.0)
    }
}

impl std::error::Error for BodyAborted {}

struct ChannelBody {
    first: Option<Result<Bytes, BodyAborted>>,
    pieces: mpsc::Receiver<Result<Bytes, BodyAborted>>,
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let piece = match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => self.pieces.poll_recv(context),
        };
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
