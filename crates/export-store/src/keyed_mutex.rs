//! One lock per volume.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// A lock that exists as long as somebody uses it.
type WeakLock = Weak<tokio::sync::Mutex<()>>;

/// Locks by export identity and volume name: operations on the same volume run one after the other.
#[derive(Debug, Default)]
pub(crate) struct KeyedMutex(Mutex<HashMap<(String, String), WeakLock>>);

impl KeyedMutex {
    /// Waits for the lock of a volume.
    pub(crate) async fn lock(&self, export_id: String, volume: &str) -> OwnedMutexGuard<()> {
        let key = (export_id, volume.to_owned());
        let lock = {
            let mut locks = self.0.lock();
            if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
                lock
            } else {
                // Unused locks are removed whenever one is added, so the map stays as small as the number in use.
                locks.retain(|_, lock| lock.strong_count() > 0);
                let lock = Arc::new(tokio::sync::Mutex::new(()));
                locks.insert(key, Arc::downgrade(&lock));
                lock
            }
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn operations_on_a_volume_exclude_each_other_on_one_export() {
        let locks = KeyedMutex::default();
        let lock = |export: &str, volume: &str| locks.lock(export.to_owned(), volume).now_or_never();
        let first = lock("a", "v");
        assert!(first.is_some());
        assert!(lock("a", "v").is_none());
        assert!(lock("b", "v").is_some(), "a backend elsewhere does not wait");
        assert!(lock("a", "w").is_some());
        drop(first);
        assert!(lock("a", "v").is_some());
    }
}
