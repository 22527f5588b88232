//! A TCP proxy between a client and an NFS server that injects delays, connection failures and lost messages.

mod connection;
mod hook;
mod record;

use std::{
    future::pending,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use self::hook::Hooks;
pub use self::{
    hook::{Action, Direction, LostReply},
    record::{encode_opaque, encode_rename, has_bytes},
};
use crate::{
    error::{Error, Result, ResultExt},
    ports,
};

#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    up: Duration,
    down: Duration,
    hang: bool,
}

impl Settings {
    fn delay(&self, direction: Direction) -> Duration {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }
}

/// The number of bytes that may pass in each direction before a connection is closed; `None` means no limit.
#[derive(Debug, Default)]
struct Budget {
    up: Option<usize>,
    down: Option<usize>,
}

/// The unit in which a proxy forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// Whole RPC records, which hooks see.
    Records,
    /// Bytes as they arrive. Hooks see nothing.
    Bytes,
}

#[derive(Debug)]
struct ProxyState {
    upstream: SocketAddr,
    framing: Framing,
    settings: watch::Sender<Settings>,
    /// Changes with each cut.
    cuts: watch::Sender<()>,
    hooks: Hooks,
    budget: Mutex<Budget>,
    accepted: AtomicU64,
}

impl ProxyState {
    /// Returns how many of `wanted` bytes may pass. If not all may, the limit is removed.
    fn consume_budget(&self, direction: Direction, wanted: usize) -> usize {
        let mut budget = self.budget.lock();
        let left = match direction {
            Direction::Up => &mut budget.up,
            Direction::Down => &mut budget.down,
        };
        match *left {
            Some(bytes) if bytes < wanted => {
                *left = None;
                bytes
            }
            Some(bytes) => {
                *left = Some(bytes - wanted);
                wanted
            }
            None => wanted,
        }
    }
}

/// A running proxy on a free port of 127.0.0.1. It runs on the runtime that started it. Dropping it closes all
/// connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
    requests: mpsc::Sender<Request>,
}

/// A request to the task that accepts connections, and a channel for the result.
enum Request {
    /// Listen, or not.
    Listen(bool, oneshot::Sender<io::Result<()>>),
    /// Reset all connections.
    Cut(oneshot::Sender<()>),
}

impl Proxy {
    /// Starts a proxy for an NFS server, which forwards whole RPC records.
    pub async fn start(upstream: SocketAddr) -> Result<Self> {
        Self::start_with(upstream, Framing::Records).await
    }

    /// Starts a proxy for a server of another protocol, which forwards bytes as they arrive. Hooks see nothing.
    pub async fn start_for_bytes(upstream: SocketAddr) -> Result<Self> {
        Self::start_with(upstream, Framing::Bytes).await
    }

    async fn start_with(upstream: SocketAddr, framing: Framing) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on {address}"))?;
        let state = Arc::new(ProxyState {
            upstream,
            framing,
            settings: watch::Sender::default(),
            cuts: watch::Sender::default(),
            hooks: Hooks::default(),
            budget: Mutex::default(),
            accepted: AtomicU64::new(0),
        });
        let (requests, inbox) = mpsc::channel(1);
        tokio::spawn(accept(address, listener, inbox, state.clone()));
        Ok(Self {
            address,
            state,
            requests,
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the port that it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the number of accepted connections.
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::Relaxed)
    }

    /// Delays everything in a direction. The throughput does not change.
    pub fn delay(&self, up: Duration, down: Duration) {
        self.state
            .settings
            .send_modify(|settings| (settings.up, settings.down) = (up, down));
    }

    /// If `true`, connections stay open and new ones are accepted, but nothing is forwarded until this is called with
    /// `false`.
    pub fn hang(&self, hang: bool) {
        self.state.settings.send_modify(|settings| settings.hang = hang);
    }

    /// Resets all connections. Returns when they have ended: nothing that a client sent before is forwarded afterwards.
    pub async fn cut(&self) {
        let (answer, done) = oneshot::channel();
        // Without the runtime of the proxy, there is no connection.
        if self.requests.send(Request::Cut(answer)).await.is_ok() {
            let _ = done.await;
        }
    }

    /// If `true`, refuses new connections as if nobody listened; otherwise accepts them again.
    pub async fn refuse(&self, refuse: bool) -> Result<()> {
        let stopped = || Error::Usage("the proxy's runtime is stopped".into());
        let (answer, done) = oneshot::channel();
        let request = Request::Listen(!refuse, answer);
        self.requests.send(request).await.map_err(|_| stopped())?;
        let done = done.await.map_err(|_| stopped())?;
        done.with_context(|| format!("listen on {}", self.address))
    }

    /// Closes a connection after this number of further bytes, counted over all connections. The bytes before that are
    /// delivered.
    pub fn cut_after(&self, direction: Direction, bytes: usize) {
        let mut budget = self.state.budget.lock();
        match direction {
            Direction::Up => budget.up = Some(bytes),
            Direction::Down => budget.down = Some(bytes),
        }
    }

    /// Calls `hook` with each record in a direction, without its record mark.
    pub fn on_record(&self, direction: Direction, hook: impl Fn(&[u8]) -> Action + Send + Sync + 'static) {
        self.state.hooks.add(Box::new(move |passing| {
            if passing.direction == direction {
                hook(passing.record)
            } else {
                Action::Forward
            }
        }));
    }

    /// Applies `action` to the reply of the next request that `matches`, once.
    ///
    /// See [`has_bytes`] and [`encode_rename`] for matching a request.
    pub fn lose_reply(&self, action: Action, matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> LostReply {
        let (hook, lost) = hook::lose_reply(matches, action);
        self.state.hooks.add(hook);
        lost
    }

    /// Removes the hooks of [`Self::on_record`] and [`Self::lose_reply`].
    pub fn clear_hooks(&self) {
        self.state.hooks.clear();
    }
}

async fn accept(
    address: SocketAddr,
    listener: TcpListener,
    mut requests: mpsc::Receiver<Request>,
    state: Arc<ProxyState>,
) {
    let mut listener = Some(listener);
    // Dropping the set closes all connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            client = next(listener.as_ref()) => {
                let number = state.accepted.fetch_add(1, Ordering::Relaxed);
                let (state, cuts) = (state.clone(), state.cuts.subscribe());
                connections.spawn(async move { connection::serve(&state, number, client, cuts).await });
            }
            Some(_) = connections.join_next() => {}
            request = requests.recv() => match request {
                None => return,
                // The receiver of an answer is gone if the caller was cancelled.
                Some(Request::Listen(listen, answer)) => {
                    let mut done = Ok(());
                    if !listen {
                        listener = None;
                    } else if listener.is_none() {
                        done = TcpListener::bind(address).await.map(|bound| listener = Some(bound));
                    }
                    let _ = answer.send(done);
                }
                Some(Request::Cut(answer)) => {
                    state.cuts.send_replace(());
                    while connections.join_next().await.is_some() {}
                    let _ = answer.send(());
                }
            },
        }
    }
}

async fn next(listener: Option<&TcpListener>) -> TcpStream {
    loop {
        let Some(listener) = listener else {
            return pending().await;
        };
        if let Ok((client, _)) = listener.accept().await
            && client.set_nodelay(true).is_ok()
        {
            return client;
        }
    }
}
