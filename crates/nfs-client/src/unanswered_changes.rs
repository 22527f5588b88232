//! Changes that a server may still execute although nobody waits for their replies.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The changes of a client and its clones that the server may still execute although they have ended: their connection was
/// lost before the reply, their caller gave up, or their deadline passed.
///
/// A change that was given up counts until its reply arrives; a lost one, until [`Target::deadline`](crate::Target::deadline)
/// after it was sent. In a session, the server executes no call once the session has shown that it is over, and a call that
/// is repeated on the next connection is not lost.
#[derive(Debug, Default)]
pub struct UnansweredChanges {
    state: Mutex<State>,
    /// Notified when a change was answered.
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next change.
    next: u64,
    /// When each of them is over at the latest.
    until: BTreeMap<u64, Instant>,
}

impl UnansweredChanges {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.until.retain(|_, until| *until > now);
        state.until.is_empty()
    }

    /// Waits until those that there are now are over. Wait before what must not be overtaken by an earlier change, and before
    /// the lookups that decide about it.
    pub async fn wait(&self) {
        let newest = self.state.lock().next;
        loop {
            let mut answered = pin!(self.answered.notified());
            answered.as_mut().enable();
            let now = Instant::now();
            let last = self.state.lock().until.range(..newest).map(|(_, until)| *until).max();
            let Some(last) = last.filter(|last| *last > now) else {
                return;
            };
            tokio::select! {
                () = answered => {}
                () = sleep_until(last) => {}
            }
        }
    }

    /// Adds a change that the server may execute until `until`. It is over earlier if the result is dropped.
    pub(crate) fn add(self: &Arc<Self>, until: Instant) -> UnansweredChange {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.until.insert(number, until);
        UnansweredChange {
            changes: Some(self.clone()),
            number,
        }
    }
}

/// A change that may still be answered. Dropped when it is.
#[derive(Debug)]
pub(crate) struct UnansweredChange {
    changes: Option<Arc<UnansweredChanges>>,
    number: u64,
}

impl UnansweredChange {
    /// Lets the change count until its time: no reply will arrive.
    pub(crate) fn lose(mut self) {
        self.changes = None;
    }
}

impl Drop for UnansweredChange {
    fn drop(&mut self) {
        if let Some(changes) = &self.changes {
            changes.state.lock().until.remove(&self.number);
            changes.answered.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_are_waited_for_until_they_are_answered_or_over_and_later_ones_are_not() {
        let changes = Arc::new(UnansweredChanges::default());
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        changes.wait().await;
        assert_eq!(began.elapsed(), Duration::ZERO);

        changes.add(began + 3 * second).lose();
        let answered = changes.add(began + 8 * second);
        tokio::join!(changes.wait(), async {
            tokio::time::sleep(second).await;
            changes.add(began + 60 * second).lose();
            drop(answered);
        });
        assert_eq!(began.elapsed(), 3 * second);
        assert!(!changes.is_empty());

        changes.wait().await;
        assert_eq!(began.elapsed(), 60 * second);
        assert!(changes.is_empty());
    }
}
