//! The connections to providers.
//!
//! One pool for all, HTTP/2 where the provider offers it. Nothing is retried here but a request that
//! found its kept-alive connection closed: the provider has not seen it.

use std::fmt;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::proxy::settings::Timeouts;

/// Servers written in Python close a connection that was idle for five seconds; one that is younger can
/// be relied on.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// A connection that breaks this soon, with no byte of an answer, was closed before the request came.
const STALE_CONNECTION_WINDOW: Duration = Duration::from_millis(250);

/// A pool of connections.
#[derive(Clone)]
pub(crate) struct UpstreamClient {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    timeouts: Timeouts,
}

/// A request whose body is whole, so that it can be sent again.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamRequest {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// No connection, or it broke before an answer began.
    Unreachable(String),
    /// Nothing came for too long.
    TimedOut(Duration),
}

impl UpstreamClient {
    pub(crate) fn new(patience: Timeouts) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(patience.connect));
        http.set_keepalive(Some(Duration::from_secs(60)));
        // A machine without certificates of its own (a bare container) trusts what browsers trust.
        let tls = HttpsConnectorBuilder::new();
        let tls = tls.with_native_roots().unwrap_or_else(|_| HttpsConnectorBuilder::new().with_webpki_roots());
        let connector = tls.https_or_http().enable_http1().enable_http2().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .build(connector);
        Self { client, timeouts: patience }
    }

    /// Sends a request whose body is whole.
    pub(crate) async fn send(&self, request: &UpstreamRequest) -> Result<Response<Incoming>, UpstreamError> {
        let began = Instant::now();
        match self.send_once(request.to_http()).await {
            Err(UpstreamError::Unreachable(_)) if began.elapsed() < STALE_CONNECTION_WINDOW => {
                self.send_once(request.to_http()).await
            }
            answered => answered,
        }
    }

    /// Sends a request whose body may still be coming.
    pub(crate) async fn send_once(&self, request: Request<Body>) -> Result<Response<Incoming>, UpstreamError> {
        let answered = tokio::time::timeout(self.timeouts.response_start, self.client.request(request)).await;
        let answered = answered.map_err(|_| UpstreamError::TimedOut(self.timeouts.response_start))?;
        answered.map_err(|error| UpstreamError::Unreachable(root_cause(&error)))
    }
}

impl UpstreamError {
    /// Returns the status that a client gets in place of an answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            UpstreamError::Unreachable(_) => StatusCode::BAD_GATEWAY,
            UpstreamError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl UpstreamRequest {
    fn to_http(&self) -> Request<Body> {
        let mut request = Request::new(Body::from(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// What an error comes down to: "connection refused" says more than "client error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamError::Unreachable(why) => write!(f, "the upstream gave no answer: {why}"),
            UpstreamError::TimedOut(waited) => write!(f, "the upstream gave no answer within {} s", waited.as_secs()),
        }
    }
}
