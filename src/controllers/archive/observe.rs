//! Observed state of an archive: its object, its backend, and the export.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::ops::is_crd_deleting;
use super::plan::{ExportState, Observed};
use crate::api::archive::{DeletionPolicy, NfsArchive};
use crate::api::backend::ArchivePolicy;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::VOLUME_FILE_ID;
use crate::decide::archive_object::{agrees_with_record, archive_ref, retention_terms};
use crate::decide::retention::{earliest_expiry, expired, retained};
use crate::decide::terms::{self, TermsDecision};
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::archives::count_newer;
use crate::state::backends::Backend;
use crate::state::confirmed_export::{ConfirmedExport, Unconfirmed};
use crate::state::context::Context;
use export_store::{
    ArchivePhase, ArchiveRef, ExportError, ExportStore, RecordedArchive, RestoreTarget, RetentionTerms, SignatureStatus,
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
    /// Terms to write to the object before anything else, because it is older than its record.
    pub stricter_terms: Option<RetentionTerms>,
    /// Time when the archive expires, if it has an expiry.
    pub expires: Option<Timestamp>,
}

/// Purpose of an observation.
#[derive(Debug)]
pub enum Purpose {
    /// A report of the state and of the step that is due. The record of a new archive is not read again, and whether the
    /// archive has expired depends on the watch caches.
    Report,
    /// The decision about an irreversible step: the record is read, and whether the archive has expired depends on these
    /// values, if set.
    Decision(Option<RetentionBasis>),
}

/// Values that decide if an archive has expired.
#[derive(Debug)]
pub struct RetentionBasis {
    /// Policy of the backend.
    pub policy: ArchivePolicy,
    /// Number of newer archives of the claim.
    pub newer: usize,
    /// The current time.
    pub now: Timestamp,
}

impl RetentionBasis {
    /// Returns the values in the watch caches and the time of this machine. They only decide when an archive is checked
    /// more thoroughly. `None` if the backend does not exist.
    fn cached(ctx: &Context, object: &NfsArchive) -> Option<Self> {
        let backend = ctx
            .stores
            .backends
            .get(&ObjectRef::new(&object.observed().backend_name))?;
        let policy = backend.spec.archive_policy.clone();
        let newer = count_newer(ctx, object, &policy);
        let now = ctx.clock.now();
        Some(Self { policy, newer, now })
    }
}

/// Reads the archive's record and everything else that the plan depends on.
pub async fn observe(ctx: &Context, object: &NfsArchive, purpose: Purpose) -> Result<Observation, WriteError> {
    let deleting = object.metadata.deletion_timestamp.is_some();
    let cached;
    let basis = match &purpose {
        Purpose::Decision(Some(live)) => Some(live),
        Purpose::Report | Purpose::Decision(None) => {
            cached = RetentionBasis::cached(ctx, object);
            cached.as_ref()
        }
    };
    let policy = basis.map(|basis| &basis.policy);
    let (location, recorded) = match locate(ctx, object) {
        Ok(location) => {
            let recorded = read_export(ctx, object, &location, policy, &purpose).await?;
            (Some(location), recorded)
        }
        Err(unreachable) => (None, (*unreachable).into()),
    };
    let Recorded {
        state: export,
        stricter_terms,
        retention,
    } = recorded;
    let earliest = policy.and_then(|policy| earliest_expiry(object, policy, retention));
    let expires = object.spec.expiration_time.as_ref().map(|at| at.0);
    let expires = expires.map(|at| earliest.map_or(at, |earliest| at.max(earliest)));
    let expired = basis.and_then(|basis| {
        let reached = earliest.is_none_or(|earliest| basis.now >= earliest);
        expired(object, &basis.policy, basis.newer, basis.now).filter(|_| reached)
    });
    let observed = Observed {
        deleting,
        crd_deleting: deleting && is_crd_deleting(ctx).await?,
        delete_data: object.spec.deletion_policy == DeletionPolicy::Delete,
        held: object.spec.legal_hold,
        copied: location
            .as_ref()
            .is_some_and(|location| location.export.is_being_copied(&location.archive.volume)),
        expired: expired.is_some(),
        retained: retained(object, policy, expires, expired.as_deref()),
        export,
    };
    Ok(Observation {
        location,
        observed,
        stricter_terms,
        expires,
    })
}

/// What the record of an archive says.
struct Recorded {
    state: ExportState,
    stricter_terms: Option<RetentionTerms>,
    /// Retention in effect when the directory was archived.
    retention: Option<i64>,
}

impl From<ExportState> for Recorded {
    fn from(state: ExportState) -> Self {
        Self {
            state,
            stricter_terms: None,
            retention: None,
        }
    }
}

fn locate(ctx: &Context, object: &NfsArchive) -> Result<Location, Box<ExportState>> {
    // The caller has completed the status.
    let archive = archive_ref(object).ok_or_else(|| Box::new(ExportState::NoRecord))?;
    let ConfirmedExport { backend, export } = find_export(ctx, object).map_err(|unconfirmed| match unconfirmed {
        Unconfirmed::NotReady(condition) if condition.reason == Reason::ReclaimBackendMissing => {
            Box::new(ExportState::Detached(condition))
        }
        Unconfirmed::NotReady(condition) => Box::new(ExportState::Unreachable(condition)),
        Unconfirmed::OtherExport => Box::new(ExportState::Detached(other_export(object))),
    })?;
    Ok(Location {
        backend,
        export,
        archive,
    })
}

