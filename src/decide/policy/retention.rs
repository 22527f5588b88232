//! When an archive may be purged although nobody deletes it. Pure.
//!
//! An archive stays as long as any rule keeps it: its own `expiresAt`, the backend's `keepLast`, or a hold. Where neither
//! time nor number is given, that is for ever. Those that somebody asked for are no part of the number: he says how long.

use jiff::{SpanRelativeTo, Timestamp};

use crate::api::archive::{NfsArchive, NfsArchiveSpec};
use crate::api::backend::ArchivePolicy;

/// How long the policy keeps an archive, in seconds; absent = for ever. A text that is no duration, which the schema
/// does not let in, is none: data is kept.
pub fn seconds(policy: &ArchivePolicy) -> Option<i64> {
    let span: jiff::Span = policy.retention.as_ref()?.parse().ok()?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Some(length.as_secs())
}

/// How many archives of the same claim are there beside this one that are newer and good: not held, not on their way
/// out, and seen where they should be.
pub fn newer<'a>(of: &NfsArchive, all: impl Iterator<Item = &'a NfsArchive>) -> usize {
    let Some(own) = rank(of) else { return 0 };
    let counts = |other: &&NfsArchive| {
        is_of_the_same_claim(&of.spec, &other.spec)
            && !other.is_on_demand()
            && !other.spec.legal_hold
            && other.metadata.deletion_timestamp.is_none()
            && is_available(other)
            && rank(other).is_some_and(|rank| rank > own)
    };
    all.filter(counts).count()
}

/// Claims by name: whoever makes a namespace anew under the same name is somebody else.
pub fn is_of_the_same_claim(one: &NfsArchiveSpec, other: &NfsArchiveSpec) -> bool {
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

/// The order of archives of one claim; none where nobody knows when it was made (an earlier release).
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

/// Why an archive may be purged at that time, if it may. Whether it is held is not asked here.
pub fn due(archive: &NfsArchive, policy: &ArchivePolicy, newer: usize, now: Timestamp) -> Option<String> {
    let last = policy.keep_last.filter(|_| !archive.is_on_demand());
    let last = last.and_then(|last| usize::try_from(last).ok());
    let archive = &archive.spec;
    let among_the_last = last.is_some_and(|last| newer < last);
    match (&archive.expires_at, last) {
        (Some(at), _) if now < at.0 => None,
        (Some(_), _) if among_the_last => None,
        (Some(at), _) => Some(format!("its time was over at {}", at.0)),
        // With a retention, what has no end was given none.
        (None, Some(last)) if !among_the_last && policy.retention.is_none() && archive.archived_at.is_some() => Some(
            format!("the backend keeps the last {last} archives of a claim, and there are newer ones"),
        ),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests;
