//! TCP connections to providers that count the requests they carried, so that a reused connection can be distinguished
//! from a new one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper::http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

use crate::proxy::upstream::outbound::{NetworkProxy, OutboundSettings};

/// Interval of TCP keep-alive probes.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A flag: the connection has carried a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionUses(Arc<AtomicBool>);

impl ConnectionUses {
    /// Records a request. Returns true if the connection had carried another one before.
    pub(crate) fn record_use(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
    }
}

/// Opens TCP connections, directly or through a proxy of the network.
#[derive(Clone, Debug)]
pub(crate) struct CountingConnector {
    http: HttpConnector,
    outbound: Arc<OutboundSettings>,
    connect_timeout: Duration,
}

/// The reason why a connection failed.
pub(crate) type ConnectError = Box<dyn std::error::Error + Send + Sync>;

impl CountingConnector {
    pub(crate) fn new(connect_timeout: Duration, outbound: Arc<OutboundSettings>) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(connect_timeout));
        http.set_keepalive(Some(TCP_KEEP_ALIVE));
        Self { http, outbound, connect_timeout }
    }
}

impl Service<Uri> for CountingConnector {
    type Response = CountedStream;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<CountedStream, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(proxy) = self.outbound.proxy_for(&uri).cloned() else {
            let connecting = self.http.call(uri);
            return Box::pin(async move { Ok(CountedStream::new(connecting.await?)) });
        };
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let (http, timeout) = (self.http.clone(), self.connect_timeout);
        Box::pin(async move {
            let connecting =
                async { if is_tls { tunnel(http, &proxy, uri).await } else { forward(http, &proxy).await } };
            let connected = tokio::time::timeout(timeout, connecting).await;
            let connected = connected.unwrap_or_else(|_| Err("it did not answer in time".into()));
            connected.map_err(|error| format!("the proxy of the network, {proxy}: {error}").into())
        })
    }
}

/// Opens a connection to a provider with TLS.
async fn tunnel(http: HttpConnector, proxy: &NetworkProxy, uri: Uri) -> Result<CountedStream, ConnectError> {
    let tunnel = Tunnel::new(proxy.uri().clone(), http);
    let mut tunnel = match proxy.credentials() {
        Some(credentials) => tunnel.with_auth(credentials.clone()),
        None => tunnel,
    };
    Ok(CountedStream::new(tunnel.call(uri).await?))
}

/// Opens a connection to the proxy itself, which forwards requests without TLS.
async fn forward(mut http: HttpConnector, proxy: &NetworkProxy) -> Result<CountedStream, ConnectError> {
    Ok(CountedStream { is_forwarded: true, ..CountedStream::new(http.call(proxy.uri().clone()).await?) })
}

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct CountedStream {
    stream: TokioIo<TcpStream>,
    uses: ConnectionUses,
    /// True if it ends at a proxy that forwards requests.
    is_forwarded: bool,
}

impl CountedStream {
    fn new(stream: TokioIo<TcpStream>) -> Self {
        Self { stream, uses: ConnectionUses::default(), is_forwarded: false }
    }
}

impl Connection for CountedStream {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.uses.clone()).proxy(self.is_forwarded)
    }
}

impl Read for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
}
