//! `kubectl nfs probe`: the Job, as far as it goes without a kubelet. A real run is in `tests/pod`.

use rig::objects::{merge, reference};
use serde_json::{Value, json as object};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{fine, refused};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, Test};

const NAMESPACE: &str = "probes";

/// Creates the operator's Deployment of config/manager, in a namespace with the strictest policy for pods.
async fn deploy(env: &DedicatedCluster) -> Result<Value, Failure> {
    let mut namespace = reference("v1", "Namespace", None, NAMESPACE);
    let labels = object!({"pod-security.kubernetes.io/enforce": "restricted"});
    merge(&mut namespace, &object!({"metadata": {"labels": labels}}));
    env.objects.create(&namespace).await?;
    let account = reference("v1", "ServiceAccount", Some(NAMESPACE), "nfs-operator");
    env.objects.create(&account).await?;
    let text = include_str!("../../../../config/manager/deployment.yaml");
    let mut deployment: Value = serde_norway::from_str(text)?;
    merge(
        &mut deployment,
        &object!({"metadata": {"namespace": NAMESPACE}, "spec": {"replicas": 0}}),
    );
    Ok(env.objects.create(&deployment).await?)
}

/// Returns the names of Jobs and pods.
async fn leftovers(env: &DedicatedCluster) -> Result<String, Failure> {
    env.run_as_admin(&format!("kubectl get jobs,pods -n {NAMESPACE} -o name"))
        .await
}

async fn wait_removed(env: &DedicatedCluster) -> Test {
    let removed = async || match leftovers(env).await {
        Ok(names) if names.is_empty() => Ok(()),
        Ok(names) => Err(names),
        Err(error) => Err(error.to_string()),
    };
    rig::wait::until("Job and pod to be removed", shared::TIMEOUT, removed).await?;
    Ok(())
}

#[tokio::test]
async fn a_probe_that_never_runs_says_why_and_leaves_nothing() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    let local = fine(&env.cluster, &["probe", "--help"]).await;
    assert!(
        local.contains("the kubelet mounts") && local.contains("--mount-namespace"),
        "{local}"
    );
    let nowhere = refused(&env.cluster, 2, &["probe", "nfs.example.com:/export"]).await;
    assert!(nowhere.contains("--image") && nowhere.contains("--local"), "{nowhere}");
    let deployment = deploy(&env).await?;

    // The pod is admitted, and there is no node.
    let probe = ["probe", "nfs.example.com:/export", "--timeout", "5s"];
    let shown = refused(&env.cluster, 1, &probe).await;
    for expected in [
        "waiting for the pod of Job probes/nfs-operator-probe-",
        "did not finish",
        "Unschedulable",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    wait_removed(&env).await?;

    // The pod is not admitted.
    let security = object!({"seccompProfile": {"type": "Unconfined"}});
    let change = object!({"spec": {"template": {"spec": {"securityContext": security}}}});
    env.objects.patch(&deployment, change).await?;
    let shown = refused(&env.cluster, 1, &probe).await;
    assert!(
        shown.contains("FailedCreate") && shown.contains("seccompProfile"),
        "{shown}"
    );
    wait_removed(&env).await
}

#[tokio::test]
async fn the_job_is_removed_when_the_command_is_interrupted() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    deploy(&env).await?;
    let mut command = super::command(env.cluster.kubeconfig());
    let arguments = [
        "probe",
        "nfs.example.com:/export",
        "--from-node",
        "node-1",
        "--write",
        "-o",
        "json",
    ];
    let mut running = command.args(arguments).stderr(std::process::Stdio::piped()).spawn()?;
    let mut progress = BufReader::new(running.stderr.take().ok_or("no output")?).lines();
    while let Some(line) = progress.next_line().await? {
        if line.contains("Unschedulable") {
            break;
        }
    }
    let pod = env
        .run_as_admin(&format!("kubectl get pods -n {NAMESPACE} -o json"))
        .await?;
    let pod: Value = serde_json::from_str(&pod)?;
    let spec = &pod["items"][0]["spec"];
    let sysctls = object!([{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]);
    assert_eq!(spec["securityContext"]["sysctls"], sysctls, "{spec}");
    assert_eq!(spec["serviceAccountName"], "nfs-operator");
    assert!(spec["affinity"].to_string().contains("node-1"), "{spec}");
    let arguments = spec["containers"][0]["args"].to_string();
    assert!(
        arguments.contains("--write") && arguments.contains("nfs.example.com:/export"),
        "{arguments}"
    );

    let id = running.id().ok_or("it ended")?;
    env.run_as_admin(&format!("kill -INT {id}")).await?;
    assert_eq!(running.wait().await?.code(), Some(1));
    let said = progress.next_line().await?.unwrap_or_default();
    assert!(said.contains("interrupted"), "{said}");
    wait_removed(&env).await
}
