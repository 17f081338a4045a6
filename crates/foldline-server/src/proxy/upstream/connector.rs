//! TCP connections to providers that count the requests they carried, so that a reused connection can be distinguished
//! from a new one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

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

/// Opens TCP connections.
#[derive(Clone, Debug)]
pub(crate) struct CountingConnector(HttpConnector);

impl CountingConnector {
    pub(crate) fn new(connect_timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(connect_timeout));
        http.set_keepalive(Some(TCP_KEEP_ALIVE));
        Self(http)
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<Uri> for CountingConnector {
    type Response = CountedStream;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = BoxFuture<Result<CountedStream, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { Ok(CountedStream { stream: connecting.await?, uses: ConnectionUses::default() }) })
    }
}

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct CountedStream {
    stream: TokioIo<TcpStream>,
    uses: ConnectionUses,
}

impl Connection for CountedStream {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.uses.clone())
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
