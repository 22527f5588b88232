//! When the data of an archive may be gone, and what a new archive says about its retention.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Violation;
use crate::actors::administrator::RETENTIONS;
use crate::objects::{at, is_deleting, name, text};

/// By how much times of the API server may differ that were read one after the other: it shows whole seconds.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(3);

fn time(object: &Value, path: &str) -> Option<Timestamp> {
    text(object, path).parse().ok()
}

/// Returns true if nobody may delete the data of an archive.
pub fn is_held(archive: &Value) -> bool {
    at(archive, "/spec/legalHold") == Some(&Value::Bool(true))
}

/// Returns true if an archive is a requested backup.
pub fn is_backup(archive: &Value) -> bool {
    match text(archive, "/status/volumeName") {
        "" => !name(archive).starts_with("pvc-"),
        volume => volume != name(archive),
    }
}

/// Returns true if an archive has its data: a requested backup has none until it is complete.
pub fn is_complete(archive: &Value) -> bool {
    !text(archive, "/status/directory").is_empty()
}

/// Returns true if an archive is being deleted with its data.
pub fn is_deleted_with_data(archive: &Value) -> bool {
    is_deleting(archive) && text(archive, "/spec/deletionPolicy") == "Delete" && !is_held(archive)
}

/// Returns true if an archive is being deleted, and its data stay without an object.
fn is_released(archive: &Value) -> bool {
    is_deleting(archive) && text(archive, "/spec/deletionPolicy") != "Delete"
}

/// The archives whose objects were deleted and whose data were kept, with the backends of backups. The name of a volume is
/// used once.
#[derive(Debug, Default)]
pub struct Released(BTreeSet<(String, String)>);

impl Released {
    /// Records whether the archive that an object describes is kept, also if an archive of a volume has no status yet. A
    /// backup that waits because its name is taken describes none: what has the name stays as it is, even if the object is
    /// deleted.
    pub fn observe(&mut self, archive: &Value) {
        let backend = match is_backup(archive) {
            true => Some(text(archive, "/status/backendName")).filter(|backend| !backend.is_empty()),
            false => Some(""),
        };
        let Some(backend) = backend else { return };
        let described = (name(archive).to_owned(), backend.to_owned());
        if is_released(archive) {
            self.0.insert(described);
        } else if is_complete(archive) {
            self.0.remove(&described);
        }
    }

    /// Returns true if an archive of this name was kept.
    pub fn contains(&self, name: &str) -> bool {
        self.names().any(|released| released == name)
    }

    /// Returns the names of the archives.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// Returns from when on the data of an archive may be purged by the clock of the API server, as things are.
pub fn purgeable_from(archive: &Value, backend: Option<&Value>, ages: &Ages<'_>) -> Option<Timestamp> {
    if is_held(archive) {
        return None;
    }
    if is_deleted_with_data(archive) {
        return Some(Timestamp::MIN);
    }
    let keep_last = backend.and_then(|backend| at(backend, "/spec/archivePolicy/keepLast")?.as_u64());
    let keep_last = keep_last.filter(|_| !is_backup(archive));
    let is_newest = keep_last.is_some_and(|count| ages.newer(archive) < count);
    match time(archive, "/spec/expirationTime") {
        _ if is_newest => None,
        Some(at) => Some(at),
        None => keep_last.map(|_| Timestamp::MIN),
    }
}

/// What identifies the claim of an archive.
const CLAIM: [&str; 4] = [
    "/status/backendName",
    "/status/namespaceUID",
    "/spec/claimRef/namespace",
    "/spec/claimRef/name",
];

fn claim(archive: &Value) -> [&str; 4] {
    CLAIM.map(|path| text(archive, path))
}

fn data_time(archive: &Value) -> Option<Timestamp> {
    time(archive, "/status/volumeCreationTime")
}

/// The archives that `keepLast` counts, each with its claim and the time of its data.
pub struct Ages<'a>(Vec<([&'a str; 4], Timestamp)>);

impl<'a> Ages<'a> {
    /// Reads these archives.
    pub fn new(archives: impl Iterator<Item = &'a Value>) -> Self {
        let counted = archives.filter(|archive| !is_backup(archive) && !is_held(archive));
        Self(
            counted
                .filter_map(|archive| Some((claim(archive), data_time(archive)?)))
                .collect(),
        )
    }

