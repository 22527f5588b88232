//! Retention of archives: when an archive expires.
//!
//! An archive is kept as long as any rule requires it: its `expirationTime`, `keepLast` of the backend, or a hold. Without any of
//! them it is kept forever. `keepLast` does not apply to requested backups. It keeps the newest data: archives are ordered
//! by the creation time of their volumes, as the API server set it (data-safety rule 14).

use jiff::Timestamp;

use crate::api::archive::NfsArchive;
use crate::api::backend::ArchivePolicy;
use crate::api::conditions::{PlannedCondition, Reason};

/// Returns the retention of the policy in seconds; `None` if archives are kept forever. An invalid duration, which the CRD
/// schema rejects, counts as unset, so that the data is kept.
pub fn seconds(policy: &ArchivePolicy) -> Option<i64> {
    i64::try_from(policy.retention.as_ref()?.get()?.as_secs()).ok()
}

/// A maximum number of archives that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachedLimit {
    /// `maxPerNamespace`.
    OfNamespace(usize),
    /// `maxPerBackend`.
    OfBackend(usize),
}

/// Returns the maximum that the archives of the namespace on the backend, or all archives on the backend, have reached.
/// `released` are the namespaces of the archives on the backend that are kept without an object. The archive of `volume` itself does not count: if it exists, an interrupted reclaim is resumed.
pub fn reached_limit<'a>(
    policy: &ArchivePolicy,
    (backend, namespace, volume): (&str, &str, &str),
    (all, released): (impl Iterator<Item = &'a NfsArchive>, Vec<String>),
) -> Option<ReachedLimit> {
    let limit = |maximum: Option<i32>| maximum.and_then(|maximum| usize::try_from(maximum).ok());
    let (per_namespace, per_backend) = (limit(policy.max_per_namespace), limit(policy.max_per_backend));
    if per_namespace.is_none() && per_backend.is_none() {
        return None;
    }
    let mut of_backend = released.len();
    let mut of_namespace = released.iter().filter(|of| *of == namespace).count();
    for archive in all.filter(|archive| archive.observed().backend_name == backend) {
        // A backup of the volume has another name.
        if archive.metadata.name.as_deref() == Some(volume) {
            return None;
        }
        of_backend += 1;
        of_namespace += usize::from(archive.spec.claim_ref.namespace == namespace);
    }
    let namespace = per_namespace.filter(|limit| of_namespace >= *limit);
    let backend = per_backend.filter(|limit| of_backend >= *limit);
    namespace
        .map(ReachedLimit::OfNamespace)
        .or(backend.map(ReachedLimit::OfBackend))
}

/// Returns the number of archives that are newer and count for `keepLast`.
pub fn count_newer<'a>(of: &NfsArchive, all: impl Iterator<Item = &'a NfsArchive>) -> usize {
    all.filter(|other| is_newer(other, of)).count()
}

/// Returns true if an archive counts as a newer one of the same claim: its data is newer, and it is available, not held,
/// and not being deleted. Of two archives with data of the same or of an unknown age, none is newer.
pub fn is_newer(other: &NfsArchive, of: &NfsArchive) -> bool {
    let created = |archive: &NfsArchive| archive.observed().volume_creation_time.as_ref().map(|at| at.0);
    let newer = created(of).zip(created(other)).is_some_and(|(own, other)| other > own);
    newer
        && is_same_claim(of, other)
        && !other.is_on_demand()
        && !other.spec.legal_hold
        && other.metadata.deletion_timestamp.is_none()
        && is_available(other)
}

