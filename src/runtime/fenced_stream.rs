//! A connection that sends nothing after this process stops leading.
//!
//! The check is below TLS, just before the system call. Between the start of a request and the write of its bytes are a
//! queue, the connection's task and the encryption, and the process may be suspended in each of them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

use crate::runtime::write_fence::WriteFence;

/// The write fence is closed. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[error("not the leader; refusing to send")]
pub struct NotLeader;

/// A stream that refuses writes while the write fence is closed.
pub struct FencedStream<S> {
    stream: S,
    guard: WriteFence,
}

impl<S> FencedStream<S> {
    /// Wraps a stream.
    pub fn new(stream: S, guard: WriteFence) -> Self {
        Self { stream, guard }
    }

    /// Returns the stream for an immediate write, or an error if the write fence is closed.
    fn ask(&mut self) -> io::Result<&mut S> {
        if self.guard.may_write() {
            Ok(&mut self.stream)
        } else {
            Err(io::Error::other(NotLeader))
        }
    }
}

impl<S: Write + Unpin> Write for FencedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().ask()?).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().ask()?).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().ask()?).poll_flush(cx)
    }

    /// Always allowed: a shutdown sends no data.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: Read + Unpin> Read for FencedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: Connection> Connection for FencedStream<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_stream_whose_term_ends_between_two_writes_sends_nothing_more() {
        let guard = WriteFence::default();
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = TokioIo::new(FencedStream::new(TokioIo::new(near), guard.clone()));
        let refused = |error: io::Error| error.get_ref().is_some_and(|cause| cause.is::<NotLeader>());
        assert!(refused(stream.write_all(b"too early").await.unwrap_err()));
        guard.open(None);
        stream.write_all(b"in the term").await.unwrap();
        guard.close();
        assert!(refused(stream.write_all(b"too late").await.unwrap_err()));
        let parts = [IoSlice::new(b"too"), IoSlice::new(b"late")];
        assert!(refused(stream.write_vectored(&parts).await.unwrap_err()));
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"in the term");
    }
}
