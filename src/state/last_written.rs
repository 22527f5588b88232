//! Statuses last written by this process.
//!
//! A watch cache may be older than the process's own last write. If a planned status is compared only with the cache, a
//! write that is needed is skipped, and nothing repeats it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::runtime::writes::WriteError;

/// Digests of the statuses last written, by UID of the object. `None` while a write is in progress and after a failed one,
/// because it may have taken effect.
#[derive(Default)]
pub struct LastWritten(Mutex<HashMap<String, Option<u64>>>);

impl LastWritten {
    /// Runs `write` unless the object has the planned status: the cache has it, and this process has not written another
    /// one since. Returns true if it was written.
    ///
    /// # Errors
    /// The error of the write. The next call writes again.
    pub async fn write_unless_current<S: Serialize + PartialEq>(
        &self,
        uid: &str,
        cached: Option<&S>,
        planned: &S,
        write: impl Future<Output = Result<(), WriteError>>,
    ) -> Result<bool, WriteError> {
        if self.is_current(uid, cached, planned) {
            return Ok(false);
        }
        let digest = digest(planned);
        self.digests().insert(uid.to_owned(), None);
        write.await?;
        self.digests().insert(uid.to_owned(), digest);
        Ok(true)
    }

    /// Returns true if the object has the planned status: the cache has it, and this process has not written another one
    /// since.
    pub fn is_current<S: Serialize + PartialEq>(&self, uid: &str, cached: Option<&S>, planned: &S) -> bool {
        cached == Some(planned) && self.is_last(uid, digest(planned))
    }

    /// Forgets an object that is deleted, or that this process no longer writes to.
    pub fn forget(&self, uid: &str) {
        self.digests().remove(uid);
    }

    /// Returns true if the last write of this process, if any, was of this status.
    fn is_last(&self, uid: &str, planned: Option<u64>) -> bool {
        let digests = self.digests();
        let last = digests.get(uid);
        last.is_none_or(|last| last.is_some() && *last == planned)
    }

    fn digests(&self) -> MutexGuard<'_, HashMap<String, Option<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a hash of a status: ten thousand whole statuses would need megabytes. `None` if it cannot be serialized; it is
/// then always written.
fn digest(status: &impl Serialize) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(status).ok()?.hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::future::ready;

    use super::*;

    async fn write(last: &LastWritten, cached: &str, planned: &str) -> bool {
        let written = last.write_unless_current("uid", Some(&cached), &planned, ready(Ok(())));
        written.await.unwrap()
    }

    #[tokio::test]
    async fn a_status_is_written_although_an_outdated_cache_has_it() {
        let last = LastWritten::default();
        assert!(
            !write(&last, "Available", "Available").await,
            "written by an earlier process"
        );
        assert!(write(&last, "Available", "Unknown").await);
        assert!(
            write(&last, "Available", "Available").await,
            "the cache does not have Unknown yet"
        );
        assert!(
            !write(&last, "Available", "Available").await,
            "the cache is as last written"
        );
        assert!(write(&last, "Other", "Available").await, "somebody else wrote Other");
        assert!(write(&last, "Available", "Unknown").await);
        last.forget("uid");
        assert!(!write(&last, "Available", "Available").await);
    }

    #[tokio::test]
    async fn a_status_is_written_again_after_a_write_whose_outcome_is_unknown() {
        let last = LastWritten::default();
        let failed = last.write_unless_current("uid", Some(&"Available"), &"Unknown", ready(Err(WriteError::Conflict)));
        assert!(failed.await.is_err());
        assert!(
            write(&last, "Available", "Available").await,
            "Unknown may have been written"
        );
        assert!(!write(&last, "Available", "Available").await);
    }
}
