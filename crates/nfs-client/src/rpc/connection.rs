//! One TCP connection, owned by one task, with many calls in flight.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::message::{self, Procedure};
use super::record;
use crate::Credential;

/// Replies to calls that were never made, before the connection is given up: a stray one after a cancelled call is
/// no harm, a stream of them means that the peer is confused.
const MOST_STRAY_REPLIES: usize = 16;

/// Calls that wait together are written together, up to about this many bytes at a time.
const WRITE_BATCH: usize = 256 << 10;

/// The connection ended before the reply came.
#[derive(Debug, Clone)]
pub struct Lost {
    /// What ended it.
    pub cause: Arc<str>,
    /// Whether any byte of the call may have reached the wire.
    pub sent: bool,
}

#[derive(Debug)]
struct Pending {
    reply: oneshot::Sender<Result<Bytes, Lost>>,
    sent: bool,
}

#[derive(Debug, Default)]
struct Calls {
    next_xid: u32,
    pending: HashMap<u32, Pending>,
    /// Why no call can be made any more.
    ended: Option<Arc<str>>,
}

#[derive(Debug)]
struct Shared {
    calls: Mutex<Calls>,
    /// Milliseconds from `began` to the newest reply.
    heard: AtomicU64,
    began: Instant,
    end: watch::Sender<Option<Arc<str>>>,
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        // Nothing panics while it holds the lock, and the map is whole between any two statements.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, cause: Arc<str>) {
        let pending = {
            let mut calls = self.calls();
            if calls.ended.is_none() {
                calls.ended = Some(cause.clone());
            }
            std::mem::take(&mut calls.pending)
        };
        for call in pending.into_values() {
            // The caller may have gone: then nobody wants to know.
            let _ = call.reply.send(Err(Lost {
                cause: cause.clone(),
                sent: call.sent,
            }));
        }
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            if first {
                *end = Some(cause.clone());
            }
            first
        });
    }
}

/// A connection. The task that owns the socket ends when this is dropped or the peer closes.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    // Not bounded here: the slots of a session bound the calls in flight.
    queue: mpsc::UnboundedSender<(u32, Vec<u8>)>,
    local: SocketAddr,
    peer: SocketAddr,
}

/// A call whose reply is awaited.
#[derive(Debug)]
pub struct Ticket {
    xid: u32,
    shared: Arc<Shared>,
    reply: oneshot::Receiver<Result<Bytes, Lost>>,
    since: Instant,
}

impl Connection {
    /// Takes over a connected stream.
    pub fn new(stream: TcpStream) -> std::io::Result<Self> {
        let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        let (source, sink) = stream.into_split();
        Ok(Self::over(source, sink, local, peer))
    }

    /// Speaks over any pair of streams.
    pub fn over(
        source: impl AsyncRead + Unpin + Send + 'static,
        sink: impl AsyncWrite + Unpin + Send + 'static,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Self {
        let shared = Arc::new(Shared {
            // A random start keeps replies to a former connection's calls from being taken for ours.
            calls: Mutex::new(Calls {
                next_xid: rand::random(),
                ..Calls::default()
            }),
            heard: AtomicU64::new(0),
            began: Instant::now(),
            end: watch::Sender::new(None),
        });
        let (queue, calls) = mpsc::unbounded_channel();
        tokio::spawn(serve(source, sink, shared.clone(), calls));
        Self {
            shared,
            queue,
            local,
            peer,
        }
    }

    /// Our end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The server's end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Queues a call.
    pub fn submit(&self, procedure: Procedure, credential: Credential, arguments: &[u8]) -> Ticket {
        let (sender, reply) = oneshot::channel();
        let mut calls = self.shared.calls();
        let xid = calls.next_xid;
        calls.next_xid = xid.wrapping_add(1);
        if let Some(cause) = calls.ended.clone() {
            drop(calls);
            // The receiver is in our hands, so this cannot fail.
            let _ = sender.send(Err(Lost { cause, sent: false }));
        } else {
            calls.pending.insert(
                xid,
                Pending {
                    reply: sender,
                    sent: false,
                },
            );
            drop(calls);
            // The task that reads the queue has ended only if `end` has drained `pending`, this call included.
            let _ = self.queue.send((
                xid,
                record::frame(&message::call(xid, procedure, credential, arguments)),
            ));
        }
        Ticket {
            xid,
            shared: self.shared.clone(),
            reply,
            since: Instant::now(),
        }
    }

