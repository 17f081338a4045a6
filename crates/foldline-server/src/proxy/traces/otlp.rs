//! Spans to a collector, by OTLP over HTTP with JSON.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Once;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::http::{Request, Response, Uri};
use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::activity::RequestActivity;
use crate::proxy::traces::span::RequestSpan;
use crate::proxy::upstream::client::UpstreamClient;

/// Longest time of an export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a collector's answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Path of traces, if an address has none.
const TRACES_PATH: &str = "v1/traces";
/// Names of providers in the GenAI conventions, by the names of their APIs here.
const PROVIDER_NAMES: [(&str, &str); 2] = [("bedrock", "aws.bedrock"), ("gemini", "gcp.gemini")];

/// Exports spans in batches, on a thread of its own.
pub(crate) struct TraceExporter {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl fmt::Debug for TraceExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceExporter").finish_non_exhaustive()
    }
}

impl TraceExporter {
    pub(crate) fn new(endpoint: &str, client: &UpstreamClient) -> io::Result<Self> {
        let invalid = |error: &dyn fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("the address of the collector is not valid: {error}"))
        };
        let uri: Uri = endpoint.parse().map_err(|error| invalid(&error))?;
        if uri.host().is_none() || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(invalid(&"it must begin with http:// or https://"));
        }
        let address = match uri.path() {
            "" | "/" => format!("{}/{TRACES_PATH}", endpoint.trim_end_matches('/')),
            _ => endpoint.to_owned(),
        };
        let runtime = Handle::try_current().map_err(|error| io::Error::other(error.to_string()))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(CollectorClient { client: client.clone(), runtime })
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(address)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| invalid(&error))?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder_empty().with_service_name("foldline").with_attributes([version]).build();
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_resource(resource)
            .with_batch_exporter(exporter)
            .build();
        Ok(Self { tracer: provider.tracer("foldline"), provider })
    }

    pub(crate) fn record(&self, span: &RequestSpan<'_>) {
        let parent = span.parent.and_then(parse_parent).map(|parent| Context::new().with_remote_span_context(parent));
        let builder = self
            .tracer
            .span_builder(format!("chat {}", span.record.model))
            .with_kind(SpanKind::Client)
            .with_start_time(span.started_at)
            .with_attributes(attributes(span));
        let mut exported = builder.start_with_context(&self.tracer, &parent.unwrap_or_default());
        if span.record.status >= 400 {
            exported.set_status(Status::error(""));
        }
        exported.end_with_timestamp(span.ended_at);
    }

    pub(crate) fn flush(&self) {
        if let Err(error) = self.provider.force_flush() {
            tracing::debug!(%error, "traces could not be exported");
        }
    }
}

/// Returns the attributes of a span: those of the GenAI conventions, and foldline's own.
fn attributes(span: &RequestSpan<'_>) -> Vec<KeyValue> {
    let RequestActivity { session, model, client, status, usage, bill, crease, .. } = span.record;
    let provider =
        PROVIDER_NAMES.iter().find(|(family, _)| *family == span.family).map_or(span.family, |(_, name)| name);
    let int = |name: &'static str, value: u64| KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX));
    let mut attributes = vec![
        KeyValue::new("gen_ai.operation.name", "chat"),
        KeyValue::new("gen_ai.provider.name", provider),
        KeyValue::new("gen_ai.request.model", model.clone()),
        KeyValue::new("gen_ai.conversation.id", session.clone()),
        KeyValue::new("http.response.status_code", i64::from(*status)),
        KeyValue::new("server.address", span.host.to_owned()),
        KeyValue::new("foldline.client", client.clone()),
        int("foldline.received_tokens", span.record.received_tokens),
        int("foldline.sent_tokens", span.record.sent_tokens),
        KeyValue::new("foldline.overhead_ms", span.record.overhead_micros as f64 / 1e3),
        int("foldline.folds", span.record.folds.len() as u64),
        int("foldline.unfolds", span.record.unfolds.len() as u64),
    ];
    if *status >= 400 {
        attributes.push(KeyValue::new("error.type", status.to_string()));
    }
    if let Some(usage) = usage {
        attributes.push(int("gen_ai.usage.input_tokens", usage.input));
        attributes.push(int("gen_ai.usage.output_tokens", usage.output));
        attributes.extend(usage.cache_read.map(|read| int("gen_ai.usage.cache_read.input_tokens", read)));
        attributes.extend(usage.cache_write.map(|written| int("gen_ai.usage.cache_creation.input_tokens", written)));
    }
    attributes.extend(bill.map(|bill| KeyValue::new("foldline.net_usd", bill.net().dollars())));
    attributes.extend(crease.as_ref().map(|crease| KeyValue::new("foldline.crease.trigger", crease.trigger.clone())));
    attributes.extend(span.record.cache_break.map(|cause| KeyValue::new("foldline.cache_break", cause.name())));
    attributes
}

/// Parses the header `traceparent`: version, trace, span and flags in hexadecimal digits.
fn parse_parent(header: &str) -> Option<SpanContext> {
    let parts: Vec<&str> = header.trim().split('-').collect();
    let [version, trace, span, flags, ..] = parts.as_slice() else { return None };
    if version.len() != 2 || *version == "ff" || (*version == "00" && parts.len() != 4) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok().filter(|_| flags.len() == 2)?;
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok().filter(|_| trace.len() == 32)?,
        SpanId::from_hex(span).ok().filter(|_| span.len() == 16)?,
        TraceFlags::new(flags),
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

/// Sends exports over the connections of the proxy. The thread that exports has no runtime of its own.
struct CollectorClient {
    client: UpstreamClient,
    runtime: Handle,
}

/// Ensures that a collector that does not answer is reported once.
static EXPORT_WARNING: Once = Once::new();

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").finish_non_exhaustive()
    }
}

impl HttpClient for CollectorClient {
    fn send_bytes<'s, 'f>(
        &'s self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        let client = self.client.clone();
        let exchange = async move {
            let response = client.send_once(request.map(Body::from)).await.map_err(|error| error.to_string())?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|error| error.to_string())?;
            Ok::<_, String>(Response::from_parts(parts, body.to_bytes()))
        };
        // The timer belongs to the runtime, so it is created there.
        let exchange = self.runtime.spawn(async { tokio::time::timeout(EXPORT_TIMEOUT, exchange).await });
        Box::pin(async move {
            let answer = match exchange.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(format!("no answer within {} s", EXPORT_TIMEOUT.as_secs())),
                Err(error) => Err(error.to_string()),
            };
            let refused = answer.as_ref().ok().filter(|answer| !answer.status().is_success());
            let failure =
                refused.map(|answer| format!("status {}", answer.status())).or(answer.as_ref().err().cloned());
            if let Some(reason) = failure {
                EXPORT_WARNING.call_once(|| tracing::warn!(reason, "traces could not be exported (reported once)"));
            }
            Ok(answer?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_read_from_its_header() {
        let parent = parse_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(parent.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert!(parent.is_sampled() && parent.is_remote());
        for wrong in [
            "",
            "00-0-0-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        ] {
            assert!(parse_parent(wrong).is_none(), "{wrong}");
        }
    }
}
