//! Pods on a real kubelet. The host's kernel may have no NFS client, so these pods use the directory of a volume on the disk
//! of the server.
//!
//! Each test runs in a [`Sandbox`]: it runs this program again for itself alone. `make test` skips these tests where a node
//! cannot run.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rig::assets::NodeAssets;
use rig::node::ADDRESS;
use rig::objects::{reference, with_fields};
use rig::operator::find_binary;
use rig::{Assets, Cluster, Export, NfsOptions, NfsServer, Node, Objects, Operator, OperatorOptions, RunDir, Sandbox};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::shared::{Failure, TIMEOUT, Test, text};

/// The programs of a cluster and of its node.
type Programs = (Assets, NodeAssets);

/// Runs a test in a sandbox of its own. `name` is the type name of its function, which is its path in this program.
fn in_sandbox(name: &str, test: impl AsyncFnOnce(Programs) -> Test) -> Test {
    let runtime = Runtime::new()?;
    // Both processes look for the programs, but only the one outside has a network to download them.
    let programs = runtime.block_on(async {
        let cluster = Assets::find_or_install().await?;
        Ok::<_, Failure>((cluster, NodeAssets::find_or_install().await?))
    })?;
    if Sandbox::current().is_some() {
        return runtime.block_on(test(programs));
    }
    let (_, path) = name.split_once("::").ok_or("not the path of a function")?;
    let program = std::env::current_exe()?;
    let status = Sandbox::run(&program, ["--exact", path, "--nocapture"])?;
    assert!(status.success(), "{path} in its sandbox: {status}");
    Ok(())
}

/// Runs a pod that tries to write a file `name` in a volume, and returns its report.
async fn access(objects: &Objects, name: &str, uid: u32, volume: Value) -> Result<String, Failure> {
    let container = json!({
        "name": "access",
        "image": Node::PAUSE_IMAGE,
        "imagePullPolicy": "Never",
        "command": [Node::ACCESS_PROGRAM, format!("/data/{name}")],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    let spec = json!({
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": uid, "runAsNonRoot": true},
        "containers": [container],
        "volumes": [with_fields(json!({"name": "data"}), volume)],
    });
    let pod = with_fields(reference("v1", "Pod", Some("default"), name), json!({ "spec": spec }));
    objects.create(&pod).await?;
    let report = objects.wait(&pod, "to report its access", TIMEOUT, |pod| {
        match text(pod, "/status/containerStatuses/0/state/terminated/message") {
            "" => Err(pod["status"].to_string()),
            report => Ok(report.to_owned()),
        }
    });
    Ok(report.await?)
}

/// Creates a volume of this directory with the annotations of another volume, and a claim that is bound to it.
async fn local_volume(objects: &Objects, directory: &Path, annotations: &Value) -> Test {
    let capacity = json!({"storage": "1Mi"});
    let spec = json!({
        "capacity": capacity,
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "hostPath": {"path": directory},
    });
    let volume = with_fields(
        reference("v1", "PersistentVolume", None, "local"),
        json!({"metadata": {"annotations": annotations}, "spec": spec}),
    );
    objects.create(&volume).await?;
    let spec = json!({
        "storageClassName": "",
        "volumeName": "local",
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": capacity},
    });
    let claim = reference("v1", "PersistentVolumeClaim", Some("default"), "local");
    let claim = objects.create(&with_fields(claim, json!({ "spec": spec }))).await?;
    objects.wait_bound(&claim, TIMEOUT).await?;
    Ok(())
}

async fn volume_gives_its_group((assets, node_assets): Programs) -> Test {
    let run = RunDir::new()?;
    let options = NfsOptions {
        exports: vec![Export::new("/export")],
        address: ADDRESS.into(),
        port: Some(2049),
        ..NfsOptions::default()
    };
    let nfs = NfsServer::start_with(&run, options, &assets.ganesha).await?;
    let cluster = Cluster::start_for_nodes(&run, assets, ADDRESS).await?;
    let kubeconfig = Operator::install(&cluster).await?;
    let operator = Operator::start(&run, OperatorOptions::new(find_binary()?, kubeconfig)).await?;
    let node = Node::start(&run, &node_assets, &cluster).await?;
    operator.wait_ready().await?;
    let objects = Objects::new(cluster.client().await?);
    let range = json!({"gidRange": {"min": 20000, "max": 20009}});
    let spec = json!({"server": ADDRESS.to_string(), "path": "/export", "directory": range});
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    objects.create(&with_fields(backend, json!({ "spec": spec }))).await?;
    let class = reference("storage.k8s.io/v1", "StorageClass", None, "nfs");
    let provisioner = json!({"provisioner": "nfs-operator.io/nfs"});
    objects.create(&with_fields(class, provisioner)).await?;
    let spec = json!({
        "storageClassName": "nfs",
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Mi"}},
    });
    let claim = reference("v1", "PersistentVolumeClaim", Some("default"), "data");
    let claim = objects.create(&with_fields(claim, json!({ "spec": spec }))).await?;
    let volume = objects.wait_volume(&claim, TIMEOUT).await?;

    let group = text(&volume, "/metadata/annotations/pv.beta.kubernetes.io~1gid").to_owned();
    let inside = text(&volume, "/metadata/annotations/nfs-operator.io~1directory");
    let directory = nfs.data_dir("/export")?.join(inside);
    let found = fs::metadata(&directory)?;
    assert_eq!(
        (found.mode() & 0o7777, found.gid().to_string()),
        (0o2770, group.clone())
    );
    local_volume(&objects, &directory, &json!({"pv.beta.kubernetes.io/gid": group})).await?;
    let by_claim = json!({"persistentVolumeClaim": {"claimName": "local"}});
    let mine = access(&objects, "mine", 1000, by_claim.clone()).await?;
    let colleague = access(&objects, "colleague", 1001, by_claim).await?;
    for (report, uid) in [(mine, "uid=1000 gid=0 "), (colleague, "uid=1001 gid=0 ")] {
        println!("with the claim: {report}");
        let groups = report.split_whitespace().find_map(|word| word.strip_prefix("groups="));
        let has_group = groups.is_some_and(|groups| groups.split(',').any(|one| one == group));
        assert!(
            report.starts_with(uid) && has_group && report.ends_with(" write=done"),
            "{report}\n{}",
            node.logs()
        );
    }
    assert_eq!(fs::metadata(directory.join("mine"))?.gid().to_string(), group);
    for (name, uid) in [("stranger", 1002), ("same-user", 1000)] {
        let report = access(&objects, name, uid, json!({"hostPath": {"path": directory}})).await?;
        println!("without the claim: {report}");
        assert!(
            !report.contains(&group) && report.ends_with(" write=Permission denied"),
            "{report}"
        );
    }
    Ok(())
}

#[test]
fn a_pod_that_requests_no_group_gets_that_of_its_volume_and_writes_to_it_and_other_pods_cannot() -> Test {
    let name = std::any::type_name_of_val(
        &a_pod_that_requests_no_group_gets_that_of_its_volume_and_writes_to_it_and_other_pods_cannot,
    );
    in_sandbox(name, volume_gives_its_group)
}
