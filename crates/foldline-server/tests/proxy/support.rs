//! The test harness: a scripted upstream that records requests and checks them against the provider's laws, the proxy in
//! front of it, and a client.

use std::io::Write;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foldline::laws;
use foldline::laws::LawProfile;
use foldline::wire::{Dialect, Format, Request as Wire};
use foldline_archive::Archive;
use foldline_server::proxy::{Proxy, ProxySettings, Upstreams};
use futures_util::stream::{self, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore, oneshot};

/// A request as the upstream received it.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    /// Path with query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl ReceivedRequest {
    /// Returns true for probes of the proxy itself, which are not counted as received.
    fn is_from_proxy(&self) -> bool {
        self.headers.get("user-agent").is_some_and(|value| value.as_bytes().starts_with(b"foldline/"))
    }
}

/// The scripted reaction of the upstream to a request.
#[derive(Clone, Debug)]
pub(crate) enum UpstreamReply {
    /// Responds with a body.
    Body(u16, &'static str, String),
    /// Responds with a binary body.
    Binary(&'static str, Vec<u8>),
    /// Responds with a JSON body and these headers.
    Headed(u16, Vec<(&'static str, &'static str)>, String),
    /// Responds with an event stream.
    Stream(Vec<StreamPiece>),
    /// Responds with an event stream under this content type.
    TypedStream(&'static str, Vec<StreamPiece>),
    /// Announces a body of this length, and breaks off after its start.
    Truncated { length: usize, body: String },
    /// Closes the connection without a response.
    Disconnect,
    /// Never responds.
    Hang,
    /// Waits until the semaphore is closed, then replies.
    Gated(Arc<Semaphore>, Box<UpstreamReply>),
}

/// A step of an event stream.
#[derive(Clone, Debug)]
pub(crate) enum StreamPiece {
    Bytes(String),
    Wait(Duration),
    /// Waits until the test notifies.
    Notified(Arc<Notify>),
    /// Waits until the semaphore is closed.
    GateClosed(Arc<Semaphore>),
    /// Breaks the connection.
    Break,
}

impl UpstreamReply {
    pub(crate) fn json(body: impl Into<String>) -> Self {
        UpstreamReply::Body(200, "application/json", body.into())
    }

    pub(crate) fn error(status: u16, body: impl Into<String>) -> Self {
        UpstreamReply::Body(status, "application/json", body.into())
    }

    /// Returns the same stream with a delay after its head.
    pub(crate) fn delayed(self, wait: Duration) -> Self {
        match self {
            UpstreamReply::Stream(pieces) => {
                UpstreamReply::Stream(std::iter::once(StreamPiece::Wait(wait)).chain(pieces).collect())
            }
            other => other,
        }
    }

    /// Returns the same stream with `piece` inserted before its last `count` events.
    pub(crate) fn with_before_last(self, count: usize, piece: StreamPiece) -> Self {
        match self {
            UpstreamReply::Stream(mut pieces) => {
                pieces.insert(pieces.len() - count, piece);
                UpstreamReply::Stream(pieces)
            }
            other => other,
        }
    }

    pub(crate) fn stream(events: impl IntoIterator<Item = impl Into<String>>) -> Self {
        UpstreamReply::Stream(events.into_iter().map(|event| StreamPiece::Bytes(event.into())).collect())
    }
}

/// The upstream, the proxy and a client.
pub(crate) struct ProxyHarness {
    pub(crate) proxy: SocketAddr,
    pub(crate) upstream: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    violations: Arc<Mutex<Vec<String>>>,
    client: Pool<HttpConnector, Full<Bytes>>,
    stop: Option<oneshot::Sender<()>>,
    stopped: Option<tokio::task::JoinHandle<()>>,
}

/// A response as the client got it.
#[derive(Debug)]
pub(crate) struct ClientResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// True if the body reached its end.
    pub(crate) is_complete: bool,
}

impl ClientResponse {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Returns the body as text; other bytes are replaced.
    pub(crate) fn lossy_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Starts a proxy in front of a server at `upstream`, without the other parts of a harness.
pub(crate) async fn start_proxy(upstream: SocketAddr, settings: ProxySettings) -> SocketAddr {
    start_archived_proxy(upstream, settings, None).await
}

async fn start_archived_proxy(upstream: SocketAddr, settings: ProxySettings, archive: Option<Archive>) -> SocketAddr {
    let base = format!("http://{upstream}").parse::<foldline_server::proxy::UpstreamUrl>().unwrap();
    let settings = ProxySettings { upstreams: Upstreams::all_at(&base), ..settings };
    let proxy = Proxy::bind(settings, archive).await.unwrap();
    let address = proxy.address();
    tokio::spawn(proxy.run(std::future::pending()));
    address
}

/// Sends raw bytes to an address and returns everything that is received until the connection is closed.
pub(crate) async fn exchange_raw(address: SocketAddr, sent: &str) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(sent.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), client.read_to_end(&mut received)).await;
    read.expect("the connection is closed").unwrap();
    String::from_utf8_lossy(&received).into_owned()
}

/// Returns settings with a free port.
pub(crate) fn settings() -> ProxySettings {
    ProxySettings { listen: ([127, 0, 0, 1], 0).into(), ..ProxySettings::default() }
}

impl ProxyHarness {
    /// Starts all three. The upstream rejects the proxy's own probes.
    pub(crate) async fn start(
        settings: ProxySettings,
        archive: Option<Archive>,
        reply: impl Fn(&ReceivedRequest) -> UpstreamReply + Send + Sync + 'static,
    ) -> Self {
        let reply = move |received: &ReceivedRequest| match received.is_from_proxy() {
            true => UpstreamReply::error(404, "{}"),
            false => reply(received),
        };
        Self::start_answering_probes(settings, archive, reply).await
    }

