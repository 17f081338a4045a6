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

use super::discover::Asking;
use super::settings::{Patience, Upstream};
use super::upstream::Providers;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The health of a proxy is told in fewer bytes than this.
const LONGEST: usize = 1 << 20;

/// A proxy that runs already.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Neighbour {
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
pub async fn neighbour(at: &Upstream) -> Option<Neighbour> {
    if !at.is_loopback() {
        return None;
    }
    let uri = at.root("/foldline/healthz").ok()?;
    let answered = providers().pass(question(Method::GET, uri)?).await.ok()?;
    let body = Limited::new(answered.into_body(), LONGEST).collect();
    let body = tokio::time::timeout(PATIENCE, body).await.ok()?.ok()?.to_bytes();
    serde_json::from_slice(&body).ok()
}

/// Whether a provider answers at all, and with what status; otherwise why not.
pub async fn reach(upstream: &Upstream) -> Result<StatusCode, String> {
    let uri = upstream.uri("/").map_err(|error| error.to_string())?;
    let question = question(Method::HEAD, uri).ok_or("the address is not one of a URL")?;
    match providers().pass(question).await {
        Ok(answered) => Ok(answered.status()),
        Err(why) => Err(why.to_string()),
    }
}

/// What a server says the window of its model is.
pub async fn window(upstream: &Upstream, model: &str) -> Option<Tokens> {
    let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(NAME))]);
    let asking = Asking { providers: providers(), upstream: upstream.clone(), headers, model: model.to_owned() };
    asking.window().await
}

const NAME: &str = concat!("foldline/", env!("CARGO_PKG_VERSION"));

fn providers() -> Providers {
    Providers::new(Patience { connect: PATIENCE, answer: PATIENCE, ..Patience::default() })
}

fn question(method: Method, uri: hyper::Uri) -> Option<Request<Body>> {
    Request::builder().method(method).uri(uri).header(USER_AGENT, NAME).body(Body::empty()).ok()
}
