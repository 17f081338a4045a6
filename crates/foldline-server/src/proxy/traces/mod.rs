//! Traces: one span for every request, in the GenAI conventions of OpenTelemetry, sent to a collector (cargo feature
//! `otlp`).
//!
//! A span has names and numbers, never text of a conversation. Exporting never waits in the path of a request, and drops
//! spans if the collector is slow.

#[cfg(feature = "otlp")]
mod otlp;
pub(crate) mod span;
#[cfg(not(feature = "otlp"))]
mod unavailable;

use std::io;

#[cfg(feature = "otlp")]
use crate::proxy::traces::otlp::TraceExporter;
use crate::proxy::traces::span::RequestSpan;
#[cfg(not(feature = "otlp"))]
use crate::proxy::traces::unavailable::NoTraceExporter as TraceExporter;
use crate::proxy::upstream::client::UpstreamClient;

/// Exports spans, if that is configured.
#[derive(Debug, Default)]
pub(crate) struct RequestTraces {
    exporter: Option<TraceExporter>,
}

impl RequestTraces {
    /// Creates an exporter to a collector; without one, spans are not recorded.
    ///
    /// # Errors
    ///
    /// If the address is not a URL, or if this build cannot export traces.
    pub(crate) fn new(endpoint: Option<&str>, client: &UpstreamClient) -> io::Result<Self> {
        Ok(Self { exporter: endpoint.map(|endpoint| TraceExporter::new(endpoint, client)).transpose()? })
    }

    /// Records a span, without waiting.
    pub(crate) fn record<'r>(&self, span: impl FnOnce() -> RequestSpan<'r>) {
        if let Some(exporter) = &self.exporter {
            exporter.record(&span());
        }
    }

    /// Sends what was recorded. Blocks up to a few seconds.
    pub(crate) fn flush(&self) {
        self.exporter.iter().for_each(TraceExporter::flush);
    }

    /// Returns true if spans are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.exporter.is_some()
    }
}