fn find_export(ctx: &Context, object: &NfsArchive) -> Result<ConfirmedExport, Unconfirmed> {
    let observed = object.observed();
    ConfirmedExport::find(ctx, &observed.backend_name, &observed.export_id)
}

fn other_export(object: &NfsArchive) -> PlannedCondition {
    let backend = &object.observed().backend_name;
    PlannedCondition::fails(
        Reason::IdentityMismatch,
        format!("backend {backend} uses another export than the one that has the archive"),
    )
}

/// Returns the backend that an object names and its export, if the export can be reached and is the one that the object
/// names.
pub(super) fn confirmed_export(ctx: &Context, object: &NfsArchive) -> Result<ConfirmedExport, PlannedCondition> {
    find_export(ctx, object).map_err(|unconfirmed| match unconfirmed {
        Unconfirmed::NotReady(condition) => condition,
        Unconfirmed::OtherExport => other_export(object),
    })
}

async fn read_export(
    ctx: &Context,
    object: &NfsArchive,
    location: &Location,
    policy: Option<&ArchivePolicy>,
    purpose: &Purpose,
) -> Result<Recorded, WriteError> {
    // Limited for each backend: one that does not respond delays only its own archives.
    let _slot = location
        .backend
        .archives
        .acquire(&object.spec.claim_ref.namespace)
        .await;
    let recorded = match read_record(object, location, purpose).await {
        Ok(Some(recorded)) => recorded,
        Ok(None) => return Ok(ExportState::NoRecord.into()),
        Err(error) => return Ok(read_failed(ctx, &location.backend, &error).into()),
    };
    let identity = (recorded.claim.uid.as_str(), recorded.file_id, recorded.of_volume());
    if identity
        != (
            &location.archive.claim_uid,
            location.archive.file_id,
            &object.observed().volume_name,
        )
    {
        return Ok(record_unusable(
            "the record on the export describes another claim or directory than this object: nothing is changed",
        )
        .into());
    }
    if recorded.trust != SignatureStatus::Signed {
        return Ok(record_unusable(
            "this cluster did not sign the record on the export, and the record differs from this object: nothing is \
             changed",
        )
        .into());
    }
    let mut stricter_terms = None;
    if recorded.phase == ArchivePhase::Archived {
        match terms::compare(object, &recorded.archive, policy) {
            TermsDecision::Agreed => {}
            TermsDecision::Save(terms) => {
                let revision = terms::revision(object);
                let saved = location.export.save_retention(&location.archive, &terms, &revision);
                if let Err(error) = saved.await {
                    return Ok(read_failed(ctx, &location.backend, &error).into());
                }
            }
            TermsDecision::Restore(terms) => stricter_terms = Some(terms),
        }
    }
    let retention = recorded.archive.retention;
    let state = match recorded.phase {
        ArchivePhase::Archived => ExportState::Archived {
            present: recorded.exists,
            copy: recorded.archive.copy,
        },
        ArchivePhase::Purging => ExportState::Purging {
            present: recorded.exists,
        },
        ArchivePhase::Restoring(target) => {
            let done = is_restored(ctx, &target, recorded.file_id).await?;
            ExportState::Restoring { target, done }
        }
    };
    Ok(Recorded {
        state,
        stricter_terms,
        retention,
    })
}

/// Returns the archive's record. Signs it if this cluster has not signed it and the object agrees with it.
async fn read_record(
    object: &NfsArchive,
    location: &Location,
    purpose: &Purpose,
) -> Result<Option<RecordedArchive>, ExportError> {
    let (export, volume) = (&location.export, &location.archive.volume);
    let recorded = match purpose {
        Purpose::Report => export.find_archive_for_report(volume).await?,
        Purpose::Decision(_) => export.find_archive(volume).await?,
    };
    match &recorded {
        Some(found)
            if found.trust != SignatureStatus::Signed && agrees_with_record(object, found, &location.backend.name) =>
        {
            export
                .sign_confirmed_archive(&location.archive, &retention_terms(object), &terms::revision(object))
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
    if Reason::needs_probe(error) {
        ctx.request_probe(&backend.name);
        return ExportState::Unreachable(condition);
    }
    ExportState::RecordUnusable(condition)
}

/// Reports whether the volume that an archive is restored to exists and has the directory. The volume is read from the
/// API server, because the archive's record and object are removed if it does.
async fn is_restored(ctx: &Context, target: &RestoreTarget, file_id: u64) -> Result<bool, WriteError> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = reads::get_opt(&volumes, &target.volume)
        .await
        .map_err(WriteError::action("read the volume that gets the archive"))?;
    // Its name contains the UID of the claim that it was created for. An administrator may have given it to another.
    Ok(volume.is_some_and(|volume| volume.annotations().get(VOLUME_FILE_ID) == Some(&file_id.to_string())))
}