    /// Returns the number of archives of the same claim with newer data.
    fn newer(&self, archive: &Value) -> u64 {
        let (own_claim, own) = (claim(archive), data_time(archive));
        let newer = self
            .0
            .iter()
            .filter(|(claim, of_data)| *claim == own_claim && own.is_some_and(|own| *of_data > own));
        u64::try_from(newer.count()).unwrap_or(u64::MAX)
    }
}

/// Returns true if an archive has to be purged by now, whatever the policy is that applied when it was created.
/// A backup that is not complete does not expire: it waits for its claim until somebody deletes it.
pub fn must_be_purged(archive: &Value, backend: Option<&Value>, now: Timestamp) -> bool {
    if is_deleted_with_data(archive) {
        return true;
    }
    let longest = RETENTIONS.iter().copied().max().unwrap_or(0);
    let created = time(archive, "/metadata/creationTimestamp");
    let kept_until = created.and_then(|created| created.checked_add(SignedDuration::from_secs(longest)).ok());
    let keeps_last = backend.is_none_or(|backend| at(backend, "/spec/archivePolicy/keepLast").is_some());
    let expired = time(archive, "/spec/expirationTime").is_some_and(|at| now >= at);
    is_complete(archive) && !is_held(archive) && !keeps_last && expired && kept_until.is_some_and(|until| now >= until)
}

/// Checks the times of a new archive of a deleted claim: they come from the API server's clock, and from the retention of
/// a backend.
///
/// # Errors
/// A time that neither explains.
pub fn check_times(archive: &Value, now: Timestamp) -> Result<(), Violation> {
    let is_unchanged = at(archive, "/metadata/generation").and_then(Value::as_u64) == Some(1);
    let Some(archived_at) = time(archive, "/status/archiveTime").filter(|_| is_unchanged && !is_backup(archive)) else {
        return Ok(());
    };
    if archived_at > now.saturating_add(TOLERANCE).unwrap_or(now) {
        return Err(Violation(format!(
            "archive {} is of {archived_at}, and it is {now}",
            name(archive)
        )));
    }
    let Some(expires_at) = time(archive, "/spec/expirationTime") else {
        return Ok(());
    };
    let retention = expires_at.duration_since(archived_at);
    let is_configured = RETENTIONS
        .iter()
        .any(|seconds| (retention - SignedDuration::from_secs(*seconds)).abs() <= TOLERANCE);
    match is_configured {
        true => Ok(()),
        false => Err(Violation(format!(
            "archive {} is of {archived_at} and expires at {expires_at}: no retention is that long",
            name(archive)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a backup that is being deleted, and that is complete if it has a backend.
    fn deleted(backend: &str, policy: &str) -> Value {
        let directory = match backend {
            "" => "",
            _ => "archived-backup",
        };
        json!({
            "metadata": {"name": "backup", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"deletionPolicy": policy},
            "status": {"backendName": backend, "directory": directory},
        })
    }

    #[test]
    fn an_archive_that_was_kept_stays_whatever_becomes_of_another_object_of_its_name() {
        let mut released = Released::default();
        released.observe(&deleted("main", "Retain"));
        released.observe(&json!({"metadata": {"name": "backup"}}));
        released.observe(&deleted("", "Delete"));
        released.observe(&deleted("other", "Delete"));
        assert!(released.contains("backup"));
        released.observe(&deleted("main", "Delete"));
        assert!(!released.contains("backup"));
    }

    #[test]
    fn an_archive_of_a_volume_that_was_kept_before_it_had_a_status_stays() {
        let mut released = Released::default();
        let mut archive = json!({"metadata": {"name": "pvc-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        released.observe(&archive);
        assert!(released.contains("pvc-1"));
        // It was imported again.
        archive = json!({
            "metadata": {"name": "pvc-1"},
            "status": {"backendName": "main", "volumeName": "pvc-1", "directory": "archived-pvc-1"},
        });
        released.observe(&archive);
        assert!(!released.contains("pvc-1"));
    }

    #[test]
    fn an_object_that_waits_for_its_name_keeps_nothing() {
        let mut released = Released::default();
        released.observe(&deleted("", "Retain"));
        assert!(!released.contains("backup"));
    }
}
