//! The condition `DirectoryMissing` of claims whose volume has no directory, or another one at its path.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use crate::api::OrphanKind;
use crate::api::conditions::Reason;
use crate::api::names::{DIRECTORY_MISSING_CONDITION, managers};
use crate::runtime::writes::WriteError;
use crate::state::claim_condition::{ClaimCondition, bound_claim};
use crate::state::context::Context;

/// The condition.
pub const DIRECTORY_MISSING: ClaimCondition = ClaimCondition {
    type_: DIRECTORY_MISSING_CONDITION,
    reason: Reason::DirectoryMissing,
    manager: managers::SCAN,
    action: "Scan",
};

/// What a reclaim did to the directory of a volume that exists: an edit of the volume's policy stopped it before the
/// volume was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoppedReclaim<'a> {
    /// The directory was archived under this name.
    Archived(&'a str),
    /// The directory was deleted, or removed because it was empty.
    Deleted,
}

/// Sets the condition of the claim that is bound to the volume, if the scan found this kind of orphan.
pub(super) async fn report(
    ctx: &Context,
    backend: &str,
    volume: &PersistentVolume,
    directory: &str,
    kind: OrphanKind,
    reclaimed: Option<StoppedReclaim<'_>>,
) -> Result<(), WriteError> {
    let Some(message) = message(backend, &volume.name_any(), directory, kind, reclaimed) else {
        return Ok(());
    };
    let Some(claim) = bound_claim(ctx, volume).await? else {
        return Ok(());
    };
    let reported = DIRECTORY_MISSING
        .find(&claim)
        .and_then(|condition| condition.message.as_ref());
    if reported == Some(&message) {
        return Ok(());
    }
    DIRECTORY_MISSING.set(ctx, &claim, message, ctx.clock.now()).await
}

/// Removes the condition from the claim that is bound to the volume.
pub(super) async fn clear(ctx: &Context, volume: &PersistentVolume) -> Result<(), WriteError> {
    match bound_claim(ctx, volume).await? {
        Some(claim) if DIRECTORY_MISSING.find(&claim).is_some() => DIRECTORY_MISSING.clear(ctx, &claim).await,
        _ => Ok(()),
    }
}

/// Returns the message for a volume whose data its pods do not find.
fn message(
    backend: &str,
    volume: &str,
    directory: &str,
    kind: OrphanKind,
    reclaimed: Option<StoppedReclaim<'_>>,
) -> Option<String> {
    let found = match kind {
        OrphanKind::VolumeWithoutDirectory => "does not exist",
        OrphanKind::VolumeWithOtherDirectory => "is not the one that was created for it",
        OrphanKind::DirectoryWithoutVolume
        | OrphanKind::SharedDirectoryWithoutVolume
        | OrphanKind::VolumeOnOtherExport
        | OrphanKind::VolumeAtOtherAddress
        | OrphanKind::VolumeWithoutRecord
        | OrphanKind::RecordWithoutDirectory
        | OrphanKind::RecordWithoutBackend
        | OrphanKind::RecordWithOtherDirectory
        | OrphanKind::ArchiveWithoutDirectory
        | OrphanKind::ArchiveWithOtherDirectory
        | OrphanKind::RecordUnreadable => return None,
    };
    let remedy = match reclaimed {
        // While the volume exists, the archive is neither restored nor purged.
        Some(StoppedReclaim::Archived(archive)) => format!(
            "it was archived as {archive} before the volume was retained: delete the claim and the volume, and restore \
             NfsArchive {volume}"
        ),
        Some(StoppedReclaim::Deleted) => {
            "it was deleted before the volume was retained: delete the claim and the volume".to_owned()
        }
        None => kind.remedy().to_owned(),
    };
    Some(format!(
        "the directory {directory} of volume {volume} on backend {backend} {found}: {remedy}. The next scan checks it \
         again"
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_a_volume_without_its_directory_is_reported_on_its_claim() {
        let reported = |kind| message("main", "pvc-1", "team/data", kind, None);
        for kind in OrphanKind::ALL {
            let expected = matches!(
                kind,
                OrphanKind::VolumeWithoutDirectory | OrphanKind::VolumeWithOtherDirectory
            );
            assert_eq!(reported(kind).is_some(), expected, "{kind}");
        }
        let missing = reported(OrphanKind::VolumeWithoutDirectory).unwrap();
        for part in ["team/data", "pvc-1", "main", "move the directory back to its path"] {
            assert!(missing.contains(part), "{part} is not in: {missing}");
        }
        let kind = OrphanKind::VolumeWithoutDirectory;
        let reclaimed = |reclaimed| message("main", "pvc-1", "team/data", kind, Some(reclaimed)).unwrap();
        let archived = reclaimed(StoppedReclaim::Archived("archived-data"));
        assert!(archived.contains("archived-data") && archived.contains("restore NfsArchive pvc-1"));
        assert!(
            !archived.contains("move the directory back"),
            "the archive would be missing"
        );
        let deleted = reclaimed(StoppedReclaim::Deleted);
        assert!(deleted.contains("it was deleted") && !deleted.contains("move the directory back"));
    }
}
