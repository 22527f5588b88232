//! Removes the unfinished work of objects that no longer exist: unfinished directories of claims (with rmdir, and never
//! if a volume names the path) and unfinished backups. Also creates the missing objects of archives.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::archive_objects::create_missing_objects;
use super::runner::{self, BackendTask};
use crate::api::names::VOLUME_BACKEND;
use crate::api::{NfsArchive, RecoveryRequest};
use crate::compat::nfs_subdir::location::directory_on;
use crate::runtime::api_error::api_error_text;
use crate::runtime::reads;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ClaimRef, ExportError, ExportStore, RollbackOutcome};

/// Starts the garbage collection of a backend, which runs when it is requested.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>) {
    runner::spawn(ctx, backend, GarbageCollector, Duration::MAX);
}

/// Garbage collector of a backend. It runs concurrently with the probes, because it must not delay them: it reads the
/// objects of unfinished directories, of which there may be thousands, from the API server.
struct GarbageCollector;

impl BackendTask for GarbageCollector {
    const INTERRUPTIBLE: bool = false;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.gc_requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let known = backend.last_probe();
        if let Some(export) = &known.store {
            // A volume that is about to be recovered has no claim yet and must not be mistaken for an unfinished
            // directory.
            if RecoveryRequest::of(&known.object).is_none() {
                gc_pending(ctx, backend, export).await;
            }
            create_missing_objects(ctx, backend, export).await;
            gc_backups(ctx, backend, export).await;
        }
        Duration::MAX
    }
}

/// Removes the unfinished directories of claims that no longer exist.
async fn gc_pending(ctx: &Context, backend: &Backend, export: &ExportStore) {
    let started = Instant::now();
    for (volume, claim) in backend.abandoned() {
        if ctx.capacity.has_volume(&volume) {
            match roll_back_superseded(ctx, backend, export, &volume, &claim).await {
                Ok(true) => backend.remove_pending(&volume),
                Ok(false) => {}
                Err(error) => tracing::warn!(
                    backend = backend.name,
                    volume,
                    "failed to read the volume: {}",
                    api_error_text(&error)
                ),
            }
            continue;
        }
        let needed = is_needed(ctx, &volume, &claim).await;
        match needed {
            Ok(true) => {}
            Ok(false) => roll_back(ctx, backend, export, &volume, &claim).await,
            Err(error) => tracing::warn!(
                backend = backend.name,
                volume,
                "failed to read the claim of an unfinished directory: {}",
                api_error_text(&error)
            ),
        }
    }
    backend.set_last_gc(started);
}

/// Removes an unfinished directory whose volume has another one, unless the volume is in this directory after all: another
/// provisioner of the same name created the volume, or this operator did on another backend, because this one could not be
/// reached. Returns false if the next run has to try again.
async fn roll_back_superseded(
    ctx: &Context,
    backend: &Backend,
    export: &ExportStore,
    volume: &str,
    claim: &ClaimRef,
) -> Result<bool, kube::Error> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let Some(existing) = reads::get_opt(&volumes, volume).await? else {
        // The volume was deleted, and the watch has not reported that yet.
        return Ok(false);
    };
    let has_directory = match existing.annotations().get(VOLUME_BACKEND) {
        Some(on) => *on == backend.name,
        // A volume with another address may have the same directory.
        None => directory_on(&existing, &backend.last_probe().object).is_none(),
    };
    if has_directory {
        return Ok(true);
    }
    // If the volume is deleted meanwhile, its claim may be provisioned again.
    let Some(_guard) = backend.begin_work(volume, claim) else {
        return Ok(false);
    };
    match export.rollback_superseded(volume, &claim.uid).await {
        Ok(outcome) => {
            tracing::info!(
                backend = backend.name,
                volume,
                ?outcome,
                "the volume is elsewhere: rolled back its unused directory"
            );
            // An incomplete copy is in the trash now.
            backend.purge_requested.notify_one();
            Ok(true)
        }
        Err(ExportError::InUse { .. }) => Ok(true),
        Err(error) => {
            tracing::warn!(
                backend = backend.name,
                volume,
                "the volume is elsewhere; failed to remove the unused directory: {error}"
            );
            // A faulty record requires an administrator. Any other error may be resolved by the next run.
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

/// Returns true if the claim or its volume exists. If the cache, which keeps claims without a volume, does not have the
/// claim, both are read from the API server, because data is removed if neither exists.
async fn is_needed(ctx: &Context, volume: &str, claim: &ClaimRef) -> Result<bool, kube::Error> {
    let is_claim =
        |found: Option<PersistentVolumeClaim>| found.and_then(|found| found.uid()).as_ref() == Some(&claim.uid);
    if is_claim(ctx.cached_claim(&ObjectRef::new(&claim.name).within(&claim.namespace))) {
        return Ok(true);
    }
    let client = ctx.clients.calls.clone();
    if is_claim(reads::get_claim(&client, &claim.namespace, &claim.name).await?) {
        return Ok(true);
    }
    let volumes: Api<PersistentVolume> = Api::all(client);
    Ok(reads::get_opt(&volumes, volume).await?.is_some())
}

async fn roll_back(ctx: &Context, backend: &Backend, export: &ExportStore, volume: &str, claim: &ClaimRef) {
    // A claim created in the meantime has another UID and another volume.
    let Some(guard) = backend.begin_work(volume, claim) else {
        return;
    };
    match export.rollback(volume, &claim.uid).await {
        Ok(outcome) => {
            // An incomplete copy is in the trash now.
            backend.purge_requested.notify_one();
            match outcome {
                RollbackOutcome::Gone => tracing::info!(
                    backend = backend.name,
                    volume,
                    "claim deleted: removed its unused directory"
                ),
                RollbackOutcome::DirectoryKept => tracing::info!(
                    backend = backend.name,
                    volume,
                    "claim deleted: kept its directory, which the operator did not create"
                ),
                RollbackOutcome::NotEmpty => tracing::warn!(
                    backend = backend.name,
                    volume,
                    "claim deleted without a volume: kept its directory, which is not empty"
                ),
            }
        }
        Err(error) => {
            tracing::warn!(backend = backend.name, volume, reason = ?error.kind(), "failed to remove the directory of a deleted claim: {error}");
            // The backend's condition reports an unsigned record until an administrator resolves it. A busy one shows that
            // the claim had its volume: the directory is an archive by now, or its reclaim was interrupted.
            if !matches!(
                error,
                ExportError::RecordUnsigned { .. } | ExportError::RecordBusy { .. }
            ) {
                return;
            }
        }
    }
    drop(guard);
    backend.remove_pending(volume);
    ctx.capacity.release(volume);
    // A later claim of the same name may wait for the volume.
    ctx.waiting_claims
        .wake(ObjectRef::new(&claim.name).within(&claim.namespace));
}

/// Removes a backend's unfinished backups whose object no longer exists or has another UID.
async fn gc_backups(ctx: &Context, backend: &Backend, export: &ExportStore) {
    let archives: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    for (name, uid) in export.unfinished_archives() {
        let cached = ctx.stores.archives.get(&ObjectRef::new(&name));
        if cached.is_some_and(|object| object.uid().as_ref() == Some(&uid)) {
            continue;
        }
        // Read from the API server, because the next step removes data.
        match reads::get_opt(&archives, &name).await {
            Ok(Some(object)) if object.uid().as_ref() == Some(&uid) => continue,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    archive = name,
                    "failed to read the object of an unfinished backup: {}",
                    api_error_text(&error)
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
