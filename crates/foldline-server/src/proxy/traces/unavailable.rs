//! The exporter of a build without the cargo feature `otlp`.

use std::io;

use crate::proxy::traces::span::RequestSpan;
use crate::proxy::upstream::client::UpstreamClient;

/// There is none.
#[derive(Debug)]
pub(crate) enum NoTraceExporter {}

impl NoTraceExporter {
    pub(crate) fn new(_: &str, _: &UpstreamClient) -> io::Result<Self> {
        let reason = "this build cannot export traces; build foldline with the cargo feature otlp";
        Err(io::Error::new(io::ErrorKind::Unsupported, reason))
    }

    pub(crate) fn record(&self, _: &RequestSpan<'_>) {
        match *self {}
    }

    pub(crate) fn flush(&self) {
        match *self {}
    }
}
