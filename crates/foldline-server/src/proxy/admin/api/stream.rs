//! Server-sent events of the dashboard. A reader that is slow loses events and is
//! notified; nothing waits for it.

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
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::Instant;

use crate::activity::now_millis;
use crate::proxy::admin::api::respond::{ApiResult, TenantView};
use crate::proxy::state::AppState;

/// Interval of comment lines, which keep connections open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Minimum time between two writes to a page. Events in between are written together, so that the cost of open pages does
/// not grow with the requests.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum events of one write.
const MAX_EVENTS: usize = 256;

/// Streams the events of the caller's tenant until the client or the proxy ends.
pub(super) async fn events(State(state): State<Arc<AppState>>, parts: Parts) -> ApiResult {
    let events = TenantView::identify(&state, &parts).await?.log.subscribe();
    let hello = json!({ "version": env!("CARGO_PKG_VERSION"), "now": now_millis() });
    let first = Bytes::from(format!("retry: 2000\nevent: hello\ndata: {hello}\n\n"));
    let page = EventStream { events, write_at: Instant::now() };
    let chunks = stream::unfold((Some(first), page, state), |(first, mut page, state)| async move {
        let chunk = match first {
            Some(first) => first,
            None => tokio::select! {
                chunk = page.next_chunk() => chunk?,
                () = state.stop.cancelled() => return None,
            },
        };
        Some((Ok::<_, std::convert::Infallible>(chunk), (None, page, state)))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(chunks)).into_response())
}

/// The events for one page.
struct EventStream {
    events: Receiver<Arc<str>>,
    /// Earliest time of the next write.
    write_at: Instant,
}

impl EventStream {
    /// Returns the events since the last write, when it is time and there is one; `None` if the log has ended.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        tokio::time::sleep_until(self.write_at).await;
        let mut chunk = String::new();
        match tokio::time::timeout(KEEP_ALIVE, self.events.recv()).await {
            Err(_) => chunk.push_str(": open\n\n"),
            Ok(Ok(event)) => write_event(&mut chunk, "request", &event),
            Ok(Err(RecvError::Lagged(_))) => write_event(&mut chunk, "reload", "{}"),
            Ok(Err(RecvError::Closed)) => return None,
        }
        for _ in 1..MAX_EVENTS {
            match self.events.try_recv() {
                Ok(event) => write_event(&mut chunk, "request", &event),
                Err(TryRecvError::Lagged(_)) => write_event(&mut chunk, "reload", "{}"),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.write_at = Instant::now() + WRITE_INTERVAL;
        Some(chunk.into())
    }
}

fn write_event(chunk: &mut String, name: &str, data: &str) {
    chunk.extend(["event: ", name, "\ndata: ", data, "\n\n"]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::broadcast;

    #[tokio::test]
    async fn events_of_a_second_are_written_together() {
        let (feed, events) = broadcast::channel(4);
        let mut page = EventStream { events, write_at: Instant::now() };
        let send = |names: &[&str]| {
            for name in names {
                feed.send((*name).into()).unwrap();
            }
        };
        let began = Instant::now();
        send(&["a"]);
        assert_eq!(page.next_chunk().await.unwrap(), "event: request\ndata: a\n\n");
        assert!(began.elapsed() < WRITE_INTERVAL, "the first event is not held");
        send(&["b", "c"]);
        let both = "event: request\ndata: b\n\nevent: request\ndata: c\n\n";
        assert_eq!(page.next_chunk().await.unwrap(), both);
        assert!(began.elapsed() >= WRITE_INTERVAL);
        send(&["d", "e", "f", "g", "h"]);
        let rest = page.next_chunk().await.unwrap();
        assert!(rest.starts_with(b"event: reload\n") && rest.ends_with(b"data: h\n\n"), "{rest:?}");
        drop(feed);
        assert_eq!(page.next_chunk().await, None);
    }
}
