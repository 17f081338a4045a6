//! A response body that a task fills, with backpressure if the client does not read.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;

/// Chunks that may be queued for the client.
const CHANNEL_CAPACITY: usize = 16;
/// Delay before a body is aborted: an aborted connection drops data that is not written yet.
const FLUSH_DELAY: Duration = Duration::from_millis(50);

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
