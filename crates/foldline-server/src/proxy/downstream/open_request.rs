//! Requests in progress: counted and limited from their head to the end of their response.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::OwnedSemaphorePermit;

/// A request in progress; the gauge is decremented on drop.
pub(crate) struct OpenRequest {
    gauge: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl OpenRequest {
    pub(crate) fn new(gauge: Gauge, permit: OwnedSemaphorePermit) -> Self {
        gauge.inc();
        Self { gauge, _permit: permit }
    }

    /// Returns the response with a body that keeps the request counted until it ends or is dropped.
    pub(crate) fn track(self, response: Response) -> Response {
        response.map(|body| Body::new(TrackedBody { body, _open: self }))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

struct TrackedBody {
    body: Body,
    _open: OpenRequest,
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