/// Returns the earliest time at which an archive expires, whatever `expirationTime` is: the retention after the API server
/// created its object. `recorded` is the retention in its record.
///
/// Returns `None` for a requested backup, and if a person changed `expirationTime`: it differs from the time that the operator
/// computed from the recorded retention. Without a recorded retention, that of the backend applies.
pub fn earliest_expiry(archive: &NfsArchive, policy: &ArchivePolicy, recorded: Option<i64>) -> Option<Timestamp> {
    if archive.is_on_demand() {
        return None;
    }
    if let Some(retention) = recorded {
        let archived = archive.observed().archive_time.as_ref().map(|at| at.0.as_second());
        let computed = archived.and_then(|archived| archived.checked_add(retention));
        if archive.spec.expiration_time.as_ref().map(|at| at.0.as_second()) != computed {
            return None;
        }
    }
    let retention = recorded.or_else(|| seconds(policy))?;
    let created = archive.metadata.creation_timestamp.as_ref()?.0.as_second();
    Timestamp::from_second(created.checked_add(retention)?).ok()
}

/// Returns true if both archives are of the same claim. A recreated namespace with the same name is a different one.
pub fn is_same_claim(one: &NfsArchive, other: &NfsArchive) -> bool {
    let claim = |archive: &NfsArchive| {
        let observed = archive.observed();
        (
            observed.backend_name.clone(),
            observed.namespace_uid.clone(),
            archive.spec.claim_ref.clone(),
        )
    };
    claim(one) == claim(other)
}

fn is_available(archive: &NfsArchive) -> bool {
    let conditions = &archive.observed().conditions;
    conditions
        .iter()
        .any(|condition| condition.type_ == "Available" && condition.status == "True")
}

/// Returns the reason why an archive has expired at `now`, or `None` if it has not. Ignores holds.
pub fn expired(archive: &NfsArchive, policy: &ArchivePolicy, newer: usize, now: Timestamp) -> Option<String> {
    let last = policy.keep_last.filter(|_| !archive.is_on_demand());
    let last = last.and_then(|last| usize::try_from(last).ok());
    let is_dated = archive.observed().volume_creation_time.is_some();
    let among_the_last = last.is_some_and(|last| newer < last);
    match (&archive.spec.expiration_time, last) {
        (Some(at), _) if now < at.0 => None,
        (Some(_), _) if among_the_last => None,
        (Some(at), _) => Some(format!("it expired at {}", at.0)),
        // If the policy has a retention, an archive without `expirationTime` is kept forever on purpose.
        (None, Some(last)) if !among_the_last && policy.retention.is_none() && is_dated => Some(format!(
            "the backend keeps the newest archives of a claim (keepLast: {last}), and this is none of them"
        )),
        (None, _) => None,
    }
}

/// Returns the condition Retained of an archive. `expired` is the reason why it has expired, if it has, and `expires` the time
/// when it does. Without a `policy`, that of the backend is unknown.
pub fn retained(
    archive: &NfsArchive,
    policy: Option<&ArchivePolicy>,
    expires: Option<Timestamp>,
    expired: Option<&str>,
) -> PlannedCondition {
    if archive.spec.legal_hold {
        let message = match archive.metadata.deletion_timestamp.is_some() {
            true => "it has a legal hold, so its data and this object stay: set legalHold to false to delete it",
            false => "it has a legal hold: it is not purged, and this object cannot be deleted",
        };
        return PlannedCondition::holds(Reason::LegalHold, message);
    }
    if let Some(why) = expired {
        return PlannedCondition::fails(Reason::ArchiveExpired, why);
    }
    let counts = policy.filter(|_| !archive.is_on_demand());
    let last = counts.and_then(|policy| policy.keep_last);
    let is_dated = archive.observed().volume_creation_time.is_some();
    let only_last = counts.is_some_and(|policy| policy.retention.is_none()) && is_dated;
    match (expires, last) {
        (Some(at), None) => PlannedCondition::holds(Reason::NotExpired, format!("it is kept until {at}")),
        (Some(at), Some(last)) => PlannedCondition::holds(
            Reason::NotExpired,
            format!(
                "it is kept until {at}, and while it is one of the newest archives of its claim (keepLast: {last})"
            ),
        ),
        (None, Some(last)) if only_last => PlannedCondition::holds(
            Reason::NotExpired,
            format!("it is kept while it is one of the newest archives of its claim (keepLast: {last})"),
        ),
        (None, _) => PlannedCondition::holds(Reason::KeptIndefinitely, "it has no expirationTime"),
    }
}

#[cfg(test)]
mod tests;
