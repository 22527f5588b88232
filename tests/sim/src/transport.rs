//! The NFS connections of a process, which wait while it is paused and end with it.
//!
//! The tasks of a paused process run on, but nothing that it sends arrives, and nothing arrives at it, until it is resumed.
//! That is what others see of a process that is stopped, or whose machine lost its network: its calls arrive late, and
//! whatever it decided is old by then.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use futures::future::{BoxFuture, poll_fn};
use nfs_client::{NfsError, SourcePort, Streams, Transport};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::life::Life;
use crate::nfs_server::Host;

/// The transport of a process. What it sent before it was killed still arrives.
#[derive(Debug)]
pub struct ProcessTransport {
    /// The transport of the process's host.
    pub host: Host,
    /// Whether the process runs.
    pub life: Life,
}

impl Transport for ProcessTransport {
    fn resolve<'a>(&'a self, server: &'a str, deadline: Instant) -> BoxFuture<'a, Result<Vec<IpAddr>, NfsError>> {
        self.host.resolve(server, deadline)
    }

    fn connect<'a>(
        &'a self,
        server: &'a str,
        port: u16,
        source_port: SourcePort,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Streams, NfsError>> {
        Box::pin(async move {
            self.life.wait_until_running().await;
            let streams = self.host.connect(server, port, source_port, deadline).await?;
            Ok(Streams {
                source: Box::new(Source {
                    stream: streams.source,
                    life: self.life.clone(),
                    resumed: None,
                }),
                sink: Box::new(Sink {
                    pending: Arc::new(Mutex::new(Pending {
                        stream: streams.sink,
                        held: Vec::new(),
                    })),
                    life: self.life.clone(),
                }),
                local: streams.local,
                peer: streams.peer,
            })
        })
    }
}

fn check(life: &Life) -> io::Result<()> {
    match life.is_killed() {
        false => Ok(()),
        true => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// What a process receives.
struct Source<S> {
    stream: S,
    life: Life,
    /// Waits until the process is resumed.
    resumed: Option<BoxFuture<'static, ()>>,
}

impl<S> fmt::Debug for Source<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Source<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let source = self.get_mut();
        check(&source.life)?;
        if source.life.is_paused() && source.resumed.is_none() {
            let life = source.life.clone();
            source.resumed = Some(Box::pin(async move { life.wait_until_running().await }));
        }
        if let Some(resumed) = &mut source.resumed {
            ready!(resumed.as_mut().poll(cx));
            source.resumed = None;
        }
        Pin::new(&mut source.stream).poll_read(cx, buffer)
    }
}

/// What a process sends.
struct Sink<S> {
    pending: Arc<Mutex<Pending<S>>>,
    life: Life,
}

/// A stream, and what is sent on it once the process is resumed.
struct Pending<S> {
    stream: S,
    held: Vec<u8>,
}

impl<S> fmt::Debug for Sink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("life", &self.life).finish_non_exhaustive()
    }
}

fn lock<S>(pending: &Mutex<Pending<S>>) -> MutexGuard<'_, Pending<S>> {
    pending.lock()
}

/// Sends what was held once the process is resumed, also if it closed the connection meanwhile.
async fn deliver<S: AsyncWrite + Unpin>(pending: Arc<Mutex<Pending<S>>>, life: Life) {
    life.wait_until_running().await;
    let sent = poll_fn(|cx| {
        let mut pending = lock(&pending);
        let Pending { stream, held } = &mut *pending;
        while !held.is_empty() {
            let count = ready!(Pin::new(&mut *stream).poll_write(cx, held))?;
            held.drain(..count);
        }
        Pin::new(stream).poll_flush(cx)
    });
    // The other end may have closed the connection.
    let _sent: io::Result<()> = sent.await;
}

impl<S: AsyncWrite + Unpin + Send + 'static> AsyncWrite for Sink<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        check(&self.life)?;
        let mut pending = lock(&self.pending);
        if !self.life.is_paused() && pending.held.is_empty() {
            return Pin::new(&mut pending.stream).poll_write(cx, bytes);
        }
        if pending.held.is_empty() {
            tokio::spawn(deliver(Arc::clone(&self.pending), self.life.clone()));
        }
        pending.held.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        check(&self.life)?;
        let mut pending = lock(&self.pending);
        match pending.held.is_empty() {
            true => Pin::new(&mut pending.stream).poll_flush(cx),
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        check(&self.life)?;
        let mut pending = lock(&self.pending);
        match pending.held.is_empty() {
            true => Pin::new(&mut pending.stream).poll_shutdown(cx),
            false => Poll::Ready(Ok(())),
        }
    }
}
