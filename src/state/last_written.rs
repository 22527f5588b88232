//! Fields last written by this process.
//!
//! A watch cache may be older than the process's own last write. If planned fields are compared only with the cache, a
//! write that is needed is skipped, and nothing repeats it.

use std::hash::{DefaultHasher, Hash, Hasher};

use export_store::UidMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde::Serialize;
use smallvec::SmallVec;

use crate::runtime::writes::WriteError;

/// The fields last written, by UID of the object and field manager. `None` while a write is in progress and after a failed
/// one, because it may have taken effect.
#[derive(Default)]
pub struct LastWritten(Mutex<UidMap<Entries>>);

/// By field manager. Nearly every object has one, and any number of claims can wait.
type Entries = SmallVec<[(&'static str, Option<Box<Written>>); 1]>;

/// Fields that were written.
struct Written {
    /// Digest of the fields.
    fields: Option<u64>,
    /// Version of the object in the cache at that time.
    cached_version: Box<str>,
}

/// The fields of a field manager in the watch cache.
#[derive(Debug)]
pub struct Cached<'a, S> {
    /// UID of the object.
    pub uid: &'a str,
    /// The field manager.
    pub manager: &'static str,
    /// The `resourceVersion` of the object in the cache.
    pub version: &'a str,
    /// The fields there.
    pub fields: Option<&'a S>,
}

impl<'a, S> Cached<'a, S> {
    /// Returns the fields of the object with this metadata.
    pub fn new(object: &'a ObjectMeta, manager: &'static str, fields: Option<&'a S>) -> Self {
        Self {
            uid: object.uid.as_deref().unwrap_or_default(),
            manager,
            version: object.resource_version.as_deref().unwrap_or_default(),
            fields,
        }
    }
}

impl LastWritten {
    /// Runs `write` unless the object [has](Self::is_current) the planned fields. Returns true if they were written.
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
            fields: digest(planned),
            cached_version: cached.version.into(),
        };
        self.insert(cached, None);
        write.await?;
        self.insert(cached, Some(written));
        Ok(true)
    }

    /// Returns true if the object has the planned fields: this process wrote no others, and the cache has them, or the cache
    /// has not changed since this process wrote them.
    pub fn is_current<S: Serialize + PartialEq>(&self, cached: &Cached<'_, S>, planned: &S) -> bool {
        let entries = self.0.lock();
        let written = entries.get(cached.uid).and_then(|entries| {
            let entry = entries.iter().find(|(manager, _)| *manager == cached.manager);
            entry.map(|(_, written)| written)
        });
        match written {
            None => cached.fields == Some(planned),
            Some(None) => false,
            Some(Some(last)) => {
                let in_cache = cached.fields == Some(planned) || cached.version == &*last.cached_version;
                in_cache && last.fields.is_some() && last.fields == digest(planned)
            }
        }
    }

    /// Forgets an object that is deleted, or that this process no longer writes to.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    fn insert<S>(&self, cached: &Cached<'_, S>, written: Option<Written>) {
        let mut entries = self.0.lock();
        let mut written_fields = entries.remove(cached.uid).unwrap_or_default();
        written_fields.retain(|(manager, _)| *manager != cached.manager);
        written_fields.push((cached.manager, written.map(Box::new)));
        entries.insert(cached.uid, written_fields);
    }
}

/// Returns a hash of fields: ten thousand whole statuses would need megabytes. `None` if they cannot be serialized; they
/// are then always written.
fn digest(fields: &impl Serialize) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(fields).ok()?.hash(&mut hasher);
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
            manager: "status",
            version,
            fields: Some(status),
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

    #[tokio::test]
    async fn the_fields_of_each_manager_are_compared_on_their_own() {
        let last = LastWritten::default();
        let place = async |version: &str, cached: Option<&str>, planned: Option<&str>| {
            let cached = Cached {
                uid: "uid",
                manager: "placement",
                version,
                fields: Some(&cached),
            };
            let written = last.write_unless_current(&cached, &planned, ready(Ok(())));
            written.await.unwrap()
        };
        assert!(place("1", None, Some("a")).await);
        assert!(write(&last, &cached(&"Available"), "Unknown").await, "the condition");
        assert!(!place("2", Some("a"), Some("a")).await);
        assert!(place("2", Some("a"), Some("b")).await);
        assert!(place("2", Some("a"), Some("a")).await, "the cache does not have b yet");
        assert!(place("2", Some("a"), None).await);
        assert!(!place("3", None, None).await);
    }
}
