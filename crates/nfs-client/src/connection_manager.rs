//! The connection of one client, whatever the version: connects when a call needs it, reconnects after a loss, and
//! closes the connection when it is idle.
//!
//! One task per client runs [`ConnectionManager::run`]. Calls and the task share the [`ConnectionState`]: the task publishes
//! the connection and the session in it, and a call that finds either unusable takes it out again.
//! [`ProtocolVersion`] is what NFSv3 and NFSv4 do differently.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::auth::Auth;
use crate::rpc::connection::Connection;
use crate::transport::Transport;
use crate::unanswered_changes::UnansweredChanges;
use crate::{CallObserver, Negotiated, NfsError, Protocol, Target};

/// Time without a call after which the session is ended and the connection closed, so that idle clients take no
/// resources on either side. Longer than the usual 30 s between two checks by a monitor, so that these reuse the
/// connection.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// First pause between attempts to connect; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// Maximum pause between attempts to connect: calls resume within seconds after a server returned.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Minimum lifetime of a useful connection: after a shorter one, the next attempt follows after a pause.
const MIN_USEFUL_LIFE: Duration = Duration::from_millis(100);

/// Maximum time for ending a session. Ending it is best effort.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The parts of connection management that differ between major versions.
pub trait ProtocolVersion: fmt::Debug + Default + Send + Sync + Sized + 'static {
    /// What outlives a connection: the session of NFSv4; nothing in NFSv3.
    type Session: fmt::Debug + Send + Sync + 'static;

    /// State of the manager's task that outlives sessions.
    type ClientState: Default + Send + 'static;

    /// Makes a new connection usable: binds it to the `previous` session, or creates another.
    fn establish(
        manager: &ConnectionManager<Self>,
        state: &mut Self::ClientState,
        connection: &Connection,
        previous: Option<Arc<Self::Session>>,
        deadline: Instant,
    ) -> impl Future<Output = Result<(Arc<Self::Session>, HandshakeResult), NfsError>> + Send;

    /// Ends a session on the server. Best effort.
    fn end_session(
        session: &Self::Session,
        connection: &Connection,
        deadline: Instant,
    ) -> impl Future<Output = ()> + Send;

    /// Returns how long the server keeps the session of a silent client; `None` if it keeps nothing.
    fn lease(state: &Self::ClientState) -> Option<Duration>;

    /// Renews the lease if it would otherwise be past half of its time at the next check, `interval` from now.
    fn renew_lease(
        manager: &Arc<ConnectionManager<Self>>,
        session: &Self::Session,
        lease: Duration,
        interval: Duration,
    );

    /// Records why a call invalidated the session.
    fn session_invalidated(state: &mut Self::ClientState, session: &Self::Session, connection: &Connection);

    /// Closes a session to further calls.
    fn close_session(session: &Self::Session);
}

/// What a version negotiated with the server.
#[derive(Debug)]
pub struct HandshakeResult {
    /// Version in use.
    pub protocol: Protocol,
    /// The server's implementation name; empty if unknown.
    pub implementation: String,
    /// Lease time; zero if there is none.
    pub lease: Duration,
    /// Maximum number of operations in a compound, as announced; 0 if unknown.
    pub max_operations: u32,
    /// Maximum number of calls in flight.
    pub slots: u32,
}

/// The connection and the session, as calls and the manager's task see them.
#[derive(Debug)]
pub struct ConnectionState<S> {
    /// The session; outlives its connection.
    pub session: Option<Arc<S>>,
    /// The connection that belongs to the session.
    pub connection: Option<Arc<Connection>>,
    /// Number of the newest connection.
    pub generation: u64,
    /// Number and error of the newest attempt that failed.
    pub failure: Option<(u64, NfsError)>,
    /// Set once no further call is possible.
    pub ended: Option<CloseReason>,
}

impl<S> ConnectionState<S> {
    /// Whether this is the current session.
    pub fn has_session(&self, session: &Arc<S>) -> bool {
        self.session
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, session))
    }
}

/// Why a client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// Another client with the same owner replaced this one.
    Fenced,
    /// This client was closed.
    Closed,
}

/// How a call handles failing attempts to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Fails with the first failure.
    FailFast,
    /// Retries transient failures until the deadline.
    UntilDeadline,
}

/// Counts as a call that needs a connection, until it is dropped.
pub struct DemandGuard<'a>(&'a AtomicUsize);

