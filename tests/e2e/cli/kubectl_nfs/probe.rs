//! `kubectl nfs probe`: the Job, as far as it goes without a kubelet. A real run is in `tests/pod`.

use rig::objects::{merge, reference};
use serde_json::{Value, json as object};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use super::{OPERATOR_NAMESPACE, fine, refused};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, Test};

const NAMESPACE: &str = "probes";

/// Returns the operator's Deployment of config/manager for a namespace, without creating it.
fn deployment(namespace: &str) -> Result<Value, Failure> {
    let text = include_str!("../../../../config/manager/deployment.yaml");
    let mut deployment: Value = serde_norway::from_str(text)?;
    merge(
        &mut deployment,
        &object!({"metadata": {"namespace": namespace}, "spec": {"replicas": 0}}),
    );
    Ok(deployment)
}

/// Creates the operator's Deployment in a namespace with the strictest policy for pods.
async fn deploy(env: &DedicatedCluster) -> Result<Value, Failure> {
    let mut namespace = reference("v1", "Namespace", None, NAMESPACE);
    let labels = object!({"pod-security.kubernetes.io/enforce": "restricted"});
    merge(&mut namespace, &object!({"metadata": {"labels": labels}}));
    env.objects.create(&namespace).await?;
    let account = reference("v1", "ServiceAccount", Some(NAMESPACE), "nfs-operator");
    env.objects.create(&account).await?;
    Ok(env.objects.create(&deployment(NAMESPACE)?).await?)
}

/// Creates a Deployment of a tenant with the label of the operator, which has ready pods.
async fn deploy_as_tenant(env: &DedicatedCluster) -> Test {
    env.objects
        .create(&reference("v1", "Namespace", None, "tenant"))
        .await?;
    let mut tenants = deployment("tenant")?;
    let container = &mut tenants["spec"]["template"]["spec"]["containers"][0];
    container["image"] = object!("tenant.example/image");
    container["command"] = object!(["tenant"]);
    let tenants = env.objects.create(&tenants).await?;
    let status = object!({"status": {"replicas": 1, "readyReplicas": 1}});
    env.objects.patch_status(&tenants, status).await?;
    Ok(())
}

/// Starts a probe, and waits until its pod waits for a node. Returns the command with its output, and the pod's spec.
async fn unschedulable(
    env: &DedicatedCluster,
    namespace: &str,
    arguments: &[&str],
) -> Result<(Child, Lines<BufReader<ChildStderr>>, Value), Failure> {
    let mut command = super::command(env.cluster.kubeconfig());
    command.args(["probe", "nfs.example.com:/export"]).args(arguments);
    let mut running = command.stderr(std::process::Stdio::piped()).spawn()?;
    let mut progress = BufReader::new(running.stderr.take().ok_or("no output")?).lines();
    let mut shown = String::new();
    loop {
        let line = progress
            .next_line()
            .await?
            .ok_or_else(|| format!("it ended: {shown}"))?;
        if line.contains("Unschedulable") {
            break;
        }
        shown.push_str(&line);
    }
    let pods = env
        .run_as_admin(&format!("kubectl get pods -n {namespace} -o json"))
        .await?;
    let pods: Value = serde_json::from_str(&pods)?;
    Ok((running, progress, pods["items"][0]["spec"].clone()))
}

async fn interrupt(env: &DedicatedCluster, running: &mut Child) -> Test {
    let id = running.id().ok_or("it ended")?;
    env.run_as_admin(&format!("kill -INT {id}")).await?;
    assert_eq!(running.wait().await?.code(), Some(1));
    Ok(())
}

/// Returns the names of Jobs and pods.
async fn leftovers(env: &DedicatedCluster, namespace: &str) -> Result<String, Failure> {
    env.run_as_admin(&format!("kubectl get jobs,pods -n {namespace} -o name"))
        .await
}

