//! What is counted, what of it is worth a write, and who holds more than was asked for. Pure.

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
use crate::api::usage::CountUnderWay;
use crate::compat::nfs_subdir::location::{alias_backend, directory_on};
use crate::decide::policy::{Decision, decide};
use crate::decide::quantity::bytes;
use crate::state::context::Settings;
use crate::state::usage::{UsageProgress, VolumeUsage};
use export_store::naming::DirectoryPath;
use export_store::text::format_bytes;

/// Figures that differ by less than a hundredth, or by less than this, are not worth a write: ten thousand volumes in use
/// would be as many writes at each count.
const BYTES_UNNOTICED: u64 = 1 << 20;
const FILES_UNNOTICED: u64 = 100;
/// Older ones are written again all the same, so that nobody takes them for forgotten.
const OLD: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often a volume or archive is begun whose count is cut off each time: by restarts, by a server that goes down when it
/// is read, by an object that can't be written to. Then it is left to the next count, and the others have their turn.
const MOST_ATTEMPTS: i64 = 3;

/// Whether nothing may be counted on a backend, by what its last probe found. That it is full or read-only is no hindrance,
/// and one that doesn't answer just now is asked again.
pub(crate) fn is_halted(object: &NfsBackend, ready: &PlannedCondition) -> bool {
    let another = matches!(
        ready.reason,
        Reason::Fenced | Reason::IdentityMismatch | Reason::IdentityNotConfirmed
    );
    another || object.spec.suspend || object.metadata.deletion_timestamp.is_some()
}

/// The same count, with the next volume or archive begun once more; the other answer is that it was begun often enough.
pub(crate) fn begun(at: &CountUnderWay) -> (CountUnderWay, bool) {
    let attempts = at.attempts.saturating_add(1);
    (CountUnderWay { attempts, ..at.clone() }, attempts <= MOST_ATTEMPTS)
}

/// The same count, behind this volume or archive.
pub(crate) fn past(at: &CountUnderWay, name: &str) -> CountUnderWay {
    CountUnderWay {
        archives: at.archives,
        after: name.to_owned(),
        attempts: 0,
    }
}

/// How long it is until a count of all volumes begins or goes on.
pub(crate) fn wait(progress: &UsageProgress, interval: Duration, now: Timestamp) -> Duration {
    if progress.under_way.is_some() || progress.asked {
        return Duration::ZERO;
    }
    let since = progress.last_completed.map(|at| now.duration_since(at));
    // A clock that went back says nothing.
    since.map_or(Duration::ZERO, |since| {
        interval.saturating_sub(since.try_into().unwrap_or_default())
    })
}

/// Where a volume's data lie, if they are this backend's to count: its directory and its fileid, as far as it knows one.
pub(crate) fn lies_at(
    volume: &PersistentVolume,
    settings: &Settings,
    (backend, object, export_id): (&str, &NfsBackend, &str),
) -> Option<(DirectoryPath, Option<u64>)> {
    let decision = decide(volume, &settings.provisioners(), OnDelete::Archive);
    if volume.metadata.deletion_timestamp.is_some() || matches!(decision, Decision::Reclaim(_) | Decision::Refuse(_)) {
        return None;
    }
    if alias_backend(volume, &settings.aliases) == Some(backend) {
        return Some((DirectoryPath::parse(directory_on(volume, object)?).ok()?, None));
    }
    let says = |name: &str| volume.annotations().get(name).map(String::as_str);
    let here = says(PROVISIONED_BY).is_some_and(|by| settings.serves(by))
        && says(VOLUME_BACKEND) == Some(backend)
        && says(VOLUME_EXPORT_ID) == Some(export_id);
    // Without its fileid, anything could have its name.
    let file_id = says(VOLUME_FILE_ID)?.parse().ok()?;
    let directory = DirectoryPath::parse(says(VOLUME_DIRECTORY)?).ok()?;
    here.then_some((directory, Some(file_id)))
}

/// Whether what was counted is to be written on the volume.
pub(crate) fn is_news(volume: &PersistentVolume, now: &VolumeUsage, at: Timestamp) -> bool {
    let Some(told) = VolumeUsage::of(volume) else {
        return true;
    };
    let written = volume.annotations().get(VOLUME_COUNTED_AT);
    let Some(written) = written.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return true;
    };
    let old = Duration::try_from(at.duration_since(written)).is_ok_and(|age| age >= OLD);
    let differs = |told: u64, now: u64, unnoticed: u64| told.abs_diff(now) > unnoticed.max(told / 100);
    old || differs(told.bytes, now.bytes, BYTES_UNNOTICED)
        || differs(told.apparent, now.apparent, BYTES_UNNOTICED)
        || differs(told.files, now.files, FILES_UNNOTICED)
        || (told.unread == 0) != (now.unread == 0)
}

/// What a claim is told whose volume holds more than it asks for; none when it does not.
pub(crate) fn over(claim: &PersistentVolumeClaim, now: &VolumeUsage) -> Option<String> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let asked = &requests.get("storage")?.0;
    if u128::from(now.bytes) <= bytes(asked)? {
        return None;
    }
    let at_least = if now.unread > 0 { "at least " } else { "" };
    Some(format!(
        "its data take {at_least}{} on the server's disk ({} bytes, {} names), and the claim asks for {asked}: delete some, or \
         ask for more. Nothing is cut off",
        format_bytes(now.bytes.into()),
        now.bytes,
        now.files
    ))
}

#[cfg(test)]
mod tests;
