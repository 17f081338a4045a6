//! Conversations on paths that the proxy does not know: they are forwarded unfolded, with one warning per path.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use foldline::wire::{ConversationScan, Dialect, EndpointPurpose};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::header::CONTENT_ENCODING;
use hyper::http::request::Parts;

use crate::proxy::downstream::request_check::is_json;

/// Minimum size of a body that is reported. Smaller ones have little to fold.
const MIN_REPORTED_BYTES: usize = 32 << 10;
/// Maximum number of paths that are reported.
const MAX_REPORTED_PATHS: usize = 64;
/// Maximum bytes of a path in the log.
const MAX_LOGGED_BYTES: usize = 256;

/// Paths that were reported.
#[derive(Clone, Default)]
pub(crate) struct UnknownPaths(Arc<Mutex<HashSet<String>>>);

impl UnknownPaths {
    /// Returns the body of a request to an unknown path, which is reported if it looks like a conversation. The body is
    /// scanned while it is forwarded.
    pub(crate) fn observe(&self, parts: &Parts, body: Body) -> Body {
        let is_candidate = parts.method == Method::POST
            && is_json(&parts.headers)
            && !parts.headers.contains_key(CONTENT_ENCODING)
            && !self.is_reported(parts.uri.path());
        if !is_candidate {
            return body;
        }
        let (paths, path) = (self.clone(), parts.uri.path().to_owned());
        let (mut scan, mut length, mut is_open) = (ConversationScan::default(), 0, true);
        Body::new(body.map_frame(move |frame| {
            if let Some(data) = frame.data_ref().filter(|_| is_open) {
                length += data.len();
                scan.push(data);
                if length > MIN_REPORTED_BYTES && scan.has_conversation() {
                    is_open = false;
                    paths.report(&path);
                }
            }
            frame
        }))
    }

    fn is_reported(&self, path: &str) -> bool {
        let paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paths.len() >= MAX_REPORTED_PATHS || paths.contains(logged_path(path))
    }

    /// Reports a path, unless it was reported before.
    fn report(&self, path: &str) {
        let path = logged_path(path);
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paths.len() >= MAX_REPORTED_PATHS || !paths.insert(path.to_owned()) {
            return;
        }
        tracing::warn!(
            path,
            known = known_paths(),
            "the request looks like a conversation, but its path is unknown; forwarded unfolded. Configure the client for \
             one of the known paths to fold it"
        );
        if paths.len() == MAX_REPORTED_PATHS {
            tracing::warn!("further unknown paths with conversations are not reported");
        }
    }
}

fn logged_path(path: &str) -> &str {
    &path[..path.floor_char_boundary(MAX_LOGGED_BYTES)]
}

/// Returns the first path of each dialect.
fn known_paths() -> String {
    let first = |dialect: &Dialect| {
        let mut paths = dialect.documented_paths.iter();
        paths.find(|(_, purpose)| *purpose == EndpointPurpose::Turn).map(|(path, _)| *path)
    };
    Dialect::all().filter_map(first).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_reported_paths_is_bounded() {
        let paths = UnknownPaths::default();
        (0..1_000).for_each(|at| paths.report(&format!("/v1/threads/{at}/runs")));
        assert_eq!(paths.0.lock().unwrap().len(), MAX_REPORTED_PATHS);
        assert!(paths.is_reported("/v1/other"));
        assert!(known_paths().starts_with("/v1/chat/completions, /v1/responses, /v1/messages, "));
    }
}
