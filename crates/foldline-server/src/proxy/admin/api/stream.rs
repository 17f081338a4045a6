//! Server-sent events of the dashboard. A reader that is slow loses events and is notified; nothing waits for it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use hyper::http::request::Parts;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::activity::now_millis;
use crate::proxy::admin::api::respond::{ApiResult, TenantView};
use crate::proxy::state::AppState;

/// Interval of comment lines, which keep connections open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Streams the events of the caller's tenant until the client or the proxy ends.
pub(super) async fn events(State(state): State<Arc<AppState>>, parts: Parts) -> ApiResult {
    let events = TenantView::identify(&state, &parts)?.log.subscribe();
    let hello = json!({ "version": env!("CARGO_PKG_VERSION"), "now": now_millis() });
    let first = Bytes::from(format!("retry: 2000\nevent: hello\ndata: {hello}\n\n"));
    let frames = stream::unfold((Some(first), events, state), |(first, mut events, state)| async move {
        let frame = match first {
            Some(first) => first,
            None => tokio::select! {
                frame = next_frame(&mut events) => frame?,
                () = state.stop.cancelled() => return None,
            },
        };
        Some((Ok::<_, std::convert::Infallible>(frame), (None, events, state)))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(frames)).into_response())
}

/// Returns the next frame; none if the log has ended.
async fn next_frame(events: &mut Receiver<Arc<str>>) -> Option<Bytes> {
    match tokio::time::timeout(KEEP_ALIVE, events.recv()).await {
        Err(_) => Some(Bytes::from_static(b": open\n\n")),
        Ok(Ok(event)) => Some(Bytes::from(format!("event: request\ndata: {event}\n\n"))),
        Ok(Err(RecvError::Lagged(_))) => Some(Bytes::from_static(b"event: reload\ndata: {}\n\n")),
        Ok(Err(RecvError::Closed)) => None,
    }
}