impl Drop for DemandGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the calls of one client share with the task that manages its connection.
#[derive(Debug)]
pub struct ConnectionManager<V: ProtocolVersion> {
    /// The server, and how to connect to it.
    pub target: Target,
    /// What the version's calls share.
    pub version: V,
    transport: Arc<dyn Transport>,
    /// Observes calls and connections.
    pub observer: Arc<dyn CallObserver>,
    auth: Auth,
    idle_timeout: Duration,
    link: watch::Sender<ConnectionState<V::Session>>,
    /// Attempts to connect that were started.
    attempts: AtomicU64,
    /// Connections that were established.
    generation: AtomicU64,
    /// Calls that need a connection now.
    demand: AtomicUsize,
    /// Calls so far; shows whether the client is idle.
    calls: AtomicU64,
    /// Wakes the task when `demand` rises.
    wake: Notify,
    negotiated: Mutex<Negotiated>,
    /// Changes that ended without a reply.
    pub unanswered_changes: Arc<UnansweredChanges>,
}

impl<V: ProtocolVersion> ConnectionManager<V> {
    /// Starts the task, which runs until [`Self::close`].
    pub fn start(
        target: Target,
        version: V,
        transport: Arc<dyn Transport>,
        observer: Arc<dyn CallObserver>,
        idle_timeout: Duration,
    ) -> Arc<Self> {
        let manager = Arc::new(Self {
            auth: Auth::sys(&target.machine_name),
            target,
            version,
            transport,
            observer,
            idle_timeout,
            link: watch::Sender::new(ConnectionState {
                session: None,
                connection: None,
                generation: 0,
                failure: None,
                ended: None,
            }),
            attempts: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            demand: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            wake: Notify::new(),
            negotiated: Mutex::new(not_negotiated()),
            unanswered_changes: Arc::default(),
        });
        tokio::spawn(manager.clone().run());
        manager
    }

