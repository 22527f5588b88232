//! Removes what was begun for objects that no longer exist: unfinished directories of claims (by rmdir, and never where a
//! volume names the path) and unfinished backups.

use std::time::Instant;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::api::NfsArchive;
use crate::api::names::VOLUME_BACKEND;
use crate::compat::nfs_subdir::location::directory_on;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ClaimRef, ExportError, ExportStore, RollbackOutcome};

/// Removes what was begun for claims that are gone.
pub async fn gc_pending(ctx: &Context, backend: &Backend, export: &ExportStore) {
    let began = Instant::now();
    for (volume, claim) in backend.abandoned() {
        let wanted = match ctx.capacity.saved_on(&volume) {
            Some(other) if other != backend.name => Ok(false),
            Some(_) => {
                match yield_to_others(ctx, backend, export, &volume, &claim).await {
                    Ok(true) => backend.remove_pending(&volume),
                    Ok(false) => {}
                    Err(error) => tracing::warn!(
                        backend = backend.name,
                        volume,
                        "cannot look whose volume it is: {error}"
                    ),
                }
                continue;
            }
            None => is_wanted(ctx, &volume, &claim).await,
        };
        match wanted {
            Ok(true) => {}
            Ok(false) => remove(ctx, backend, export, &volume, &claim).await,
            Err(error) => tracing::warn!(
                backend = backend.name,
                volume,
                "cannot look whether the claim is there: {error}"
            ),
        }
    }
    backend.set_last_gc(began);
}

/// Another provisioner of the same name made the volume while a directory was being made here. If that is another one than
/// the volume's, it goes; the volume's own stays, and so does its record. False: look again at the next probe.
async fn yield_to_others(
    ctx: &Context,
    backend: &Backend,
    export: &ExportStore,
    volume: &str,
    claim: &ClaimRef,
) -> Result<bool, kube::Error> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let Some(there) = volumes.get_opt(volume).await? else {
        // It is gone, and the watch is about to tell.
        return Ok(false);
    };
    // At another address it may be the same directory all the same.
    let ours = there.annotations().contains_key(VOLUME_BACKEND);
    if ours || directory_on(&there, &backend.known().object).is_none() {
        return Ok(true);
    }
    match export.rollback_superseded(volume, &claim.uid).await {
        Ok(_) | Err(ExportError::InUse { .. }) => Ok(true),
        Err(error) => {
            tracing::warn!(
                backend = backend.name,
                volume,
                "another provisioner made the volume, and the directory begun for it cannot be removed: {error}"
            );
            // What is wrong with a record is an administrator's to see; all else may be otherwise at the next probe.
            Ok(matches!(
                error,
                ExportError::RecordDamaged { .. }
                    | ExportError::RecordForeign { .. }
                    | ExportError::RecordUnsigned { .. }
                    | ExportError::RecordBusy { .. }
            ))
        }
    }
}

/// Whether the claim or its volume is there: read live, because what follows removes things.
async fn is_wanted(ctx: &Context, volume: &str, claim: &ClaimRef) -> Result<bool, kube::Error> {
    let client = ctx.clients.calls.clone();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &claim.namespace);
    if claims
        .get_opt(&claim.name)
        .await?
        .is_some_and(|found| found.uid().as_ref() == Some(&claim.uid))
    {
        return Ok(true);
    }
    let volumes: Api<PersistentVolume> = Api::all(client);
    Ok(volumes.get_opt(volume).await?.is_some())
}

async fn remove(ctx: &Context, backend: &Backend, export: &ExportStore, volume: &str, claim: &ClaimRef) {
    // A claim that came back to life under our hands would be a new one, with another uid and another volume.
    let Some(active) = backend.begin_work(volume, claim) else {
        return;
    };
    match export.rollback(volume, &claim.uid).await {
        Ok(outcome) => {
            ctx.capacity.release(volume);
            // What there was of a copy is in the trash.
            backend.purge_requested.notify_one();
            match outcome {
                RollbackOutcome::Gone => tracing::info!(
                    backend = backend.name,
                    volume,
                    "claim gone: its unused directory was removed"
                ),
                RollbackOutcome::DirectoryKept => tracing::info!(
                    backend = backend.name,
                    volume,
                    "claim gone: its directory was not made by us and stays"
                ),
                RollbackOutcome::NotEmpty => tracing::warn!(
                    backend = backend.name,
                    volume,
                    "claim gone without a volume, but its directory holds data and stays"
                ),
            }
        }
        Err(error) => {
            tracing::warn!(backend = backend.name, volume, reason = ?error.kind(), "cannot remove the directory of a claim that is gone: {error}");
            // The backend's condition tells of it until an administrator looks.
            if !matches!(error, ExportError::RecordUnsigned { .. }) {
                return;
            }
        }
    }
    drop(active);
    backend.remove_pending(volume);
}

/// Removes a backend's unfinished backups whose object no longer exists or has another UID.
pub async fn gc_backups(ctx: &Context, backend: &Backend, export: &ExportStore) {
    let archives: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    for (name, uid) in export.unfinished_archives() {
        let cached = ctx.stores.archives.get(&ObjectRef::new(&name));
        if cached.is_some_and(|object| object.uid().as_ref() == Some(&uid)) {
            continue;
        }
        // Read from the API server, because what follows removes data.
        match archives.get_opt(&name).await {
            Ok(Some(object)) if object.uid().as_ref() == Some(&uid) => continue,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    archive = name,
                    "failed to read the object of an unfinished backup: {error}"
                );
                continue;
            }
        }
        ctx.copy_jobs.abort_and_wait(&uid).await;
        match export.discard_requested_archive(&name, &uid).await {
            Ok(outcome) => {
                tracing::info!(
                    archive = name,
                    backend = backend.name,
                    ?outcome,
                    "discarded a backup whose object no longer exists"
                );
                backend.purge_requested.notify_one();
            }
            Err(error) => {
                tracing::warn!(archive = name, reason = ?error.kind(), "failed to discard an unfinished backup: {error}");
            }
        }
    }
}
