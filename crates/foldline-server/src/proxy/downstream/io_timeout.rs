//! A connection that waits for its client only so long.
//!
//! A client that connects and says nothing, or that neither takes its answer nor hangs up, would hold a
//! place, and an upstream's connection behind it, for ever. The head of a request and its body have
//! limits of their own; these two have theirs here.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How HTTP/2 begins. Until the first bytes differ from it, nobody can tell which version a client speaks,
/// and no limit of either version runs.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection with limits.
pub(crate) struct TimeoutStream<S> {
    stream: S,
    /// For the client to take something of what is written.
    write_timeout: Duration,
    /// Since when nothing is taken.
    write_deadline: Option<Pin<Box<Sleep>>>,
    preface: Option<PrefaceCheck>,
}

/// A connection on which it is not clear yet what will be spoken.
struct PrefaceCheck {
    deadline: Pin<Box<Sleep>>,
    /// Bytes that came, all of them as HTTP/2 begins.
    matched_bytes: usize,
}

impl<S> TimeoutStream<S> {
    pub(crate) fn new(stream: S, to_begin: Duration, to_take: Duration) -> Self {
        let beginning = PrefaceCheck { deadline: Box::pin(tokio::time::sleep(to_begin)), matched_bytes: 0 };
        Self { stream, write_timeout: to_take, write_deadline: None, preface: Some(beginning) }
    }

    /// Passes on what became of a write, unless too many in a row could not be done.
    fn apply_write_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        let to_take = self.write_timeout;
        let untaken = self.write_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(to_take)));
        ready!(untaken.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")))
    }
}

impl PrefaceCheck {
    fn advance(&mut self, bytes: &[u8]) -> bool {
        let expected = &HTTP2_PREFACE[self.matched_bytes..];
        self.matched_bytes += bytes.len();
        bytes.len() < expected.len() && expected.starts_with(bytes)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if let Some(beginning) = &mut self.preface {
            match &read {
                Poll::Pending => {
                    ready!(beginning.deadline.as_mut().poll(context));
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client says nothing")));
                }
                Poll::Ready(Ok(())) if beginning.advance(&into.filled()[before..]) => {}
                Poll::Ready(_) => self.preface = None,
            }
        }
        read
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