    /// Returns what was negotiated on the newest connection.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated.lock().clone()
    }

    /// Returns the number of connections established so far.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns a receiver of the link's state.
    pub fn subscribe(&self) -> watch::Receiver<ConnectionState<V::Session>> {
        self.link.subscribe()
    }

    /// Returns the current session, if any.
    pub fn session(&self) -> Option<Arc<V::Session>> {
        self.link.borrow().session.clone()
    }

    /// Opens a further connection to a port of the server, for a few calls.
    pub async fn open(
        &self,
        server: &str,
        port: u16,
        source_port: crate::SourcePort,
        deadline: Instant,
    ) -> Result<Connection, NfsError> {
        let streams = self.transport.connect(server, port, source_port, deadline).await?;
        let unanswered = self.unanswered_changes.clone();
        Ok(Connection::new(streams, self.auth.clone(), unanswered))
    }

    /// Requests a connection until the guard is dropped.
    pub fn demand(&self) -> DemandGuard<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.demand.fetch_add(1, Ordering::AcqRel);
        self.wake.notify_one();
        DemandGuard(&self.demand)
    }

    fn has_demand(&self) -> bool {
        self.demand.load(Ordering::Acquire) > 0
    }

    /// Lets no further call start; the task then ends the session and closes the connection.
    pub fn close(&self) {
        self.link.send_if_modified(|link| {
            let first = link.ended.is_none();
            link.ended.get_or_insert(CloseReason::Closed);
            first
        });
    }

    /// Ends the session and closes the connection, and waits for both: at most [`CLOSE_TIMEOUT`] once no attempt to
    /// connect is under way.
    pub async fn close_and_wait(&self) {
        self.close();
        let mut link = self.subscribe();
        let _ = link
            .wait_for(|link| link.session.is_none() && link.connection.is_none())
            .await;
    }

    /// Waits for a session and the connection that belongs to it.
    pub async fn ready(
        &self,
        action: &'static str,
        deadline: Instant,
        policy: RetryPolicy,
    ) -> Result<(Arc<V::Session>, Arc<Connection>), NfsError> {
        self.ready_on(None, action, deadline, policy).await
    }

    /// The same for a call that may be sent on one connection only. If that one was lost, waits for the next one all
    /// the same, so that the caller can check it at once.
    pub async fn ready_on(
        &self,
        generation: Option<u64>,
        action: &'static str,
        deadline: Instant,
        policy: RetryPolicy,
    ) -> Result<(Arc<V::Session>, Arc<Connection>), NfsError> {
        let began = Instant::now();
        let seen = self.attempts.load(Ordering::Acquire);
        let mut link = self.link.subscribe();
        loop {
            let failure = {
                let link = link.borrow_and_update();
                match link.ended {
                    Some(CloseReason::Fenced) => return Err(NfsError::Fenced { action }),
                    Some(CloseReason::Closed) => {
                        let cause = "closed by the client".to_owned();
                        return Err(NfsError::ConnectionLost {
                            action,
                            cause,
                            outcome_unknown: false,
                        });
                    }
                    None => {}
                }
                if let (Some(session), Some(connection)) = (&link.session, &link.connection) {
                    return match generation {
                        Some(only) if only != link.generation => Err(NfsError::Reconnected { action }),
                        _ => Ok((session.clone(), connection.clone())),
                    };
                }
                // An attempt that began before this call is out of date.
                link.failure
                    .as_ref()
                    .filter(|(attempt, _)| *attempt > seen)
                    .map(|(_, error)| error.clone())
            };
            if let Some(error) = &failure
                && (policy == RetryPolicy::FailFast || !is_transient(error))
            {
                return Err(error.clone());
            }
            if timeout_at(deadline, link.changed()).await.is_err() {
                return Err(failure.unwrap_or(NfsError::NotResponding {
                    action,
                    after: began.elapsed(),
                    outcome_unknown: false,
                }));
            }
        }
    }

    /// Keeps calls from using a lost connection until the task detects the loss.
    pub fn drop_connection(&self, connection: &Arc<Connection>) {
        self.link.send_if_modified(|link| {
            let current = link
                .connection
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, connection));
            if current {
                link.connection = None;
            }
            current
        });
    }

    /// Keeps calls from using a session that the server no longer has.
    pub fn invalidate_session(&self, session: &Arc<V::Session>) {
        V::close_session(session);
        self.link.send_if_modified(|link| {
            let current = link.has_session(session);
            if current {
                link.session = None;
            }
            current
        });
    }

    fn has_ended(&self) -> bool {
        self.link.borrow().ended.is_some()
    }

    /// The task: runs until the client is closed or fenced off.
    async fn run(self: Arc<Self>) {
        let mut state = V::ClientState::default();
        let mut pause = MIN_PAUSE;
        while self.wait_for_demand().await {
            let attempt = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
            // Boxed, as everything below that this task does rarely: it sleeps nearly all of its life, in as much memory as the
            // largest of what it may wait for.
            let attempted = Box::pin(self.attempt(&mut state)).await;
            self.observer.connect_ended(attempted.as_ref().err());
            match attempted {
                Ok(()) => {}
                Err(NfsError::Fenced { .. }) => {
                    self.link.send_modify(|link| link.ended = Some(CloseReason::Fenced));
                    break;
                }
                Err(error) => {
                    tracing::debug!(server = self.target.server, %error, "cannot connect");
                    self.link.send_modify(|link| {
                        // Whatever failed on this connection, a new one is the better start.
                        link.connection = None;
                        link.failure = Some((attempt, error));
                    });
                    back_off(&mut pause).await;
                    continue;
                }
            }
            let since = Instant::now();
            self.monitor(&mut state).await;
            if since.elapsed() >= MIN_USEFUL_LIFE {
                pause = MIN_PAUSE;
            } else if !self.has_ended() {
                // Do not flood a server that accepts connections and closes them at once.
                back_off(&mut pause).await;
            }
        }
        Box::pin(self.shut_down()).await;
    }

    /// Waits until a call needs a connection; false once the client has ended.
    async fn wait_for_demand(&self) -> bool {
        let mut link = self.link.subscribe();
        loop {
            if self.has_ended() {
                return false;
            }
            if self.has_demand() {
                return true;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                _ = link.wait_for(|link| link.ended.is_some()) => {}
            }
        }
    }

    /// Connects unless there is a connection, and establishes a session on it.
    async fn attempt(&self, state: &mut V::ClientState) -> Result<(), NfsError> {
        let began = Instant::now();
        // Slightly less than a call has, so that the call can fail with the specific error of this attempt.
        let deadline = began + self.target.deadline.mul_f64(0.9);
        let (previous, usable) = {
            let link = self.link.borrow();
            let usable = link.connection.clone().filter(|connection| !connection.has_ended());
            (link.session.clone(), usable)
        };
        let connection = match usable {
            Some(connection) => connection,
            None => {
                let Target {
                    server,
                    port,
                    source_port,
                    ..
                } = &self.target;
                Arc::new(self.open(server, *port, *source_port, deadline).await?)
            }
        };
        let (session, negotiated) = V::establish(self, state, &connection, previous, deadline).await?;
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        tracing::debug!(server = self.target.server, generation, took = ?began.elapsed(), "connected");
        *self.negotiated.lock() = Negotiated {
            protocol: negotiated.protocol,
            local: connection.local(),
            peer: connection.peer(),
            reserved_port: connection.has_reserved_port(),
            implementation: negotiated.implementation,
            lease: negotiated.lease,
            max_operations: negotiated.max_operations,
            slots: negotiated.slots,
            connected_in: began.elapsed(),
        };
        self.link.send_modify(|link| {
            link.session = Some(session);
            link.connection = Some(connection);
            link.generation = generation;
            link.failure = None;
        });
        Ok(())
    }

    /// Watches an established connection until it is lost, idle or no longer needed.
    async fn monitor(self: &Arc<Self>, state: &mut V::ClientState) {
        let (Some(session), Some(connection)) = ({
            let link = self.link.borrow();
            (link.session.clone(), link.connection.clone())
        }) else {
            return;
        };
        let lease = V::lease(state);
        // Often enough to renew the lease by half of its time, and to detect idleness without much delay.
        let idle_check = self.idle_timeout / 6;
        let interval = lease.map_or(idle_check, |lease| (lease / 4).min(idle_check));
        let mut link = self.link.subscribe();
        let (mut calls, mut last_use) = (self.calls.load(Ordering::Relaxed), Instant::now());
        loop {
            tokio::select! {
                cause = connection.ended() => {
                    tracing::debug!(server = self.target.server, %cause, "connection lost");
                    return self.drop_connection(&connection);
                }
                _ = link.wait_for(|link| link.session.is_none() || link.ended.is_some()) => {
                    return V::session_invalidated(state, &session, &connection);
                }
                () = sleep(interval) => {}
            }
            let now = self.calls.load(Ordering::Relaxed);
            if now != calls || self.has_demand() {
                (calls, last_use) = (now, Instant::now());
            }
            if last_use.elapsed() >= self.idle_timeout && Box::pin(self.close_if_idle(&session, &connection)).await {
                return;
            }
            if let Some(lease) = lease {
                V::renew_lease(self, &session, lease, interval);
            }
        }
    }

    /// Ends an idle session and its connection, unless a call has just arrived.
    async fn close_if_idle(&self, session: &Arc<V::Session>, connection: &Arc<Connection>) -> bool {
        self.link
            .send_modify(|link| (link.session, link.connection) = (None, None));
        // A call counts as demand before it looks for a session: either it is counted here, or it found none.
        if self.has_demand() {
            self.link.send_modify(|link| {
                (link.session, link.connection) = (Some(session.clone()), Some(connection.clone()));
            });
            return false;
        }
        V::close_session(session);
        V::end_session(session, connection, Instant::now() + CLOSE_TIMEOUT).await;
        connection.end("idle");
        true
    }

    /// Ends session, lease and connection.
    async fn shut_down(&self) {
        let (session, connection) = {
            let link = self.link.borrow();
            (link.session.clone(), link.connection.clone())
        };
        if let Some(session) = &session {
            V::close_session(session);
            if let Some(connection) = connection.as_ref().filter(|connection| !connection.has_ended()) {
                V::end_session(session, connection, Instant::now() + CLOSE_TIMEOUT).await;
            }
        }
        if let Some(connection) = connection {
            connection.end("closed by the client");
        }
        self.link
            .send_modify(|link| (link.session, link.connection) = (None, None));
    }
}

/// Pauses, with jitter so that many clients of one server do not reconnect in step, and doubles the next pause.
async fn back_off(pause: &mut Duration) {
    sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
    *pause = (*pause * 2).min(MAX_PAUSE);
}

/// Whether a failure to connect may disappear without a change on the server.
fn is_transient(error: &NfsError) -> bool {
    error.is_transport() || matches!(error, NfsError::Status { .. } | NfsError::Protocol { .. })
}

/// Placeholder until the first connection; callers never see it, because they get a client only once it is connected.
fn not_negotiated() -> Negotiated {
    let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
    Negotiated {
        protocol: Protocol::V3,
        local: unspecified,
        peer: unspecified,
        reserved_port: false,
        implementation: String::new(),
        lease: Duration::ZERO,
        max_operations: 0,
        slots: 0,
        connected_in: Duration::ZERO,
    }
}
