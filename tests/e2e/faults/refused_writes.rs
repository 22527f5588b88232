//! Writes that the API server refuses.

use rig::Action;
use rig::objects::{condition, merge};
use rig::proxy::has_bytes;
use rig::wait;
use serde_json::{Value, json};

use crate::ha::crashes::making_of;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::denial::deny;
use crate::support::shared::{Failure, TIMEOUT, Test};

/// Name and message of the policy of the API server that refuses a write.
const REFUSED: &str = "refused-write";

/// A write to claims that the API server refuses.
struct RefusedWrite {
    /// `persistentvolumeclaims`, or a subresource of it.
    resource: &'static str,
    /// CEL expression that holds for the objects that are permitted.
    permitted: &'static str,
    /// A command that tries the write without effect.
    attempt: &'static str,
}

/// Has the API server refuse a write. Returns the binding of the policy, whose deletion ends that.
async fn refuse(env: &DedicatedCluster, write: &RefusedWrite) -> Result<Value, Failure> {
    let claims = json!({
        "apiGroups": [""], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [write.resource],
    });
    let spec = json!({
        "matchConstraints": {"resourceRules": [claims]},
        "validations": [{"expression": write.permitted, "message": REFUSED}],
    });
    let [binding, _] = deny(&env.objects, REFUSED, &spec).await?;
    // A policy takes effect after a moment.
    let attempt = format!("{} --dry-run=server 2>&1 || true", write.attempt);
    wait::until("the policy to be in force", TIMEOUT, async || {
        match env.run_as_admin(&attempt).await {
            Ok(answer) if answer.contains(REFUSED) => Ok(()),
            Ok(answer) => Err(answer),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(binding)
}

/// Waits until the operator has logged that the API server refused a write.
async fn wait_refused(env: &DedicatedCluster) -> Test {
    let refused = wait::until("a write to be refused", TIMEOUT, async || {
        let log = std::fs::read_to_string(env.operator.log()).map_err(|error| error.to_string())?;
        match log.contains(REFUSED) {
            true => Ok(()),
            false => Err("none was".to_owned()),
        }
    });
    Ok(refused.await?)
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
    let write = RefusedWrite {
        resource: "persistentvolumeclaims",
        permitted: "object.metadata.?annotations[?'nfs-operator.io/placed-on'].orValue('') != 'main'",
        attempt: "kubectl annotate pvc data --overwrite nfs-operator.io/placed-on=main",
    };
    refuse(&env, &write).await?;
    env.proxy.clear_hooks();
    env.proxy.hang(false);
    wait_refused(&env).await?;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_claim_whose_volume_the_killed_process_did_not_report_is_reported_by_the_next_one() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let mut other = env.claim("other");
    merge(&mut other, &json!({"spec": {"storageClassName": ""}}));
    env.objects.create(&other).await?;
    let write = RefusedWrite {
        resource: "persistentvolumeclaims/status",
        permitted: "object.status.?conditions.orValue([]).all(c, c.type != 'nfs-operator.io/Provisioned')",
        attempt: "kubectl patch pvc other --subresource=status --type=merge \
                  -p '{\"status\":{\"conditions\":[{\"type\":\"nfs-operator.io/Provisioned\",\"status\":\"True\"}]}}'",
    };
    let refused = refuse(&env, &write).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    env.bound(&claim).await?;
    wait_refused(&env).await?;
    env.operator.kill9().await?;
    let found = env.objects.get(&claim).await?.unwrap_or_default();
    // Neither shows that the claim was provisioned by this operator.
    assert_eq!(condition(&found, "nfs-operator.io/Provisioned"), None);
    assert_eq!(found.pointer("/metadata/annotations/nfs-operator.io~1placed-on"), None);
    env.objects.delete(&refused).await?;
    env.operator.restart().await?;
    env.objects
        .wait_condition(
            &claim,
            "nfs-operator.io/Provisioned",
            "True",
            Some("Provisioned"),
            TIMEOUT,
        )
        .await?;
    Ok(())
}
