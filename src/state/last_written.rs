//! Statuses last written by this process.
//!
//! A watch cache may be older than the process's own last write. If a planned status is compared only with the cache, a
//! write that is needed is skipped, and nothing repeats it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use crate::runtime::writes::WriteError;

/// The statuses last written, by UID of the object. `None` while a write is in progress and after a failed one, because it
/// may have taken effect.
#[derive(Default)]
pub struct LastWritten(Mutex<HashMap<String, Option<Written>>>);

/// A status that was written.
struct Written {
    /// Digest of the status.
    status: Option<u64>,
    /// Version of the object in the cache at that time.
    cached_version: String,
}

/// An object's status in the watch cache.
#[derive(Debug)]
pub struct Cached<'a, S> {
    /// UID of the object.
    pub uid: &'a str,
    /// The `resourceVersion` of the object in the cache.
    pub version: &'a str,
    /// The status there.
    pub status: Option<&'a S>,
}

impl<'a, S> Cached<'a, S> {
    /// Returns the status of the object with this metadata.
    pub fn new(object: &'a ObjectMeta, status: Option<&'a S>) -> Self {
        Self {
            uid: object.uid.as_deref().unwrap_or_default(),
            version: object.resource_version.as_deref().unwrap_or_default(),
            status,
        }
    }
}

impl LastWritten {
    /// Runs `write` unless the object [has](Self::is_current) the planned status. Returns true if it was written.
    ///
    /// # Errors
    /// The error of the write. The next call writes again.
    pub async fn write_unless_current<S: Serialize + PartialEq>(
        &self,
        cached: &Cached<'_, S>,
        planned: &S,
        write: impl Future<Output = Result<(), WriteError>>,
    ) -> Result<bool, WriteError> {
        if self.is_current(cached, planned) {
            return Ok(false);
        }
        let written = Written {
            status: digest(planned),
            cached_version: cached.version.to_owned(),
        };
        self.entries().insert(cached.uid.to_owned(), None);
        write.await?;
        self.entries().insert(cached.uid.to_owned(), Some(written));
        Ok(true)
    }

    /// Returns true if the object has the planned status: this process wrote no other one, and the cache has it, or the
    /// cache has not changed since this process wrote it.
    pub fn is_current<S: Serialize + PartialEq>(&self, cached: &Cached<'_, S>, planned: &S) -> bool {
        let entries = self.entries();
        match entries.get(cached.uid) {
            None => cached.status == Some(planned),
            Some(None) => false,
            Some(Some(last)) => {
                let in_cache = cached.status == Some(planned) || cached.version == last.cached_version;
                in_cache && last.status.is_some() && last.status == digest(planned)
            }
        }
    }

    /// Forgets an object that is deleted, or that this process no longer writes to.
    pub fn forget(&self, uid: &str) {
        self.entries().remove(uid);
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Option<Written>>> {
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

    /// The cache does not change: it has this status, at version 1.
    fn cached<'a>(status: &'a &'static str) -> Cached<'a, &'static str> {
        at_version("1", status)
    }

    fn at_version<'a>(version: &'a str, status: &'a &'static str) -> Cached<'a, &'static str> {
        Cached {
            uid: "uid",
            version,
            status: Some(status),
        }
    }

    async fn write(last: &LastWritten, cached: &Cached<'_, &'static str>, planned: &'static str) -> bool {
        let written = last.write_unless_current(cached, &planned, ready(Ok(())));
        written.await.unwrap()
    }

    #[tokio::test]
    async fn a_status_is_written_although_an_outdated_cache_has_it() {
        let last = LastWritten::default();
        let available = cached(&"Available");
        assert!(
            !write(&last, &available, "Available").await,
            "written by an earlier process"
        );
        assert!(write(&last, &available, "Unknown").await);
        assert!(
            write(&last, &available, "Available").await,
            "the cache does not have Unknown yet"
        );
        assert!(
            !write(&last, &available, "Available").await,
            "the cache is as last written"
        );
        let changed = at_version("2", &"Other");
        assert!(write(&last, &changed, "Available").await, "somebody else wrote Other");
        assert!(write(&last, &available, "Unknown").await);
        last.forget("uid");
        assert!(!write(&last, &available, "Available").await);
    }

    #[tokio::test]
    async fn a_status_is_written_once_while_the_cache_is_outdated() {
        let last = LastWritten::default();
        let outdated = cached(&"Available");
        assert!(write(&last, &outdated, "Unknown").await);
        assert!(
            !write(&last, &outdated, "Unknown").await,
            "the watch has not delivered the write"
        );
        let other_change = at_version("2", &"Available");
        assert!(
            write(&last, &other_change, "Unknown").await,
            "somebody may have overwritten it"
        );
        assert!(!write(&last, &at_version("3", &"Unknown"), "Unknown").await);
    }

    #[tokio::test]
    async fn a_status_is_written_again_after_a_write_whose_outcome_is_unknown() {
        let last = LastWritten::default();
        let available = cached(&"Available");
        let failed = last.write_unless_current(&available, &"Unknown", ready(Err(WriteError::Conflict)));
        assert!(failed.await.is_err());
        assert!(
            write(&last, &available, "Available").await,
            "Unknown may have been written"
        );
        assert!(!write(&last, &available, "Available").await);
    }
}
