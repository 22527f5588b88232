//! Backoff before a selected node that no backend serves is returned to the scheduler.
//!
//! The scheduler does not know which nodes the backends serve, so it may immediately select the same node again. The
//! increasing delay prevents a tight loop.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Initial delay. It gives a pending change, such as a backend that becomes Ready or a new node label, time to arrive.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum delay, and therefore the longest wait after an administrator corrects the class or the pod.
const MAX_DELAY: Duration = Duration::from_secs(300);

/// Backoff state of each claim, by UID, whose selected node no backend serves.
#[derive(Default)]
pub struct RescheduleBackoff(Mutex<HashMap<String, Entry>>);

struct Entry {
    releases: u32,
    /// The node to return to the scheduler, and the time to do so.
    due: Option<(String, Instant)>,
}

impl RescheduleBackoff {
    /// Returns how long to wait until the selected node of a claim is returned to the scheduler; zero if it is due now.
    pub fn remaining(&self, uid: &str, node: &str, now: Instant) -> Duration {
        let mut entries = self.0.lock();
        let entry = entries
            .entry(uid.to_owned())
            .or_insert(Entry { releases: 0, due: None });
        match &entry.due {
            Some((known, due)) if known == node => due.saturating_duration_since(now),
            _ => {
                let pause = pause(entry.releases);
                entry.due = Some((node.to_owned(), now + pause));
                pause
            }
        }
    }

    /// Records that the node was returned to the scheduler, and increases the delay for the next node.
    pub fn record_release(&self, uid: &str) {
        if let Some(entry) = self.0.lock().get_mut(uid) {
            entry.releases = entry.releases.saturating_add(1);
            entry.due = None;
        }
    }

    /// Forgets a claim that is provisioned or deleted.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

fn pause(releases: u32) -> Duration {
    let factor = 1_u32.checked_shl(releases).unwrap_or(u32::MAX);
    SHORTEST.saturating_mul(factor).min(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_kept_for_a_pause_that_grows_with_each_that_was_given_back() {
        let (reschedules, start) = (RescheduleBackoff::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(reschedules.remaining("u", "n1", start), SHORTEST);
        assert_eq!(reschedules.remaining("u", "n1", at(1)), Duration::ZERO);
        reschedules.record_release("u");
        assert_eq!(reschedules.remaining("u", "n1", at(1)), 2 * SHORTEST);
        assert_eq!(reschedules.remaining("other", "n1", at(1)), SHORTEST);
        assert_eq!(
            reschedules.remaining("u", "n1", at(2)),
            SHORTEST,
            "the pause has not passed"
        );
        // Another node was selected in the meantime: its delay starts now.
        assert_eq!(reschedules.remaining("u", "n2", at(2)), 2 * SHORTEST);
        reschedules.forget("u");
        assert_eq!(reschedules.remaining("u", "n2", at(9)), SHORTEST);
        assert_eq!(pause(40), MAX_DELAY);
    }
}
