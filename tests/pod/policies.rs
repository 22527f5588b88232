//! The chart's NetworkPolicies. The rig enforces them, because no network plugin is available.

use futures::future::try_join_all;
use rig::{
    TIMEOUT,
    node::ADDRESS,
    objects::{reference, with_fields},
    wait,
};
use serde_json::{Value, json};

use crate::{
    Failure, Test,
    env::{HELM_TIMEOUT, IMAGE, PodEnv, backend, is_pod_ready},
};

/// A port that is not in the chart's values.
const OTHER_PORT: u16 = 2050;
const ENABLED: &str = "networkPolicy.enabled=true";

/// Allows the port of the API server's Service, but not that of the API server.
const WITHOUT_API_SERVER: &str = "networkPolicy.egressPorts={443,2049}";

pub async fn operator_reaches_named_ports_only(env: &PodEnv) -> Test {
    let server = env.start_second_server(OTHER_PORT).await?;
    env.enforce_network_policies().await?;
    let args = ["--create-namespace", "--set", ENABLED, "--set", WITHOUT_API_SERVER];
    env.helm(&["install"], Some(env.chart()), &args).await?;
    let other = env.create_second_backend(OTHER_PORT).await?;
    let pod = wait_for_drops(env).await?;
    assert!(!is_pod_ready(&pod), "{}", pod["status"]);
    env.print_progress("without the API server's port the operator does not reach it");

    // Without the Job, which would delay the upgrade while the operator's retries become less frequent.
    upgrade(env, &["--set", ENABLED, "--set", "crds.upgrade=false"]).await?;
    let same = env.pod().await?;
    assert_eq!(pod["metadata"]["uid"], same["metadata"]["uid"]);
    assert!(is_pod_ready(&same), "{}", same["status"]);
    env.objects
        .wait_condition(&backend(), "Ready", "True", None, TIMEOUT)
        .await?;
    let claims = env.create_claims("under-policies", 1).await?;
    env.wait_all_bound("under-policies", &claims).await?;
    env.print_progress("with the chart's values the pod and its backend are Ready, and a claim is Bound");

    let reason = Some("ConnectionTimedOut");
    env.objects
        .wait_condition(&other, "Reachable", "False", reason, TIMEOUT)
        .await?;
    let ports = format!("networkPolicy.egressPorts={{6443,2049,{OTHER_PORT}}}");
    upgrade(env, &["--set", ENABLED, "--set", &ports]).await?;
    env.objects
        .wait_condition(&other, "Ready", "True", None, TIMEOUT)
        .await?;
    env.print_progress("the operator reaches another port after it was added to the values");
    env.objects.delete(&other).await?;
    env.objects.wait_gone(&other, TIMEOUT).await?;
    Ok(server.stop().await?)
}

async fn upgrade(env: &PodEnv, args: &[&str]) -> Test {
    let wait = ["--wait", "--timeout", HELM_TIMEOUT];
    env.helm(&["upgrade"], Some(env.chart()), &[&wait, args].concat())
        .await?;
    Ok(())
}

/// Waits until a policy has dropped packets of the operator's pod.
async fn wait_for_drops(env: &PodEnv) -> Result<Value, Failure> {
    let dropped = wait::until("packets of the pod to be dropped", TIMEOUT, async || {
        let pod = env.pod().await.map_err(|error| error.to_string())?;
        match env.node.dropped_packets(&pod).await {
            Ok(1..) => Ok(pod),
            Ok(0) => Err("no dropped packets".into()),
            Err(error) => Err(error.to_string()),
        }
    });
    Ok(dropped.await?)
}

pub async fn other_pods_are_denied(env: &PodEnv) -> Test {
    for namespace in ["closed", "open", "monitoring"] {
        env.objects
            .apply(&reference("v1", "Namespace", None, namespace))
            .await?;
    }
    let server = env.start_second_server(OTHER_PORT).await?;
    env.enforce_network_policies().await?;
    let monitoring = r#"networkPolicy.ingressFrom=[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]"#;
    let closed = "networkPolicy.closedNamespaces={closed}";
    let args = [
        "--set",
        ENABLED,
        "--set-json",
        monitoring,
        "--set",
        closed,
        "--set",
        "replicaCount=2",
    ];
    env.install(env.chart(), &args).await?;
    let pods = env.pods().await?;
    assert!(pods.len() == 2 && pods.iter().all(is_pod_ready));
    let operator = pods[0]["status"]["podIP"].as_str().ok_or("the pod has no IP address")?;

    let nfs = ADDRESS.to_string();
    // Source namespace, destination, and whether the connection is allowed.
    let cases = [
        ("closed", nfs.as_str(), 2049, false),
        ("open", &nfs, 2049, true),
        ("closed", &nfs, OTHER_PORT, true),
        ("monitoring", operator, 8080, true),
        ("open", operator, 8080, false),
    ];
    let attempts = cases.map(|(from, address, port, _)| can_connect(env, from, address, port));
    let connected = try_join_all(attempts).await?;
    assert_eq!(connected, cases.map(|(.., expected)| expected), "{cases:?}");
    env.print_progress("a closed namespace does not reach NFS servers, and only allowed pods read metrics");
    Ok(server.stop().await?)
}

/// Returns whether a pod in a namespace can connect, from the output of `probe` in it.
async fn can_connect(env: &PodEnv, namespace: &str, address: &str, port: u16) -> Result<bool, Failure> {
    let args = [
        "probe",
        &format!("{address}:/export"),
        &format!("--port={port}"),
        "--output=json",
    ];
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "probe", "image": IMAGE, "imagePullPolicy": "Never", "args": args }],
    });
    let pod = reference("v1", "Pod", Some(namespace), &format!("to-{port}"));
    let pod = env.objects.create(&with_fields(pod, json!({ "spec": spec }))).await?;
    let ended = env.objects.wait(&pod, "to end", TIMEOUT, |pod| {
        let state = &pod["status"]["containerStatuses"][0]["state"];
        match state["terminated"].is_object() {
            true => Ok(()),
            false => Err(state.to_string()),
        }
    });
    ended.await?;
    let log = env
        .cluster
        .kubectl(["logs", "--namespace", namespace, &format!("to-{port}")])
        .await?;
    env.objects.delete(&pod).await?;
    let output: Value = serde_json::from_str(&log).map_err(|error| format!("{error}: {log}"))?;
    let checks = output["checks"].as_array().ok_or("no checks")?;
    let connect = checks
        .iter()
        .find(|check| check["check"] == "connect")
        .ok_or("no check of the connection")?;
    match (connect["result"].as_str(), connect["reason"].as_str()) {
        (Some("ok"), _) => Ok(true),
        (_, Some("ConnectionTimedOut")) => Ok(false),
        _ => Err(format!("{address}:{port}: {connect}").into()),
    }
}