    /// Gives the connection up: every call in flight is lost.
    pub fn end(&self, cause: &str) {
        self.shared.end(cause.into());
    }

    /// Whether it was given up or closed.
    pub fn ended(&self) -> bool {
        self.shared.end.borrow().is_some()
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> Arc<str> {
        let mut end = self.shared.end.subscribe();
        match end.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(cause)) => cause.clone(),
            // Unreachable while `self` holds the sender.
            _ => "closed".into(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end("closed by us".into());
    }
}

impl Ticket {
    /// The reply, or how the connection was lost. Can be awaited again after a cancelled await.
    pub async fn reply(&mut self) -> Result<Bytes, Lost> {
        match (&mut self.reply).await {
            Ok(reply) => reply,
            Err(_) => Err(Lost {
                cause: "the connection's task was stopped".into(),
                sent: true,
            }),
        }
    }

    /// Takes the call back if no byte of it was sent: true means that it never will be.
    pub fn withdraw(&self) -> bool {
        let mut calls = self.shared.calls();
        match calls.pending.get(&self.xid) {
            Some(pending) if !pending.sent => {
                calls.pending.remove(&self.xid);
                true
            }
            _ => false,
        }
    }

    /// Ends the connection if nothing at all was heard on it since this call was queued: a peer that vanished
    /// without a word (failover, a firewall that forgot us) would otherwise hold it for many minutes.
    pub fn give_up_if_silent(&self) {
        let heard = self.shared.began + Duration::from_millis(self.shared.heard.load(Ordering::Relaxed));
        if heard < self.since {
            self.shared
                .end(format!("nothing heard for {:?}", self.since.elapsed()).into());
        }
    }
}

/// Reads and writes until either fails or the connection is given up.
async fn serve(
    source: impl AsyncRead + Unpin,
    sink: impl AsyncWrite + Unpin,
    shared: Arc<Shared>,
    mut calls: mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
) {
    let mut end = shared.end.subscribe();
    let cause = tokio::select! {
        // Reading first: a connection that the server closed takes no more calls.
        biased;
        cause = read_replies(source, &shared) => cause,
        cause = write_calls(sink, &shared, &mut calls) => cause,
        _ = end.wait_for(Option::is_some) => return,
    };
    shared.end(cause.into());
}

async fn read_replies(source: impl AsyncRead + Unpin, shared: &Shared) -> String {
    let mut source = BufReader::with_capacity(64 << 10, source);
    let mut stray = 0;
    loop {
        let reply = match record::read(&mut source).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return "closed by the server".to_owned(),
            Err(error) => return format!("reading failed: {error}"),
        };
        // Elapsed time fits: 2^64 milliseconds are half a billion years.
        let heard = u64::try_from(shared.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        shared.heard.store(heard, Ordering::Relaxed);
        let call = message::reply_xid(&reply).and_then(|xid| shared.calls().pending.remove(&xid));
        match call {
            // A caller that has gone doesn't want its reply.
            Some(call) => drop(call.reply.send(Ok(reply))),
            None => stray += 1,
        }
        if stray > MOST_STRAY_REPLIES {
            return "the server answers calls that were never made".to_owned();
        }
    }
}

async fn write_calls(
    mut sink: impl AsyncWrite + Unpin,
    shared: &Shared,
    queue: &mut mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
) -> String {
    let mut batch = Vec::new();
    while let Some(first) = queue.recv().await {
        batch.clear();
        let mut next = Some(first);
        {
            let mut calls = shared.calls();
            while let Some((xid, record)) = next {
                // A call that was withdrawn is no longer pending.
                if let Some(pending) = calls.pending.get_mut(&xid) {
                    pending.sent = true;
                    batch.extend_from_slice(&record);
                }
                next = if batch.len() < WRITE_BATCH {
                    queue.try_recv().ok()
                } else {
                    None
                };
            }
        }
        if let Err(error) = sink.write_all(&batch).await {
            return format!("writing failed: {error}");
        }
    }
    "closed by us".to_owned()
}
