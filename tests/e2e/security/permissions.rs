//! Permissions in the cluster: of the operator's account, of users, and of tenants with the admission policies.

use std::collections::BTreeSet;

use rig::objects::{merge, reference};
use rig::operator::repository_root;
use rig::{Cluster, Objects, RunDir, TestEnv};
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test};

/// Returns the lines of the first block of a page after this text, with normalized spaces.
fn block_after(page: &str, words: &str) -> Result<BTreeSet<String>, Failure> {
    let page = std::fs::read_to_string(repository_root().join(page))?;
    let (_, rest) = page.split_once(words).ok_or("the page has no such words")?;
    let block = rest.split("```").nth(1).ok_or("no block follows")?;
    Ok(columns(block.split_once('\n').ok_or("an empty block")?.1))
}

fn columns(table: &str) -> BTreeSet<String> {
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect()
}

#[tokio::test]
async fn the_security_guide_lists_the_permissions_of_the_operator() -> Test {
    let env = TestEnv::new("can-i").await?;
    let account = [
        "--as=system:serviceaccount:nfs-operator-system:nfs-operator",
        "--as-group=system:serviceaccounts",
        "--as-group=system:serviceaccounts:nfs-operator-system",
        "--as-group=system:authenticated",
    ];
    let arguments = ["auth", "can-i", "--list", "-n", "nfs-operator-system"];
    let listed = env.rig.cluster.kubectl(arguments.into_iter().chain(account)).await?;
    let shown = block_after("docs/security.md", "kubectl auth can-i --list")?;
    assert_eq!(columns(&listed), shown, "docs/security.md is to show:\n{listed}");
    Ok(())
}

/// Binds a user to a ClusterRole in the whole cluster.
async fn bind(objects: &Objects, user: &str, role: &str) -> rig::Result<Value> {
    let mut binding = reference("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", None, user);
    let rest = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    merge(&mut binding, &rest);
    objects.create(&binding).await
}

/// Returns the verbs that a user may use on a kind.
async fn allowed(cluster: &Cluster, user: &str, kind: &str, verbs: &[&str]) -> Vec<String> {
    let mut allowed = Vec::new();
    for verb in verbs {
        let user = format!("--as={user}");
        // It exits with an error if the answer is no.
        let answer = cluster.kubectl(["auth", "can-i", verb, kind, &user]).await;
        if answer.is_ok_and(|answer| answer.trim() == "yes") {
            allowed.push((*verb).to_owned());
        }
    }
    allowed
}

#[tokio::test]
async fn backends_and_archives_have_roles_of_their_own_and_the_default_roles_do_not_include_them() -> Test {
    let env = TestEnv::new("people").await?;
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];
    let (backends, archives) = ("nfsbackends.nfs-operator.io", "nfsarchives.nfs-operator.io");
    let (read, none): (&[&str], &[&str]) = (&["get", "list", "watch"], &[]);
    let cases: [(&str, &[&str], &[&str]); 6] = [
        ("nfs-operator-nfsbackend-viewer", read, none),
        ("nfs-operator-nfsbackend-editor", &verbs, none),
        ("nfs-operator-nfsarchive-viewer", none, read),
        ("nfs-operator-nfsarchive-editor", none, &verbs),
        // A user who can name a server makes the operator act there as root, and a user who can write archives decides
        // who gets which data. So neither is part of a general role.
        ("admin", none, none),
        ("view", none, none),
    ];
    for (role, with_backends, with_archives) in cases {
        let user = env.unique_name(role);
        let binding = bind(&env.objects, &user, role).await?;
        rig::wait::until("the binding to take effect", TIMEOUT, async || {
            let cluster = &env.rig.cluster;
            let on_backends = allowed(cluster, &user, backends, &verbs).await;
            let on_archives = allowed(cluster, &user, archives, &verbs).await;
            if on_backends == with_backends && on_archives == with_archives {
                Ok(())
            } else {
                Err(format!("{role}: backends {on_backends:?}, archives {on_archives:?}"))
            }
        })
        .await?;
        env.objects.delete(&binding).await?;
    }
    Ok(())
}

fn pod_spec(volume: &Value) -> Value {
    json!({
        "containers": [{"name": "c", "image": "example.com/c"}],
        "restartPolicy": "Always",
        "volumes": [{"name": "scratch", "emptyDir": {}}, volume],
    })
}

