//! Storage capacity for the scheduler: classes whose provisioner is also the name of a CSIDriver.

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use super::late_binding::Nodes;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, TIMEOUT, Test, own_events, text};

/// The second provisioner name of operators in tests, for which a CSIDriver exists.
const DRIVER: &str = "nfs.nfs-operator.io";
/// What the scheduler reports if no capacity object of the class fits a node.
const NO_CAPACITY: &str = "did not have enough free storage";

/// Creates a late-binding class under the name of the CSIDriver, for these backends.
async fn late_class(env: &TestEnv, backends: &[&str]) -> rig::Result<Value> {
    let backends: Vec<String> = backends.iter().map(|word| env.unique_name(word)).collect();
    let mut class = env.class("class", json!({"backend": backends.join(",")}));
    merge(
        &mut class,
        &json!({"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    env.objects.create(&class).await
}

/// Returns the selectors and sizes that are published for a class.
async fn published(objects: &rig::Objects, class: &Value) -> rig::Result<Vec<(Value, String)>> {
    let any = reference(
        "storage.k8s.io/v1",
        "CSIStorageCapacity",
        Some("nfs-operator-system"),
        "any",
    );
    let all = objects.list(&any).await?;
    let of_class = all
        .iter()
        .filter(|object| object["storageClassName"] == class["metadata"]["name"]);
    let mut found: Vec<(Value, String)> = of_class
        .map(|object| {
            assert_eq!(object["metadata"]["labels"]["csi.storage.k8s.io/drivername"], DRIVER);
            assert_eq!(object["capacity"], object["maximumVolumeSize"]);
            (object["nodeTopology"].clone(), text(object, "/capacity").to_owned())
        })
        .collect();
    found.sort_by_key(|(nodes, _)| nodes.to_string());
    Ok(found)
}

async fn wait_published(env: &TestEnv, class: &Value, expected: &[(Value, &str)]) -> rig::Result<()> {
    let expected: Vec<(Value, String)> = expected
        .iter()
        .map(|(nodes, size)| (nodes.clone(), (*size).to_owned()))
        .collect();
    rig::wait::until("the storage capacity", TIMEOUT, async || {
        match published(&env.objects, class).await {
            Ok(found) if found == expected => Ok(()),
            other => Err(format!("{other:?} instead of {expected:?}")),
        }
    })
    .await
}

/// Waits until the scheduler reports that no node has capacity for a pod.
async fn wait_without_capacity(objects: &rig::Objects, pod: &Value) -> rig::Result<()> {
    let refused = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let refused = conditions
            .iter()
            .any(|condition| text(condition, "/message").contains(NO_CAPACITY));
        refused.then_some(()).ok_or_else(|| pod["status"].to_string())
    };
    objects.wait(pod, "to be refused a node", TIMEOUT, refused).await
}

fn selector(nodes: &Nodes<'_>, zone: &str) -> Value {
    json!({"matchExpressions": [{"key": nodes.zone(), "operator": "In", "values": [zone]}]})
}

#[tokio::test]
async fn the_scheduler_selects_a_node_that_a_backend_serves_at_once() -> Test {
    let env = TestEnv::new("capacity").await?;
    let nodes = Nodes(&env);
    let spec = json!({"nodeAffinity": nodes.affinity("served"), "capacity": {"limit": "10Gi"}});
    shared::backend(&env, "backend", spec).await?;
    let class = late_class(&env, &["backend"]).await?;
    wait_published(&env, &class, &[(selector(&nodes, "served"), "10Gi")]).await?;
    // First, so that the operator knows it before it is selected.
    let right = nodes.add("right", "served").await?;
    // Without capacity, the scheduler would most likely select one of these.
    for number in 0..9 {
        nodes.add(&format!("wrong-{number}"), "elsewhere").await?;
    }
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let pod = nodes.pod(&claim).await?;
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(nodes.of(&pod).await?, text(&right, "/metadata/name"));
    let events = own_events(&env.objects, &claim).await?;
    assert!(
        events
            .iter()
            .all(|event| event["reason"] != "Rescheduled" && event["reason"] != "ProvisioningFailed"),
        "{events:?}"
    );
    assert_eq!(volume["spec"]["nodeAffinity"], nodes.affinity("served"));
    Ok(())
}

#[tokio::test]
async fn a_volume_under_another_provisioner_name_is_reclaimed_like_any_other() -> Test {
    let env = TestEnv::new("names").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let mut class = env.class("class", json!({"backend": env.unique_name("backend")}));
    merge(&mut class, &json!({"provisioner": DRIVER}));
    let class = env.objects.create(&class).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    assert_eq!(
        volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"],
        DRIVER
    );
    assert_eq!(published(&env.objects, &class).await?, [], "it binds immediately");
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    assert_eq!(
        shared::names(env.data())?,
        Vec::<String>::new(),
        "an empty directory is removed"
    );
    Ok(())
}

#[tokio::test]
async fn a_pod_whose_claim_fits_nowhere_waits_until_the_limit_is_raised() -> Test {
    let env = TestEnv::new("capfull").await?;
    let nodes = Nodes(&env);
    let spec = json!({"capacity": {"limit": "1Gi"}});
    let backend = shared::backend(&env, "backend", spec).await?;
    let class = late_class(&env, &["backend"]).await?;
    wait_published(&env, &class, &[(json!({}), "1Gi")]).await?;
    let node = nodes.add("node", "any").await?;
    let mut claim = env.claim("data", &class);
    claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    let claim = env.objects.create(&claim).await?;
    let pod = nodes.pod(&claim).await?;
    wait_without_capacity(&env.objects, &pod).await?;
    let raised = json!({"spec": {"capacity": {"limit": "4Gi"}}});
    env.objects.patch(&backend, raised).await?;
    env.wait_bound(&claim).await?;
    assert_eq!(nodes.of(&pod).await?, text(&node, "/metadata/name"));
    Ok(())
}

#[tokio::test]
async fn the_published_capacity_follows_the_backends_and_ends_with_the_class() -> Test {
    let env = TestEnv::new("capfollow").await?;
    let nodes = Nodes(&env);
    let limit = json!({"limit": "10Gi"});
    let in_zone = |zone: &str| json!({"nodeAffinity": nodes.affinity(zone), "capacity": limit});
    shared::backend(&env, "a", in_zone("a")).await?;
    let moved = shared::backend(&env, "b", in_zone("b")).await?;
    let class = late_class(&env, &["a", "b"]).await?;
    let at = |zone: &str, size: &'static str| (selector(&nodes, zone), size);
    wait_published(&env, &class, &[at("a", "10Gi"), at("b", "10Gi")]).await?;
    // Another topology is another object.
    let change = json!({"spec": {"nodeAffinity": nodes.affinity("c")}});
    env.objects.patch(&moved, change).await?;
    wait_published(&env, &class, &[at("a", "10Gi"), at("c", "10Gi")]).await?;
    // A backend that accepts no volumes has no capacity while the other one does.
    env.objects.patch(&moved, json!({"spec": {"suspend": true}})).await?;
    wait_published(&env, &class, &[at("a", "10Gi"), at("c", "0")]).await?;
    env.objects.delete(&moved).await?;
    wait_published(&env, &class, &[at("a", "10Gi")]).await?;
    env.objects.delete(&class).await?;
    wait_published(&env, &class, &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_wait_without_capacity_objects_and_a_start_of_the_operator_publishes_them_again() -> Test {
    let names = [
        "--provisioner-name=nfs-operator.io/nfs",
        "--provisioner-name=nfs.nfs-operator.io",
    ];
    let mut env = DedicatedCluster::start_with_args(json!({}), &names).await?;
    let late = json!({"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"});
    let class = env.class("late", late).await?;
    let wait = async |env: &DedicatedCluster| -> Result<(), Failure> {
        let unlimited = i64::MAX.to_string();
        let found = rig::wait::until("the storage capacity", TIMEOUT, async || {
            match published(&env.objects, &class).await {
                Ok(found) if found == [(json!({}), unlimited.clone())] => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Ok(found.await?)
    };
    wait(&env).await?;
    env.operator.kill9().await?;
    let own = "kubectl delete csistoragecapacities -n nfs-operator-system -l app.kubernetes.io/managed-by=nfs-operator";
    env.run_as_admin(own).await?;
    let mut node = reference("v1", "Node", None, "n1");
    merge(
        &mut node,
        &json!({"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}}),
    );
    let node = env.objects.create(&node).await?;
    let room = json!({"cpu": "8", "memory": "8Gi", "pods": "100"});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": ready}});
    env.objects.patch_status(&node, status).await?;
    let mut claim = env.claim("data");
    claim["spec"]["storageClassName"] = json!("late");
    let claim = env.objects.create(&claim).await?;
    let mut pod = reference("v1", "Pod", Some("default"), "pod");
    let spec = json!({
        "containers": [{"name": "c", "image": "none"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    });
    merge(&mut pod, &json!({"spec": spec}));
    let pod = env.objects.create(&pod).await?;
    wait_without_capacity(&env.objects, &pod).await?;
    env.operator.restart().await?;
    wait(&env).await?;
    env.bound(&claim).await?;
    Ok(())
}
