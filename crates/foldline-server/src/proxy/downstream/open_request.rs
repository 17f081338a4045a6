//! Requests in progress: counted and limited from their head to the end of their response.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::OwnedSemaphorePermit;

use crate::proxy::downstream::error_response::ErrorCause;
use crate::proxy::fold::tenant::TenantKey;
use crate::proxy::fold::tenant_quota::TenantSlot;
use crate::proxy::state::AppState;

/// A request in progress; the gauge is decremented on drop.
pub(crate) struct OpenRequest {
    gauge: Gauge,
    _permit: OwnedSemaphorePermit,
    _slot: Option<TenantSlot>,
}

impl OpenRequest {
    /// Waits until the request may be processed. Fails if too many others are in progress for too long, or too many of its
    /// tenant.
    pub(crate) async fn admit(state: &AppState, tenant: Option<TenantKey>) -> Result<Self, ErrorCause> {
        let slot = state.quotas.open_request(tenant).map_err(|_| ErrorCause::TenantLimit)?;
        let permit = state.request_permits.clone().acquire_owned();
        let permit = tokio::time::timeout(state.settings.timeouts.request_slot, permit).await;
        let permit = permit.map_err(|_| ErrorCause::NoSlot)?.map_err(|_| ErrorCause::NoSlot)?;
        let gauge = state.metrics.open_requests.clone();
        gauge.inc();
        Ok(Self { gauge, _permit: permit, _slot: slot })
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
