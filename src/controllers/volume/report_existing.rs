//! Report of a volume to a claim that requested none, because the volume existed: it was recovered for the claim, filled for it
//! by a populator, or given to it by an administrator. The binder then requests no provisioner.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, ResourceExt};

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{CLAIM_CONDITION, managers};
use crate::decide::volume_directory::{claim_ref, is_bound_to};
use crate::decide::volume_location::volume_location;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::claim_condition;
use crate::state::context::Context;

/// Sets the condition of the claim that a volume names, if the claim reports nothing yet.
pub async fn report_existing_volume(ctx: &Context, volume: &PersistentVolume) -> Result<(), WriteError> {
    let owner = claim_ref(volume);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(ctx.clients.calls.clone(), &owner.namespace);
    let claim = reads::get_opt(&claims, &owner.name).await;
    let claim = claim.map_err(WriteError::action("read the claim of a volume that existed before it"))?;
    let Some(claim) = claim.filter(|claim| has_to_report(claim, volume)) else {
        return Ok(());
    };
    let condition = PlannedCondition::holds(Reason::Provisioned, volume_location(volume, &claim));
    let field = (CLAIM_CONDITION, managers::CONDITION);
    claim_condition::set_planned(ctx, &claim, field, &condition).await?;
    Ok(())
}

/// Returns true if a claim was given a volume that existed and reports nothing yet. A claim that reports why it waits is in the
/// cache, and its own reconciler reports the volume.
fn has_to_report(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    // The binder sets `volumeName` of the claim after `claimRef` of the volume.
    let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    is_bound_to(volume, claim)
        && bound_to.is_none_or(|name| name.is_empty() || name == volume.name_any())
        && claim.metadata.deletion_timestamp.is_none()
        && claim_condition::find(claim, CLAIM_CONDITION).is_none()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use crate::runtime::writes::merge;

    #[test]
    fn a_claim_reports_the_volume_that_existed_and_was_bound_to_it_unless_it_reports_something() {
        let volume = json!({
            "metadata": {"name": "pvc-previous"},
            "spec": {"claimRef": {"namespace": "n", "name": "c", "uid": "u"}},
        });
        let volume = serde_json::from_value(volume).unwrap();
        let has_to_report = |change: Value| {
            let mut claim = json!({
                "metadata": {"name": "c", "namespace": "n", "uid": "u"},
                "spec": {"volumeName": "pvc-previous"},
                "status": {"phase": "Bound"},
            });
            merge(&mut claim, change);
            super::has_to_report(&serde_json::from_value(claim).unwrap(), &volume)
        };
        assert!(has_to_report(json!({})), "recovered");
        let pending = json!({"spec": {"volumeName": null}, "status": {"phase": "Pending"}});
        assert!(has_to_report(pending), "the binder writes the volume first");
        let elsewhere = json!({"spec": {"volumeName": "pvc-static"}});
        assert!(!has_to_report(elsewhere), "bound to another one");
        assert!(
            !has_to_report(json!({"metadata": {"uid": "later"}})),
            "another claim of this name"
        );
        let condition = json!({"type": "nfs-operator.io/Provisioned", "status": "False", "reason": "NoSpace"});
        assert!(
            !has_to_report(json!({"status": {"conditions": [condition]}})),
            "it waits"
        );
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(!has_to_report(deleted), "being deleted");
    }
}
