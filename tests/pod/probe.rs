//! `kubectl nfs probe` beside an installed operator.

use std::process::Output;

use rig::{
    TIMEOUT,
    objects::{reference, with_fields},
    operator::find_binary,
    wait,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    Failure, Test,
    env::{NAMESPACE, PodEnv},
};

async fn probe(env: &PodEnv, args: &[&str]) -> Result<Output, Failure> {
    let mut command = Command::new(find_binary()?);
    command
        .arg0("kubectl-nfs")
        .arg("probe")
        .args(args)
        .env("KUBECONFIG", env.cluster.kubeconfig());
    Ok(command.output().await?)
}

/// Returns the result and the message of the only check of a mount.
fn mount_check(findings: &Value) -> Result<(String, String), Failure> {
    let checks = findings["checks"].as_array().into_iter().flatten();
    let mount = checks.filter(|row| row["check"] == "mount").collect::<Vec<_>>();
    let [mount] = mount[..] else {
        return Err(format!("not one mount: {findings:#}").into());
    };
    let field = |name: &str| mount[name].as_str().unwrap_or_default().to_owned();
    Ok((field("result"), field("message")))
}

pub async fn prints_findings(env: &PodEnv) -> Test {
    env.install(env.chart(), &[]).await?;
    let node = env.pod().await?["spec"]["nodeName"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    // The server accepts only source ports below 1024, which the sysctl allows.
    let export = format!("{}:/export", rig::node::ADDRESS);
    let found = probe(env, &[&export, "--write", "-o", "json"]).await?;
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let findings: Value = serde_json::from_slice(&found.stdout)?;
    assert_eq!(findings["ready"], true, "{findings:#}");
    env.print_progress("probed from a pod");
    // The namespace admits the pod, so the kubelet of this node tries to mount. Whether it can depends on the host's kernel.
    let mounted = probe(env, &[&export, "--from-node", &node, "-o", "json"]).await?;
    let findings: Value = serde_json::from_slice(&mounted.stdout)?;
    let (result, said) = mount_check(&findings)?;
    env.print_progress(&said);
    let has_client = std::fs::read_to_string("/proc/filesystems")?.contains("\tnfs4\n");
    let (expected, code, text) = match has_client {
        true => ("ok", 0, "mounted the export read-only"),
        false => ("failed", 1, "has no NFS client"),
    };
    assert!(result == expected && said.contains(text), "{result}: {said}");
    assert_eq!(mounted.status.code(), Some(code), "{findings:#}");
    // What the operator can do does not depend on the node.
    assert_eq!(
        (&findings["ready"], &findings["exitCode"]),
        (&true.into(), &code.into()),
        "{findings:#}"
    );
    // A volume at the root of the export would be in the way of all claims.
    let mut volumes = env.objects.list(&reference("v1", "PersistentVolume", None, "")).await?;
    volumes.retain(|volume| volume["spec"]["nfs"]["path"] == "/export");
    assert!(volumes.is_empty(), "{volumes:?}");

    // The strictest policy for pods admits claims only.
    let restricted = with_fields(
        reference("v1", "Namespace", None, "restricted"),
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}),
    );
    env.objects.apply(&restricted).await?;
    let arguments = ["--from-node", &node, "--mount-namespace", "restricted", "-o", "json"];
    let refused = probe(env, &[&[export.as_str()], &arguments[..]].concat()).await?;
    let findings: Value = serde_json::from_slice(&refused.stdout)?;
    let (result, said) = mount_check(&findings)?;
    assert!(
        result == "skipped" && said.contains("PodSecurity") && said.contains("--mount-namespace"),
        "{result}: {said}"
    );
    assert_eq!(refused.status.code(), Some(0), "{findings:#}");
    let absent = probe(env, &[&format!("{}:/absent", rig::node::ADDRESS)]).await?;
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
    let shown = String::from_utf8_lossy(&absent.stdout).into_owned();
    assert!(shown.contains("FAILED") && shown.contains("ExportNotFound"), "{shown}");
    for (version, kind, namespace) in [
        ("batch/v1", "Job", Some(NAMESPACE)),
        ("v1", "Pod", Some(NAMESPACE)),
        ("batch/v1", "Job", Some("restricted")),
    ] {
        let listed = reference(version, kind, namespace, "");
        wait::until("what the probes created to be removed", TIMEOUT, async || {
            let all = env.objects.list(&listed).await.map_err(|error| error.to_string())?;
            let mut names = all.iter().filter_map(|object| object["metadata"]["name"].as_str());
            names
                .find(|name| name.contains("probe"))
                .map_or(Ok(()), |name| Err(name.to_owned()))
        })
        .await?;
    }
    Ok(())
}
