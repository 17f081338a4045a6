//! Checks to run before a proxy is started: a proxy that already runs, a provider's reachability, and a
//! model's window as reported by its server.
//!
//! No credentials of providers are sent; none are known here.

use std::io;
use std::time::Duration;

use axum::body::Body;
use foldline::tokens::Tokens;
use foldline::wire::ApiFamily;
use http_body_util::{BodyExt, Limited};
use hyper::header::{HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;

use super::settings::{Timeouts, UpstreamUrl};
use crate::proxy::downstream::auth::AccessToken;
use crate::proxy::downstream::headers;
use crate::proxy::upstream::client::UpstreamClient;
use crate::proxy::upstream::outbound::OutboundSettings;
use crate::proxy::upstream::window_probe::{ServerApi, WindowProbe};

/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a health response.
const MAX_HEALTH_BYTES: usize = 1 << 20;

/// A proxy that is already running.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RunningProxy {
    /// Version of the proxy.
    pub version: String,
    /// Windows that it has learned for the caller's tenant.
    #[serde(default)]
    pub learned_windows: Vec<LearnedProxyWindow>,
    /// The other fields of its health, among them the URL of each API's upstream.
    #[serde(flatten)]
    fields: serde_json::Map<String, serde_json::Value>,
}

impl RunningProxy {
    /// Returns the URL of an API's upstream; none if the proxy has no such API.
    pub fn upstream(&self, family: &ApiFamily) -> Option<&str> {
        self.fields.get(family.name)?.as_str()
    }
}

/// A window that a running proxy has learned.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct LearnedProxyWindow {
    /// The model.
    pub model: String,
    /// The upstream at which the model has this window.
    pub upstream: String,
    /// Tokens of the window, or of the input only.
    pub tokens: Tokens,
    /// The kind of evidence: `error_code`, `error_message`, `constant_count` or `server_report`.
    pub evidence: String,
    /// Seconds since it was learned.
    pub age_seconds: u64,
    /// Seconds until it expires; none if it is kept until the server reports another.
    pub expires_in_seconds: Option<u64>,
}

/// Returns the proxy at a base URL, if one responds. Only loopback addresses are queried: elsewhere a proxy requires
/// a token.
pub async fn find_running_proxy(url: &UpstreamUrl) -> Option<RunningProxy> {
    find_proxy_with_token(url, None).await
}

/// Returns the proxy at a base URL, if one responds, with a token of its clients. Only loopback addresses are queried.
pub async fn find_proxy_with_token(url: &UpstreamUrl, token: Option<&AccessToken>) -> Option<RunningProxy> {
    if !url.is_loopback() {
        return None;
    }
    let uri = url.server_uri("/foldline/healthz").ok()?;
    let mut request = probe_request(Method::GET, uri)?;
    if let Some(token) = token {
        request.headers_mut().insert(headers::TOKEN, HeaderValue::from_str(token.secret()).ok()?);
    }
    let response = probe_client(&OutboundSettings::default()).ok()?.send_once(request).await.ok()?;
    let body = Limited::new(response.into_body(), MAX_HEALTH_BYTES).collect();
    let body = tokio::time::timeout(PROBE_TIMEOUT, body).await.ok()?.ok()?.to_bytes();
    serde_json::from_slice(&body).ok()
}

/// Sends a HEAD request to a provider and returns the status.
///
/// # Errors
///
/// The reason, if the provider did not respond.
pub async fn check_upstream(upstream: &UpstreamUrl, outbound: &OutboundSettings) -> Result<StatusCode, String> {
    let uri = upstream.uri("/").map_err(|error| error.to_string())?;
    let request = probe_request(Method::HEAD, uri).ok_or("the address is not a valid URL")?;
    let client = probe_client(outbound).map_err(|error| error.to_string())?;
    match client.send_once(request).await {
        Ok(response) => Ok(response.status()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the window of a model as its server reports it.
pub async fn query_window(upstream: &UpstreamUrl, outbound: &OutboundSettings, model: &str) -> Option<Tokens> {
    let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE))]);
    let probe = WindowProbe {
        client: probe_client(outbound).ok()?,
        upstream: upstream.clone(),
        headers,
        signer: None,
        model: model.to_owned(),
        server: ServerApi::Unknown,
        requested: None,
    };
    probe.query_window().await
}

const USER_AGENT_VALUE: &str = concat!("foldline/", env!("CARGO_PKG_VERSION"));

fn probe_client(outbound: &OutboundSettings) -> io::Result<UpstreamClient> {
    let timeouts = Timeouts { connect: PROBE_TIMEOUT, response_start: PROBE_TIMEOUT, ..Timeouts::default() };
    UpstreamClient::new(timeouts, outbound)
}

fn probe_request(method: Method, uri: hyper::Uri) -> Option<Request<Body>> {
    Request::builder().method(method).uri(uri).header(USER_AGENT, USER_AGENT_VALUE).body(Body::empty()).ok()
}
