//! A stand for tests: an upstream that does what it is told, records what it receives and holds every
//! conversation to the provider's laws; the proxy before it; and a client.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foldline::laws::{self, LawProfile};
use foldline::wire::{Format, Request as Wire};
use foldline_archive::Archive;
use foldline_server::proxy::{Proxy, Settings};
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
use tokio::net::TcpSocket;
use tokio::sync::{Notify, Semaphore, oneshot};

/// A request as the upstream received it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    /// With its query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Received {
    /// The proxy asks on its own account; this is not counted as received.
    fn is_question(&self) -> bool {
        self.headers.get("user-agent").is_some_and(|it| it.as_bytes().starts_with(b"foldline/"))
    }
}

/// What the upstream does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Answers with a body.
    Body(u16, &'static str, String),
    /// Answers with a JSON body and these headers.
    Headed(u16, Vec<(&'static str, &'static str)>, String),
    /// Answers with an event stream.
    Stream(Vec<Piece>),
    /// Announces a body of this length, and breaks off behind the beginning of it.
    Cut { length: usize, body: String },
    /// Closes the connection without a word.
    HangUp,
    /// Says nothing.
    Silence,
    /// Says nothing until this is closed, and then that.
    Later(Arc<Semaphore>, Box<Reply>),
}

/// A piece of an event stream.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Bytes(String),
    Wait(Duration),
    /// Nothing, until the test says so.
    Until(Arc<Notify>),
    /// Nothing, until this is closed.
    Closed(Arc<Semaphore>),
    /// The connection breaks.
    Break,
}

impl Reply {
    pub(crate) fn json(body: impl Into<String>) -> Self {
        Reply::Body(200, "application/json", body.into())
    }

    pub(crate) fn error(status: u16, body: impl Into<String>) -> Self {
        Reply::Body(status, "application/json", body.into())
    }

    /// The same stream, a while later: its head comes at once.
    pub(crate) fn after(self, wait: Duration) -> Self {
        match self {
            Reply::Stream(pieces) => Reply::Stream(std::iter::once(Piece::Wait(wait)).chain(pieces).collect()),
            other => other,
        }
    }

    /// Returns the same stream with `piece` inserted before its last `count` events.
    pub(crate) fn with_before_last(self, count: usize, piece: Piece) -> Self {
        match self {
            Reply::Stream(mut pieces) => {
                pieces.insert(pieces.len() - count, piece);
                Reply::Stream(pieces)
            }
            other => other,
        }
    }

    pub(crate) fn stream(events: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Reply::Stream(events.into_iter().map(|it| Piece::Bytes(it.into())).collect())
    }
}

/// The upstream, the proxy and a client.
pub(crate) struct Stand {
    pub(crate) proxy: SocketAddr,
    pub(crate) upstream: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    violations: Arc<Mutex<Vec<String>>>,
    client: Pool<HttpConnector, Full<Bytes>>,
    stop: Option<oneshot::Sender<()>>,
    stopped: Option<tokio::task::JoinHandle<()>>,
}

/// A response as the client got it.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The body came to its end.
    pub(crate) whole: bool,
}

impl Got {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|it| it.to_str().unwrap())
    }
}

/// Settings for a stand: a free port, and no patience for tests that wait.
pub(crate) fn settings() -> Settings {
    Settings { listen: ([127, 0, 0, 1], 0).into(), ..Settings::default() }
}

impl Stand {
    /// Starts all three. The upstream answers no question of the proxy's own.
    pub(crate) async fn start(
        settings: Settings,
        archive: Option<Archive>,
        reply: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let reply = move |received: &Received| match received.is_question() {
            true => Reply::error(404, "{}"),
            false => reply(received),
        };
        Self::start_open(settings, archive, reply).await
    }

    /// Starts all three, with an upstream that answers whatever comes.
    pub(crate) async fn start_open(
        settings: Settings,
        archive: Option<Archive>,
        reply: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let (received, violations) = <(Arc<Mutex<Vec<Received>>>, Arc<Mutex<Vec<String>>>)>::default();
        let upstream = upstream(received.clone(), violations.clone(), Arc::new(reply)).await;
        let base = format!("http://{upstream}").parse::<foldline_server::proxy::Upstream>().unwrap();
        let settings = Settings { openai: base.clone(), anthropic: base, ..settings };
        let proxy = Proxy::bind(settings, archive).await.unwrap();
        let address = proxy.address();
        let (stop, stopping) = oneshot::channel();
        let stopped = tokio::spawn(proxy.run(async {
            let _ = stopping.await;
        }));
        let client = Pool::builder(TokioExecutor::new()).build_http();
        Self { proxy: address, upstream, received, violations, client, stop: Some(stop), stopped: Some(stopped) }
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        assert_eq!(*self.violations.lock().unwrap(), Vec::<String>::new(), "the upstream's laws");
        self.received.lock().unwrap().clone()
    }

