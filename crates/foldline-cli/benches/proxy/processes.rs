//! The processes around the proxy: an upstream that answers immediately, and a proxy that only copies bytes,
//! built on the same stack.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// A listening process that is killed on drop.
pub(crate) struct BenchProcess {
    pub(crate) child: Child,
    /// Host and port.
    pub(crate) address: String,
}

impl BenchProcess {
    /// Starts a process and waits for the line with its address.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the process starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its output is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the process prints its address");
        let address = line.trim().rsplit("http://").next().unwrap_or_default().to_owned();
        Self { child, address }
    }

    /// Starts another role of this program.
    pub(crate) fn start_self(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(arguments);
        Self::start(command)
    }

    /// Starts `foldline serve` with its own archive and settings.
    pub(crate) fn start_foldline(upstream: &str, folder: &std::path::Path, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
        command.env("HOME", folder).args(["serve", "--listen", "127.0.0.1:0", "--upstream"]);
        command.arg(format!("http://{upstream}")).arg("--archive").arg(folder.join("archive.db")).args(flags);
        Self::start(command)
    }

    /// Returns the resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|it| it.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// Returns the CPU time of all its threads.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let ticks: u64 = after_name.split(' ').skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const RESPONSE_BODY: &str = r#"{"id":"c","type":"message","role":"assistant","object":"chat.completion","stop_reason":"end_turn","content":[{"type":"text","text":"ok"}],"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}"#;
/// Chunks of a streamed response, and the time between them.
const CHUNK_COUNT: usize = 10;
const CHUNK_INTERVAL: Duration = Duration::from_millis(2);

/// Serves the upstream: answers turns, streamed or not, and no other path.
pub(crate) async fn serve_upstream() {
    serve_router(Router::new().fallback(respond)).await;
}

async fn respond(request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|it| it.to_bytes()).unwrap_or_default();
    let is_turn = ["/v1/chat/completions", "/v1/messages"].contains(&parts.uri.path());
    let streams = body[..body.len().min(80)].windows(13).any(|it| it == br#""stream":true"#);
    let mut response = Response::new(match (is_turn, streams) {
        (false, _) => Body::from("{}"),
        (true, false) => Body::from(RESPONSE_BODY),
        (true, true) => streamed_body(),
    });
    let kind = if is_turn && streams { "text/event-stream" } else { "application/json" };
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    if !is_turn {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

/// Returns a stream of chunks, each with the time at which it was written.
fn streamed_body() -> Body {
    let pieces = futures_util::stream::unfold(0, |at| async move {
        if at > CHUNK_COUNT {
            return None;
        }
        if at == CHUNK_COUNT {
            let end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
            return Some((Ok(Frame::data(Bytes::from_static(end.as_bytes()))), at + 1));
        }
        tokio::time::sleep(CHUNK_INTERVAL).await;
        let delta = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"at {} \"}},\"finish_reason\":null}}]}}\n\n",
            unix_nanos()
        );
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(delta))), at + 1))
    });
    Body::new(StreamBody::new(pieces))
}

/// Returns nanoseconds since 1970, comparable between processes.
pub(crate) fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_nanos() as u64)
}

/// Serves the proxy that only copies bytes.
pub(crate) async fn serve_copy_proxy(upstream: String) {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(http);
    let copying = Arc::new(CopyProxy { client, upstream });
    serve_router(Router::new().fallback(forward).with_state(copying)).await;
}

struct CopyProxy {
    client: Client<HttpConnector, Body>,
    upstream: String,
}

async fn forward(State(copying): State<Arc<CopyProxy>>, mut request: Request<Body>) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |it| it.as_str());
    *request.uri_mut() = format!("http://{}{path}", copying.upstream).parse::<Uri>().expect("paths are kept");
    request.headers_mut().remove(header::HOST);
    match copying.client.request(request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => {
            let mut response = Response::new(Body::from(error.to_string()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    }
}

#[expect(clippy::print_stdout, reason = "the line is read by the parent process")]
async fn serve_router(router: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    println!("http://{}", listener.local_addr().expect("it has an address"));
    let service = TowerToHyperService::new(router);
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        tokio::spawn(async move {
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
