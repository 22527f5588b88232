//! Bound claim whose data is copied, to another claim's volume or to an archive.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, ResourceExt};

use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PROVISIONED_BY, VOLUME_BACKEND};
use crate::decide::quantity::bytes;
use crate::decide::volume_directory::is_bound_to;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::text::format_amount;
use export_store::{ExportStore, VolumeDirectory};

/// Location of a claim's data.
pub(crate) struct ClaimSource {
    /// Backend of the volume.
    pub(crate) backend: Arc<Backend>,
    /// Export of the backend.
    pub(crate) export: Arc<ExportStore>,
    /// Directory and claim from the annotations of the volume.
    pub(crate) directory: VolumeDirectory,
}

impl ClaimSource {
    /// Reads the backend of the volume from the API server. What it says about backups counts from its write on: the last probe
    /// may have begun before.
    pub(crate) async fn live_backend(
        &self,
        ctx: &Context,
    ) -> Result<Result<Arc<NfsBackend>, PlannedCondition>, WriteError> {
        let (api, name) = (Api::all(ctx.clients.calls.clone()), &self.backend.name);
        let object = self.backend.live.read(&api, name).await?;
        Ok(object.ok_or_else(|| {
            let message =
                format!("waits for NfsBackend {name} of the claim's volume, which does not exist: create it again");
            PlannedCondition::fails(Reason::BackendNotFound, message)
        }))
    }
}

/// Reason why a claim cannot be copied now.
#[derive(Debug)]
pub(crate) enum ClaimSourceError {
    /// It is not bound.
    Unbound(PlannedCondition),
    /// It is bound, and its volume cannot be read.
    NotReady(PlannedCondition),
    /// It cannot be copied.
    Unsuitable(PlannedCondition),
}

impl ClaimSourceError {
    /// Returns the condition to report.
    pub(crate) fn into_condition(self) -> PlannedCondition {
        match self {
            Self::Unbound(condition) | Self::NotReady(condition) | Self::Unsuitable(condition) => condition,
        }
    }
}

/// Locates the data of a claim. Claim and volume are read from the API server, and the volume must agree with its
/// backend. If `max_size` is set, a larger volume is unsuitable.
pub(crate) async fn find_claim(
    ctx: &Context,
    namespace: &str,
    name: &str,
    max_size: Option<u128>,
) -> Result<Result<ClaimSource, ClaimSourceError>, WriteError> {
    let (claim, volume) = match read_bound_claim(ctx, namespace, name).await? {
        Ok(bound) => bound,
        Err(error) => return Ok(Err(error)),
    };
    let suitable = check_ownership(&volume, &claim, &ctx.settings.provisioners())
        .and_then(|()| max_size.map_or(Ok(()), |max_size| check_size(&volume, name, max_size)));
    Ok(suitable
        .map_err(ClaimSourceError::Unsuitable)
        .and_then(|()| locate(ctx, name, &volume).map_err(ClaimSourceError::NotReady)))
}

/// Reads a bound claim and its volume from the API server.
async fn read_bound_claim(
    ctx: &Context,
    namespace: &str,
    name: &str,
) -> Result<Result<(PersistentVolumeClaim, PersistentVolume), ClaimSourceError>, WriteError> {
    let read = WriteError::action("read the claim to copy");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(ctx.clients.calls.clone(), namespace);
    let claim = reads::get_opt(&claims, name).await.map_err(read)?;
    let Some(claim) = claim else {
        let missing = "does not exist in this namespace: create it, or name another claim in a new object";
        return Ok(Err(ClaimSourceError::Unbound(not_ready(name, missing))));
    };
    let volume = match check_bound(&claim, name) {
        Ok(volume) => volume,
        Err(condition) => return Ok(Err(ClaimSourceError::Unbound(condition))),
    };
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = reads::get_opt(&volumes, &volume).await.map_err(read)?;
    // A claim may name any volume: one that does not exist and one of another claim look alike.
    let volume = volume.filter(|volume| is_bound_to(volume, &claim));
    let without = || ClaimSourceError::NotReady(not_ready(name, "has no volume that is bound to it"));
    Ok(volume.map(|volume| (claim, volume)).ok_or_else(without))
}

/// Returns the name of a claim's volume if the claim is bound and not being deleted. Pure.
pub(crate) fn check_bound(claim: &PersistentVolumeClaim, name: &str) -> Result<String, PlannedCondition> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(not_ready(name, "is being deleted"));
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    match (phase, volume) {
        (Some("Bound"), Some(volume)) if !volume.is_empty() => Ok(volume),
        (Some(phase), _) => Err(not_ready(name, &format!("is {phase}: it must be Bound"))),
        (None, _) => Err(not_ready(name, "has no phase yet: it must be Bound")),
    }
}

