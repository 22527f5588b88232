//! Writes that the API server refuses.

use rig::Action;
use rig::objects::{merge, reference};
use rig::proxy::has_bytes;
use rig::wait;
use serde_json::json;

use crate::ha::crashes::making_of;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{TIMEOUT, Test};

/// A policy of the API server that refuses the placement of claims on the backend `main`.
const REFUSED: &str = "refused-placement";

async fn refuse_placements(env: &DedicatedCluster) -> Test {
    let kind = "admissionregistration.k8s.io/v1";
    let mut policy = reference(kind, "ValidatingAdmissionPolicy", None, REFUSED);
    let claims = json!({
        "apiGroups": [""], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["persistentvolumeclaims"],
    });
    let placement = "object.metadata.?annotations[?'nfs-operator.io/placed-on'].orValue('')";
    let spec = json!({
        "matchConstraints": {"resourceRules": [claims]},
        "validations": [{"expression": format!("{placement} != 'main'"), "message": REFUSED}],
    });
    merge(&mut policy, &json!({ "spec": spec }));
    env.objects.create(&policy).await?;
    let mut binding = reference(kind, "ValidatingAdmissionPolicyBinding", None, REFUSED);
    let spec = json!({"policyName": REFUSED, "validationActions": ["Deny"]});
    merge(&mut binding, &json!({ "spec": spec }));
    env.objects.create(&binding).await?;
    // A policy takes effect after a moment.
    let place = "kubectl annotate pvc data --overwrite --dry-run=server nfs-operator.io/placed-on=main 2>&1 || true";
    wait::until("the policy to be in force", TIMEOUT, async || {
        match env.run_as_admin(place).await {
            Ok(answer) if answer.contains(REFUSED) => Ok(()),
            Ok(answer) => Err(answer),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placement_that_is_refused_leaves_nothing_of_an_earlier_attempt_once_the_claim_is_deleted() -> Test {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    // The directory is created, and the operator does not know.
    let mut lost = env.proxy.lose_reply(Action::Drop, |request| {
        has_bytes(request, &making_of("default-data-pvc-", 36))
    });
    let claim = env.objects.create(&env.claim("data")).await?;
    lost.wait(TIMEOUT).await?;
    env.proxy.hang(true);
    let condition = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, condition, "False", None, TIMEOUT)
        .await?;
    assert_eq!((env.names()?.len(), env.records()?.len()), (1, 1));
    // The next attempt writes the placement again.
    let elsewhere = json!({"metadata": {"annotations": {"nfs-operator.io/placed-on": "other"}}});
    env.objects.patch(&claim, elsewhere).await?;
    refuse_placements(&env).await?;
    env.proxy.clear_hooks();
    env.proxy.hang(false);
    wait::until("the placement to be refused", TIMEOUT, async || {
        let log = std::fs::read_to_string(env.operator.log()).map_err(|error| error.to_string())?;
        match log.contains(REFUSED) {
            true => Ok(()),
            false => Err("it was not".to_owned()),
        }
    })
    .await?;
    assert_eq!(env.volumes().await?.len(), 0);
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    wait::until("directory and record to be removed", TIMEOUT, async || {
        let names = env.names().map_err(|error| error.to_string())?;
        let records = env.records().map_err(|error| error.to_string())?;
        match names.is_empty() && records.is_empty() {
            true => Ok(()),
            false => Err(format!("{names:?} {records:?}")),
        }
    })
    .await?;
    Ok(())
}
