//! Connections to providers.
//!
//! One pool for all, with HTTP/2 if the provider offers it. A request is resent here in one case only: its pooled
//! connection was idle before and broke at once, because the provider had closed it. It is resent on a new connection,
//! since other pooled connections may be closed as well. In all other cases the provider may have read the request, and
//! would bill it twice.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use foldline::wire::Dialect;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, PROXY_AUTHORIZATION};
use hyper::http::Extensions;
use hyper::http::uri::Scheme;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::client::legacy::{Client, Error, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::proxy::settings::Timeouts;
use crate::proxy::upstream::aws::credentials::AwsError;
use crate::proxy::upstream::aws::signer::AwsSigner;
use crate::proxy::upstream::connector::{ConnectionUses, CountingConnector};
use crate::proxy::upstream::outbound::OutboundSettings;

/// Maximum idle time of a pooled connection. Servers written in Python close connections after five idle seconds.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// A reused connection that breaks this soon, without a byte of a response, was closed before the request arrived.
const STALE_CONNECTION_WINDOW: Duration = Duration::from_secs(1);

/// A connection pool, and a client without one.
#[derive(Clone)]
pub(crate) struct UpstreamClient {
    pooled: HttpClient,
    /// Opens a connection for every request.
    unpooled: HttpClient,
    timeouts: Timeouts,
    outbound: Arc<OutboundSettings>,
}

type HttpClient = Client<HttpsConnector<CountingConnector>, Body>;

/// A request with a buffered body, which can be sent again.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamRequest {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Signs the request whenever it is sent; none if it carries its credentials.
    pub(crate) signer: Option<AwsSigner>,
}

impl UpstreamRequest {
    /// Returns true if the path requests a stream.
    pub(crate) fn requests_stream(&self) -> bool {
        Dialect::for_path(self.uri.path()).is_some_and(|(_, endpoint)| endpoint.streaming == Some(true))
    }
}

/// The reason why there is no response.
#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// No connection, or it broke before a response started.
    Unreachable(String),
    /// No response started within the timeout.
    TimedOut(Duration),
    /// The request could not be signed.
    NotSigned(AwsError),
    /// The response has a status that cannot be forwarded: the proxy requested no upgrade.
    UnexpectedUpgrade,
}

/// A failed attempt.
struct FailedAttempt {
    error: UpstreamError,
    /// True if the provider has not read the request.
    is_unread: bool,
}

impl UpstreamClient {
    /// Creates a client.
    ///
    /// # Errors
    ///
    /// A certificate of the settings cannot be used.
    pub(crate) fn new(timeouts: Timeouts, outbound: &OutboundSettings) -> io::Result<Self> {
        let (outbound, tls_config) = (Arc::new(outbound.clone()), outbound.tls_config()?);
        let connector = || {
            let http = CountingConnector::new(timeouts.connect, outbound.clone());
            let tls = HttpsConnectorBuilder::new();
            let tls = match &tls_config {
                Some(config) => tls.with_tls_config(config.clone()),
                // A machine without root certificates (a bare container) uses those of browsers.
                None => tls.with_native_roots().unwrap_or_else(|_| HttpsConnectorBuilder::new().with_webpki_roots()),
            };
            tls.https_or_http().enable_http1().enable_http2().wrap_connector(http)
        };
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(20));
        let pooled = builder.build(connector());
        let unpooled = builder.pool_max_idle_per_host(0).build(connector());
        Ok(Self { pooled, unpooled, timeouts, outbound })
    }

    /// Sends a request with a buffered body.
    pub(crate) async fn send(&self, request: &UpstreamRequest) -> Result<Response<Incoming>, UpstreamError> {
        match self.attempt(&self.pooled, request.to_http().await?).await {
            Err(FailedAttempt { is_unread: true, .. }) => {
                self.attempt(&self.unpooled, request.to_http().await?).await.map_err(|failed| failed.error)
            }
            result => result.map_err(|failed| failed.error),
        }
    }

    /// Sends a request whose body may still be arriving.
    pub(crate) async fn send_once(&self, request: Request<Body>) -> Result<Response<Incoming>, UpstreamError> {
        self.attempt(&self.pooled, request).await.map_err(|failed| failed.error)
    }

    async fn attempt(
        &self,
        client: &HttpClient,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, FailedAttempt> {
        if let Some(credentials) = self.proxy_credentials(request.uri()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credentials.clone());
        }
        let (connection, started_at) = (capture_connection(&mut request), Instant::now());
        let final_error = |error| FailedAttempt { error, is_unread: false };
        let timeout = self.timeouts.response_start;
        let response = tokio::time::timeout(timeout, start_request(client, request)).await;
        let response = response.map_err(|_| final_error(UpstreamError::TimedOut(timeout)))?;
        let was_idle = was_idle_before(&connection);
        match response {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Err(final_error(UpstreamError::UnexpectedUpgrade))
            }
            Ok(response) => Ok(response),
            Err(error) => Err(FailedAttempt {
                is_unread: was_idle && is_broken_connection(&error) && started_at.elapsed() < STALE_CONNECTION_WINDOW,
                error: UpstreamError::Unreachable(root_cause(&error)),
            }),
        }
    }
}

impl UpstreamClient {
    /// Returns the credentials for a proxy that forwards a request without TLS. A tunnel gets them when it is opened.
    fn proxy_credentials(&self, uri: &Uri) -> Option<&HeaderValue> {
        let is_forwarded = uri.scheme() == Some(&Scheme::HTTP);
        self.outbound.proxy_for(uri).filter(|_| is_forwarded)?.credentials()
    }
}

/// Starts a request. Not inlined, so that crates that poll the future of a caller do not compile the HTTP client again.
#[inline(never)]
fn start_request(client: &HttpClient, request: Request<Body>) -> ResponseFuture {
    client.request(request)
}

/// Returns true if a connection had carried another request before. Requests over HTTP/2 share a connection that is not
/// idle, and the protocol itself states which of them were not read.
fn was_idle_before(connection: &CaptureConnection) -> bool {
    let metadata = connection.connection_metadata();
    let Some(connected) = metadata.as_ref() else { return false };
    let mut extras = Extensions::new();
    connected.get_extras(&mut extras);
    let is_reused = extras.get::<ConnectionUses>().is_some_and(ConnectionUses::record_use);
    is_reused && !connected.is_negotiated_h2()
}

/// Returns true if a connection broke while a request was sent or its response was awaited.
fn is_broken_connection(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<hyper::Error>());
    !error.is_connect() && cause.is_none_or(|cause| !cause.is_parse() && !cause.is_user())
}

impl UpstreamError {
    /// Returns the status that the client gets instead of a response.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            UpstreamError::Unreachable(_) | UpstreamError::UnexpectedUpgrade => StatusCode::BAD_GATEWAY,
            UpstreamError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::NotSigned(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl UpstreamRequest {
    /// Returns the request for one attempt, signed for this time.
    async fn to_http(&self) -> Result<Request<Body>, UpstreamError> {
        let mut headers = self.headers.clone();
        if let Some(signer) = &self.signer {
            let signed = signer.sign(&self.method, &self.uri, &mut headers, &self.body).await;
            signed.map_err(UpstreamError::NotSigned)?;
        }
        let mut request = Request::new(Body::from(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        Ok(request)
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
            UpstreamError::NotSigned(cause) => write!(f, "the request could not be signed: {cause}"),
            UpstreamError::UnexpectedUpgrade => f.write_str("the upstream switched protocols without being asked to"),
        }
    }
}
