//! Decides when to scan, what to count, and which results to write. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::api::NfsBackend;
use crate::api::backend::OnDelete;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{
    PROVISIONED_BY, VOLUME_BACKEND, VOLUME_COUNTED_AT, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID,
};
use crate::compat::nfs_subdir::location::{alias_backend, directory_on};
use crate::decide::quantity::bytes;
use crate::decide::reclaim::{ReclaimDecision, decide};
use crate::state::context::Settings;
use crate::state::usage::{ScanPart, ScanPosition, UsageProgress, VolumeUsage};
use export_store::naming::DirectoryPath;
use export_store::text::{format_bytes, format_bytes_up};

/// A change in bytes of up to this value, or of up to one percent, is not written: otherwise, ten thousand volumes in
/// use would cause as many writes in each scan.
const MIN_BYTES_CHANGE: u64 = 1 << 20;
const MIN_FILES_CHANGE: u64 = 100;
/// Age at which a result on a volume is written again, to show that the volume is still scanned.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Number of names from which on a volume or archive is large. At the default rate, counting this many takes eight minutes.
const LARGE: u64 = 1_000_000;

/// Maximum number of attempts to count a volume or archive if each attempt is interrupted: by a restart, by a server
/// that fails when it is read, or by an object that cannot be written. The scan then continues with the next one.
const MAX_ATTEMPTS: i64 = 3;

/// Returns true if a backend must not be scanned, given its last probe. A full or read-only export is scanned, and an
/// export that does not respond is tried.
pub(super) fn is_halted(object: &NfsBackend, ready: &PlannedCondition) -> bool {
    let other_export = matches!(
        ready.reason,
        Reason::Fenced | Reason::IdentityMismatch | Reason::IdentityNotConfirmed
    );
    other_export || object.spec.suspend || object.metadata.deletion_timestamp.is_some()
}

/// Returns the progress with one more attempt at the next volume or archive, and whether that attempt is allowed.
pub(super) fn begin_attempt(at: &ScanPosition) -> (ScanPosition, bool) {
    let attempts = at.attempts.saturating_add(1);
    (ScanPosition { attempts, ..at.clone() }, attempts <= MAX_ATTEMPTS)
}

/// Returns the part that counts a volume or archive with this many names; `None` if the present one does. A large one would
/// delay all others of the backend.
pub(super) fn deferred_to(part: ScanPart, names: u64) -> Option<ScanPart> {
    part.of_large().filter(|_| names > LARGE)
}

/// Returns the progress after this volume or archive.
pub(super) fn advance(at: &ScanPosition, name: &str) -> ScanPosition {
    ScanPosition {
        part: at.part,
        after: name.to_owned(),
        attempts: 0,
    }
}

/// Returns the time until a scan begins or resumes.
pub(super) fn time_until_scan(progress: &UsageProgress, interval: Duration, now: Timestamp) -> Duration {
    if progress.under_way.is_some() || progress.requested {
        return Duration::ZERO;
    }
    let since = progress.last_completed.map(|at| now.duration_since(at));
    // If the clock was set back, the full interval applies.
    since.map_or(Duration::ZERO, |since| {
        interval.saturating_sub(since.try_into().unwrap_or_default())
    })
}

/// Returns a volume's directory and fileid, if this backend counts it.
pub(super) fn location(
    volume: &PersistentVolume,
    settings: &Settings,
    (backend, object, export_id): (&str, &NfsBackend, &str),
) -> Option<(DirectoryPath, Option<u64>)> {
    let decision = decide(volume, &settings.provisioners(), OnDelete::Archive);
    if volume.metadata.deletion_timestamp.is_some()
        || matches!(decision, ReclaimDecision::Reclaim(_) | ReclaimDecision::Refuse(_))
    {
        return None;
    }
    if alias_backend(volume, &settings.served.aliases) == Some(backend) {
        return Some((DirectoryPath::parse(directory_on(volume, object)?).ok()?, None));
    }
    let annotation = |name: &str| volume.annotations().get(name).map(String::as_str);
    let here = annotation(PROVISIONED_BY).is_some_and(|by| settings.serves(by))
        && annotation(VOLUME_BACKEND) == Some(backend)
        && annotation(VOLUME_EXPORT_ID) == Some(export_id);
    // Without the fileid, another directory could have the name.
    let file_id = annotation(VOLUME_FILE_ID)?.parse().ok()?;
    let directory = DirectoryPath::parse(annotation(VOLUME_DIRECTORY)?).ok()?;
    here.then_some((directory, Some(file_id)))
}

/// Returns true if a result must be written to the volume.
pub(super) fn needs_write(volume: &PersistentVolume, now: &VolumeUsage, at: Timestamp) -> bool {
    let Some(before) = VolumeUsage::of(volume) else {
        return true;
    };
    let written = volume.annotations().get(VOLUME_COUNTED_AT);
    let Some(written) = written.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return true;
    };
    let old = Duration::try_from(at.duration_since(written)).is_ok_and(|age| age >= MAX_AGE);
    let differs = |before: u64, now: u64, min: u64| before.abs_diff(now) > min.max(before / 100);
    old || differs(before.bytes, now.bytes, MIN_BYTES_CHANGE)
        || before.apparent.is_some() != now.apparent.is_some()
        || differs(
            before.apparent.unwrap_or_default(),
            now.apparent.unwrap_or_default(),
            MIN_BYTES_CHANGE,
        )
        || differs(before.files, now.files, MIN_FILES_CHANGE)
        || (before.unread == 0) != (now.unread == 0)
}

/// Returns the message for a claim if its volume uses more than the claim requests.
pub(super) fn over_request(claim: &PersistentVolumeClaim, now: &VolumeUsage) -> Option<String> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let request = &requests.get("storage")?.0;
    if u128::from(now.bytes) <= bytes(request)? {
        return None;
    }
    let used = match now.unread {
        0 => format_bytes_up(now.bytes.into()),
        _ => format!("at least {}", format_bytes(now.bytes.into())),
    };
    // Only the quota agent does not know the sizes of files, and it reports the usage of volumes with a limit in force.
    let limit = match now.apparent {
        Some(_) => "The limit is not enforced",
        None => "The limit is enforced: it cannot grow",
    };
    Some(format!(
        "its data uses {used} on the server's disk ({} bytes, {} names), and the claim requests {request}: delete some, or \
         request more. {limit}",
        now.bytes, now.files
    ))
}

#[cfg(test)]
mod tests;