/// Checks that the volume is bound to that claim and was provisioned by this operator. Pure.
fn check_ownership(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    provisioners: &[&str],
) -> Result<(), PlannedCondition> {
    let (name, volume_name) = (claim.name_any(), volume.name_any());
    if !is_bound_to(volume, claim) {
        return Err(unsuitable(
            &name,
            &format!("volume {volume_name} is bound to another claim"),
        ));
    }
    let provisioner = volume.annotations().get(PROVISIONED_BY);
    let is_own = provisioner.is_some_and(|name| provisioners.contains(&name.as_str()));
    if !is_own || !volume.annotations().contains_key(VOLUME_BACKEND) {
        return Err(unsuitable(
            &name,
            &format!("volume {volume_name} was not provisioned by this operator"),
        ));
    }
    Ok(())
}

/// Checks that the volume to copy is not larger than the size requested. Pure.
fn check_size(volume: &PersistentVolume, name: &str, requested: u128) -> Result<(), PlannedCondition> {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    let size = capacity
        .and_then(|capacity| bytes(&capacity.get("storage")?.0))
        .unwrap_or_default();
    if size <= requested {
        return Ok(());
    }
    Err(unsuitable(
        name,
        &format!(
            "it has {}, and this claim requests {}: recreate the claim with at least as much",
            format_amount(size),
            format_amount(requested)
        ),
    ))
}

/// Returns the location of a claim's data if its volume matches its backend.
fn locate(ctx: &Context, claim: &str, volume: &PersistentVolume) -> Result<ClaimSource, PlannedCondition> {
    let name = volume.annotations().get(VOLUME_BACKEND).cloned().unwrap_or_default();
    let missing = |condition: PlannedCondition| not_ready(claim, &format!("cannot be read: {}", condition.message));
    let backend = ctx.registered_backend(&name).map_err(missing)?;
    let snapshot = backend.last_probe();
    let Some(export) = snapshot.store.clone() else {
        return Err(not_ready(
            claim,
            &format!("is on backend {name}: {}", snapshot.ready.message),
        ));
    };
    match snapshot.volume_directory(volume) {
        Ok(directory) => Ok(ClaimSource {
            backend,
            export,
            directory,
        }),
        Err(condition) => Err(not_ready(claim, &format!("cannot be found: {}", condition.message))),
    }
}

/// Returns the condition of a claim that cannot be copied yet.
fn not_ready(claim: &str, what: &str) -> PlannedCondition {
    PlannedCondition::fails(Reason::CopySourceNotReady, format!("source claim {claim} {what}"))
}

/// Returns the condition of a claim that cannot be copied.
fn unsuitable(claim: &str, what: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::CopySourceUnsuitable,
        format!("claim {claim} cannot be copied: {what}"),
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
    fn only_a_bound_claim_that_is_not_being_deleted_is_copied() {
        let result = |claim| check_bound(&claim, "old").map_err(|condition| condition.reason);
        assert_eq!(result(bound()), Ok("pvc-u1".to_owned()));
        let mut deleting = bound();
        deleting.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let pending = claim(&json!({"phase": "Pending"}), &json!({}));
        let lost = claim(&json!({"phase": "Lost"}), &json!({"volumeName": "pvc-u1"}));
        for claim in [deleting, pending, lost] {
            assert_eq!(result(claim), Err(Reason::CopySourceNotReady));
        }
    }

    #[test]
    fn only_a_volume_of_this_operator_is_copied() {
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
        let result =
            |change: &Value| check_ownership(&volume(change), &bound(), &["us"]).map_err(|condition| condition.reason);
        assert_eq!(result(&json!({})), Ok(()));
        for change in [
            json!({"at": "/spec/claimRef/uid", "to": "other"}),
            json!({"at": "/spec/claimRef", "to": null}),
            json!({"at": "/metadata/annotations", "to": {PROVISIONED_BY: "us"}}),
            json!({"at": "/metadata/annotations", "to": {PROVISIONED_BY: "them", VOLUME_BACKEND: "fast"}}),
        ] {
            assert_eq!(result(&change), Err(Reason::CopySourceUnsuitable), "{change}");
        }
    }

    #[test]
    fn only_a_volume_that_is_not_larger_is_copied_to_a_claim() {
        let volume = json!({"metadata": {"name": "pvc-u1"}, "spec": {"capacity": {"storage": "1Gi"}}});
        let volume = serde_json::from_value(volume).unwrap();
        let result = |requested: u128| check_size(&volume, "old", requested).map_err(|condition| condition.reason);
        assert_eq!(result(1 << 30), Ok(()));
        assert_eq!(result((1 << 30) - 1), Err(Reason::CopySourceUnsuitable));
    }
}
