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
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection with limits.
pub(crate) struct Patient<S> {
    stream: S,
    /// For the client to take something of what is written.
    to_take: Duration,
    /// Since when nothing is taken.
    untaken: Option<Pin<Box<Sleep>>>,
    beginning: Option<Beginning>,
}

/// A connection on which it is not clear yet what will be spoken.
struct Beginning {
    until: Pin<Box<Sleep>>,
    /// Bytes that came, all of them as HTTP/2 begins.
    came: usize,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, to_begin: Duration, to_take: Duration) -> Self {
        let beginning = Beginning { until: Box::pin(tokio::time::sleep(to_begin)), came: 0 };
        Self { stream, to_take, untaken: None, beginning: Some(beginning) }
    }

    /// Passes on what became of a write, unless too many in a row could not be done.
    fn taken<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.untaken = None;
            return written;
        }
        let to_take = self.to_take;
        let untaken = self.untaken.get_or_insert_with(|| Box::pin(tokio::time::sleep(to_take)));
        ready!(untaken.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")))
    }
}

impl Beginning {
    fn goes_on(&mut self, bytes: &[u8]) -> bool {
        let expected = &PREFACE[self.came..];
        self.came += bytes.len();
        bytes.len() < expected.len() && expected.starts_with(bytes)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if let Some(beginning) = &mut self.beginning {
            match &read {
                Poll::Pending => {
                    ready!(beginning.until.as_mut().poll(context));
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client says nothing")));
                }
                Poll::Ready(Ok(())) if beginning.goes_on(&into.filled()[before..]) => {}
                Poll::Ready(_) => self.beginning = None,
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.taken(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.taken(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.taken(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.taken(context, closed)
    }
}
