//! The volumes that this process reclaimed last.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Number of volumes that are remembered. One that is forgotten too early costs a request.
const REMEMBERED: usize = 256;

/// UIDs of the volumes that were reclaimed last. The watch may report such a volume once more, as it was before its finalizer
/// was removed: there is nothing left to do for it.
#[derive(Default)]
pub struct RecentlyReclaimed(Mutex<VecDeque<String>>);

impl RecentlyReclaimed {
    /// Records that the reclaim of a volume is complete.
    pub fn insert(&self, uid: String) {
        let mut uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if uids.len() == REMEMBERED {
            uids.pop_front();
        }
        uids.push_back(uid);
    }

    /// Returns true if the volume was one of the last that were reclaimed.
    pub fn contains(&self, uid: &str) -> bool {
        let uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uids.iter().any(|reclaimed| reclaimed == uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_volumes_are_remembered() {
        let reclaimed = RecentlyReclaimed::default();
        for number in 0..=REMEMBERED {
            reclaimed.insert(number.to_string());
        }
        assert!(!reclaimed.contains("0"));
        assert!(reclaimed.contains("1") && reclaimed.contains(&REMEMBERED.to_string()));
    }
}
