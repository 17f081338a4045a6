//! Clients that stop sending or send too slowly (slow-loris protection), for bodies that are read here and for bodies that
//! are forwarded while they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// Minimum rate of a client, in bytes per second.
const MIN_BYTES_PER_SEC: f64 = 1024.0;

/// The pace of a client: within each period of `timeout` it has to send at the minimum rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPace {
    timeout: Duration,
    period_started_at: Instant,
    period_bytes: usize,
}

impl ClientPace {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, period_started_at: Instant::now(), period_bytes: 0 }
    }

    /// Records received bytes. Returns false if the client was too slow.
    #[must_use]
    pub(crate) fn record(&mut self, bytes: usize) -> bool {
        self.record_at(bytes, Instant::now())
    }

    fn record_at(&mut self, bytes: usize, now: Instant) -> bool {
        self.period_bytes += bytes;
        if now.saturating_duration_since(self.period_started_at) < self.timeout {
            return true;
        }
        let is_fast_enough = self.period_bytes as f64 >= MIN_BYTES_PER_SEC * self.timeout.as_secs_f64();
        (self.period_started_at, self.period_bytes) = (now, 0);
        is_fast_enough
    }

    /// Excludes a time in which the client had to wait for the proxy.
    pub(crate) fn exclude(&mut self, waited: Duration) {
        self.period_started_at += waited;
    }
}

/// A body that fails if it stalls, or if its client is too slow.
pub(crate) struct TimedBody<B> {
    body: B,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    pace: Option<ClientPace>,
    timed_out: Arc<AtomicBool>,
}

/// Error: no data arrived in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyStalled;

impl std::fmt::Display for BodyStalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the body was not received in time")
    }
}

impl std::error::Error for BodyStalled {}

impl<B> TimedBody<B> {
    /// Wraps the body of a client, which has to keep a minimum rate.
    pub(crate) fn for_client(body: B, timeout: Duration) -> Self {
        Self { pace: Some(ClientPace::new(timeout)), ..Self::for_upstream(body, timeout) }
    }

    /// Wraps the body of an upstream, which may be slow but not silent.
    pub(crate) fn for_upstream(body: B, timeout: Duration) -> Self {
        let deadline = Box::pin(tokio::time::sleep(timeout));
        Self { body, timeout, deadline, pace: None, timed_out: Arc::default() }
    }

    /// Returns a flag that is set when the body has timed out.
    pub(crate) fn timed_out_flag(&self) -> Arc<AtomicBool> {
        self.timed_out.clone()
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending => {
                if self.deadline.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if self.pace.as_mut().is_none_or(|pace| pace.record(bytes)) {
                    let deadline = Instant::now() + self.timeout;
                    self.deadline.as_mut().reset(deadline);
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
            Poll::Ready(other) => return Poll::Ready(other.map(|frame| frame.map_err(Into::into))),
        }
        self.timed_out.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(BodyStalled.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_measured_in_every_period() {
        let mut pace = ClientPace::new(Duration::from_secs(10));
        let start = pace.period_started_at;
        let mut record = |bytes, seconds| pace.record_at(bytes, start + Duration::from_secs(seconds));
        assert!(record(50 << 20, 0), "a fast start");
        assert!(record(1, 10));
        assert!(!record(1, 20), "the fast start does not count for the second period");
        assert!(record(9 << 10, 21));
        pace.exclude(Duration::from_secs(30));
        let mut record = |bytes, seconds| pace.record_at(bytes, start + Duration::from_secs(seconds));
        assert!(record(0, 59), "the client had to wait");
        assert!(!record(0, 60));
    }
}
