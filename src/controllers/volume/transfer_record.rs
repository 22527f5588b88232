//! Transfer of a volume's record to the claim that the volume is bound to now, if that is another one: the volume was
//! recovered, or an administrator removed its `claimRef`. Afterwards, the deletion of that claim releases the volume like
//! any other volume.
//!
//! If the directory was archived or deleted for an earlier claim before the volume was bound again, the record remains
//! that claim's, and the volume is reclaimed for it.
//!
//! Only the binder and administrators write `claimRef`, so no tenant can get another's record by this.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::plan::{RecordOwner, recorded_claim};
use super::report_existing::report_existing_volume;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{VOLUME_BACKEND, VOLUME_CLAIM_UID, VOLUME_NAMESPACE_UID, VOLUME_READOPTED};
use crate::decide::volume_directory::claim_ref;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::volume_metadata::volume_metadata;
use export_store::{ClaimRef, ExportError, RecordTransfer, VolumeDirectory};

/// Result of an attempt to transfer a record.
#[derive(Debug)]
pub enum TransferOutcome {
    /// The record and the volume name the claim.
    Transferred,
    /// The volume changed in the meantime; its next event follows.
    Changed,
    /// There is no record to transfer: it is that of a former claim, or does not exist.
    NotTransferable(RecordOwner, PlannedCondition),
    /// The record cannot be transferred now.
    NotNow(PlannedCondition),
}

/// Transfers the record, then updates the annotations of the volume. Safe to repeat.
pub async fn transfer_record(ctx: &Context, seen: &PersistentVolume) -> Result<TransferOutcome, WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    // Read from the API server: the record must not be transferred to a claim that the volume is no longer bound to.
    let read = reads::get_opt(&api, &seen.name_any()).await;
    let read = read.map_err(WriteError::action("read the volume before its record is transferred"))?;
    let Some(volume) = &read.filter(|read| read.uid() == seen.uid() && claim_ref(read) == claim_ref(seen)) else {
        return Ok(TransferOutcome::Changed);
    };
    // Before the volume names the claim in its annotations: afterwards, nothing shows that the report is missing.
    report_existing_volume(ctx, volume).await?;
    let name = volume.annotations().get(VOLUME_BACKEND).cloned().unwrap_or_default();
    let not_now = |condition| Ok(TransferOutcome::NotNow(condition));
    let backend = match ctx.registered_backend(&name) {
        Ok(backend) => backend,
        Err(condition) => return not_now(condition),
    };
    let snapshot = backend.last_probe();
    let Some(export) = &snapshot.store else {
        return not_now(snapshot.ready.clone());
    };
    let directory = match snapshot.volume_directory(volume) {
        Ok(directory) => with_former_claim(volume, directory),
        Err(condition) => return not_now(condition),
    };
    let claim = current_claim(ctx, volume).await?;
    let Some(metadata) = volume_metadata(volume, &ctx.cluster_uid()) else {
        let message = "the volume has no size or no provisioner annotation: restore them".to_owned();
        return not_now(PlannedCondition::fails(Reason::ReclaimUnsafe, message));
    };
    match export.transfer_record(&directory, &claim, &metadata).await {
        Ok(RecordTransfer::Transferred) => {}
        Ok(RecordTransfer::Reclaimed(former)) => {
            let message = format!(
                "the volume's directory was archived or deleted for claim {}/{} before the volume was bound again: its \
                 record stays as it is",
                former.namespace, former.name
            );
            let condition = PlannedCondition::fails(Reason::DirectoryMissing, message);
            return Ok(TransferOutcome::NotTransferable(
                RecordOwner::FormerClaim(former),
                condition,
            ));
        }
        Err(error) => {
            let message = format!("failed to transfer the volume's record to its claim: {error}");
            let condition = PlannedCondition::fails(Reason::from(error.kind()), message);
            // The reclaim reports that, and whether it is acknowledged.
            if matches!(
                error,
                ExportError::DirectoryMissing { .. } | ExportError::RecordMissing { .. }
            ) {
                return Ok(TransferOutcome::NotTransferable(RecordOwner::Nobody, condition));
            }
            ctx.request_probe(&backend.name);
            return not_now(condition);
        }
    }
    let annotations = json!({
        VOLUME_READOPTED: null,
        VOLUME_CLAIM_UID: claim.uid,
        VOLUME_NAMESPACE_UID: claim.namespace_uid,
    });
    let fields = json!({"metadata": {"annotations": annotations}});
    match writes::patch_as_read(&api, volume, fields, false, "set the volume's claim").await {
        Ok(_) => {
            tracing::info!(
                volume = directory.volume,
                claim = claim.name,
                namespace = claim.namespace,
                "transferred the record of the volume to its claim"
            );
            Ok(TransferOutcome::Transferred)
        }
        Err(WriteError::NotFound | WriteError::Replaced | WriteError::Conflict) => Ok(TransferOutcome::Changed),
        Err(error) => Err(error),
    }
}

/// Returns the directory with the claim of the record: the one that the volume was created for.
fn with_former_claim(volume: &PersistentVolume, directory: VolumeDirectory) -> VolumeDirectory {
    let uid = recorded_claim(volume).unwrap_or_default();
    VolumeDirectory {
        claim: ClaimRef { uid, ..directory.claim },
        ..directory
    }
}

/// Returns the claim that the volume is bound to, with the UID of its namespace. Both are read from the API server, because
/// they decide who may restore the data later.
///
/// The UID is empty if it is not known, because the claim is gone, perhaps with its namespace: one of the same name must not
/// get the data. Then no claim can request the archive.
async fn current_claim(ctx: &Context, volume: &PersistentVolume) -> Result<ClaimRef, WriteError> {
    let claim = claim_ref(volume);
    let namespaces: Api<Namespace> = Api::all(ctx.clients.calls.clone());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(ctx.clients.calls.clone(), &claim.namespace);
    // The namespace first: if the claim exists afterwards, it was in this namespace then.
    let namespace = reads::get_metadata_opt(&namespaces, &claim.namespace).await;
    let namespace = namespace.map_err(WriteError::action("read the namespace of the volume's claim"))?;
    let uid = namespace.and_then(|namespace| namespace.uid()).unwrap_or_default();
    // The namespace of the former claim has existed all the time.
    let is_former = volume.annotations().get(VOLUME_NAMESPACE_UID) == Some(&uid);
    let is_known = is_former || {
        let found = reads::get_metadata_opt(&claims, &claim.name).await;
        let found = found.map_err(WriteError::action("read the claim of the volume"))?;
        found.and_then(|found| found.uid()).as_ref() == Some(&claim.uid)
    };
    Ok(ClaimRef {
        namespace_uid: if is_known { uid } else { String::new() },
        ..claim
    })
}
