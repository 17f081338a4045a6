//! Cache diagnostics, on a sample of requests: the provider itself compares a prompt with the previous one of the session.
//!
//! They are requested only if that is configured, where the id of the previous response is known. Nothing of them reaches
//! the client. A provider that refuses the field gets the request again without it, and is not asked again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use foldline::wire::CacheVerdict;

/// Filled with the verdict while a response is read.
pub(crate) type VerdictSlot = Arc<OnceLock<CacheVerdict>>;

/// A requested diagnosis.
#[derive(Clone, Debug)]
pub(crate) struct CacheDiagnosis {
    /// The body without the request for it.
    pub(crate) plain_body: Bytes,
    pub(crate) verdict: VerdictSlot,
}

/// The names of upstreams that refuse requests for diagnostics.
#[derive(Debug, Default)]
pub(crate) struct DiagnosticsRefusals(Mutex<HashSet<String>>);

impl DiagnosticsRefusals {
    /// Returns true if the upstream has refused.
    pub(crate) fn contains(&self, upstream: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(upstream)
    }

    /// Records a refusal.
    pub(crate) fn add(&self, upstream: &str) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(upstream.to_owned()) {
            tracing::warn!(upstream, "the provider refuses cache diagnostics; they are not requested any more");
        }
    }
}
