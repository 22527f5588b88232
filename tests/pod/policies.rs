//! The chart's NetworkPolicies, enforced: by rules that the rig makes of them, since no network plugin is here.

use futures::future::try_join_all;
use rig::{
    TIMEOUT,
    node::ADDRESS,
    objects::{merge, reference},
    wait,
};
use serde_json::{Value, json};

use crate::{
    Failure, Test,
    stage::{IMAGE, Stage, backend, is_ready},
};

/// A port that the chart's values don't name.
const OTHER_PORT: u16 = 2050;
const ENABLED: &str = "networkPolicy.enabled=true";

/// The API server's port is not among what is allowed, though its Service's is.
const WITHOUT_API_SERVER: &str = "networkPolicy.egressPorts={443,2049}";

pub async fn reaches_what_it_needs(stage: &Stage) -> Test {
    let server = stage.another_server(OTHER_PORT).await?;
    stage.enforce().await?;
    let args = ["--create-namespace", "--set", ENABLED, "--set", WITHOUT_API_SERVER];
    stage.helm(&["install"], Some(&Stage::chart()), &args).await?;
    let other = stage.other_backend(OTHER_PORT).await?;
    let pod = refused(stage).await?;
    assert!(!is_ready(&pod), "{}", pod["status"]);
    stage.say("without the API server's own port the operator is kept from it");

    // No Job before it: the operator asks again ever more seldom meanwhile.
    upgrade(stage, &["--set", ENABLED, "--set", "crds.upgrade=false"]).await?;
    let same = stage.pod().await?;
    assert_eq!(pod["metadata"]["uid"], same["metadata"]["uid"]);
    assert!(is_ready(&same), "{}", same["status"]);
    stage
        .objects
        .wait_condition(&backend(), "Ready", "True", None, TIMEOUT)
        .await?;
    let claims = stage.claims("under-policies", 1).await?;
    stage.all_bound("under-policies", &claims).await?;
    stage.say("with the chart's own values the pod and its backend are Ready, and a claim is Bound");

    let reason = Some("ConnectionTimedOut");
    stage
        .objects
        .wait_condition(&other, "Reachable", "False", reason, TIMEOUT)
        .await?;
    let ports = format!("networkPolicy.egressPorts={{6443,2049,{OTHER_PORT}}}");
    upgrade(stage, &["--set", ENABLED, "--set", &ports]).await?;
    stage
        .objects
        .wait_condition(&other, "Ready", "True", None, TIMEOUT)
        .await?;
    stage.say("a server on another port is reached once the values name that");
    stage.objects.delete(&other).await?;
    stage.objects.wait_gone(&other, TIMEOUT).await?;
    Ok(server.stop().await?)
}

async fn upgrade(stage: &Stage, args: &[&str]) -> Test {
    let wait = ["--wait", "--timeout", "120s"];
    stage
        .helm(&["upgrade"], Some(&Stage::chart()), &[&wait, args].concat())
        .await?;
    Ok(())
}

/// Waits until a policy has kept the operator's pod from something.
async fn refused(stage: &Stage) -> Result<Value, Failure> {
    let refused = wait::until("the pod to be refused something", TIMEOUT, async || {
        let pod = stage.pod().await.map_err(|error| error.to_string())?;
        match stage.node.dropped_packets(&pod).await {
            Ok(1..) => Ok(pod),
            Ok(0) => Err("nothing yet".into()),
            Err(error) => Err(error.to_string()),
        }
    });
    Ok(refused.await?)
}

pub async fn shuts_others_out(stage: &Stage) -> Test {
    for namespace in ["closed", "open", "monitoring"] {
        stage
            .objects
            .apply(&reference("v1", "Namespace", None, namespace))
            .await?;
    }
    let server = stage.another_server(OTHER_PORT).await?;
    stage.enforce().await?;
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
        "replicas=2",
    ];
    stage.install(&Stage::chart(), &args).await?;
    let pods = stage.pods().await?;
    assert!(pods.len() == 2 && pods.iter().all(is_ready));
    let operator = pods[0]["status"]["podIP"].as_str().ok_or("the pod has no address")?;

    let nfs = ADDRESS.to_string();
    // Who connects to what, and whether that is let through.
    let tries = [
        ("closed", nfs.as_str(), 2049, false),
        ("open", &nfs, 2049, true),
        ("closed", &nfs, OTHER_PORT, true),
        ("monitoring", operator, 8080, true),
        ("open", operator, 8080, false),
    ];
    let tried = tries.map(|(from, address, port, _)| connects(stage, from, address, port));
    let connected = try_join_all(tried).await?;
    assert_eq!(connected, tries.map(|(.., expected)| expected), "of {tries:?}");
    stage.say("a closed namespace reaches no NFS server, and only who is named reads the metrics");
    Ok(server.stop().await?)
}

/// Whether a pod in that namespace can connect there, by its own account.
async fn connects(stage: &Stage, namespace: &str, address: &str, port: u16) -> Result<bool, Failure> {
    let mut pod = reference("v1", "Pod", Some(namespace), &format!("to-{port}"));
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
    merge(&mut pod, &json!({ "spec": spec }));
    let pod = stage.objects.create(&pod).await?;
    let ended = stage.objects.wait(&pod, "to end", TIMEOUT, |pod| {
        let state = &pod["status"]["containerStatuses"][0]["state"];
        match state["terminated"].is_object() {
            true => Ok(()),
            false => Err(state.to_string()),
        }
    });
    ended.await?;
    let log = stage
        .cluster
        .kubectl(["logs", "--namespace", namespace, &format!("to-{port}")])
        .await?;
    stage.objects.delete(&pod).await?;
    let told: Value = serde_json::from_str(&log).map_err(|error| format!("{error}: {log}"))?;
    let checks = told["checks"].as_array().ok_or("no checks")?;
    let connect = checks
        .iter()
        .find(|check| check["check"] == "connect")
        .ok_or("no such check")?;
    match (connect["result"].as_str(), connect["reason"].as_str()) {
        (Some("ok"), _) => Ok(true),
        (_, Some("ConnectionTimedOut")) => Ok(false),
        _ => Err(format!("{address}:{port}: {connect}").into()),
    }
}
