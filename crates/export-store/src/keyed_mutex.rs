//! One lock per volume.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Locks by volume name: operations on the same volume run one after the other.
#[derive(Default)]
pub(crate) struct KeyedMutex(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl KeyedMutex {
    /// Waits for the lock of a volume.
    pub(crate) async fn lock(&self, volume: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(lock) = locks.get(volume).and_then(Weak::upgrade) {
                lock
            } else {
                // Unused locks are removed whenever one is added, so the map stays as small as the number in use.
                locks.retain(|_, lock| lock.strong_count() > 0);
                let lock = Arc::new(tokio::sync::Mutex::new(()));
                locks.insert(volume.to_owned(), Arc::downgrade(&lock));
                lock
            }
        };
        lock.lock_owned().await
    }
}
