//! One RPC connection with many calls in flight; one task owns its streams.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::message::{self, Procedure, RpcReply};
use super::record;
use crate::Credential;
use crate::auth::{Auth, ReplyVerifier};
use crate::transport::Streams;
use crate::unanswered_changes::{UnansweredChange, UnansweredChanges};
use crate::xdr::XdrError;

/// Replies to unknown calls after which the connection is closed. A stray reply after a cancelled call is harmless; many
/// of them mean that the peer is broken.
const MAX_STRAY_REPLIES: usize = 16;

/// Queued calls are written together, up to about this many bytes at a time.
const WRITE_BATCH: usize = 256 << 10;

/// Buffer of a connection with at most one call in flight: one reply of usual size. A process may have a thousand
/// connections, nearly all of them idle.
const SMALL_READ_BUFFER: usize = 1 << 10;

/// Buffer of a connection with several calls in flight, whose replies arrive together.
const LARGE_READ_BUFFER: usize = 64 << 10;

/// The connection ended before the reply arrived.
#[derive(Debug, Clone)]
pub struct ConnectionEnded {
    /// What ended it.
    pub cause: Arc<str>,
    /// Whether any byte of the call may have reached the wire.
    pub sent: bool,
}

#[derive(Debug)]
struct InFlight {
    reply: oneshot::Sender<Result<Bytes, ConnectionEnded>>,
    /// When its first byte may have reached the wire.
    sent: Option<Instant>,
    /// How long after that the server may execute it, if it is a change outside a session.
    executable_for: Option<Duration>,
    /// Set once nobody waits for the reply to such a change.
    abandoned: Option<UnansweredChange>,
}

impl InFlight {
    /// When the server executes it at the latest, if it is a change outside a session and was sent.
    fn executable_until(&self) -> Option<Instant> {
        Some(self.sent? + self.executable_for?)
    }
}

#[derive(Debug, Default)]
struct Calls {
    next_xid: u32,
    in_flight: HashMap<u32, InFlight>,
    /// Why no further call is possible.
    ended: Option<Arc<str>>,
}

#[derive(Debug)]
struct Shared {
    calls: Mutex<Calls>,
    /// Milliseconds from `opened` to the newest reply.
    last_reply: AtomicU64,
    opened: Instant,
    end: watch::Sender<Option<Arc<str>>>,
    unanswered_changes: Arc<UnansweredChanges>,
}

