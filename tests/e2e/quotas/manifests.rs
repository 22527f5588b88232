//! The unit file and the manifests of the quota agent that releases contain.

use std::path::{Path, PathBuf};

use rig::operator::repository_root;
use rig::{RunDir, TestEnv};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::shared::Test;

fn folder() -> PathBuf {
    repository_root().join("config/quota-agent")
}

/// Returns a manifest without what the API server of the tests refuses: it allows no privileged containers.
fn unprivileged(name: &str) -> std::io::Result<String> {
    let text = std::fs::read_to_string(folder().join(name))?;
    assert!(text.contains("privileged: true"), "{name}");
    Ok(text.replace("privileged: true", "privileged: false"))
}

/// Has the API server check a manifest as it would check one to create, unknown fields included.
async fn dry_run(env: &TestEnv, manifest: &Path) -> rig::Result<Value> {
    let path = manifest.display().to_string();
    let args = [
        "create",
        "--dry-run=server",
        "--validate=strict",
        "-o",
        "json",
        "-f",
        &path,
    ];
    let text = env.rig.cluster.kubectl(args).await?;
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

fn arguments(workload: &Value) -> Vec<&str> {
    let containers = workload["spec"]["template"]["spec"]["containers"].as_array();
    let agent = containers.and_then(|all| all.iter().find(|one| one["name"] == "quota-agent"));
    let args = agent.and_then(|agent| agent["args"].as_array());
    args.into_iter().flatten().filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn the_api_server_accepts_the_daemon_set_and_the_sidecar() -> Test {
    let env = TestEnv::new("quotafiles").await?;
    let run = RunDir::new()?;
    let files = run.new_dir("files")?;
    let text = unprivileged("daemonset.yaml")?;
    // A dry run needs the namespace.
    let moved = text.replace(
        "namespace: nfs-operator-quota-agent",
        &format!("namespace: {}", env.name),
    );
    assert_ne!(moved, text);
    std::fs::write(files.join("daemonset.yaml"), &moved)?;
    let created = dry_run(&env, &files.join("daemonset.yaml")).await?;
    assert_eq!(created["kind"], "DaemonSet");
    assert!(arguments(&created).contains(&"--key-file"), "{created}");
    let misspelled = moved.replace("readOnlyRootFilesystem", "readonlyRootFilesystem");
    std::fs::write(files.join("misspelled.yaml"), misspelled)?;
    let refused = dry_run(&env, &files.join("misspelled.yaml")).await.unwrap_err();
    assert!(refused.to_string().contains("readonlyRootFilesystem"), "{refused}");

    let labels = json!({"app": "server"});
    let server = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "server", "namespace": env.name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{"name": "server", "image": "example.com/server"}],
                    "volumes": [{"name": "export", "emptyDir": {}}],
                },
            },
        },
    });
    let (base, patched) = (files.join("server.json"), files.join("patched.json"));
    let patch = files.join("sidecar.yaml");
    std::fs::write(&patch, unprivileged("sidecar.yaml")?)?;
    std::fs::write(&base, server.to_string())?;
    let (base, patch) = (base.display().to_string(), patch.display().to_string());
    let args = ["patch", "--local", "-o", "json", "-f", &base, "--patch-file", &patch];
    std::fs::write(&patched, env.rig.cluster.kubectl(args).await?)?;
    let created = dry_run(&env, &patched).await?;
    assert_eq!(
        created["spec"]["template"]["spec"]["containers"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert!(arguments(&created).contains(&"--key-file"), "{created}");
    Ok(())
}

#[tokio::test]
async fn systemd_accepts_the_unit_file_and_finds_it_confined() -> Test {
    let text = std::fs::read_to_string(folder().join("nfs-operator-quota-agent.service"))?;
    let run = RunDir::new()?;
    let unit = run.new_dir("unit")?.join("nfs-operator-quota-agent.service");
    // Programs in units must exist.
    let installed = text.replace("/usr/local/bin/nfs-operator", "/bin/true");
    assert_ne!(installed, text);
    std::fs::write(&unit, installed)?;
    for check in [
        ["verify", "--man=no"].as_slice(),
        // From 0, nothing is left to misuse, to 10 (100 here). The rest is what the agent needs: root, and quotactl.
        ["security", "--offline=yes", "--threshold=30"].as_slice(),
    ] {
        let output = Command::new("systemd-analyze").args(check).arg(&unit).output().await;
        let output = match output {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("SKIPPED, nothing was checked: systemd-analyze is missing");
                return Ok(());
            }
            output => output?,
        };
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert!(output.status.success(), "{check:?}: {printed}");
        assert!(check[0] != "verify" || printed.is_empty(), "{printed}");
    }
    Ok(())
}