    /// Starts all three, with an upstream that also replies to the proxy's own probes.
    pub(crate) async fn start_answering_probes(
        settings: ProxySettings,
        archive: Option<Archive>,
        reply: impl Fn(&ReceivedRequest) -> UpstreamReply + Send + Sync + 'static,
    ) -> Self {
        let (received, violations) = <(Arc<Mutex<Vec<ReceivedRequest>>>, Arc<Mutex<Vec<String>>>)>::default();
        let upstream = start_upstream(received.clone(), violations.clone(), Arc::new(reply)).await;
        let base = format!("http://{upstream}").parse::<foldline_server::proxy::UpstreamUrl>().unwrap();
        let settings = ProxySettings { upstreams: Upstreams::all_at(&base), ..settings };
        let proxy = Proxy::bind(settings, archive).await.unwrap();
        let address = proxy.address();
        let (stop, stopping) = oneshot::channel();
        let stopped = tokio::spawn(proxy.run(async {
            let _ = stopping.await;
        }));
        let client = Pool::builder(TokioExecutor::new()).build_http();
        Self { proxy: address, upstream, received, violations, client, stop: Some(stop), stopped: Some(stopped) }
    }

    /// Starts another proxy in front of the same upstream; it ends with the test.
    pub(crate) async fn add_replica(&self, settings: ProxySettings, archive: Archive) -> SocketAddr {
        start_archived_proxy(self.upstream, settings, Some(archive)).await
    }

    /// Sends further requests to another proxy.
    pub(crate) fn switch_to(&mut self, proxy: SocketAddr) {
        self.proxy = proxy;
    }

    pub(crate) fn received(&self) -> Vec<ReceivedRequest> {
        assert_eq!(*self.violations.lock().unwrap(), Vec::<String>::new(), "the upstream's laws");
        self.received.lock().unwrap().clone()
    }

