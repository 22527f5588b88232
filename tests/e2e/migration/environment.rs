//! The environment variables of nfs-subdir-external-provisioner.

use rig::objects::{merge, reference};
use rig::operator::find_binary;
use rig::{Cluster, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, RunDir, wait};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::shared::{TIMEOUT, Test, text};

const NAME: &str = "k8s-sigs.io/nfs-subdir-external-provisioner";

async fn refused(args: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(find_binary().unwrap());
    command.arg("run").args(args).envs(variables.iter().copied());
    // No API server is contacted before the environment is parsed.
    command.env("KUBECONFIG", "/nonexistent");
    let reported = command.output().await.unwrap();
    assert!(!reported.status.success());
    String::from_utf8(reported.stderr).unwrap()
}

#[tokio::test]
async fn a_missing_environment_variable_is_reported() {
    let all = [
        ("NFS_SERVER", "nfs"),
        ("NFS_PATH", "/export"),
        ("PROVISIONER_NAME", NAME),
    ];
    for (missing, _) in all {
        let others: Vec<_> = all.into_iter().filter(|(name, _)| *name != missing).collect();
        let output = refused(&[], &others).await;
        assert!(output.contains(&format!("{missing} missing")), "{output}");
    }
    let output = refused(&[], &[&all[..], &[("ENABLE_LEADER_ELECTION", "perhaps")]].concat()).await;
    assert!(
        output.contains("ENABLE_LEADER_ELECTION") && output.contains("perhaps"),
        "{output}"
    );
    let output = refused(&["--provisioner-name", NAME], &all).await;
    assert!(output.contains("PROVISIONER_NAME"), "{output}");
    let output = refused(&["--provisioner-alias", &format!("{NAME}=other")], &all).await;
    assert!(output.contains("--provisioner-alias"), "{output}");
}

fn default_backend() -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "default")
}

#[tokio::test]
async fn the_environment_of_nfs_subdir_serves_only_its_export_under_its_name() -> Test {
    let run = RunDir::new()?;
    let nfs = NfsServer::start(&run, NfsOptions::default()).await?;
    let cluster = Cluster::start(&run).await?;
    let objects = Objects::new(cluster.client().await?);
    let kubeconfig = Operator::install(&cluster).await?;
    let legacy = [
        ("NFS_SERVER", "127.0.0.1"),
        ("NFS_PATH", "/export/"),
        ("PROVISIONER_NAME", NAME),
        ("ENABLE_LEADER_ELECTION", "false"),
    ];
    let options = OperatorOptions {
        env: legacy.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..OperatorOptions::new(find_binary()?, kubeconfig)
    };
    let mut operator = Operator::start(&run, options).await?;
    operator.wait_ready().await?;
    let backend = objects.get(&default_backend()).await?.ok_or("no backend")?;
    let spec = &backend["spec"];
    assert_eq!((text(spec, "/server"), text(spec, "/path")), ("127.0.0.1", "/export"));
    assert_eq!(text(spec, "/archivePolicy/onDelete"), "Archive");
    assert_eq!(text(spec, "/directory/existing"), "Adopt");
    assert_eq!(text(spec, "/directory/mode"), "0777");
    // This server does not use the default port of NFS.
    objects
        .patch(&backend, json!({ "spec": { "nfs": { "port": nfs.port() } } }))
        .await?;
    objects.wait_condition(&backend, "Ready", "True", None, TIMEOUT).await?;

    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, "nfs-client");
    merge(
        &mut class,
        &json!({ "provisioner": NAME, "reclaimPolicy": "Delete", "parameters": { "archiveOnDelete": "false" } }),
    );
    objects.create(&class).await?;
    let mut claim = reference("v1", "PersistentVolumeClaim", Some("default"), "test-claim");
    let spec = json!({
        "storageClassName": "nfs-client", "accessModes": ["ReadWriteMany"],
        "resources": { "requests": { "storage": "1Mi" } },
    });
    merge(&mut claim, &json!({ "spec": spec }));
    let claim = objects.create(&claim).await?;
    let bound = |claim: &Value| match text(claim, "/status/phase") {
        "Bound" => Ok(()),
        phase => Err(phase.to_owned()),
    };
    objects.wait(&claim, "to be Bound", TIMEOUT, bound).await?;
    let directory = format!("default-test-claim-pvc-{}", text(&claim, "/metadata/uid"));
    assert!(nfs.data_dir("/export")?.join(directory).is_dir());

    // After a restart, it leaves its objects unchanged, edits included.
    let created = objects.get(&backend).await?.ok_or("no backend")?;
    operator.restart().await?;
    operator.wait_ready().await?;
    let found = objects.get(&backend).await?.ok_or("no backend")?;
    assert_eq!(found["spec"], created["spec"]);
    assert_eq!(found["metadata"]["uid"], created["metadata"]["uid"]);

    operator.terminate().await?;
    objects
        .patch(&backend, json!({ "spec": { "path": "/another" } }))
        .await?;
    operator.restart().await?;
    wait::until("the operator to refuse", TIMEOUT, async || {
        match operator.exit_status() {
            Some(ended) if !ended.success() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let log = std::fs::read_to_string(operator.log())?;
    assert!(
        log.contains("backend default is 127.0.0.1:/another") && log.contains("127.0.0.1:/export"),
        "{log}"
    );
    Ok(())
}
