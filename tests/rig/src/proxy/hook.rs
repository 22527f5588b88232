//! What a test wants done with single records.

use std::{
    collections::HashSet,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::error::{Error, Result};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    Up,
    /// From the server to the client: replies.
    Down,
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Forward,
    /// It is lost, the connection stays.
    Drop,
    /// It is lost and the connection reset.
    Cut,
    /// It, and what comes behind it, goes on so much later.
    Delay(Duration),
}

/// A record on its way.
#[derive(Clone, Copy)]
pub(super) struct PassingRecord<'a> {
    pub(super) connection: u64,
    pub(super) direction: Direction,
    pub(super) record: &'a [u8],
}

type Hook = Box<dyn Fn(PassingRecord<'_>) -> Action + Send + Sync>;

/// Every hook of a proxy; the first that does not forward decides.
#[derive(Default)]
pub(super) struct Hooks(Mutex<Vec<Hook>>);

impl fmt::Debug for Hooks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hooks")
    }
}

impl Hooks {
    pub(super) fn add(&self, hook: Hook) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn run(&self, passing: PassingRecord<'_>) -> Action {
        let hooks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = hooks.iter().map(|hook| hook(passing));
        answers
            .into_iter()
            .find(|action| *action != Action::Forward)
            .unwrap_or(Action::Forward)
    }
}

/// Tells when the reply to a request was lost; see [`crate::Proxy::lose_reply`].
#[derive(Clone, Debug)]
pub struct LostReply(watch::Receiver<bool>);

impl LostReply {
    /// Whether it has happened.
    pub fn has_happened(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it has: then the server has done what it was asked for, and the client doesn't know.
    pub async fn wait(&mut self, timeout: Duration) -> Result<()> {
        let waited = tokio::time::timeout(timeout, self.0.wait_for(|happened| *happened)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Timeout {
                what: "the request whose reply is to be lost".into(),
                waited: timeout,
                last: "its reply did not come by".into(),
            }),
        }
    }
}

/// A hook that does `action` to the reply of the first request that `matches`.
pub(super) fn lose_reply(matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static, action: Action) -> (Hook, LostReply) {
    let (report, lost) = watch::channel(false);
    // Both begin with the request's id, which is unique within its connection (RFC 5531 section 9).
    let awaited: Mutex<HashSet<(u64, [u8; 4])>> = Mutex::default();
    let hook = move |passing: PassingRecord<'_>| {
        let Some(id) = passing.record.first_chunk::<4>() else {
            return Action::Forward;
        };
        let key = (passing.connection, *id);
        let mut awaited = awaited.lock().unwrap_or_else(PoisonError::into_inner);
        match passing.direction {
            Direction::Up => {
                if awaited.is_empty() && !*report.borrow() && matches(passing.record) {
                    awaited.insert(key);
                }
                Action::Forward
            }
            Direction::Down if awaited.remove(&key) => {
                report.send_replace(true);
                action
            }
            Direction::Down => Action::Forward,
        }
    };
    (Box::new(hook), LostReply(lost))
}
