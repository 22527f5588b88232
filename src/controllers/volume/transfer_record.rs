//! Transfer of a volume's record to the claim that the volume is bound to now, if that is another one: the volume was
//! recovered, or an administrator removed its `claimRef`. Afterwards, the deletion of that claim releases the volume like
//! any other volume.
//!
//! Only the binder and administrators write `claimRef`, so no tenant can get another's record by this.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::plan::recorded_claim;
use super::report::ReclaimOutcome;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{VOLUME_BACKEND, VOLUME_CLAIM_UID, VOLUME_NAMESPACE_UID, VOLUME_READOPTED};
use crate::decide::reclaim::is_released;
use crate::decide::reclaim_request::claim_ref;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::volume_metadata::volume_metadata;
use export_store::{ClaimRef, ReclaimRequest};

/// Transfers the record, then updates the annotations of the volume. Safe to repeat.
pub async fn transfer_record(ctx: &Context, seen: &PersistentVolume) -> Result<ReclaimOutcome, WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    // Read from the API server: the record must not be transferred to a claim that the volume is no longer bound to.
    let read = reads::get_opt(&api, &seen.name_any()).await;
    let read = read.map_err(WriteError::action("read the volume before its record is transferred"))?;
    let Some(volume) = &read.filter(|read| read.uid() == seen.uid() && claim_ref(read) == claim_ref(seen)) else {
        return Ok(ReclaimOutcome::Changed);
    };
    let name = volume.annotations().get(VOLUME_BACKEND).cloned().unwrap_or_default();
    let not_now = |condition: PlannedCondition| {
        // While the claim exists, nothing waits for the transfer. The reclaim does.
        Ok(match is_released(volume) {
            true => ReclaimOutcome::Waiting(condition),
            false => ReclaimOutcome::Postponed(condition),
        })
    };
    let postponed = |reason, message: String| not_now(PlannedCondition::fails(reason, message));
    let backend = match ctx.registered_backend(&name) {
        Ok(backend) => backend,
        Err(condition) => return not_now(condition),
    };
    let snapshot = backend.last_probe();
    let Some(export) = &snapshot.store else {
        return not_now(snapshot.ready.clone());
    };
    let request = match snapshot.reclaim_request(volume) {
        Ok(request) => with_former_claim(volume, request),
        Err(condition) => return not_now(condition),
    };
    let claim = current_claim(ctx, volume);
    let Some(metadata) = volume_metadata(volume, &ctx.cluster_uid()) else {
        let message = "the volume has no size or no provisioner annotation: restore them".to_owned();
        return postponed(Reason::ReclaimUnsafe, message);
    };
    if let Err(error) = export.transfer_record(&request, &claim, &metadata).await {
        ctx.request_probe(&backend.name);
        return postponed(
            Reason::from(error.kind()),
            format!("failed to transfer the volume's record to its claim: {error}"),
        );
    }
    let annotations = json!({
        VOLUME_READOPTED: null,
        VOLUME_CLAIM_UID: claim.uid,
        VOLUME_NAMESPACE_UID: claim.namespace_uid,
    });
    let fields = json!({"metadata": {"annotations": annotations}});
    match writes::patch_as_read(&api, volume, fields, false, "set the volume's claim").await {
        Ok(()) => {
            tracing::info!(
                volume = request.volume,
                claim = claim.name,
                namespace = claim.namespace,
                "transferred the record of the volume to its claim"
            );
            Ok(ReclaimOutcome::Nothing)
        }
        Err(WriteError::NotFound | WriteError::Replaced | WriteError::Conflict) => Ok(ReclaimOutcome::Changed),
        Err(error) => Err(error),
    }
}

/// Returns the request with the claim of the record: the one that the volume was created for.
fn with_former_claim(volume: &PersistentVolume, request: ReclaimRequest) -> ReclaimRequest {
    let uid = recorded_claim(volume).unwrap_or_default();
    ReclaimRequest {
        claim: ClaimRef { uid, ..request.claim },
        ..request
    }
}

/// Returns the claim that the volume is bound to, with the current UID of its namespace.
fn current_claim(ctx: &Context, volume: &PersistentVolume) -> ClaimRef {
    let claim = claim_ref(volume);
    let namespace = ctx.namespace(&claim.namespace);
    ClaimRef {
        // Empty if the namespace was deleted: then no claim in it can request the archive.
        namespace_uid: namespace
            .and_then(|namespace| namespace.metadata.uid.clone())
            .unwrap_or_default(),
        ..claim
    }
}
