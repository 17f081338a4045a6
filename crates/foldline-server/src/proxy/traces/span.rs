//! A request, as far as its span needs it.

use std::time::SystemTime;

use crate::activity::RequestActivity;

/// A request, for a span.
#[derive(Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only the exporter reads it"))]
pub(crate) struct RequestSpan<'r> {
    pub(crate) record: &'r RequestActivity,
    /// Name of the provider's API.
    pub(crate) family: &'static str,
    /// Host of the upstream.
    pub(crate) host: &'r str,
    /// Time at which the request was received.
    pub(crate) started_at: SystemTime,
    /// Time at which its response ended.
    pub(crate) ended_at: SystemTime,
    /// The span of the client, as its header `traceparent` names it.
    pub(crate) parent: Option<&'r str>,
}
