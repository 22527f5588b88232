//! What is known of an archive: its object, its backend, and what is on the export.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};

use super::act::crd_deleting;
use super::plan::{ExportState, Observed};
use crate::api::archive::{DeletionPolicy, NfsArchive};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::VOLUME_FILE_ID;
use crate::decide::archive_object::{agrees_with_record, archive_ref, retention_terms};
use crate::runtime::writes::WriteError;
use crate::state::archives::expiry_reason;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ArchiveRef, ExportError, ExportStore, RecordedArchive, RestoreTarget, Stage, Trust};

/// Where an archive lies.
pub struct Location {
    /// Its backend.
    pub backend: Arc<Backend>,
    /// Its export.
    pub export: Arc<ExportStore>,
    /// What its object is about.
    pub which: ArchiveRef,
}

/// What a look found.
pub struct Observation {
    /// Where it lies, if that can be reached.
    pub home: Option<Location>,
    /// What is known.
    pub situation: Observed,
}

/// Looks.
pub async fn look(ctx: &Context, object: &NfsArchive) -> Result<Observation, WriteError> {
    let deleting = object.metadata.deletion_timestamp.is_some();
    let (home, sight) = match home(ctx, object) {
        Ok(home) => {
            let sight = sight(ctx, object, &home).await?;
            (Some(home), sight)
        }
        Err(verdict) => (None, ExportState::Unseen(verdict)),
    };
    let situation = Observed {
        deleting,
        kind_going: deleting && crd_deleting(ctx).await?,
        delete: object.spec.deletion_policy == DeletionPolicy::Delete,
        held: object.spec.legal_hold,
        copied: home
            .as_ref()
            .is_some_and(|home| home.export.is_being_copied(&home.which.volume)),
        due: expiry_reason(ctx, object, Timestamp::now()),
        sight,
    };
    Ok(Observation { home, situation })
}

fn home(ctx: &Context, object: &NfsArchive) -> Result<Location, PlannedCondition> {
    let Some(which) = archive_ref(object) else {
        return Err(PlannedCondition::fails(
            Reason::ArchiveMissing,
            "it is about no archive: its fileID is no number that a directory can have; delete this object",
        ));
    };
    let (backend, export) = place(ctx, object)?;
    Ok(Location { backend, export, which })
}

/// The backend that an object names, and its export, if that can be reached and is still the one that the object names.
pub fn place(ctx: &Context, object: &NfsArchive) -> Result<(Arc<Backend>, Arc<ExportStore>), PlannedCondition> {
    let name = &object.spec.backend;
    let Some(backend) = ctx.backends.get(name) else {
        return Err(PlannedCondition::fails(
            Reason::ReclaimBackendMissing,
            format!("backend {name:?} does not exist: create it again, or delete this object"),
        ));
    };
    let known = backend.known();
    let Some(export) = known.export.clone() else {
        return Err(known.ready.clone());
    };
    if known.identity.as_ref().map(|identity| &identity.id) != Some(&object.spec.export_id) {
        return Err(PlannedCondition::fails(
            Reason::IdentityMismatch,
            format!("backend {name} is on another export than the archive"),
        ));
    }
    Ok((backend, export))
}

async fn sight(ctx: &Context, object: &NfsArchive, home: &Location) -> Result<ExportState, WriteError> {
    // Bounded for each backend: one that hangs holds up only its own archives.
    let _slot = home.backend.archives.acquire().await;
    let kept = match believed(object, home).await {
        Ok(Some(kept)) => kept,
        Ok(None) => return Ok(ExportState::Unrecorded),
        Err(error) => return Ok(unusable(ctx, &home.backend, &error)),
    };
    let about = (kept.claim.uid.as_str(), kept.file_id, kept.of_volume());
    if about != (&home.which.claim_uid, home.which.file_id, &object.spec.volume) {
        return Ok(ExportState::Unusable(PlannedCondition::fails(
            Reason::RecordUnusable,
            "the record on the export is about another claim or directory than this object: nothing is touched",
        )));
    }
    if kept.trust != Trust::Signed {
        return Ok(ExportState::Unusable(PlannedCondition::fails(
            Reason::RecordUnusable,
            "this cluster did not sign the record on the export, and it says something else than this object: nothing is \
             touched",
        )));
    }
    let wanted = retention_terms(object);
    if kept.stage == Stage::Kept
        && kept.note.terms != wanted
        && let Err(error) = home.export.save_retention(&home.which, &wanted).await
    {
        return Ok(unusable(ctx, &home.backend, &error));
    }
    Ok(match kept.stage {
        Stage::Kept => ExportState::Kept {
            there: kept.there,
            copy: kept.note.copy,
        },
        Stage::Purging => ExportState::Purging { there: kept.there },
        Stage::Restoring(to) => {
            let done = has_it(ctx, &to, kept.file_id).await?;
            ExportState::Restoring { to, done }
        }
    })
}

/// What the export keeps of the archive. Where the object says the same as a record that this cluster did not sign, it vouches
/// for it.
async fn believed(object: &NfsArchive, home: &Location) -> Result<Option<RecordedArchive>, ExportError> {
    let (export, volume) = (&home.export, &home.which.volume);
    let kept = export.find_archive(volume).await?;
    match &kept {
        Some(kept) if kept.trust != Trust::Signed && agrees_with_record(object, kept, &home.backend.name) => {
            export
                .sign_confirmed_archive(&home.which, &retention_terms(object))
                .await?;
            export.find_archive(volume).await
        }
        _ => Ok(kept),
    }
}

fn unusable(ctx: &Context, backend: &Backend, error: &ExportError) -> ExportState {
    let verdict = PlannedCondition::fails(Reason::from(error.kind()), error.to_string());
    if Reason::from(error.kind()).is_backend_wide() || error.outcome_unknown() {
        ctx.request_probe(&backend.name);
        return ExportState::Unseen(verdict);
    }
    ExportState::Unusable(verdict)
}

/// Whether the volume that an archive is restored to is there and has the directory: read live, for then the archive is
/// none any more.
async fn has_it(ctx: &Context, to: &RestoreTarget, file_id: u64) -> Result<bool, WriteError> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = volumes
        .get_opt(&to.volume)
        .await
        .map_err(WriteError::of("read the volume that gets the archive"))?;
    Ok(volume.is_some_and(|volume| {
        let claim = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
        claim.as_ref() == Some(&to.claim.uid) && volume.annotations().get(VOLUME_FILE_ID) == Some(&file_id.to_string())
    }))
}
