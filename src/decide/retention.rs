//! Retention of archives: when an archive expires.
//!
//! An archive is kept as long as any rule requires it: its `expiresAt`, `keepLast` of the backend, or a hold. Without any of
//! them it is kept forever. `keepLast` does not apply to requested backups.

use jiff::{SpanRelativeTo, Timestamp};

use crate::api::archive::{NfsArchive, NfsArchiveSpec};
use crate::api::backend::ArchivePolicy;

/// Returns the retention of the policy in seconds; `None` if archives are kept forever. An invalid duration, which the CRD
/// schema rejects, counts as unset, so that the data is kept.
pub fn seconds(policy: &ArchivePolicy) -> Option<i64> {
    let span: jiff::Span = policy.retention.as_ref()?.parse().ok()?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Some(length.as_secs())
}

/// Returns the number of newer archives of the same claim that are available, not held, and not being deleted.
pub fn count_newer<'a>(of: &NfsArchive, all: impl Iterator<Item = &'a NfsArchive>) -> usize {
    let Some(own) = rank(of) else { return 0 };
    let counts = |other: &&NfsArchive| {
        is_same_claim(&of.spec, &other.spec)
            && !other.is_on_demand()
            && !other.spec.legal_hold
            && other.metadata.deletion_timestamp.is_none()
            && is_available(other)
            && rank(other).is_some_and(|rank| rank > own)
    };
    all.filter(counts).count()
}

/// Returns true if both archives are of the same claim. A recreated namespace with the same name is a different one.
pub fn is_same_claim(one: &NfsArchiveSpec, other: &NfsArchiveSpec) -> bool {
    let claim = |spec: &NfsArchiveSpec| {
        let claim = &spec.claim;
        (
            spec.backend.clone(),
            claim.namespace_uid.clone(),
            claim.namespace.clone(),
            claim.name.clone(),
        )
    };
    claim(one) == claim(other)
}

/// Returns the sort key among the archives of a claim; `None` if the time is unknown (archives of an earlier release).
fn rank(archive: &NfsArchive) -> Option<(Timestamp, &str)> {
    let at = archive.spec.archived_at.as_ref()?.0;
    Some((at, archive.spec.volume.as_str()))
}

fn is_available(archive: &NfsArchive) -> bool {
    let conditions = archive.status.as_ref().map_or(&[][..], |status| &status.conditions);
    conditions
        .iter()
        .any(|condition| condition.type_ == "Available" && condition.status == "True")
}

/// Returns the reason why an archive has expired at `now`, or `None` if it has not. Ignores holds.
pub fn expired(archive: &NfsArchive, policy: &ArchivePolicy, newer: usize, now: Timestamp) -> Option<String> {
    let last = policy.keep_last.filter(|_| !archive.is_on_demand());
    let last = last.and_then(|last| usize::try_from(last).ok());
    let archive = &archive.spec;
    let among_the_last = last.is_some_and(|last| newer < last);
    match (&archive.expires_at, last) {
        (Some(at), _) if now < at.0 => None,
        (Some(_), _) if among_the_last => None,
        (Some(at), _) => Some(format!("it expired at {}", at.0)),
        // If the policy has a retention, an archive without `expiresAt` is kept forever on purpose.
        (None, Some(last)) if !among_the_last && policy.retention.is_none() && archive.archived_at.is_some() => Some(
            format!("the backend keeps the last {last} archives of a claim, and newer ones exist"),
        ),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests;
