//! Questions that are asked before a proxy is started: is there one already, does a provider answer,
//! what does a server say of its model.
//!
//! No key is sent with any of them: none is known here.

use std::time::Duration;

use axum::body::Body;
use foldline::Tokens;
use http_body_util::{BodyExt, Limited};
use hyper::header::{HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;

use super::settings::{Timeouts, UpstreamUrl};
use crate::proxy::upstream::client::UpstreamClient;
use crate::proxy::upstream::window_probe::WindowProbe;

/// How long an answer may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The health of a proxy is told in fewer bytes than this.
const MAX_HEALTH_BYTES: usize = 1 << 20;

/// A proxy that runs already.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RunningProxy {
    /// Its version.
    pub version: String,
    /// Who answers Chat Completions and Responses behind it.
    pub openai: String,
    /// Who answers Anthropic Messages behind it.
    pub anthropic: String,
    /// The windows that it has learned for the caller's tenant.
    #[serde(default)]
    pub learned_windows: Vec<NeighbourWindow>,
}

/// A window that a running proxy has learned.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct NeighbourWindow {
    /// The model.
    pub model: String,
    /// The upstream at which the model has this window.
    pub upstream: String,
    /// Tokens of the window, or of the input alone.
    pub tokens: Tokens,
    /// The kind of evidence: `error_code`, `error_message`, `constant_count` or `server_report`.
    pub evidence: String,
    /// Seconds since it was learned.
    pub age_seconds: u64,
    /// Seconds until it is forgotten; none if it is kept until the server reports another.
    pub expires_in_seconds: Option<u64>,
}

/// The proxy that answers at a base URL, if one does. Only this machine is asked: elsewhere a proxy lets
/// nobody in without a token.
pub async fn find_running_proxy(at: &UpstreamUrl) -> Option<RunningProxy> {
    if !at.is_loopback() {
        return None;
    }
    let uri = at.server_uri("/foldline/healthz").ok()?;
    let answered = probe_client().send_once(probe_request(Method::GET, uri)?).await.ok()?;
    let body = Limited::new(answered.into_body(), MAX_HEALTH_BYTES).collect();
    let body = tokio::time::timeout(PROBE_TIMEOUT, body).await.ok()?.ok()?.to_bytes();
    serde_json::from_slice(&body).ok()
}

/// Whether a provider answers at all, and with what status; otherwise why not.
pub async fn check_upstream(upstream: &UpstreamUrl) -> Result<StatusCode, String> {
    let uri = upstream.uri("/").map_err(|error| error.to_string())?;
    let question = probe_request(Method::HEAD, uri).ok_or("the address is not one of a URL")?;
    match probe_client().send_once(question).await {
        Ok(answered) => Ok(answered.status()),
        Err(why) => Err(why.to_string()),
    }
}

/// What a server says the window of its model is.
pub async fn query_window(upstream: &UpstreamUrl, model: &str) -> Option<Tokens> {
    let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE))]);
    let asking = WindowProbe { client: probe_client(), upstream: upstream.clone(), headers, model: model.to_owned() };
    asking.query_window().await
}

const USER_AGENT_VALUE: &str = concat!("foldline/", env!("CARGO_PKG_VERSION"));

fn probe_client() -> UpstreamClient {
    UpstreamClient::new(Timeouts { connect: PROBE_TIMEOUT, response_start: PROBE_TIMEOUT, ..Timeouts::default() })
}

fn probe_request(method: Method, uri: hyper::Uri) -> Option<Request<Body>> {
    Request::builder().method(method).uri(uri).header(USER_AGENT, USER_AGENT_VALUE).body(Body::empty()).ok()
}
