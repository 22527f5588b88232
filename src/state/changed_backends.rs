//! Backends whose volumes changed since somebody last looked.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Time from the first change until the changes are handled: many claims that are provisioned at once are one change.
const DELAY: Duration = Duration::from_secs(5);

/// Names of backends, collected until they are taken.
#[derive(Default)]
pub struct ChangedBackends {
    names: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl ChangedBackends {
    /// Adds a backend.
    pub fn insert(&self, backend: &str) {
        let mut names = self.names.lock();
        if !names.contains(backend) {
            names.insert(backend.to_owned());
            self.changed.notify_one();
        }
    }

    /// Waits for a change, then for those that follow within [`DELAY`], and returns the backends.
    pub async fn take(&self) -> BTreeSet<String> {
        self.changed.notified().await;
        tokio::time::sleep(DELAY).await;
        std::mem::take(&mut *self.names.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_within_the_delay_are_taken_at_once_and_later_ones_with_the_next() {
        let (changed, start) = (Arc::new(ChangedBackends::default()), Instant::now());
        let changes = Arc::clone(&changed);
        tokio::spawn(async move {
            for backend in ["a", "b", "a", "c"] {
                changes.insert(backend);
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        });
        assert_eq!(changed.take().await, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert_eq!(start.elapsed(), DELAY);
        assert_eq!(changed.take().await, BTreeSet::from(["c".to_owned()]));
    }
}
