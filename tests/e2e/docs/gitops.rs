//! All samples in the hands of two tools that apply them server-side: docs/gitops.md.

use std::collections::BTreeSet;
use std::fs;

use rig::objects::{condition, reference};
use rig::operator::{find_binary, repository_root};
use rig::{Cluster, Export, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, RunDir};
use serde_json::Value;

use crate::support::shared::{Failure, TIMEOUT, Test};
use crate::support::shell::Shell;

/// Returns the samples by file name, with all servers on the loopback at this port.
fn samples(port: u16) -> Result<Vec<(String, String)>, Failure> {
    let mut samples = Vec::new();
    for entry in fs::read_dir(repository_root().join("config/samples"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != "kustomization.yaml" {
            samples.push((name, on_loopback(&fs::read_to_string(path)?, port)));
        }
    }
    samples.sort();
    Ok(samples)
}

fn on_loopback(sample: &str, port: u16) -> String {
    let mut text = String::new();
    for document in sample.split_inclusive("---\n") {
        if !document.lines().any(|line| line == "kind: NfsBackend") {
            text += document;
            continue;
        }
        let has_settings = document.lines().any(|line| line == "  nfs:");
        for line in document.lines().filter(|line| !line.starts_with("    port:")) {
            match line.strip_prefix("  server: ") {
                Some(_) => text += "  server: 127.0.0.1\n",
                None => text += &format!("{line}\n"),
            }
            if line == "  nfs:" {
                text += &format!("    port: {port}\n");
            } else if line.starts_with("  server:") && !has_settings {
                text += &format!("  nfs: {{port: {port}}}\n");
            }
        }
    }
    text
}

/// Returns the paths of the exports in the samples.
fn paths(samples: &[(String, String)]) -> BTreeSet<String> {
    let lines = samples.iter().flat_map(|(_, sample)| sample.lines());
    lines
        .filter_map(|line| line.strip_prefix("  path: "))
        .map(str::to_owned)
        .collect()
}

/// Returns the commands of the guide, for a field manager and a folder.
fn commands(manager: &str, folder: &str) -> Result<[String; 2], Failure> {
    let page = fs::read_to_string(repository_root().join("docs/gitops.md"))?;
    let block = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let of_manager = |line: &str| {
        line.replace("--field-manager=gitops", &format!("--field-manager={manager}"))
            .replace("config/samples", folder)
    };
    let lines: Vec<String> = block.unwrap_or_default().lines().map(of_manager).collect();
    <[String; 2]>::try_from(lines).map_err(|lines| format!("not two commands: {lines:?}").into())
}

/// Waits until the operator has nothing more to do about the samples.
async fn wait_settled(objects: &Objects) -> Test {
    let any = |kind| reference("nfs-operator.io/v1alpha1", kind, None, "any");
    for backend in objects.list(&any("NfsBackend")).await? {
        // Not all are ready: some samples need more space than the machine has, or another version of NFS.
        let probed = |found: &Value| match condition(found, "Ready") {
            Some(ready) if ready["status"] != "Unknown" => Ok(()),
            other => Err(format!("{other:?}")),
        };
        objects.wait(&backend, "to be probed", TIMEOUT, probed).await?;
    }
    let claim = |name| reference("v1", "PersistentVolumeClaim", Some("default"), name);
    for name in ["my-data", "my-data-copy", "my-own", "by-hand"] {
        objects.wait_bound(&claim(name), TIMEOUT).await?;
    }
    let kind = "nfs-operator.io/Provisioned";
    for name in ["my-data-again", "my-data-then"] {
        objects
            .wait_condition(&claim(name), kind, "False", None, TIMEOUT)
            .await?;
    }
    for name in ["my-data-before-the-upgrade", "my-data-for-staging"] {
        let archive = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, name);
        objects
            .wait_condition(&archive, "Available", "True", None, TIMEOUT)
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tools_apply_every_sample_without_a_conflict_and_find_no_difference_afterwards() -> Test {
    let run = RunDir::new()?;
    let exports = paths(&samples(0)?).into_iter().map(Export::new);
    let options = NfsOptions {
        exports: exports.collect(),
        ..NfsOptions::default()
    };
    let nfs = NfsServer::start(&run, options).await?;
    // The credential of this sample.
    std::os::unix::fs::chown(nfs.data_dir("/squashed")?, Some(1000), Some(1000))?;
    let cluster = Cluster::start(&run).await?;
    let kubeconfig = Operator::install(&cluster).await?;
    let operator = Operator::start(&run, OperatorOptions::new(find_binary()?, kubeconfig)).await?;
    operator.wait_ready().await?;
    let folder = run.new_dir("samples")?;
    for (name, sample) in samples(nfs.port())? {
        fs::write(folder.join(name), sample)?;
    }
    let shell = Shell::new(&run, &cluster)?;
    let folder = folder.display().to_string();
    let [[apply, diff], [other_apply, other_diff]] = [commands("argocd", &folder)?, commands("flux", &folder)?];
    shell.run(&apply).await?;
    shell.run(&other_apply).await?;
    let objects = Objects::new(cluster.client().await?);
    wait_settled(&objects).await?;
    for command in [&diff, &other_diff, &apply, &other_apply, &diff, &other_diff] {
        shell.run(command).await?;
    }
    // An apply that changes nothing starts nothing.
    wait_settled(&objects).await?;
    shell.run(&diff).await?;
    Ok(())
}
