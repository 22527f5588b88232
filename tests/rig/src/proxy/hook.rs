//! Hooks that decide what happens to single records.

use std::{collections::HashSet, fmt, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{Error, Result};

/// The direction of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    Up,
    /// From the server to the client: replies.
    Down,
}

/// What happens to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is forwarded.
    Forward,
    /// It is dropped, and the connection stays open.
    Drop,
    /// It is dropped, and the connection is reset.
    Cut,
    /// It and the following records are delayed.
    Delay(Duration),
}

/// A record and its connection.
#[derive(Clone, Copy)]
pub(super) struct PassingRecord<'a> {
    pub(super) connection: u64,
    pub(super) direction: Direction,
    pub(super) record: &'a [u8],
}

type Hook = Box<dyn Fn(PassingRecord<'_>) -> Action + Send + Sync>;

/// All hooks of a proxy. The first one that does not forward decides.
#[derive(Default)]
pub(super) struct Hooks(Mutex<Vec<Hook>>);

impl fmt::Debug for Hooks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hooks")
    }
}

impl Hooks {
    pub(super) fn add(&self, hook: Hook) {
        self.0.lock().push(hook);
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    pub(super) fn run(&self, passing: PassingRecord<'_>) -> Action {
        let hooks = self.0.lock();
        let answers = hooks.iter().map(|hook| hook(passing));
        answers
            .into_iter()
            .find(|action| *action != Action::Forward)
            .unwrap_or(Action::Forward)
    }
}

/// A reply that is lost once. See [`crate::Proxy::lose_reply`].
#[derive(Clone, Debug)]
pub struct LostReply(watch::Receiver<bool>);

impl LostReply {
    /// Returns whether the reply was lost.
    pub fn has_happened(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the reply is lost. The server has then executed the request, and the client does not know.
    pub async fn wait(&mut self, timeout: Duration) -> Result<()> {
        let waited = tokio::time::timeout(timeout, self.0.wait_for(|happened| *happened)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Timeout {
                what: "the loss of a reply".into(),
                waited: timeout,
                last: "no matching reply has passed".into(),
            }),
        }
    }
}

/// Returns a hook that applies `action` to the first reply to a request that `matches`.
pub(super) fn lose_reply(matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static, action: Action) -> (Hook, LostReply) {
    let (sender, lost) = watch::channel(false);
    // Both begin with the transaction id, which is unique within a connection (RFC 5531 section 9).
    let awaited: Mutex<HashSet<(u64, [u8; 4])>> = Mutex::default();
    let hook = move |passing: PassingRecord<'_>| {
        let Some(id) = passing.record.first_chunk::<4>() else {
            return Action::Forward;
        };
        let key = (passing.connection, *id);
        let mut awaited = awaited.lock();
        match passing.direction {
            Direction::Up => {
                // More than one: a request that the server did not answer in time is repeated on another connection.
                if !*sender.borrow() && matches(passing.record) {
                    awaited.insert(key);
                }
                Action::Forward
            }
            Direction::Down if awaited.remove(&key) => {
                awaited.clear();
                sender.send_replace(true);
                action
            }
            Direction::Down => Action::Forward,
        }
    };
    (Box::new(hook), LostReply(lost))
}
