//! Late binding: the scheduler selects nodes without knowledge of the backends, as no storage capacity is published.

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::support::shared::{self, TIMEOUT, Test, text};

const SELECTED: &str = "/metadata/annotations/volume.kubernetes.io~1selected-node";

/// Creates nodes for this test. Each has the name of the test as a label, which its pods select.
pub struct Nodes<'a>(pub &'a TestEnv);

impl Nodes<'_> {
    fn label(&self) -> String {
        format!("nodes-of/{}", self.0.name)
    }

    /// Returns the topology label of this test.
    pub fn zone(&self) -> String {
        format!("{}/zone", self.0.name)
    }

    pub async fn add(&self, word: &str, zone: &str) -> rig::Result<Value> {
        let mut node = reference("v1", "Node", None, &self.0.unique_name(word));
        let labels = json!({self.label(): "yes", self.zone(): zone});
        merge(&mut node, &json!({"metadata": {"labels": labels}}));
        let node = self.0.objects.create(&node).await?;
        let room = json!({"cpu": "8", "memory": "8Gi", "pods": "100"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": ready}});
        self.0.objects.patch_status(&node, status).await
    }

    pub fn affinity(&self, zone: &str) -> Value {
        let term = json!({"key": self.zone(), "operator": "In", "values": [zone]});
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}})
    }

    fn topologies(&self, zones: &[&str]) -> Value {
        json!([{"matchLabelExpressions": [{"key": self.zone(), "values": zones}]}])
    }

    /// Creates a pod on one of this test's nodes that uses a claim, with the claim's name.
    pub async fn pod(&self, claim: &Value) -> rig::Result<Value> {
        self.pod_named(text(claim, "/metadata/name"), claim).await
    }

    async fn pod_named(&self, pod: &str, claim: &Value) -> rig::Result<Value> {
        let name = text(claim, "/metadata/name");
        let mut pod = reference("v1", "Pod", Some(&self.0.name), pod);
        let spec = json!({
            "nodeSelector": {self.label(): "yes"},
            "containers": [{"name": "c", "image": "none"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        });
        merge(&mut pod, &json!({"spec": spec}));
        self.0.objects.create(&pod).await
    }

    /// Returns the node to which a pod is scheduled.
    pub async fn of(&self, pod: &Value) -> rig::Result<String> {
        self.0
            .objects
            .wait(pod, "to have a node", TIMEOUT, |pod| {
                match text(pod, "/spec/nodeName") {
                    "" => Err("none yet".to_owned()),
                    node => Ok(node.to_owned()),
                }
            })
            .await
    }
}

/// Creates a late-binding class on backends of the test.
pub async fn late_class(env: &TestEnv, backends: &[String], topologies: Option<Value>) -> rig::Result<Value> {
    let mut class = env.class("class", json!({"backend": backends.join(",")}));
    let late = json!({"volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": topologies});
    merge(&mut class, &late);
    env.objects.create(&class).await
}

#[tokio::test]
async fn a_late_binding_claim_waits_for_its_pod_and_uses_the_backend_of_the_pods_node() -> Test {
    let env = TestEnv::new("late").await?;
    let nodes = Nodes(&env);
    let near = json!({"nodeAffinity": nodes.affinity("near")});
    let far = json!({"nodeAffinity": nodes.affinity("far")});
    shared::backend(&env, "near", near).await?;
    shared::backend(&env, "far", far).await?;
    let topologies = nodes.topologies(&["near", "far"]);
    let class = late_class(
        &env,
        &[env.unique_name("near"), env.unique_name("far")],
        Some(topologies),
    )
    .await?;
    let other = shared::class(&env, "other", "near", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    // A later claim that has its volume shows that this one was checked.
    shared::bound(&env, "immediate", &other).await?;
    assert_eq!(shared::names(env.data())?.len(), 1, "nothing before a pod");

    let far = nodes.add("n1", "far").await?;
    let pod = nodes.pod(&claim).await?;
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(nodes.of(&pod).await?, text(&far, "/metadata/name"));
    assert_eq!(
        volume["metadata"]["annotations"]["nfs-operator.io/backend"],
        env.unique_name("far")
    );
    assert_eq!(volume["spec"]["nodeAffinity"], nodes.affinity("far"));
    Ok(())
}

#[tokio::test]
async fn the_scheduler_gives_a_claim_with_read_write_once_pod_to_one_pod() -> Test {
    let env = TestEnv::new("rwop").await?;
    let nodes = Nodes(&env);
    nodes.add("node", "any").await?;
    let class = env.create_ready_class().await?;
    let mut claim = env.claim("data", &class);
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    let claim = env.objects.create(&claim).await?;
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(volume["spec"]["accessModes"], json!(["ReadWriteOncePod"]));
    nodes.of(&nodes.pod_named("first", &claim).await?).await?;
    let second = nodes.pod_named("second", &claim).await?;
    let refused = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let refused = conditions
            .iter()
            .any(|condition| text(condition, "/message").contains("ReadWriteOncePod"));
        refused.then_some(()).ok_or_else(|| pod["status"].to_string())
    };
    env.objects
        .wait(&second, "to be refused a node", TIMEOUT, refused)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_whose_node_no_backend_serves_is_scheduled_again() -> Test {
    let env = TestEnv::new("resched").await?;
    let nodes = Nodes(&env);
    shared::backend(&env, "backend", json!({"nodeAffinity": nodes.affinity("served")})).await?;
    let class = late_class(&env, &[env.unique_name("backend")], None).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let wrong = nodes.add("wrong", "elsewhere").await?;
    let pod = nodes.pod(&claim).await?;
    let message = shared::wait_refused(&env, &claim, "NodeNotServed").await?;
    for part in [text(&wrong, "/metadata/name"), "nodeAffinity", "no allowedTopologies"] {
        assert!(message.contains(part), "{message}");
    }
    env.objects.wait_event(&claim, "Rescheduled", TIMEOUT).await?;
    assert_eq!(shared::names(env.data())?, Vec::<String>::new(), "nothing was created");
    // Now a served node exists, and the wrong one accepts no more pods.
    env.objects
        .patch(&wrong, json!({"spec": {"unschedulable": true}}))
        .await?;
    let right = nodes.add("right", "served").await?;
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(nodes.of(&pod).await?, text(&right, "/metadata/name"));
    assert_eq!(volume["spec"]["nodeAffinity"], nodes.affinity("served"));
    let claim = env.objects.get(&claim).await?.unwrap();
    assert_eq!(text(&claim, SELECTED), text(&right, "/metadata/name"));
    Ok(())
}

#[tokio::test]
async fn a_node_stays_selected_if_no_other_node_would_help() -> Test {
    let env = TestEnv::new("stays").await?;
    let nodes = Nodes(&env);
    let suspended = json!({"nodeAffinity": nodes.affinity("served"), "suspend": true});
    let backend = env.objects.create(&env.backend("backend", suspended)).await?;
    let class = late_class(&env, &[env.unique_name("backend")], None).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    nodes.add("n1", "served").await?;
    nodes.pod(&claim).await?;
    shared::wait_refused(&env, &claim, "Suspended").await?;
    let selected = env.objects.get(&claim).await?.unwrap();
    assert_eq!(text(&selected, SELECTED), env.unique_name("n1"));
    env.objects.patch(&backend, json!({"spec": {"suspend": false}})).await?;
    env.wait_bound(&claim).await?;
    let events = env.objects.events(&claim).await?;
    assert!(
        events.iter().all(|event| event["reason"] != "Rescheduled"),
        "{events:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_volume_is_available_on_the_nodes_that_both_class_and_backend_allow() -> Test {
    let env = TestEnv::new("topology").await?;
    let nodes = Nodes(&env);
    let both = json!({"key": nodes.zone(), "operator": "In", "values": ["a", "b"]});
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [both]}]}});
    shared::backend(&env, "backend", json!({"nodeAffinity": affinity})).await?;
    let with = async |word: &str, zones: &[&str]| {
        let mut class = env.class(word, json!({"backend": env.unique_name("backend")}));
        merge(&mut class, &json!({"allowedTopologies": nodes.topologies(zones)}));
        env.objects.create(&class).await
    };
    let (_, volume) = shared::bound(&env, "common", &with("common", &["b", "c"]).await?).await?;
    assert_eq!(volume["spec"]["nodeAffinity"], nodes.affinity("b"));
    let apart = with("apart", &["c"]).await?;
    let claim = env.objects.create(&env.claim("apart", &apart)).await?;
    let message = shared::wait_refused(&env, &claim, "TopologyMismatch").await?;
    assert!(message.contains("allowedTopologies"), "{message}");
    Ok(())
}
