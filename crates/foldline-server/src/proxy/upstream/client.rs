//! Connections to providers.
//!
//! One pool for all, with HTTP/2 if the provider offers it. Only a request whose kept-alive connection was already closed
//! is retried here: the provider has not seen it.

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

/// Maximum idle time of a pooled connection. Servers written in Python close connections after five idle seconds.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// A connection that breaks this soon, without a byte of a response, was closed before the request arrived.
const STALE_CONNECTION_WINDOW: Duration = Duration::from_millis(250);

/// A connection pool.
#[derive(Clone)]
pub(crate) struct UpstreamClient {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    timeouts: Timeouts,
}

/// A request with a buffered body, which can be sent again.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamRequest {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The reason why there is no response.
#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// No connection, or it broke before a response started.
    Unreachable(String),
    /// No response started within the timeout.
    TimedOut(Duration),
}

impl UpstreamClient {
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timeouts.connect));
        http.set_keepalive(Some(Duration::from_secs(60)));
        // A machine without root certificates (a bare container) uses those of browsers.
        let tls = HttpsConnectorBuilder::new();
        let tls = tls.with_native_roots().unwrap_or_else(|_| HttpsConnectorBuilder::new().with_webpki_roots());
        let connector = tls.https_or_http().enable_http1().enable_http2().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .build(connector);
        Self { client, timeouts }
    }

    /// Sends a request with a buffered body.
    pub(crate) async fn send(&self, request: &UpstreamRequest) -> Result<Response<Incoming>, UpstreamError> {
        let started_at = Instant::now();
        match self.send_once(request.to_http()).await {
            Err(UpstreamError::Unreachable(_)) if started_at.elapsed() < STALE_CONNECTION_WINDOW => {
                self.send_once(request.to_http()).await
            }
            result => result,
        }
    }

    /// Sends a request whose body may still be arriving.
    pub(crate) async fn send_once(&self, request: Request<Body>) -> Result<Response<Incoming>, UpstreamError> {
        let response = tokio::time::timeout(self.timeouts.response_start, self.client.request(request)).await;
        let response = response.map_err(|_| UpstreamError::TimedOut(self.timeouts.response_start))?;
        response.map_err(|error| UpstreamError::Unreachable(root_cause(&error)))
    }
}

impl UpstreamError {
    /// Returns the status that the client gets instead of a response.
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

/// Returns the innermost cause of an error: "connection refused" is more useful than "client error".
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
            UpstreamError::Unreachable(cause) => write!(f, "the upstream did not respond: {cause}"),
            UpstreamError::TimedOut(waited) => write!(f, "the upstream did not respond within {} s", waited.as_secs()),
        }
    }
}
