//! `kubectl nfs probe` beside an installed operator.

use std::process::Output;

use rig::{TIMEOUT, objects::reference, operator::find_binary, wait};
use serde_json::Value;
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

pub async fn prints_findings(env: &PodEnv) -> Test {
    env.install(&PodEnv::chart(), &[]).await?;
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
    // This node has no NFS client, and its kubelet says so.
    let mounted = probe(env, &[&export, "--from-node", &node, "-o", "json"]).await?;
    let findings: Value = serde_json::from_slice(&mounted.stdout)?;
    let checks = findings["checks"].as_array().into_iter().flatten();
    let mount = checks.filter(|row| row["check"] == "mount").collect::<Vec<_>>();
    let [mount] = mount[..] else {
        return Err(format!("one mount: {findings:#}").into());
    };
    assert_eq!(mount["result"], "failed", "{findings:#}");
    let said = mount["message"].as_str().unwrap_or_default();
    assert!(
        said.contains("did not mount") && said.contains("no NFS client"),
        "{said}"
    );
    assert_eq!(mounted.status.code(), Some(1), "{findings:#}");
    assert_eq!(
        (&findings["ready"], &findings["exitCode"]),
        (&true.into(), &1.into()),
        "{findings:#}"
    );
    env.print_progress(said);
    let absent = probe(env, &[&format!("{}:/absent", rig::node::ADDRESS)]).await?;
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
    let shown = String::from_utf8_lossy(&absent.stdout).into_owned();
    assert!(shown.contains("FAILED") && shown.contains("ExportNotFound"), "{shown}");
    for (version, kind, namespace) in [
        ("batch/v1", "Job", Some(NAMESPACE)),
        ("v1", "Pod", Some(NAMESPACE)),
        ("v1", "PersistentVolumeClaim", Some(NAMESPACE)),
        ("v1", "PersistentVolume", None),
    ] {
        let listed = reference(version, kind, namespace, "");
        wait::until("what the probes created to be removed", TIMEOUT, async || {
            let all = env.objects.list(&listed).await.map_err(|error| error.to_string())?;
            let mut names = all.iter().filter_map(|object| object["metadata"]["name"].as_str());
            names
                .find(|name| name.contains("probe") || name.contains("nfs-operator-mount"))
                .map_or(Ok(()), |name| Err(name.to_owned()))
        })
        .await?;
    }
    Ok(())
}
