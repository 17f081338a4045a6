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

use super::settings::Patience;

/// Servers written in Python close a connection that was idle for five seconds; one that is younger can
/// be relied on.
const IDLE: Duration = Duration::from_secs(4);
/// A connection that breaks this soon, with no byte of an answer, was closed before the request came.
const TOO_SOON_TO_HAVE_ANSWERED: Duration = Duration::from_millis(250);

/// A pool of connections.
#[derive(Clone)]
pub(crate) struct Providers {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    patience: Patience,
}

/// A request whose body is whole, so that it can be sent again.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// No connection, or it broke before an answer began.
    Unreachable(String),
    /// Nothing came for too long.
    Late(Duration),
}

impl Providers {
    pub(crate) fn new(patience: Patience) -> Self {
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
            .pool_idle_timeout(IDLE)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .build(connector);
        Self { client, patience }
    }

    /// Sends a request whose body is whole.
    pub(crate) async fn send(&self, request: &Outbound) -> Result<Response<Incoming>, Unanswered> {
        let began = Instant::now();
        match self.pass(request.request()).await {
            Err(Unanswered::Unreachable(_)) if began.elapsed() < TOO_SOON_TO_HAVE_ANSWERED => {
                self.pass(request.request()).await
            }
            answered => answered,
        }
    }

    /// Sends a request whose body may still be coming.
    pub(crate) async fn pass(&self, request: Request<Body>) -> Result<Response<Incoming>, Unanswered> {
        let answered = tokio::time::timeout(self.patience.answer, self.client.request(request)).await;
        let answered = answered.map_err(|_| Unanswered::Late(self.patience.answer))?;
        answered.map_err(|error| Unanswered::Unreachable(innermost(&error)))
    }
}

impl Unanswered {
    /// Returns the status that a client gets in place of an answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Unanswered::Unreachable(_) => StatusCode::BAD_GATEWAY,
            Unanswered::Late(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl Outbound {
    fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::from(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// What an error comes down to: "connection refused" says more than "client error".
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::Unreachable(why) => write!(f, "the upstream gave no answer: {why}"),
            Unanswered::Late(waited) => write!(f, "the upstream gave no answer within {} s", waited.as_secs()),
        }
    }
}
