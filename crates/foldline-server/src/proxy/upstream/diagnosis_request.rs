//! Requests cache diagnostics on a sample of requests.

use foldline::wire::{EndpointPurpose, request_cache_diagnostics};
use hyper::header::CONTENT_ENCODING;

use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::state::AppState;
use crate::proxy::upstream::client::UpstreamRequest;
use crate::proxy::upstream::diagnosis::{CacheDiagnosis, VerdictSlot};

/// Adds a request for diagnostics to a request, if it is in the sample.
pub(crate) fn request_diagnosis(state: &AppState, request: &mut UpstreamRequest, prepared: &mut PreparedRequest) {
    let interval = state.settings.cache_diagnostics;
    let (job, Some(facts)) = (&prepared.job, &prepared.facts) else { return };
    // The hash of a conversation is a number that is as good as drawn.
    let is_sampled = interval > 0 && facts.prefixes.full() % u128::from(interval) == 0;
    if !is_sampled
        || job.purpose != EndpointPurpose::Turn
        || request.headers.contains_key(CONTENT_ENCODING)
        || state.diagnostics_refusals.contains(job.upstream.name())
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
