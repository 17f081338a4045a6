//! The client's side of a response in several rounds.
//!
//! Bytes are held back until the model has produced output for the client, so that a provider's error in a hidden round
//! can still become the response; but the client never waits longer than an interval without data.

use std::time::Duration;

use tokio::time::Instant;

use crate::proxy::downstream::channel_body::{BodySender, abort_body};

/// Maximum bytes that are held back: before its output a model announces little.
const MAX_HELD_BYTES: usize = 256 << 10;

/// Bytes for a client, and the channel to it.
pub(crate) struct ClientStream {
    client: BodySender,
    /// Bytes that are not sent yet.
    pub(crate) held: Vec<u8>,
    has_begun: bool,
    /// Time by which the response starts.
    begin_by: Instant,
    /// Maximum time without data.
    interval: Duration,
}

/// Error: the client disconnected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientGone;

impl ClientStream {
    pub(crate) fn new(client: BodySender, interval: Duration) -> Self {
        Self { client, held: Vec::new(), has_begun: false, begin_by: Instant::now() + interval, interval }
    }

    /// Returns true if the response head was sent to the client.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Sends held bytes, if the response has started or has to start now.
    pub(crate) async fn forward(&mut self, begin: bool) -> Result<(), ClientGone> {
        let must_begin = begin || self.held.len() > MAX_HELD_BYTES || Instant::now() >= self.begin_by;
        if !self.held.is_empty() && (self.has_begun || must_begin) { self.flush().await } else { Ok(()) }
    }

    /// Sends held bytes. This starts the response, even if there are none.
    pub(crate) async fn flush(&mut self) -> Result<(), ClientGone> {
        self.has_begun = true;
        self.client.send(Ok(std::mem::take(&mut self.held).into())).await.map_err(|_| ClientGone)
    }

    /// Aborts the stream after the client has received what was sent.
    pub(crate) async fn abort(&self, reason: String) {
        abort_body(&self.client, reason).await;
    }

    /// Waits for a result while the client is connected. Meanwhile the response is started when it is due; from then on
    /// `keep_alive` is sent at intervals, if given.
    pub(crate) async fn wait_for<T>(
        &mut self,
        result: impl Future<Output = T>,
        keep_alive: Option<&'static [u8]>,
    ) -> Result<T, ClientGone> {
        tokio::pin!(result);
        loop {
            let wake_at = if self.has_begun { Instant::now() + self.interval } else { self.begin_by };
            tokio::select! {
                result = &mut result => return Ok(result),
                () = self.client.closed() => return Err(ClientGone),
                () = tokio::time::sleep_until(wake_at), if !self.has_begun || keep_alive.is_some() => {
                    if self.held.is_empty() {
                        self.held.extend_from_slice(keep_alive.unwrap_or_default());
                    }
                    self.flush().await?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::proxy::downstream::channel_body::channel_body;

    #[tokio::test]
    async fn endless_announcement_is_not_held_back() {
        let mut body = channel_body(|client| async move {
            let mut stream = ClientStream::new(client, Duration::from_secs(3600));
            while stream.forward(false).await.is_ok() {
                stream.held.extend_from_slice(&[b'\n'; 4096]);
                assert!(stream.held.len() < 2 * MAX_HELD_BYTES);
            }
        });
        let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.expect("sent before any output");
        assert!(frame.unwrap().unwrap().into_data().unwrap().len() > MAX_HELD_BYTES);
    }
}
