//! A volume that was made again, and its claim has it now: the record on the export becomes that claim's, so that the end of
//! the claim is the end of the volume as for any other.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::note;
use super::reclaim::{claim_of, request};
use super::report::Outcome;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{VOLUME_BACKEND, VOLUME_NAMESPACE_UID, VOLUME_READOPTED};
use crate::decide::policy::is_released;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use export_store::{ClaimRef, ReclaimRequest};

/// Whether a volume has a claim, and its record may be another one's yet.
pub fn is_due(volume: &PersistentVolume) -> bool {
    volume.annotations().contains_key(VOLUME_READOPTED)
        && volume.annotations().contains_key(VOLUME_BACKEND)
        && !claim_of(volume).uid.is_empty()
}

/// Hands the record over, then says so on the volume. Repeated, it goes on where it was.
pub async fn transfer_record(ctx: &Context, volume: &PersistentVolume) -> Result<Outcome, WriteError> {
    let name = volume.annotations().get(VOLUME_BACKEND).cloned().unwrap_or_default();
    let not_now = |verdict: PlannedCondition| {
        // Nobody waits for it while the claim is there; its reclaim does.
        Ok(match is_released(volume) {
            true => Outcome::Waiting(verdict),
            false => Outcome::Later(verdict),
        })
    };
    let later = |reason, message: String| not_now(PlannedCondition::fails(reason, message));
    let Some(backend) = ctx.backends.get(&name) else {
        return later(
            Reason::NotProbed,
            format!("backend {name} does not exist or is not probed yet"),
        );
    };
    let known = backend.known();
    let Some(export) = &known.export else {
        return not_now(known.ready.clone());
    };
    let request = match request(volume, &backend, &known) {
        Ok(request) => as_recorded(volume, request),
        Err(verdict) => return not_now(verdict),
    };
    let to = now_has(ctx, volume);
    let Some(note) = note::volume_metadata(volume, &ctx.cluster_uid()) else {
        let message = "it says neither its size nor its provisioner: put them back".to_owned();
        return later(Reason::ReclaimUnsafe, message);
    };
    if let Err(error) = export.transfer_record(&request, &to, &note).await {
        ctx.request_probe(&backend.name);
        return later(
            Reason::from(error.kind()),
            format!("its record can't be given to its claim: {error}"),
        );
    }
    let annotations = json!({VOLUME_READOPTED: null, VOLUME_NAMESPACE_UID: to.namespace_uid});
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let (fields, action) = (
        json!({"metadata": {"annotations": annotations}}),
        "note whose volume it is now",
    );
    match writes::patch_as_read(&api, volume, fields, false, action).await {
        Ok(()) => {
            tracing::info!(
                volume = request.volume,
                claim = to.name,
                namespace = to.namespace,
                "has its claim again"
            );
            Ok(Outcome::Nothing)
        }
        Err(WriteError::NotFound | WriteError::Conflict) => Ok(Outcome::Changed),
        Err(error) => Err(error),
    }
}

/// What the record says: the claim that the volume was made for first.
fn as_recorded(volume: &PersistentVolume, request: ReclaimRequest) -> ReclaimRequest {
    let first = volume.annotations().get(VOLUME_READOPTED).cloned().unwrap_or_default();
    ReclaimRequest {
        claim: ClaimRef {
            uid: first,
            ..request.claim
        },
        ..request
    }
}

/// The claim that has the volume now, in its namespace as it is now.
fn now_has(ctx: &Context, volume: &PersistentVolume) -> ClaimRef {
    let claim = claim_of(volume);
    let namespace = ctx.namespace(&claim.namespace);
    ClaimRef {
        // Gone again: then nobody is in it any more who could ask for what was there.
        namespace_uid: namespace
            .and_then(|namespace| namespace.metadata.uid.clone())
            .unwrap_or_default(),
        ..claim
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_record_is_handed_over_when_the_volume_has_a_claim() {
        let volume = |annotations: Value, uid: Option<&str>| -> PersistentVolume {
            let claim = json!({"namespace": "team", "name": "data", "uid": uid});
            let object =
                json!({"metadata": {"name": "pvc-1", "annotations": annotations}, "spec": {"claimRef": claim}});
            serde_json::from_value(object).unwrap()
        };
        let ours = json!({VOLUME_READOPTED: "u", VOLUME_BACKEND: "main"});
        assert!(is_due(&volume(ours.clone(), Some("v"))));
        assert!(!is_due(&volume(ours.clone(), None)));
        assert!(!is_due(&volume(json!({VOLUME_BACKEND: "main"}), Some("v"))));
    }
}
