//! What the calls on one export share: the session, the connection, and the task that keeps both.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::session::Session;
use super::{call, keeper};
use crate::rpc::connection::Connection;
use crate::{Negotiated, NfsError, Protocol, Target};

/// The way to the server, as the keeper publishes it.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The session; outlives its connection.
    pub session: Option<Arc<Session>>,
    /// The connection that is bound to the session.
    pub connection: Option<Arc<Connection>>,
    /// The newest attempt that failed, and how.
    pub failure: Option<(u64, NfsError)>,
    /// No call can be made ever again.
    pub ended: Option<Ended>,
}

/// Why a client came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Somebody else holds our owner.
    Fenced,
    /// We were closed.
    Closed,
}

/// How long a call puts up with failing attempts to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// The first failure is the answer.
    None,
    /// Failures that may pass by themselves are waited out until the deadline.
    UntilDeadline,
}

/// How connections are made.
#[derive(Debug)]
pub(super) enum Dial {
    /// By TCP, to the target.
    Network,
    /// To a server in this process: a test's time can then stand still.
    #[cfg(test)]
    Scripted(super::scripted::Server),
}

/// What calls and the keeper share.
#[derive(Debug)]
pub(super) struct Shared {
    pub dial: Dial,
    pub target: Target,
    /// How long an unused session is kept.
    pub idle: Duration,
    pub way: watch::Sender<Way>,
    /// Attempts to connect that began.
    pub attempts: AtomicU64,
    /// Connections made.
    pub generation: AtomicU64,
    /// Operations that the server takes in a compound, SEQUENCE included.
    pub most_operations: AtomicU32,
    /// Calls that want a connection now.
    pub wanted: AtomicUsize,
    /// Calls made so far; tells the keeper whether we are idle.
    pub calls: AtomicU64,
    /// Wakes the keeper when `wanted` rises.
    pub wake: Notify,
    pub negotiated: Mutex<Negotiated>,
    /// NFSv4.0: our client id, as long as the server is thought to know it. Held while a new one is asked for.
    pub client_id: tokio::sync::Mutex<Option<u64>>,
}

/// A client of one server. Clones of the [`Arc`] around it share everything; dropping the last one ends the session.
#[derive(Debug)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
}

impl Client {
    /// Connects and makes a session; the first failure is the answer.
    pub async fn connect(target: Target, deadline: Instant) -> Result<Self, NfsError> {
        Self::connect_idling(target, deadline, keeper::IDLE).await
    }

    /// The same, with another time after which an unused session is ended.
    pub(super) async fn connect_idling(target: Target, deadline: Instant, idle: Duration) -> Result<Self, NfsError> {
        Self::connect_by(Dial::Network, target, deadline, idle).await
    }

    /// The same, over connections that are made so.
    pub(super) async fn connect_by(
        dial: Dial,
        target: Target,
        deadline: Instant,
        idle: Duration,
    ) -> Result<Self, NfsError> {
        let shared = Arc::new(Shared {
            dial,
            target,
            idle,
            way: watch::Sender::new(Way::default()),
            attempts: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            most_operations: AtomicU32::new(call::MOST_OPERATIONS),
            wanted: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            wake: Notify::new(),
            negotiated: Mutex::new(nothing_yet()),
            client_id: tokio::sync::Mutex::new(None),
        });
        tokio::spawn(keeper::keep(shared.clone()));
        let client = Self { shared };
        let wanted = client.shared.want();
        client.shared.ready("connecting", deadline, Patience::None).await?;
        drop(wanted);
        Ok(client)
    }

    /// What was agreed with the server, as of the newest connection.
    pub fn negotiated(&self) -> Negotiated {
        self.shared
            .negotiated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Connections made so far.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// Ends session and lease on the server, and waits for it.
    pub async fn close(&self) {
        self.shared.close();
        let mut way = self.shared.way.subscribe();
        // The keeper bounds this by the target's deadline, then drops both.
        let _ = way
            .wait_for(|way| way.session.is_none() && way.connection.is_none())
            .await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Stands for what is not agreed yet; nobody sees it, as a client is handed out only once it is connected.
fn nothing_yet() -> Negotiated {
    let nowhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    Negotiated {
        protocol: Protocol::V4_1,
        local: nowhere,
        peer: nowhere,
        reserved_port: false,
        implementation: String::new(),
        lease: Duration::ZERO,
        most_operations: 0,
        slots: 0,
        connected_in: Duration::ZERO,
    }
}

/// Counts a call as long as it is held.
pub(super) struct Wanted<'a>(&'a Shared);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    /// Tells the keeper that a connection is wanted, until the answer is dropped.
    pub fn want(&self) -> Wanted<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.wake.notify_one();
        Wanted(self)
    }

    fn close(&self) {
        self.way.send_if_modified(|way| {
            let first = way.ended.is_none();
            way.ended.get_or_insert(Ended::Closed);
            first
        });
    }

    /// A session and the connection bound to it, as soon as there are.
    pub async fn ready(
        &self,
        action: &'static str,
        deadline: Instant,
        patience: Patience,
    ) -> Result<(Arc<Session>, Arc<Connection>), NfsError> {
        let began = Instant::now();
        let seen = self.attempts.load(Ordering::Acquire);
        let mut way = self.way.subscribe();
        loop {
            let failure = {
                let way = way.borrow_and_update();
                match way.ended {
                    Some(Ended::Fenced) => return Err(NfsError::Fenced { action }),
                    Some(Ended::Closed) => {
                        let cause = "closed by us".to_owned();
                        return Err(NfsError::ConnectionLost {
                            action,
                            cause,
                            outcome_unknown: false,
                        });
                    }
                    None => {}
                }
                if let (Some(session), Some(connection)) = (&way.session, &way.connection) {
                    return Ok((session.clone(), connection.clone()));
                }
                // An attempt that began before us says nothing about now.
                way.failure
                    .as_ref()
                    .filter(|(attempt, _)| *attempt > seen)
                    .map(|(_, error)| error.clone())
            };
            if let Some(error) = &failure
                && (patience == Patience::None || !may_pass(error))
            {
                return Err(error.clone());
            }
            if timeout_at(deadline, way.changed()).await.is_err() {
                return Err(failure.unwrap_or(NfsError::NotResponding {
                    action,
                    after: began.elapsed(),
                    outcome_unknown: false,
                }));
            }
        }
    }

    /// The keeper hears of a lost connection by itself; until then, no call shall try that one again.
    pub fn gone(&self, connection: &Arc<Connection>) {
        self.way.send_if_modified(|way| {
            let current = way
                .connection
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, connection));
            if current {
                way.connection = None;
            }
            current
        });
    }

    /// The session was found dead: nobody shall use it any more.
    pub fn lose(&self, session: &Arc<Session>) {
        session.slots.close();
        self.way.send_if_modified(|way| {
            let current = way
                .session
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, session));
            if current {
                way.session = None;
            }
            current
        });
    }
}

/// Whether waiting may cure a failure to connect.
fn may_pass(error: &NfsError) -> bool {
    error.is_transport() || matches!(error, NfsError::Status { .. } | NfsError::Protocol { .. })
}
