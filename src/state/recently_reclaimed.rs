//! The volumes that this process reclaimed last.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Number of volumes that are remembered. One that is forgotten too early costs a request.
const REMEMBERED: usize = 256;
/// Time for which they are remembered. A watch is seldom later; etcd may be restored with a volume that was reclaimed.
const LIFETIME: Duration = Duration::from_secs(10);

/// UIDs of the volumes that were reclaimed last. The watch may report such a volume once more, as it was before its finalizer
/// was removed.
#[derive(Default)]
pub struct RecentlyReclaimed(Mutex<VecDeque<(String, Instant)>>);

impl RecentlyReclaimed {
    /// Records that the reclaim of a volume is complete.
    pub fn insert(&self, uid: String) {
        let mut reclaimed = self.0.lock();
        if reclaimed.len() == REMEMBERED {
            reclaimed.pop_front();
        }
        reclaimed.push_back((uid, Instant::now()));
    }

    /// Returns true if the volume is one of the last that were reclaimed, and that was seconds ago.
    pub fn contains(&self, uid: &str) -> bool {
        let reclaimed = self.0.lock();
        let mut recent = reclaimed.iter().filter(|(_, at)| at.elapsed() < LIFETIME);
        recent.any(|(reclaimed, _)| reclaimed == uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_last_volumes_are_remembered_and_for_seconds() {
        let reclaimed = RecentlyReclaimed::default();
        for number in 0..=REMEMBERED {
            reclaimed.insert(number.to_string());
        }
        assert!(!reclaimed.contains("0"));
        assert!(reclaimed.contains("1") && reclaimed.contains(&REMEMBERED.to_string()));
        tokio::time::advance(LIFETIME).await;
        assert!(!reclaimed.contains("1"));
    }
}
