//! The number of API requests that the operator makes for each claim and each volume, and for what waits, as the audit log shows
//! them.

use std::collections::BTreeMap;
use std::time::Duration;

use rig::objects::reference;
use serde_json::{Value, json};

use crate::backups::nfs_backup;
use crate::support::audit;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

/// Number of claims of each kind.
const CLAIMS: usize = 20;
/// Pause without a request after which all requests were made.
const QUIET: Duration = Duration::from_secs(3);

/// Requests of the operator about the objects of users, by verb and resource.
type Requests = BTreeMap<String, usize>;

fn requests(env: &DedicatedCluster) -> Result<Requests, Failure> {
    let mut counts = Requests::new();
    for request in audit::requests(&env.cluster.audit_log())? {
        let (verb, resource) = (text(&request, "/verb"), text(&request, "/objectRef/resource"));
        let is_about_users = matches!(
            resource,
            "persistentvolumeclaims" | "persistentvolumes" | "events" | "nfsarchives"
        );
        if is_about_users && !matches!(verb, "list" | "watch") {
            let part = text(&request, "/objectRef/subresource");
            *counts.entry(format!("{verb} {resource}/{part}")).or_default() += 1;
        }
    }
    Ok(counts)
}

/// Waits until the operator makes no more requests. Returns those since `before`.
async fn requests_since(env: &DedicatedCluster, before: &Requests) -> Result<Requests, Failure> {
    let last = rig::wait::until("the operator to be idle", TIMEOUT, async || {
        let counted = || requests(env).map_err(|error| error.to_string());
        let last = counted()?;
        tokio::time::sleep(QUIET).await;
        let now = counted()?;
        if now == last { Ok(now) } else { Err(format!("{now:?}")) }
    })
    .await?;
    let mut since = last;
    for (request, count) in before {
        *since.entry(request.clone()).or_default() -= count;
    }
    since.retain(|_, count| *count > 0);
    Ok(since)
}

/// Checks that the operator made at most this number of requests for each of the claims: one more than needed, because the
/// binder and the operator may be in each other's way.
fn assert_at_most(what: &str, made: &Requests, each: usize) {
    let total: usize = made.values().sum();
    println!("{what}: {:.2} requests, {made:?}", total as f64 / CLAIMS as f64);
    assert!(total <= CLAIMS * each, "{what}: at most {each} for each, {made:?}");
}

async fn provision(env: &DedicatedCluster, name: &str) -> Result<Vec<(Value, Value)>, Failure> {
    let mut provisioned = Vec::new();
    for number in 0..CLAIMS {
        let claim = env.objects.create(&env.claim(&format!("{name}-{number}"))).await?;
        let volume = env.bound(&claim).await?;
        std::fs::write(env.directory(&volume)?.join("file"), name)?;
        provisioned.push((claim, volume));
    }
    Ok(provisioned)
}

async fn reclaim(env: &DedicatedCluster, provisioned: &[(Value, Value)]) -> Test {
    for (claim, volume) in provisioned {
        env.objects.delete(claim).await?;
        env.objects.wait_gone(volume, TIMEOUT).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_claim_and_each_volume_costs_few_requests() -> Test {
    let env = DedicatedCluster::start(json!({"archivePolicy": {"onDelete": "Delete"}, "probeInterval": "10s"})).await?;
    for (policy, at_most) in [("Delete", 5), ("Archive", 7)] {
        let main = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
        let spec = json!({"spec": {"archivePolicy": {"onDelete": policy}}});
        env.objects.patch(&main, spec).await?;
        let before = requests_since(&env, &Requests::new()).await?;
        let provisioned = provision(&env, &policy.to_lowercase()).await?;
        let made = requests_since(&env, &before).await?;
        assert_at_most("claim", &made, 3);
        let before = requests_since(&env, &Requests::new()).await?;
        reclaim(&env, &provisioned).await?;
        let made = requests_since(&env, &before).await?;
        assert_at_most(policy, &made, at_most);
    }
    // The first call about limits would create their folder.
    for cluster in std::fs::read_dir(env.data()?.join(".nfs-operator"))? {
        let quota = cluster?.path().join("quota");
        assert!(!quota.exists(), "without spec.quota, {} is of no use", quota.display());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_one_backend_is_not_checked_again_for_other_backends_and_classes() -> Test {
    // Nothing is retried on its own meanwhile.
    let args = ["--retry-min", "1h", "--retry-max", "1h"];
    let spec = json!({"probeInterval": "1s", "capacity": {"limit": "24Mi"}});
    let env = DedicatedCluster::start_with_args(spec, &args).await?;
    // Of 24 MiB, 20 are in use: no claim can get 5 more.
    for (claim, _) in provision(&env, "full").await? {
        let request = json!({"spec": {"resources": {"requests": {"storage": "6Mi"}}}});
        let claim = env.objects.patch(&claim, request).await?;
        let waits = |claim: &Value| match text(claim, "/status/allocatedResourceStatuses/storage") {
            "ControllerResizeInfeasible" => Ok(()),
            state => Err(state.to_owned()),
        };
        env.objects.wait(&claim, "to wait for capacity", TIMEOUT, waits).await?;
        let source = json!({"source": {"claimName": claim["metadata"]["name"]}});
        let backup = nfs_backup("default", text(&claim, "/metadata/name"), &source);
        let backup = env.objects.create(&backup).await?;
        let reason = Some("SelfServiceNotAllowed");
        env.objects
            .wait_condition(&backup, "Ready", "False", reason, TIMEOUT)
            .await?;
    }
    let before = requests_since(&env, &Requests::new()).await?;
    let spec = json!({"probeInterval": "1s", "backups": {"selfService": {"maxBytesPerNamespace": "1Gi"}}});
    env.backend(json!({"metadata": {"name": "other"}, "spec": spec}))
        .await?;
    env.class("other", json!({})).await?;
    let mut made = requests_since(&env, &before).await?;
    // Claims are read for an expansion and for a backup.
    made.retain(|request, _| request.starts_with("get persistentvolume"));
    assert!(made.is_empty(), "{made:?}");

    let main = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let settings = json!({"backups": {"selfService": {"maxBytesPerNamespace": "1Gi"}}, "capacity": {"limit": "1Gi"}});
    env.objects.patch(&main, json!({ "spec": settings })).await?;
    rig::wait::until("all expansions and backups to succeed", TIMEOUT, async || {
        let claims: Vec<Value> = env
            .objects
            .list(&env.claim("any"))
            .await
            .map_err(|error| error.to_string())?;
        let grown = claims
            .iter()
            .filter(|claim| text(claim, "/status/capacity/storage") == "6Mi");
        let archives = env.archives().await.map_err(|error| error.to_string())?.len();
        match (grown.count(), archives) {
            (CLAIMS, CLAIMS) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}
