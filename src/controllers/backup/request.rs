//! The request for an archive: what a tenant may have is checked, counted, and then created.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::plan::{Report, requested};
use crate::api::NfsArchive;
use crate::api::archive::{ArchiveSummary, ArchivedClaim, BackupReference, DeletionPolicy, NfsArchiveSpec};
use crate::api::backend::BackupDestination;
use crate::api::backup::NfsBackup;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::BACKUP_FINALIZER;
use crate::decide::backup_destination::destination_of;
use crate::decide::self_service::{allowed, is_archive_of};
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::backup_admissions::admit_backup;
use crate::state::context::Context;
use crate::state::copy_jobs::destination::Destination;
use crate::state::copy_jobs::source::{ClaimSourceError, find_claim};

/// Result of a request.
pub(super) enum Requested {
    /// The backup has this archive.
    Archive(Box<NfsArchive>),
    /// The object was changed, and is reconciled again.
    Changed,
    /// The archive is not created now.
    Refused(Report),
}

/// Creates the archive of a backup, unless its tenant may not have it now.
pub(super) async fn request_archive(ctx: &Context, backup: &NfsBackup, claim: &str) -> Result<Requested, WriteError> {
    let (namespace, uid) = (backup.namespace().unwrap_or_default(), backup.uid().unwrap_or_default());
    // What changes from here on requeues the backup, whichever backend it is about.
    ctx.backup_backends.forget(&uid);
    let source = match find_claim(ctx, &namespace, claim, None).await? {
        Ok(source) => source,
        Err(ClaimSourceError::NotReady(condition)) => return Ok(refused(condition)),
        Err(error) => return Ok(refused_by(ctx, &uid, [], error.into_condition())),
    };
    let (namespaces, archive) = (Api::<Namespace>::all(ctx.clients.calls.clone()), backup.archive_name());
    let live = reads::get_metadata_opt(&namespaces, &namespace).await;
    let live = live.map_err(WriteError::action("read the namespace of the backup"))?;
    let Some(live) = live.filter(|live| live.metadata.deletion_timestamp.is_none()) else {
        let message = format!("namespace {namespace} is being deleted");
        let condition = PlannedCondition::fails(Reason::CopySourceNotReady, message);
        return Ok(refused_by(ctx, &uid, [], condition));
    };
    let object = match source.live_backend(ctx).await? {
        Ok(object) => object,
        Err(condition) => return Ok(refused_by(ctx, &uid, [source.backend.name.clone()], condition)),
    };
    let destination = destination_of(&object);
    let admitted = allowed(&object, &namespace, live.labels()).and_then(|settings| {
        Destination::find(ctx, &destination)?;
        admit_backup(ctx, &archive, (&namespace, settings), &source, &destination)
    });
    if let Err(condition) = admitted {
        let backends = [source.backend.name.clone(), destination];
        return Ok(refused_by(ctx, &uid, backends, condition));
    }
    // From then on, the object stays until the deletion of its archive was requested.
    if writes::with_finalizer(&backup.metadata, BACKUP_FINALIZER, true).is_some() {
        let api = Api::namespaced(ctx.clients.calls.clone(), &namespace);
        writes::add_finalizer(&api, backup, BACKUP_FINALIZER).await?;
        return Ok(Requested::Changed);
    }
    let wanted = archive_object(backup, &namespace, claim, destination);
    create(ctx, backup, &wanted, live.uid().as_deref().unwrap_or_default()).await
}

async fn create(
    ctx: &Context,
    backup: &NfsBackup,
    wanted: &NfsArchive,
    namespace_uid: &str,
) -> Result<Requested, WriteError> {
    let api: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    let error = match api.create(&PostParams::default(), wanted).await {
        Ok(created) => return Ok(Requested::Archive(Box::new(created))),
        Err(error) => error,
    };
    match writes::http_status(&error) {
        // It was created by an earlier request whose reply was lost.
        Some(409) => {
            let existing = reads::get_opt(&api, &wanted.name_any()).await;
            let existing = existing.map_err(WriteError::action("read the archive of the backup"))?;
            match existing.filter(|existing| is_archive_of(backup, existing, namespace_uid)) {
                Some(existing) => Ok(Requested::Archive(Box::new(existing))),
                None => Err(WriteError::Conflict),
            }
        }
        status => {
            if status.is_some_and(|code| (400..500).contains(&code)) {
                ctx.backup_admissions.forget(&wanted.name_any());
            }
            Err(WriteError::action("create the archive of the backup")(error))
        }
    }
}

/// Returns the archive to create. The object of the tenant decides its claim and its expiry, and nothing else: the
/// destination is that of the backend, for which the archive was counted.
fn archive_object(backup: &NfsBackup, namespace: &str, claim: &str, destination: String) -> NfsArchive {
    NfsArchive {
        metadata: ObjectMeta {
            name: Some(backup.archive_name()),
            ..ObjectMeta::default()
        },
        spec: NfsArchiveSpec {
            claim_ref: ArchivedClaim {
                namespace: namespace.to_owned(),
                name: claim.to_owned(),
            },
            expiration_time: backup.expiration_time().map(Time),
            legal_hold: false,
            deletion_policy: DeletionPolicy::Delete,
            allowed_namespaces: None,
            destination: Some(BackupDestination {
                backend_name: destination,
            }),
            consistency: backup.spec.consistency,
            max_snapshot_age: backup.spec.max_snapshot_age.clone(),
            backup_ref: Some(BackupReference {
                name: backup.name_any(),
                uid: backup.uid().unwrap_or_default(),
            }),
        },
        status: None,
    }
}

/// Refuses a backup until one of these backends changes, or its next attempt.
fn refused_by<const N: usize>(ctx: &Context, uid: &str, backends: [String; N], ready: PlannedCondition) -> Requested {
    ctx.backup_backends.set(uid, backends);
    refused(ready)
}

fn refused(ready: PlannedCondition) -> Requested {
    Requested::Refused(Report {
        state: ArchiveSummary::Pending,
        ready,
    })
}

/// Returns the report of a backup whose archive was just created.
pub(super) fn started() -> Report {
    Report {
        state: ArchiveSummary::Pending,
        ready: requested(),
    }
}