    /// Returns the only request that the upstream received.
    pub(crate) fn only_request(&self) -> ReceivedRequest {
        let mut received = self.received();
        assert_eq!(received.len(), 1, "{received:?}");
        received.remove(0)
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.proxy));
        if method == "POST" { request.header(CONTENT_TYPE, "application/json") } else { request }
    }

    /// Sends a request and waits for the response's head.
    pub(crate) async fn send_head(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.client.request(request).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> ClientResponse {
        let (parts, mut body) = self.send_head(request).await.into_parts();
        let mut bytes = Vec::new();
        let is_complete = loop {
            match body.frame().await {
                None => break true,
                Some(Err(_)) => break false,
                Some(Ok(frame)) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        };
        ClientResponse { status: parts.status, headers: parts.headers, body: bytes.into(), is_complete }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> ClientResponse {
        self.send(self.request("POST", path).body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> ClientResponse {
        self.send(self.request("GET", path).body(Full::default()).unwrap()).await
    }

    /// Returns the sum of a metric over all its labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/foldline/metrics").await;
        let lines = metrics.text().lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Returns the prompt tokens of one stage, from the metrics.
    pub(crate) async fn prompt_tokens(&self, stage: &str) -> u64 {
        let metrics = self.get("/foldline/metrics").await;
        let prefix = format!("foldline_prompt_tokens_total{{stage=\"{stage}\"}} ");
        metrics.text().lines().find_map(|line| line.strip_prefix(&prefix)).map_or(0, |value| value.parse().unwrap())
    }

    /// Sends a request with these headers.
    pub(crate) async fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> ClientResponse {
        let with_header =
            |request: hyper::http::request::Builder, (name, value): &(&str, &str)| request.header(*name, *value);
        let request = headers.iter().fold(self.request(method, path), with_header);
        self.send(request.body(Full::new(Bytes::from(body))).unwrap()).await
    }

    /// Stops the proxy without waiting for it.
    pub(crate) fn stop(&mut self) -> tokio::task::JoinHandle<()> {
        let _ = self.stop.take().unwrap().send(());
        self.stopped.take().unwrap()
    }
}

type ReplyScript = Arc<dyn Fn(&ReceivedRequest) -> UpstreamReply + Send + Sync>;

pub(crate) async fn start_upstream(
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    violations: Arc<Mutex<Vec<String>>>,
    reply: ReplyScript,
) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    // Some tests open thousands of connections at once.
    let listener = socket.listen(4096).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (received, violations, reply) = (received.clone(), violations.clone(), reply.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (received, violations, reply) = (received.clone(), violations.clone(), reply.clone());
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    let path = parts.uri.path_and_query().unwrap().to_string();
                    let request = ReceivedRequest { method: parts.method, path, headers: parts.headers, body };
                    if !request.is_from_proxy() {
                        violations.lock().unwrap().extend(law_violations(&request));
                        received.lock().unwrap().push(request.clone());
                    }
                    respond(reply(&request)).await
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// Returns the laws that a request violates.
fn law_violations(request: &ReceivedRequest) -> Vec<String> {
    let Some((dialect, endpoint)) = Dialect::for_path(&request.path) else { return Vec::new() };
    let format = dialect.format;
    let Ok(request) = Wire::parse(format, &request.body) else { return Vec::new() };
    let request = request.with_endpoint(&endpoint);
    // A request without messages loads a model.
    if format == Format::Ollama && request.conversation().messages.is_empty() {
        return Vec::new();
    }
    let profile = LawProfile::for_request(&request);
    let profile = if format == Format::Ollama { profile.served_by(laws::ServerKind::ChatTemplate) } else { profile };
    laws::check(&request, &profile).iter().map(ToString::to_string).collect()
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn respond(reply: UpstreamReply) -> Result<Response<BoxBody<Bytes, BoxError>>, BoxError> {
    match reply {
        UpstreamReply::Body(status, content_type, body) => {
            let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
            Ok(Response::builder().status(status).header(CONTENT_TYPE, content_type).body(body).unwrap())
        }
        UpstreamReply::Binary(content_type, body) => {
            let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
            Ok(Response::builder().header(CONTENT_TYPE, content_type).body(body).unwrap())
        }
        UpstreamReply::Headed(status, headers, body) => {
            let mut response = Box::pin(respond(UpstreamReply::error(status, body))).await?;
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse()?);
            }
            Ok(response)
        }
        UpstreamReply::Stream(pieces) => {
            let frames: Pin<Box<dyn stream::Stream<Item = Result<Frame<Bytes>, BoxError>> + Send + Sync>> =
                Box::pin(stream::iter(pieces).filter_map(|piece| async move {
                    match piece {
                        StreamPiece::Bytes(text) => Some(Ok(Frame::data(Bytes::from(text)))),
                        StreamPiece::Break => {
                            // Data that was written before must arrive.
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            Some(Err("scripted break".into()))
                        }
                        StreamPiece::Wait(time) => {
                            tokio::time::sleep(time).await;
                            None
                        }
                        StreamPiece::GateClosed(gate) => {
                            let _ = gate.acquire().await;
                            None
                        }
                        StreamPiece::Notified(notify) => {
                            notify.notified().await;
                            None
                        }
                    }
                }));
            let body = BodyExt::boxed(StreamBody::new(frames));
            Ok(Response::builder().header(CONTENT_TYPE, "text/event-stream").body(body).unwrap())
        }
        UpstreamReply::TypedStream(content_type, pieces) => {
            let mut response = Box::pin(respond(UpstreamReply::Stream(pieces))).await?;
            response.headers_mut().insert(CONTENT_TYPE, content_type.parse()?);
            Ok(response)
        }
        UpstreamReply::Truncated { length, body } => {
            let pieces = UpstreamReply::Stream(vec![StreamPiece::Bytes(body), StreamPiece::Break]);
            let mut response = Box::pin(respond(pieces)).await?;
            response.headers_mut().insert(CONTENT_TYPE, "application/json".parse()?);
            response.headers_mut().insert(hyper::header::CONTENT_LENGTH, length.into());
            Ok(response)
        }
        UpstreamReply::Disconnect => Err("scripted disconnect".into()),
        UpstreamReply::Hang => std::future::pending().await,
        UpstreamReply::Gated(gate, reply) => {
            let _ = gate.acquire().await;
            Box::pin(respond(*reply)).await
        }
    }
}

/// The log of all threads.
#[derive(Clone, Default)]
pub(crate) struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl LogBuffer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
