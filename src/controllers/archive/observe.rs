//! Observed state of an archive: its object, its backend, and the export.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};

use super::ops::is_crd_deleting;
use super::plan::{ExportState, Observed};
use crate::api::archive::{DeletionPolicy, NfsArchive};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::VOLUME_FILE_ID;
use crate::decide::archive_object::{agrees_with_record, archive_ref, retention_terms};
use crate::runtime::writes::WriteError;
use crate::state::archives::expiry_reason;
use crate::state::backends::Backend;
use crate::state::confirmed_export::{ConfirmedExport, Unconfirmed};
use crate::state::context::Context;
use export_store::{
    ArchiveRef, ArchiveStage, ExportError, ExportStore, RecordedArchive, RestoreTarget, SignatureStatus,
};

/// Location of an archive.
pub struct Location {
    pub backend: Arc<Backend>,
    pub export: Arc<ExportStore>,
    pub archive: ArchiveRef,
}

/// Observation of an archive.
pub struct Observation {
    /// Location, if it can be reached.
    pub location: Option<Location>,
    /// Observed state.
    pub observed: Observed,
}

/// Reads the archive's record and everything else that the plan depends on.
pub async fn observe(ctx: &Context, object: &NfsArchive) -> Result<Observation, WriteError> {
    let deleting = object.metadata.deletion_timestamp.is_some();
    let (location, export) = match locate(ctx, object) {
        Ok(location) => {
            let state = export_state(ctx, object, &location).await?;
            (Some(location), state)
        }
        Err(cause) => (None, ExportState::Unreachable(cause)),
    };
    let observed = Observed {
        deleting,
        crd_deleting: deleting && is_crd_deleting(ctx).await?,
        delete_data: object.spec.deletion_policy == DeletionPolicy::Delete,
        held: object.spec.legal_hold,
        copied: location
            .as_ref()
            .is_some_and(|location| location.export.is_being_copied(&location.archive.volume)),
        expired: expiry_reason(ctx, object, Timestamp::now()),
        export,
    };
    Ok(Observation { location, observed })
}

fn locate(ctx: &Context, object: &NfsArchive) -> Result<Location, PlannedCondition> {
    let Some(archive) = archive_ref(object) else {
        return Err(PlannedCondition::fails(
            Reason::ArchiveMissing,
            "its fileID is not a valid number, so nothing is changed: to have the object recreated from the record on the \
             export, set deletionPolicy to Retain and delete this object",
        ));
    };
    let ConfirmedExport { backend, export } = confirmed_export(ctx, object)?;
    Ok(Location {
        backend,
        export,
        archive,
    })
}

/// Returns the backend that an object names and its export, if the export can be reached and is the one that the object
/// names.
pub(super) fn confirmed_export(ctx: &Context, object: &NfsArchive) -> Result<ConfirmedExport, PlannedCondition> {
    let spec = &object.spec;
    ConfirmedExport::find(ctx, &spec.backend, &spec.export_id).map_err(|unconfirmed| match unconfirmed {
        Unconfirmed::NotReady(condition) => condition,
        Unconfirmed::OtherExport => PlannedCondition::fails(
            Reason::IdentityMismatch,
            format!(
                "backend {} uses another export than the one that has the archive",
                spec.backend
            ),
        ),
    })
}

async fn export_state(ctx: &Context, object: &NfsArchive, location: &Location) -> Result<ExportState, WriteError> {
    // Limited for each backend: one that does not respond delays only its own archives.
    let _slot = location.backend.archives.acquire().await;
    let recorded = match read_record(object, location).await {
        Ok(Some(recorded)) => recorded,
        Ok(None) => return Ok(ExportState::NoRecord),
        Err(error) => return Ok(read_failed(ctx, &location.backend, &error)),
    };
    let identity = (recorded.claim.uid.as_str(), recorded.file_id, recorded.of_volume());
    if identity
        != (
            &location.archive.claim_uid,
            location.archive.file_id,
            &object.spec.volume,
        )
    {
        return Ok(record_unusable(
            "the record on the export describes another claim or directory than this object: nothing is changed",
        ));
    }
    if recorded.trust != SignatureStatus::Signed {
        return Ok(record_unusable(
            "this cluster did not sign the record on the export, and the record differs from this object: nothing is \
             changed",
        ));
    }
    let terms = retention_terms(object);
    if recorded.stage == ArchiveStage::Kept
        && recorded.note.terms != terms
        && let Err(error) = location.export.save_retention(&location.archive, &terms).await
    {
        return Ok(read_failed(ctx, &location.backend, &error));
    }
    Ok(match recorded.stage {
        ArchiveStage::Kept => ExportState::Kept {
            present: recorded.there,
            copy: recorded.note.copy,
        },
        ArchiveStage::Purging => ExportState::Purging {
            present: recorded.there,
        },
        ArchiveStage::Restoring(target) => {
            let done = is_restored(ctx, &target, recorded.file_id).await?;
            ExportState::Restoring { target, done }
        }
    })
}

/// Reads the archive's record. Signs it if this cluster has not signed it and the object agrees with it.
async fn read_record(object: &NfsArchive, location: &Location) -> Result<Option<RecordedArchive>, ExportError> {
    let (export, volume) = (&location.export, &location.archive.volume);
    let recorded = export.find_archive(volume).await?;
    match &recorded {
        Some(found)
            if found.trust != SignatureStatus::Signed && agrees_with_record(object, found, &location.backend.name) =>
        {
            export
                .sign_confirmed_archive(&location.archive, &retention_terms(object))
                .await?;
            export.find_archive(volume).await
        }
        _ => Ok(recorded),
    }
}

fn record_unusable(message: &str) -> ExportState {
    ExportState::RecordUnusable(PlannedCondition::fails(Reason::RecordUnusable, message))
}

fn read_failed(ctx: &Context, backend: &Backend, error: &ExportError) -> ExportState {
    let condition = PlannedCondition::fails(Reason::from(error.kind()), error.to_string());
    if condition.reason.is_backend_wide() || error.outcome_unknown() {
        ctx.request_probe(&backend.name);
        return ExportState::Unreachable(condition);
    }
    ExportState::RecordUnusable(condition)
}

/// Reports whether the volume that an archive is restored to exists and has the directory. The volume is read from the
/// API server, because the archive's record and object are removed if it does.
async fn is_restored(ctx: &Context, target: &RestoreTarget, file_id: u64) -> Result<bool, WriteError> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = volumes
        .get_opt(&target.volume)
        .await
        .map_err(WriteError::action("read the volume that gets the archive"))?;
    Ok(volume.is_some_and(|volume| {
        let claim = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
        claim.as_ref() == Some(&target.claim.uid)
            && volume.annotations().get(VOLUME_FILE_ID) == Some(&file_id.to_string())
    }))
}