    /// The only request that the upstream received.
    pub(crate) fn only(&self) -> Received {
        let mut received = self.received();
        assert_eq!(received.len(), 1, "{received:?}");
        received.remove(0)
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> hyper::http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.proxy))
    }

    /// Sends a request and waits for the response's head.
    pub(crate) async fn begin(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.client.request(request).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        let (parts, mut body) = self.begin(request).await.into_parts();
        let mut bytes = Vec::new();
        let whole = loop {
            match body.frame().await {
                None => break true,
                Some(Err(_)) => break false,
                Some(Ok(frame)) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        };
        Got { status: parts.status, headers: parts.headers, body: bytes.into(), whole }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Got {
        let request = self.request("POST", path).header(CONTENT_TYPE, "application/json");
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        self.send(self.request("GET", path).body(Full::default()).unwrap()).await
    }

    /// The sum of a metric of the proxy's over all its labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/foldline/metrics").await;
        let lines = metrics.text().lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Tells the proxy to stop, without waiting for it.
    pub(crate) fn stop(&mut self) -> tokio::task::JoinHandle<()> {
        let _ = self.stop.take().unwrap().send(());
        self.stopped.take().unwrap()
    }
}

type Answers = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

async fn upstream(
    received: Arc<Mutex<Vec<Received>>>,
    violations: Arc<Mutex<Vec<String>>>,
    reply: Answers,
) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    // Thousands may come at once.
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
                    let request = Received { method: parts.method, path, headers: parts.headers, body };
                    if !request.is_question() {
                        violations.lock().unwrap().extend(broken_laws(&request));
                        received.lock().unwrap().push(request.clone());
                    }
                    answer(reply(&request)).await
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// What a strict provider would refuse.
fn broken_laws(request: &Received) -> Vec<String> {
    let path = request.path.split('?').next().unwrap();
    let format = match path {
        "/v1/chat/completions" => Format::OpenAiChat,
        "/v1/responses" => Format::OpenAiResponses,
        "/v1/messages" | "/v1/messages/count_tokens" => Format::Anthropic,
        _ => return Vec::new(),
    };
    let Ok(request) = Wire::parse(format, &request.body) else { return Vec::new() };
    laws::check(&request, &LawProfile::for_request(&request)).iter().map(ToString::to_string).collect()
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn answer(reply: Reply) -> Result<Response<BoxBody<Bytes, Failure>>, Failure> {
    match reply {
        Reply::Body(status, content_type, body) => {
            let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
            Ok(Response::builder().status(status).header(CONTENT_TYPE, content_type).body(body).unwrap())
        }
        Reply::Headed(status, headers, body) => {
            let mut response = Box::pin(answer(Reply::error(status, body))).await?;
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse()?);
            }
            Ok(response)
        }
        Reply::Stream(pieces) => {
            let frames: Pin<Box<dyn stream::Stream<Item = Result<Frame<Bytes>, Failure>> + Send + Sync>> =
                Box::pin(stream::iter(pieces).filter_map(|piece| async move {
                    match piece {
                        Piece::Bytes(text) => Some(Ok(Frame::data(Bytes::from(text)))),
                        Piece::Break => {
                            // What was written before is to arrive.
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            Some(Err("the script says so".into()))
                        }
                        Piece::Wait(time) => {
                            tokio::time::sleep(time).await;
                            None
                        }
                        Piece::Closed(gate) => {
                            let _ = gate.acquire().await;
                            None
                        }
                        Piece::Until(told) => {
                            told.notified().await;
                            None
                        }
                    }
                }));
            let body = BodyExt::boxed(StreamBody::new(frames));
            Ok(Response::builder().header(CONTENT_TYPE, "text/event-stream").body(body).unwrap())
        }
        Reply::Cut { length, body } => {
            let pieces = Reply::Stream(vec![Piece::Bytes(body), Piece::Break]);
            let mut response = Box::pin(answer(pieces)).await?;
            response.headers_mut().insert(CONTENT_TYPE, "application/json".parse()?);
            response.headers_mut().insert(hyper::header::CONTENT_LENGTH, length.into());
            Ok(response)
        }
        Reply::HangUp => Err("the script says so".into()),
        Reply::Silence => std::future::pending().await,
        Reply::Later(gate, reply) => {
            let _ = gate.acquire().await;
            Box::pin(answer(*reply)).await
        }
    }
}