async fn wait_removed(env: &DedicatedCluster, namespace: &str) -> Test {
    let removed = async || match leftovers(env, namespace).await {
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
    let probe = [
        "probe",
        "nfs.example.com:/export",
        "--operator-namespace",
        NAMESPACE,
        "--timeout",
        "5s",
    ];
    let shown = refused(&env.cluster, 1, &probe).await;
    for expected in [
        "waiting for the pod of Job probes/nfs-operator-probe-",
        "did not finish",
        "Unschedulable",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    wait_removed(&env, NAMESPACE).await?;

    // The pod is not admitted.
    let security = object!({"seccompProfile": {"type": "Unconfined"}});
    let change = object!({"spec": {"template": {"spec": {"securityContext": security}}}});
    env.objects.patch(&deployment, change).await?;
    let shown = refused(&env.cluster, 1, &probe).await;
    assert!(
        shown.contains("FailedCreate") && shown.contains("seccompProfile"),
        "{shown}"
    );
    wait_removed(&env, NAMESPACE).await
}

#[tokio::test]
async fn the_job_is_removed_when_the_command_is_interrupted() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    deploy(&env).await?;
    let arguments = [
        "--operator-namespace",
        NAMESPACE,
        "--from-node",
        "node-1",
        "--write",
        "-o",
        "json",
    ];
    let (mut running, mut progress, spec) = unschedulable(&env, NAMESPACE, &arguments).await?;
    let sysctls = object!([{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]);
    assert_eq!(spec["securityContext"]["sysctls"], sysctls, "{spec}");
    assert_eq!(spec["serviceAccountName"], "nfs-operator");
    assert!(spec["affinity"].to_string().contains("node-1"), "{spec}");
    let arguments = spec["containers"][0]["args"].to_string();
    assert!(
        arguments.contains("--write") && arguments.contains("nfs.example.com:/export"),
        "{arguments}"
    );

    interrupt(&env, &mut running).await?;
    let said = progress.next_line().await?.unwrap_or_default();
    assert!(said.contains("interrupted"), "{said}");
    wait_removed(&env, NAMESPACE).await
}

#[tokio::test]
async fn a_deployment_of_a_tenant_never_decides_what_runs() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    deploy_as_tenant(&env).await?;
    let probe = ["probe", "nfs.example.com:/export", "--from-node", "node-1"];
    let absent = refused(&env.cluster, 2, &probe).await;
    let expected = format!("namespace {OPERATOR_NAMESPACE} has no Deployment of the operator");
    assert!(absent.contains(&expected), "{absent}");
    // Nor in its own namespace.
    let absent = refused(&env.cluster, 2, &[&probe[..], &["-n", "tenant"]].concat()).await;
    assert!(absent.contains(&expected), "{absent}");

    let operators = env.objects.create(&deployment(OPERATOR_NAMESPACE)?).await?;
    let image = &operators["spec"]["template"]["spec"]["containers"][0]["image"];
    for (namespace, arguments, account) in [
        (OPERATOR_NAMESPACE, &[][..], "nfs-operator"),
        ("tenant", &["-n", "tenant"][..], "default"),
    ] {
        let (mut running, _progress, spec) = unschedulable(&env, namespace, arguments).await?;
        let container = &spec["containers"][0];
        assert_eq!((&container["image"], &container["command"]), (image, &Value::Null));
        assert_eq!(spec["serviceAccountName"], account, "{spec}");
        interrupt(&env, &mut running).await?;
        wait_removed(&env, namespace).await?;
    }

    // As before an operator has led.
    env.operator.terminate().await?;
    env.run_as_admin("kubectl delete lease nfs-operator-cluster-lock -n kube-system")
        .await?;
    let unknown = refused(&env.cluster, 2, &probe).await;
    for expected in [
        "no operator holds the Lease kube-system/nfs-operator-cluster-lock",
        "tenants can give theirs the label",
        "--operator-namespace",
    ] {
        assert!(unknown.contains(expected), "{unknown}");
    }
    let arguments = ["--image", "nfs-operator:1", "--namespace", "tenant"];
    let (mut running, _progress, spec) = unschedulable(&env, "tenant", &arguments).await?;
    let container = &spec["containers"][0];
    assert_eq!(
        (&container["image"], &container["command"]),
        (&object!("nfs-operator:1"), &Value::Null)
    );
    interrupt(&env, &mut running).await?;
    wait_removed(&env, "tenant").await
}