impl Shared {
    fn end(&self, cause: Arc<str>) {
        let in_flight = {
            let mut calls = self.calls.lock();
            if calls.ended.is_none() {
                calls.ended = Some(cause.clone());
            }
            std::mem::take(&mut calls.in_flight)
        };
        for call in in_flight.into_values() {
            if let Some(until) = call.executable_until() {
                let change = call.abandoned.unwrap_or_else(|| self.unanswered_changes.add(until));
                change.lose();
            }
            // A cancelled caller needs no error.
            let _ = call.reply.send(Err(ConnectionEnded {
                cause: cause.clone(),
                sent: call.sent.is_some(),
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

/// A connection. The task that owns the streams ends when this is dropped or the peer closes.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    // Not bounded here: the slots of a session bound the calls in flight.
    queue: mpsc::UnboundedSender<(u32, Vec<u8>)>,
    auth: Auth,
    local: SocketAddr,
    peer: SocketAddr,
}

/// A call whose reply has not arrived. Dropped, it is withdrawn if no byte of it was sent, and abandoned otherwise.
#[derive(Debug)]
pub struct PendingCall {
    xid: u32,
    shared: Arc<Shared>,
    reply: oneshot::Receiver<Result<Bytes, ConnectionEnded>>,
    verifier: ReplyVerifier,
    since: Instant,
}

impl Connection {
    /// Starts RPC on connected streams. Changes outside a session that end without a reply are added to `unanswered_changes`.
    pub fn new(streams: Streams, auth: Auth, unanswered_changes: Arc<UnansweredChanges>) -> Self {
        let Streams {
            source,
            sink,
            local,
            peer,
        } = streams;
        let shared = Arc::new(Shared {
            // A random start keeps replies to calls on an earlier connection from matching calls on this one.
            calls: Mutex::new(Calls {
                next_xid: rand::random(),
                ..Calls::default()
            }),
            last_reply: AtomicU64::new(0),
            opened: Instant::now(),
            end: watch::Sender::new(None),
            unanswered_changes,
        });
        let (queue, calls) = mpsc::unbounded_channel();
        tokio::spawn(serve(source, sink, shared.clone(), calls));
        Self {
            shared,
            queue,
            auth,
            local,
            peer,
        }
    }

    /// Address of the client's end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether the client's port is below 1024.
    pub fn has_reserved_port(&self) -> bool {
        self.local.port() < 1024
    }

    /// Address of the server's end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Queues a call. `executable_for`: for a change outside a session, how long the server may execute it after it was sent.
    pub fn submit(
        &self,
        procedure: Procedure,
        credential: Credential,
        arguments: &[u8],
        executable_for: Option<Duration>,
    ) -> PendingCall {
        let (sender, reply) = oneshot::channel();
        let mut calls = self.shared.calls.lock();
        let xid = calls.next_xid;
        calls.next_xid = xid.wrapping_add(1);
        if let Some(cause) = calls.ended.clone() {
            // The receiver exists, so this cannot fail.
            let _ = sender.send(Err(ConnectionEnded { cause, sent: false }));
        } else {
            let call = InFlight {
                reply: sender,
                sent: None,
                executable_for,
                abandoned: None,
            };
            calls.in_flight.insert(xid, call);
        }
        drop(calls);
        let (message, verifier) = message::encode_call(xid, procedure, &self.auth, credential, arguments);
        // A call that is not in flight is not written.
        let _ = self.queue.send((xid, record::frame(&message)));
        PendingCall {
            xid,
            shared: self.shared.clone(),
            reply,
            verifier,
            since: Instant::now(),
        }
    }

    /// Ends the connection: every call in flight fails.
    pub fn end(&self, cause: &str) {
        self.shared.end(cause.into());
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.end.borrow().is_some()
    }

    /// Waits until the connection has ended; returns the cause.
    pub async fn ended(&self) -> Arc<str> {
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
        self.shared.end("closed by the client".into());
    }
}

impl PendingCall {
    /// Waits for the reply. Can be awaited again after a cancelled await.
    pub async fn reply(&mut self) -> Result<Result<RpcReply, XdrError>, ConnectionEnded> {
        match (&mut self.reply).await {
            Ok(reply) => reply.map(|record| message::decode_reply(record, self.verifier)),
            Err(_) => Err(ConnectionEnded {
                cause: "the connection's task was stopped".into(),
                sent: true,
            }),
        }
    }

    /// Withdraws the call if no byte of it was sent. Returns whether it was withdrawn: then it is never sent.
    pub fn withdraw(&self) -> bool {
        let mut calls = self.shared.calls.lock();
        match calls.in_flight.get(&self.xid) {
            Some(call) if call.sent.is_none() => {
                calls.in_flight.remove(&self.xid);
                true
            }
            _ => false,
        }
    }

    /// Reports that nobody waits for the reply: the server may execute the call nevertheless.
    pub fn abandon(&self) {
        let mut calls = self.shared.calls.lock();
        if let Some(call) = calls.in_flight.get_mut(&self.xid)
            && let Some(until) = call.executable_until()
        {
            call.abandoned = Some(self.shared.unanswered_changes.add(until));
        }
    }

    /// Ends the connection if no reply at all arrived on it since this call was queued: a peer that vanished silently
    /// (failover, a firewall that lost its state) would otherwise hold it for many minutes.
    pub fn end_connection_if_silent(&self) {
        let last_reply = self.shared.opened + Duration::from_millis(self.shared.last_reply.load(Ordering::Relaxed));
        if last_reply < self.since {
            self.shared.end("no reply since the call was sent".into());
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.withdraw() {
            self.abandon();
        }
    }
}

/// Reads and writes until either fails or the connection is ended.
async fn serve(
    source: impl AsyncRead + Unpin,
    sink: impl AsyncWrite + Unpin,
    shared: Arc<Shared>,
    mut calls: mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
) {
    let mut end = shared.end.subscribe();
    let cause = tokio::select! {
        // Reading first: no call is written to a connection that the server has closed.
        biased;
        cause = read_replies(source, &shared) => cause,
        cause = write_calls(sink, &shared, &mut calls) => cause,
        _ = end.wait_for(Option::is_some) => return,
    };
    shared.end(cause.into());
}

async fn read_replies(source: impl AsyncRead + Unpin, shared: &Shared) -> String {
    let mut source = BufReader::with_capacity(SMALL_READ_BUFFER, source);
    let mut capacity = SMALL_READ_BUFFER;
    let mut stray = 0;
    loop {
        let needed = match shared.calls.lock().in_flight.len() {
            0 | 1 => SMALL_READ_BUFFER,
            _ => LARGE_READ_BUFFER,
        };
        // Only an empty buffer can be replaced: the next records may be in it already.
        if needed != capacity && source.buffer().is_empty() {
            source = BufReader::with_capacity(needed, source.into_inner());
            capacity = needed;
        }
        let reply = match record::read(&mut source).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return "closed by the server".to_owned(),
            Err(error) => return format!("reading failed: {error}"),
        };
        // Elapsed time fits: 2^64 milliseconds are half a billion years.
        let elapsed = u64::try_from(shared.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        shared.last_reply.store(elapsed, Ordering::Relaxed);
        let call = message::reply_xid(&reply).and_then(|xid| shared.calls.lock().in_flight.remove(&xid));
        match call {
            // A cancelled caller needs no reply.
            Some(call) => drop(call.reply.send(Ok(reply))),
            None => stray += 1,
        }
        if stray > MAX_STRAY_REPLIES {
            return "too many replies to unknown calls".to_owned();
        }
    }
}

async fn write_calls(
    mut sink: impl AsyncWrite + Unpin,
    shared: &Shared,
    queue: &mut mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
) -> String {
    while let Some(first) = queue.recv().await {
        // Not kept: calls that write a file are large, and the next call may be minutes away.
        let mut batch = Vec::new();
        let mut next = Some(first);
        {
            let mut calls = shared.calls.lock();
            while let Some((xid, record)) = next {
                // A withdrawn call is no longer in flight.
                if let Some(call) = calls.in_flight.get_mut(&xid) {
                    call.sent = Some(Instant::now());
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
    "closed by the client".to_owned()
}
