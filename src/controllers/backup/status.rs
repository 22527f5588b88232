//! The status of a backup. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::plan::Report;
use crate::api::NfsArchive;
use crate::api::backup::{BackupOrigin, NfsBackup, NfsBackupStatus};
use crate::api::conditions::BackupCondition;

/// Returns the status to write. `archive` is the backup's own. Without one, only what names it is kept.
pub(super) fn status(
    backup: &NfsBackup,
    archive: Option<&NfsArchive>,
    report: &Report,
    now: Timestamp,
) -> NfsBackupStatus {
    let (generation, previous) = (backup.metadata.generation, backup.observed());
    let type_ = BackupCondition::Ready.to_string();
    let ready = report
        .ready
        .to_condition(&type_, generation, &previous.conditions, Time(now));
    let requested_claim = backup.claim_name().map(str::to_owned);
    let base = NfsBackupStatus {
        observed_generation: generation,
        state: Some(report.state),
        origin: requested_claim.is_some().then_some(BackupOrigin::Claim),
        claim_name: requested_claim,
        conditions: vec![ready],
        ..NfsBackupStatus::default()
    };
    let Some(archive) = archive else {
        return NfsBackupStatus {
            archive_name: previous.archive_name.clone(),
            archive_uid: previous.archive_uid.clone(),
            ..base
        };
    };
    let observed = archive.observed();
    NfsBackupStatus {
        origin: Some(origin(backup, archive)),
        claim_name: Some(archive.spec.claim_ref.name.clone()),
        archive_name: Some(archive.name_any()),
        archive_uid: archive.uid(),
        backend_name: Some(observed.backend_name.clone()).filter(|name| !name.is_empty()),
        requested_size: observed.requested_size.clone(),
        completion_time: observed.archive_time.clone(),
        expiration_time: archive.spec.expiration_time.clone(),
        snapshot: observed.snapshot.clone(),
        copied: observed.copied.clone(),
        ..base
    }
}

fn origin(backup: &NfsBackup, archive: &NfsArchive) -> BackupOrigin {
    match (backup.claim_name(), archive.is_on_demand()) {
        (Some(_), _) => BackupOrigin::Claim,
        (None, true) => BackupOrigin::Archive,
        (None, false) => BackupOrigin::ClaimDeleted,
    }
}
