//! Cache diagnostics, on a sample of requests: the provider itself compares a prompt with the previous one of the session.
//!
//! They are requested only if that is configured, where the id of the previous response is known. Nothing of them reaches
//! the client. A provider that refuses the field gets the request again without it, and is not asked again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use foldline::wire::{CacheVerdict, EndpointPurpose, request_cache_diagnostics};
use hyper::header::CONTENT_ENCODING;

use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::state::AppState;
use crate::proxy::upstream::client::UpstreamRequest;

/// Filled with the verdict while a response is read.
pub(crate) type VerdictSlot = Arc<OnceLock<CacheVerdict>>;

/// A requested diagnosis.
#[derive(Clone, Debug)]
pub(crate) struct CacheDiagnosis {
    /// The body without the request for it.
    pub(crate) plain_body: Bytes,
    pub(crate) verdict: VerdictSlot,
}

/// The upstreams that refuse requests for diagnostics, by the names of their APIs.
#[derive(Debug, Default)]
pub(crate) struct DiagnosticsRefusals(Mutex<HashSet<&'static str>>);

impl DiagnosticsRefusals {
    fn contains(&self, family: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(family)
    }

    /// Records a refusal.
    pub(crate) fn add(&self, family: &'static str) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(family) {
            tracing::warn!(
                upstream = family,
                "the provider refuses cache diagnostics; they are not requested any more"
            );
        }
    }
}

/// Adds a request for diagnostics to a request, if it is in the sample.
pub(crate) fn request_diagnosis(state: &AppState, request: &mut UpstreamRequest, prepared: &mut PreparedRequest) {
    let interval = state.settings.cache_diagnostics;
    let (job, Some(facts)) = (&prepared.job, &prepared.facts) else { return };
    // The hash of a conversation is a number that is as good as drawn.
    let is_sampled = interval > 0 && facts.prefixes.full() % u128::from(interval) == 0;
    if !is_sampled
        || job.purpose != EndpointPurpose::Turn
        || request.headers.contains_key(CONTENT_ENCODING)
        || state.diagnostics_refusals.contains(job.format.dialect().family.name)
    {
        return;
    }
    let log = state.activity.get(job.tenant.key.0, job.tenant.archive.as_ref());
    let Some(previous) = log.previous_response(&facts.session, &prepared.model_name) else { return };
    if let Some(body) = request_cache_diagnostics(job.format, request.uri.path(), &request.body, &previous) {
        let plain_body = std::mem::replace(&mut request.body, body.into());
        prepared.diagnosis = Some(CacheDiagnosis { plain_body, verdict: VerdictSlot::default() });
    }
}
