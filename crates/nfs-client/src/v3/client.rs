//! What the calls on one export share: the connection, and the task that keeps it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::keeper;
use super::mount::Mounted;
use crate::rpc::connection::Connection;
use crate::{Negotiated, NfsError, Protocol, Target};

/// Calls that may be in flight on a connection. Servers work on as many as they have threads and let the others wait in
/// their socket; at 10 ms of round trip this is still 12,800 calls a second.
pub(super) const SLOTS: u32 = 128;

/// The way to the server, as the keeper publishes it.
#[derive(Debug, Default)]
pub(super) struct Way {
    pub connection: Option<Arc<Connection>>,
    /// The newest attempt that failed, and how.
    pub failure: Option<(u64, NfsError)>,
    /// We were closed.
    pub closed: bool,
}

/// What calls and the keeper share.
#[derive(Debug)]
pub(super) struct Shared {
    pub target: Target,
    pub way: watch::Sender<Way>,
    /// Attempts to connect that began.
    pub attempts: AtomicU64,
    /// Connections made.
    pub generation: AtomicU64,
    /// Calls that want a connection now.
    pub wanted: AtomicUsize,
    /// Calls made so far; tells the keeper whether we are idle.
    pub calls: AtomicU64,
    /// Wakes the keeper when `wanted` rises.
    pub wake: Notify,
    pub slots: Semaphore,
    pub negotiated: Mutex<Negotiated>,
    /// What MOUNT answered last. Locked while it is asked, so that many calls ask once.
    pub mounted: tokio::sync::Mutex<Option<Mounted>>,
    pub limits: Mutex<Limits>,
}

/// What the server says of its limits (FSINFO, PATHCONF), made safe to work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes in a READ's answer, and in a listing's.
    pub read: u32,
    /// Bytes in a WRITE.
    pub write: u32,
    /// Bytes in a name.
    pub name: usize,
}

impl Limits {
    /// What every server takes, until it was asked.
    pub(super) const UNKNOWN: Self = Self {
        read: 8192,
        write: 8192,
        name: 255,
    };
}

/// A client of one server. Clones of the [`Arc`] around it share everything; dropping the last one ends it.
#[derive(Debug)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
}

impl Client {
    /// Connects, and finds out whether the server speaks NFSv3; the first failure is the answer.
    pub async fn connect(target: Target, deadline: Instant) -> Result<Self, NfsError> {
        let shared = Arc::new(Shared {
            target,
            way: watch::Sender::new(Way::default()),
            attempts: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            wanted: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            wake: Notify::new(),
            slots: Semaphore::new(SLOTS as usize),
            negotiated: Mutex::new(nothing_yet()),
            mounted: tokio::sync::Mutex::new(None),
            limits: Mutex::new(Limits::UNKNOWN),
        });
        tokio::spawn(keeper::keep(shared.clone()));
        let client = Self { shared };
        let wanted = client.shared.want();
        client.shared.ready("connecting", deadline, false).await?;
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

    /// Closes the connection, and waits for it.
    pub async fn close(&self) {
        self.shared.close();
        let mut way = self.shared.way.subscribe();
        let _ = way.wait_for(|way| way.connection.is_none()).await;
    }

    pub(super) fn limits(&self) -> Limits {
        *self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner)
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
        protocol: Protocol::V3,
        local: nowhere,
        peer: nowhere,
        reserved_port: false,
        implementation: String::new(),
        lease: Duration::ZERO,
        most_operations: 1,
        slots: SLOTS,
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
        self.way
            .send_if_modified(|way| !std::mem::replace(&mut way.closed, true));
    }

    /// The connection, as soon as there is one. `patient`: failures that may pass are waited out until the deadline.
    pub async fn ready(
        &self,
        action: &'static str,
        deadline: Instant,
        patient: bool,
    ) -> Result<Arc<Connection>, NfsError> {
        let began = Instant::now();
        let seen = self.attempts.load(Ordering::Acquire);
        let mut way = self.way.subscribe();
        loop {
            let failure = {
                let way = way.borrow_and_update();
                if way.closed {
                    return Err(NfsError::ConnectionLost {
                        action,
                        cause: "closed by us".to_owned(),
                        outcome_unknown: false,
                    });
                }
                if let Some(connection) = &way.connection {
                    return Ok(connection.clone());
                }
                // An attempt that began before us says nothing about now.
                way.failure
                    .as_ref()
                    .filter(|(attempt, _)| *attempt > seen)
                    .map(|(_, error)| error.clone())
            };
            if let Some(error) = &failure
                && !(patient && may_pass(error))
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
}

/// Whether waiting may cure a failure to connect.
fn may_pass(error: &NfsError) -> bool {
    !matches!(
        error,
        NfsError::ProtocolNotSupported { .. } | NfsError::SecurityFlavor { .. } | NfsError::AccessDenied { .. }
    )
}
