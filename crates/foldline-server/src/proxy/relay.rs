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

use super::opening::{Opening, Rest, next};

/// Pieces that may wait for the client.
const WAITING: usize = 16;
/// A connection that is cut drops what it has not written yet.
const TO_BE_WRITTEN: Duration = Duration::from_millis(50);

/// What was heard of an answer, unless nothing was.
pub(crate) type Heard = Option<Answered>;

/// What was heard of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) usage: Option<Usage>,
    pub(crate) rounds: AnswerOf,
}

/// Of how many rounds an answer was put together. The cost of several says nothing about the one prompt
/// that was counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerOf {
    One,
    Several,
}

impl From<Response<'_>> for Answered {
    fn from(response: Response<'_>) -> Self {
        Self { usage: response.usage, rounds: AnswerOf::One }
    }
}

/// The body of an answer for the client. `heard` is called with what was read of it, once it is over.
pub(crate) fn relay(
    opening: Opening,
    format: Format,
    stall: Duration,
    heard: impl FnOnce(Heard) + Send + 'static,
) -> Body {
    let Opening { begun, rest, .. } = opening;
    match rest {
        Rest::Nothing if begun.len() <= 1 => {
            let whole = begun.into_iter().next().unwrap_or_default();
            heard(Response::parse(format, &whole).ok().map(Answered::from));
            Body::from(whole)
        }
        rest => piped(|client| async move { heard(forward(begun, rest, format, stall, client).await) }),
    }
}

/// A body that a task of its own fills.
pub(crate) fn piped<F: Future<Output = ()> + Send + 'static>(fill: impl FnOnce(Client) -> F) -> Body {
    let (client, pieces) = mpsc::channel(WAITING);
    tokio::spawn(fill(client));
    Body::new(Piped { first: None, pieces })
}

/// Starts a task that fills a body, and returns the body once its first piece is there. Where the task ends without a
/// piece, its result is returned: the response is still open.
pub(crate) async fn piped_once_begun<T, F>(fill: impl FnOnce(Client) -> F) -> Result<Body, Option<T>>
where
    T: Send + 'static,
    F: Future<Output = Option<T>> + Send + 'static,
{
    let (client, mut pieces) = mpsc::channel(WAITING);
    let task = tokio::spawn(fill(client));
    match pieces.recv().await {
        Some(first) => Ok(Body::new(Piped { first: Some(first), pieces })),
        None => Err(task.await.ok().flatten()),
    }
}

async fn forward(begun: Vec<Bytes>, rest: Rest, format: Format, stall: Duration, client: Client) -> Heard {
    let mut reader = StreamReader::new(format);
    for piece in begun {
        reader.push(&piece);
        client.send(Ok(piece)).await.ok()?;
    }
    let (mut body, read) = match rest {
        Rest::Nothing => return Some(reader.finish().into()),
        Rest::Broken(why) => {
            cut_off(&client, why).await;
            return Some(reader.finish().into());
        }
        Rest::Events(body) => (body, true),
        Rest::Unread(body) => (body, false),
    };
    loop {
        let piece = tokio::select! {
            piece = next(&mut body, stall) => piece,
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
                cut_off(&client, why).await;
                return read.then(|| reader.finish().into());
            }
        }
    }
}

/// Breaks the answer off for the client, once it has what came before.
pub(crate) async fn cut_off(client: &Client, why: String) {
    tracing::warn!(%why, "an answer broke off");
    // When every place is free everything was taken; it still has to be written.
    drop(client.reserve_many(WAITING).await);
    tokio::time::sleep(TO_BE_WRITTEN).await;
    let _ = client.send(Err(BrokeOff(why))).await;
}

/// Where the pieces of an answer go.
pub(crate) type Client = mpsc::Sender<Result<Bytes, BrokeOff>>;

/// The answer broke off.
#[derive(Debug)]
pub(crate) struct BrokeOff(String);

impl std::fmt::Display for BrokeOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the answer broke off: {}", self.0)
    }
}

impl std::error::Error for BrokeOff {}

struct Piped {
    first: Option<Result<Bytes, BrokeOff>>,
    pieces: mpsc::Receiver<Result<Bytes, BrokeOff>>,
}

impl http_body::Body for Piped {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        let piece = match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => self.pieces.poll_recv(context),
        };
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
