//! The client's side of an answer in several rounds.
//!
//! The response begins with its first bytes. Until the model has produced something for the client they are held back,
//! so that a provider's error in a hidden round can still become the response; but the client never waits longer than
//! `silence` without a sign.

use std::time::Duration;

use tokio::time::Instant;

use crate::proxy::upstream::relay::{BodySender, abort_body};

/// The bytes for a client, and where they go.
pub(crate) struct ClientStream {
    client: BodySender,
    /// Bytes that were not sent yet.
    pub(crate) held: Vec<u8>,
    has_begun: bool,
    /// The time at which the response begins at the latest.
    begin_by: Instant,
    silence: Duration,
}

/// The client has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientGone;

impl ClientStream {
    pub(crate) fn new(client: BodySender, silence: Duration) -> Self {
        Self { client, held: Vec::new(), has_begun: false, begin_by: Instant::now() + silence, silence }
    }

    /// Returns true if the client has the head of the response.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Sends what is held, if the response has begun or is to begin now.
    pub(crate) async fn forward(&mut self, begin: bool) -> Result<(), ClientGone> {
        let begins = begin || Instant::now() >= self.begin_by;
        if !self.held.is_empty() && (self.has_begun || begins) { self.flush().await } else { Ok(()) }
    }

    /// Sends what is held. The response begins by it, even without a byte.
    pub(crate) async fn flush(&mut self) -> Result<(), ClientGone> {
        self.has_begun = true;
        self.client.send(Ok(std::mem::take(&mut self.held).into())).await.map_err(|_| ClientGone)
    }

    /// Breaks the stream off, once the client has what was sent.
    pub(crate) async fn cut_off(&self, why: String) {
        abort_body(&self.client, why).await;
    }

    /// Waits for a result while the client is there. Meanwhile the response begins when it is due, and from then on
    /// `keep_alive` is sent from time to time, if there is one.
    pub(crate) async fn wait_for<T>(
        &mut self,
        result: impl Future<Output = T>,
        keep_alive: Option<&'static [u8]>,
    ) -> Result<T, ClientGone> {
        tokio::pin!(result);
        loop {
            let sign_at = if self.has_begun { Instant::now() + self.silence } else { self.begin_by };
            tokio::select! {
                result = &mut result => return Ok(result),
                () = self.client.closed() => return Err(ClientGone),
                () = tokio::time::sleep_until(sign_at), if !self.has_begun || keep_alive.is_some() => {
                    if self.held.is_empty() {
                        self.held.extend_from_slice(keep_alive.unwrap_or_default());
                    }
                    self.flush().await?;
                }
            }
        }
    }
}
