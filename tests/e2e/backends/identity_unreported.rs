//! An identity that was created although the status of the backend never reported it.

use std::fs;

use rig::objects::{merge, reference};
use rig::wait;
use serde_json::json;

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::denial::deny;
use crate::support::shared::{Failure, TIMEOUT, Test};

/// A policy of the API server that refuses every report of the identity.
const UNSAID: &str = "unsaid";

async fn silence(env: &DedicatedCluster) -> Test {
    let statuses = json!({
        "apiGroups": ["nfs-operator.io"], "apiVersions": ["*"],
        "operations": ["UPDATE"], "resources": ["nfsbackends/status"],
    });
    let spec = json!({
        "matchConstraints": {"resourceRules": [statuses]},
        "matchConditions": [{"name": "those-two", "expression": format!("object.metadata.name in ['main', '{UNSAID}']")}],
        "validations": [{"expression": "false", "message": "nothing is said"}],
    });
    deny(&env.objects, UNSAID, &spec).await?;
    // A policy takes effect after a moment. It covers another backend, too, to detect that moment.
    let reported = "kubectl patch nfsb main --subresource=status --type=merge --patch '{\"status\": {}}' 2>&1 || true";
    wait::until("the policy to be in force", TIMEOUT, async || {
        match env.run_as_admin(reported).await {
            Ok(answer) if answer.contains("nothing is said") => Ok(()),
            Ok(answer) => Err(answer),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

/// Waits for a probe with this result. Only the metrics show it.
async fn probed(env: &DedicatedCluster, ready: u8) -> Test {
    let series = format!("nfs_operator_backend_ready{{backend=\"{UNSAID}\"}} {ready}.0");
    wait::until(&format!("{series} in the metrics"), TIMEOUT, async || {
        let metrics = env.operator.metrics().await.map_err(|error| error.to_string())?;
        let reported = metrics.lines().find(|line| line.contains(UNSAID));
        match metrics.lines().any(|line| line == series) {
            true => Ok(()),
            false => Err(reported.unwrap_or("no word of it").to_owned()),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_is_not_created_twice_although_the_status_never_reported_it() -> Test {
    let env = DedicatedCluster::start(json!({})).await?;
    silence(&env).await?;
    let root = env.data()?.join(UNSAID);
    fs::create_dir(&root)?;
    let mut backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, UNSAID);
    let spec = json!({
        "server": "127.0.0.1", "path": format!("/export/{UNSAID}"), "probeInterval": "1s",
        "nfs": {"port": env.proxy.port()},
    });
    merge(&mut backend, &json!({ "spec": spec }));
    let backend = env.objects.create(&backend).await?;
    probed(&env, 1).await?;
    let reported = || async {
        let found = env.objects.get(&backend).await?.ok_or("the backend is gone")?;
        Ok::<_, Failure>(found["status"]["export"]["id"].clone())
    };
    assert!(reported().await?.is_null(), "it was not silenced in time");
    let own = root.join(".nfs-operator");
    // As if a disk is not mounted.
    fs::rename(&own, root.join("aside"))?;
    probed(&env, 0).await?;
    assert!(reported().await?.is_null());
    assert!(!own.exists(), "nothing is created on a foreign export");
    fs::rename(root.join("aside"), &own)?;
    probed(&env, 1).await
}