/// Returns objects of each kind that creates pods, with this volume in the template, and a pod.
fn workloads(namespace: &str, name: &str, volume: &Value) -> Vec<Value> {
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": pod_spec(volume)});
    let selected = json!({"selector": {"matchLabels": {"app": name}}, "template": template});
    let mut job = json!({"template": template});
    job["template"]["spec"]["restartPolicy"] = json!("Never");
    let kinds = [
        ("v1", "Pod", json!({"spec": pod_spec(volume)})),
        ("v1", "PodTemplate", json!({"template": template})),
        (
            "v1",
            "ReplicationController",
            json!({"spec": {"replicas": 0, "selector": {"app": name}, "template": template}}),
        ),
        ("apps/v1", "DaemonSet", json!({"spec": selected})),
        ("apps/v1", "Deployment", json!({"spec": selected})),
        ("apps/v1", "ReplicaSet", json!({"spec": selected})),
        ("apps/v1", "StatefulSet", json!({"spec": selected})),
        ("batch/v1", "Job", json!({"spec": job})),
        (
            "batch/v1",
            "CronJob",
            json!({"spec": {"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": job}}}),
        ),
    ];
    let object = |(api, kind, rest): (&str, &str, Value)| {
        let mut object = reference(api, kind, Some(namespace), name);
        merge(&mut object, &rest);
        object
    };
    kinds.map(object).into()
}

const INLINE: &str = "names an NFS server: create a PersistentVolumeClaim instead";

/// Waits until the API server enforces a policy: until an object is refused with this text.
async fn wait_policy_enforced(objects: &Objects, refused: &Value, words: &str) -> rig::Result<()> {
    rig::wait::until("the policy to be enforced", TIMEOUT, async || {
        match objects.create(refused).await {
            Ok(created) => {
                objects.delete(&created).await.map_err(|error| error.to_string())?;
                Err("it was created".into())
            }
            Err(error) if error.to_string().contains(words) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}

#[tokio::test]
async fn with_the_policy_a_pod_mounts_nfs_directly_only_if_its_namespace_is_allowed_to() -> Test {
    let run = RunDir::new()?;
    let cluster = Cluster::start(&run).await?;
    let objects = Objects::new(cluster.client().await?);
    cluster.apply_crds(&repository_root().join("crds")).await?;
    let nfs = json!({"name": "data", "nfs": {"server": "nfs.example.com", "path": "/export"}});
    // Created before the policy.
    let mut all = workloads("default", "former", &nfs).into_iter();
    let former = all
        .find(|object| object["kind"] == "Deployment")
        .ok_or("no Deployment")?;
    let former = objects.create(&former).await?;
    cluster
        .apply_path(&repository_root().join("config/security/admission-policy"))
        .await?;
    let probe = workloads("default", "probe", &nfs).swap_remove(0);
    wait_policy_enforced(&objects, &probe, INLINE).await?;

    let csi = json!({"name": "data", "csi": {"driver": "nfs.csi.k8s.io", "volumeAttributes": {"server": "nfs", "share": "/"}}});
    for object in workloads("default", "inline", &nfs)
        .into_iter()
        .chain(workloads("default", "csi", &csi))
    {
        let refused = objects.create(&object).await.expect_err("it was created").to_string();
        assert!(refused.contains(INLINE) && refused.contains("volume data"), "{refused}");
    }
    let claimed = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    for object in workloads("default", "claimed", &claimed) {
        objects.create(&object).await?;
    }
    // An existing object may be changed, except to another server.
    objects
        .patch(
            &former,
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 2}}),
        )
        .await?;
    let elsewhere = json!({"name": "data", "nfs": {"server": "other.example.com", "path": "/export"}});
    let changed = json!({"spec": {"template": {"spec": {"volumes": [elsewhere]}}}});
    let refused = objects
        .patch(&former, changed)
        .await
        .expect_err("it was changed")
        .to_string();
    assert!(refused.contains(INLINE), "{refused}");

    let mut namespace = reference("v1", "Namespace", None, "exempt");
    merge(
        &mut namespace,
        &json!({"metadata": {"labels": {"nfs-operator.io/inline-nfs": "allowed"}}}),
    );
    objects.create(&namespace).await?;
    for object in workloads("exempt", "inline", &nfs) {
        // A pod needs the default account of its namespace, which the controller manager creates.
        rig::wait::until("the object to be created", TIMEOUT, async || {
            objects.create(&object).await.map_err(|error| error.to_string())
        })
        .await?;
    }
    Ok(())
}

/// Returns a static volume.
fn volume(name: &str, source: Value) -> Value {
    let mut volume = reference("v1", "PersistentVolume", None, name);
    let spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteMany"]});
    merge(&mut volume, &json!({ "spec": spec }));
    merge(&mut volume, &json!({ "spec": source }));
    volume
}

