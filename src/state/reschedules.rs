//! Selected nodes that no backend serves, and when they are given back to the scheduler.
//!
//! The scheduler may select the same node again at once, since it does not know what backends serve. Without a pause
//! that grows, the two would chase each other as fast as they can.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first pause: a change that is on its way (a backend turning Ready, a node's label) should come before it ends.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest: a person who corrects the class or the pod waits no longer than this.
const LONGEST: Duration = Duration::from_secs(300);

/// What is known of each claim, by uid, that has got a node nobody serves.
#[derive(Default)]
pub struct RescheduleBackoff(Mutex<HashMap<String, Entry>>);

struct Entry {
    record: u32,
    /// The node that is to be given back, and when.
    due: Option<(String, Instant)>,
}

impl RescheduleBackoff {
    /// How long the node that was selected for a claim is kept still; zero: give it back now.
    pub fn remaining(&self, uid: &str, node: &str, now: Instant) -> Duration {
        let mut entries = self.entries();
        let entry = entries.entry(uid.to_owned()).or_insert(Entry { record: 0, due: None });
        match &entry.due {
            Some((known, due)) if known == node => due.saturating_duration_since(now),
            _ => {
                let pause = pause(entry.record);
                entry.due = Some((node.to_owned(), now + pause));
                pause
            }
        }
    }

    /// The node was given back: the next one is kept for longer.
    pub fn given_back(&self, uid: &str) {
        if let Some(entry) = self.entries().get_mut(uid) {
            entry.record = entry.record.saturating_add(1);
            entry.due = None;
        }
    }

    /// The claim is served, or gone.
    pub fn forget(&self, uid: &str) {
        self.entries().remove(uid);
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pause(given_back: u32) -> Duration {
    let factor = 1_u32.checked_shl(given_back).unwrap_or(u32::MAX);
    SHORTEST.saturating_mul(factor).min(LONGEST)
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
        reschedules.given_back("u");
        assert_eq!(reschedules.remaining("u", "n1", at(1)), 2 * SHORTEST);
        assert_eq!(reschedules.remaining("other", "n1", at(1)), SHORTEST);
        assert_eq!(reschedules.remaining("u", "n1", at(2)), SHORTEST, "asked early");
        // Another node was selected meanwhile: its time begins now.
        assert_eq!(reschedules.remaining("u", "n2", at(2)), 2 * SHORTEST);
        reschedules.forget("u");
        assert_eq!(reschedules.remaining("u", "n2", at(9)), SHORTEST);
        assert_eq!(pause(40), LONGEST);
    }
}
