//! Read and write timeouts of a client connection.
//!
//! A client that connects and sends nothing, or that does not read its response, would hold a connection, and possibly an
//! upstream connection, forever. Request heads and bodies have separate timeouts.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::proxy::downstream::half_close::HalfClose;

/// The HTTP/2 connection preface. Until the first bytes differ from it, the protocol version is unknown, and no timeout
/// of either version applies.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection with timeouts.
pub(crate) struct TimeoutStream<S> {
    stream: S,
    /// Time for the client to read some of what is written.
    write_timeout: Duration,
    /// Set while a write is blocked.
    write_deadline: Option<Pin<Box<Sleep>>>,
    preface: Option<PrefaceCheck>,
    half_close: HalfClose,
}

/// A connection whose protocol version is not known yet.
struct PrefaceCheck {
    deadline: Pin<Box<Sleep>>,
    /// Bytes received so far, all of them equal to the preface.
    matched_bytes: usize,
}

impl<S> TimeoutStream<S> {
    pub(crate) fn new(stream: S, read_timeout: Duration, write_timeout: Duration, half_close: HalfClose) -> Self {
        let preface = PrefaceCheck { deadline: Box::pin(tokio::time::sleep(read_timeout)), matched_bytes: 0 };
        Self { stream, write_timeout, write_deadline: None, preface: Some(preface), half_close }
    }

    /// Returns the result of a write, or an error if writes have been blocked for too long.
    fn apply_write_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        let timeout = self.write_timeout;
        let deadline = self.write_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "client did not read the response before the write timeout",
        )))
    }
}

impl PrefaceCheck {
    /// Records received bytes. Returns true while they may still become the HTTP/2 preface.
    fn advance(&mut self, bytes: &[u8]) -> bool {
        let expected = &HTTP2_PREFACE[self.matched_bytes..];
        self.matched_bytes += bytes.len();
        bytes.len() < expected.len() && expected.starts_with(bytes)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(preface) = &mut self.preface {
            match &read {
                Poll::Pending => {
                    ready!(preface.deadline.as_mut().poll(context));
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "client sent no data before the read timeout",
                    )));
                }
                Poll::Ready(Ok(())) if preface.advance(&buffer.filled()[before..]) => {}
                Poll::Ready(_) => self.preface = None,
            }
        }
        // The response is still expected; a client that has left is noticed when it is written.
        let is_end = matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before && buffer.remaining() > 0;
        if is_end && self.half_close.is_expected() { Poll::Pending } else { read }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.apply_write_timeout(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.apply_write_timeout(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.apply_write_timeout(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.apply_write_timeout(context, closed)
    }
}