/// Returns a client with the permissions of a user who may only create volumes.
async fn maker_of_volumes(env: &DedicatedCluster) -> Result<Objects, Failure> {
    let mut role = reference("rbac.authorization.k8s.io/v1", "ClusterRole", None, "maker");
    let rule = json!({"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["create", "delete"]});
    merge(&mut role, &json!({ "rules": [rule] }));
    env.objects.create(&role).await?;
    bind(&env.objects, "maker", "maker").await?;
    let admin = kube::config::Kubeconfig::read_from(env.cluster.kubeconfig())?;
    let mut config = kube::Config::from_custom_kubeconfig(admin, &kube::config::KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = Some("maker".to_owned());
    Ok(Objects::new(kube::Client::try_from(config)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_policy_only_the_operator_and_editors_of_a_backend_create_volumes_on_its_server() -> Test {
    let env =
        DedicatedCluster::start(json!({"formerAddresses": [{"server": "Old.example.com", "path": "/export"}]})).await?;
    let mut other = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "other");
    merge(
        &mut other,
        &json!({"spec": {"server": "2001:db8::1", "path": "/data", "suspend": true}}),
    );
    env.objects.create(&other).await?;
    let maker = maker_of_volumes(&env).await?;
    let nfs = |server: &str| json!({"nfs": {"server": server, "path": "/export/another-ones"}});
    env.cluster
        .apply_path(&repository_root().join("config/security/admission-policy"))
        .await?;
    wait_policy_enforced(&maker, &volume("probe", nfs("127.0.0.1")), "is that of NfsBackend main").await?;

    let csi = |server: &str| json!({"csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": "v", "volumeAttributes": {"server": server, "share": "/export"}}});
    for (source, backend) in [
        (nfs("old.example.com"), "main"),
        (nfs("OLD.example.com."), "main"),
        (csi("127.0.0.1"), "main"),
        (nfs("2001:DB8:0::1"), "other"),
        (nfs("[2001:db8::1]"), "other"),
    ] {
        let refused = maker.create(&volume("foreign", source.clone())).await;
        let refused = refused.expect_err("it was created").to_string();
        assert!(
            refused.contains(&format!("is that of NfsBackend {backend}")),
            "{source}: {refused}"
        );
    }
    // Other servers and other kinds of volumes are not restricted.
    maker.create(&volume("elsewhere", nfs("nfs.example.com"))).await?;
    maker
        .create(&volume("local", json!({"hostPath": {"path": "/mnt"}})))
        .await?;

    // Volumes of an editor of the backend, and of the operator.
    env.objects.create(&volume("by-hand", nfs("127.0.0.1"))).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    env.bound(&claim).await?;
    let mut editor = reference(
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        None,
        "maker-edits",
    );
    let rest = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nfs-operator-nfsbackend-editor"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "maker"}],
    });
    merge(&mut editor, &rest);
    env.objects.create(&editor).await?;
    rig::wait::until("the editor's volume to be created", TIMEOUT, async || {
        let created = maker.create(&volume("by-the-editor", nfs("127.0.0.1"))).await;
        created.map_err(|error| error.to_string())
    })
    .await?;
    Ok(())
}

/// Returns whether the network policy allows a pod to connect there.
fn lets_through(policy: &Value, protocol: &str, port: u64) -> bool {
    let rules = policy.pointer("/spec/egress/0/ports").and_then(Value::as_array);
    rules.into_iter().flatten().any(|rule| {
        let (from, to) = (rule["port"].as_u64(), rule["endPort"].as_u64());
        rule["protocol"] == protocol && from.zip(to).is_some_and(|(from, to)| (from..=to).contains(&port))
    })
}

#[tokio::test]
async fn the_network_policy_blocks_the_nfs_ports_and_no_others() -> Test {
    let env = TestEnv::new("closed").await?;
    let folder = repository_root()
        .join("config/security/network-policy")
        .display()
        .to_string();
    env.rig
        .cluster
        .kubectl(["apply", "-n", &env.name, "-k", &folder])
        .await?;
    let policy = reference(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        Some(&env.name),
        "nfs-operator-no-nfs",
    );
    let policy = env.objects.get(&policy).await?.ok_or("it is not there")?;
    assert_eq!(policy["spec"]["podSelector"], json!({}));
    for protocol in ["TCP", "UDP"] {
        let closed: Vec<u64> = (1..=65535)
            .filter(|port| !lets_through(&policy, protocol, *port))
            .collect();
        assert_eq!(closed, [111, 2049, 20048, 20049], "{protocol}");
    }
    Ok(())
}
