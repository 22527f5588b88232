//! The data of a claim in use, to be copied: for another claim, or for an archive that somebody asks for.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, ResourceExt};

use super::volume;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PROVISIONED_BY, VOLUME_BACKEND};
use crate::runtime::writes::WriteError;
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use export_store::{ExportStore, ReclaimRequest};

/// Where the data of a claim are.
pub(crate) struct Located {
    /// The backend.
    pub(crate) backend: Arc<Backend>,
    /// What its last probe found.
    pub(crate) known: Arc<ProbeSnapshot>,
    /// Its export.
    pub(crate) export: Arc<ExportStore>,
    /// The volume, as it says of itself.
    pub(crate) request: ReclaimRequest,
}

/// A claim that is Bound, and its volume: both read live.
pub(crate) async fn bound(
    ctx: &Context,
    namespace: &str,
    name: &str,
) -> Result<Result<(PersistentVolumeClaim, PersistentVolume), PlannedCondition>, WriteError> {
    let read = WriteError::of("read the claim to copy");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(ctx.clients.calls.clone(), namespace);
    let claim = claims.get_opt(name).await.map_err(read)?;
    let (claim, volume) = match copyable(claim, name) {
        Ok(found) => found,
        Err(verdict) => return Ok(Err(verdict)),
    };
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = volumes.get_opt(&volume).await.map_err(read)?;
    let lost = || not_ready(name, "has lost its volume");
    Ok(volume.map(|volume| (claim, volume)).ok_or_else(lost))
}

/// Whether a claim as it stands can be copied; it, and its volume's name. Pure.
fn copyable(
    claim: Option<PersistentVolumeClaim>,
    name: &str,
) -> Result<(PersistentVolumeClaim, String), PlannedCondition> {
    let Some(claim) = claim else {
        return Err(not_ready(
            name,
            "does not exist in this namespace: create it, or name another one in a new object",
        ));
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(not_ready(name, "is being deleted"));
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    match (phase, volume) {
        (Some("Bound"), Some(volume)) if !volume.is_empty() => Ok((claim, volume)),
        (phase, _) => {
            let phase = phase.unwrap_or("not looked at yet");
            Err(not_ready(name, &format!("is {phase}: it has to be Bound")))
        }
    }
}

/// Whether a volume can be copied: bound to that claim, and ours. Pure.
pub(crate) fn suitable(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    provisioners: &[&str],
) -> Result<(), PlannedCondition> {
    let (name, found) = (claim.name_any(), volume.name_any());
    let claim_ref = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let bound_to = claim_ref.and_then(|claim| claim.uid.clone());
    if bound_to.is_none() || bound_to != claim.uid() {
        return Err(unsuitable(&name, &format!("volume {found} is bound to another claim")));
    }
    let by = volume.annotations().get(PROVISIONED_BY);
    let ours = by.is_some_and(|name| provisioners.contains(&name.as_str()));
    if !ours || !volume.annotations().contains_key(VOLUME_BACKEND) {
        return Err(unsuitable(
            &name,
            &format!("volume {found} was not made by this operator"),
        ));
    }
    Ok(())
}

/// Where a claim's data are, if all that its volume says of itself agrees with its backend.
pub(crate) fn locate(ctx: &Context, claim: &str, volume: &PersistentVolume) -> Result<Located, PlannedCondition> {
    let home = volume.annotations().get(VOLUME_BACKEND).cloned().unwrap_or_default();
    let Some(backend) = ctx.backends.get(&home) else {
        let what = format!("is on backend {home}, which does not exist or is not probed yet");
        return Err(not_ready(claim, &what));
    };
    let known = backend.known();
    let Some(export) = known.export.clone() else {
        return Err(not_ready(
            claim,
            &format!("is on backend {home}: {}", known.ready.message),
        ));
    };
    match volume::request(volume, &backend, &known) {
        Ok(request) => Ok(Located {
            backend,
            known,
            export,
            request,
        }),
        Err(verdict) => Err(not_ready(claim, &format!("can't be found: {}", verdict.message))),
    }
}

/// A claim can't be copied now.
fn not_ready(claim: &str, what: &str) -> PlannedCondition {
    PlannedCondition::fails(Reason::CopySourceNotReady, format!("claim {claim} to copy {what}"))
}

/// A claim can't be copied.
pub(crate) fn unsuitable(claim: &str, what: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::CopySourceUnsuitable,
        format!("claim {claim} can't be copied: {what}"),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(status: &Value, spec: &Value) -> PersistentVolumeClaim {
        let object = json!({"metadata": {"name": "old", "uid": "u1"}, "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn bound() -> PersistentVolumeClaim {
        claim(&json!({"phase": "Bound"}), &json!({"volumeName": "pvc-u1"}))
    }

    #[test]
    fn only_a_bound_claim_that_stays_is_copied() {
        let told = |claim: Option<PersistentVolumeClaim>| {
            let found = copyable(claim, "old").map(|(_, volume)| volume);
            found.map_err(|verdict| verdict.reason)
        };
        assert_eq!(told(Some(bound())), Ok("pvc-u1".to_owned()));
        let mut leaving = bound();
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let pending = claim(&json!({"phase": "Pending"}), &json!({}));
        let lost = claim(&json!({"phase": "Lost"}), &json!({"volumeName": "pvc-u1"}));
        for claim in [None, Some(leaving), Some(pending), Some(lost)] {
            assert_eq!(told(claim), Err(Reason::CopySourceNotReady));
        }
    }

    #[test]
    fn only_a_volume_of_ours_is_copied() {
        let volume = |change: &Value| -> PersistentVolume {
            let mut object = json!({
                "metadata": {"name": "pvc-u1", "annotations": {PROVISIONED_BY: "us", VOLUME_BACKEND: "fast"}},
                "spec": {"capacity": {"storage": "1Gi"}, "claimRef": {"uid": "u1"}},
            });
            if let (Some(pointer), Some(value)) = (change["at"].as_str(), change.get("to")) {
                *object.pointer_mut(pointer).unwrap() = value.clone();
            }
            serde_json::from_value(object).unwrap()
        };
        let told = |change: &Value| suitable(&volume(change), &bound(), &["us"]).map_err(|verdict| verdict.reason);
        assert_eq!(told(&json!({})), Ok(()));
        for change in [
            json!({"at": "/spec/claimRef/uid", "to": "other"}),
            json!({"at": "/spec/claimRef", "to": null}),
            json!({"at": "/metadata/annotations", "to": {PROVISIONED_BY: "us"}}),
            json!({"at": "/metadata/annotations", "to": {PROVISIONED_BY: "them", VOLUME_BACKEND: "fast"}}),
        ] {
            assert_eq!(told(&change), Err(Reason::CopySourceUnsuitable), "{change}");
        }
    }
}
