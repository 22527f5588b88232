//! The control plane of the rig.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use rig::{Cluster, RunDir, assets::Kubernetes, cluster::Component};
use serde_json::json;

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_cluster_works_survives_a_restart_of_its_api_server_and_leaves_nothing() {
    let run = RunDir::new().unwrap();
    let mut cluster = Cluster::start(&run).await.unwrap();
    let release = Kubernetes::from_env().unwrap().release();
    let versions = cluster.kubectl(["version"]).await.unwrap();
    assert!(
        versions.contains(&format!("Server Version: {release}")),
        "{release}: {versions}"
    );

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "first"}}).to_string();
    assert!(cluster.apply(&namespace).await.unwrap().contains("namespace/first"));
    let account = cluster.service_account_kubeconfig("default", "default").await.unwrap();
    let account = account.display().to_string();
    let who = cluster
        .kubectl(["--kubeconfig", &account, "auth", "whoami"])
        .await
        .unwrap();
    assert!(who.contains("system:serviceaccount:default:default"), "{who}");
    let refused = cluster
        .kubectl(["--kubeconfig", &account, "get", "nodes"])
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("Forbidden"), "{refused}");
    let audit = fs::read_to_string(cluster.audit_log()).unwrap();
    assert!(audit.contains("system:serviceaccount:default:default"));

    cluster.kill9(Component::ApiServer).await.unwrap();
    cluster.restart(Component::ApiServer).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(cluster.client().await.unwrap());
    namespaces.get("first").await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client().await.unwrap(), "first");
    let metadata = ObjectMeta {
        name: Some("created".into()),
        ..Default::default()
    };
    let account = ServiceAccount {
        metadata,
        ..Default::default()
    };
    accounts.create(&PostParams::default(), &account).await.unwrap();

    let parts = [
        Component::Etcd,
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
    ];
    let pids = parts.map(|part| cluster.process(part).pid());
    assert!(pids.iter().all(|pid| is_running(*pid)));
    cluster.stop().await.unwrap();
    assert!(!pids.iter().any(|pid| is_running(*pid)));
    let folder = run.path().to_owned();
    drop(run);
    assert!(!folder.exists());
}
