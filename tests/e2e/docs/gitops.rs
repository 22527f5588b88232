//! The chart and all samples in the hands of two tools that apply them server-side: docs/gitops.md.

use std::collections::BTreeSet;
use std::fs;

use rig::assets::{Helm, Kubernetes};
use rig::objects::{condition, reference};
use rig::operator::repository_root;
use rig::{Export, Objects, Operator, wait};
use serde_json::{Value, json};

use crate::docs::guide_cluster::GuideCluster;
use crate::support::shared::{Failure, TIMEOUT, Test};
use crate::support::shell::Shell;

/// The export of the backend in the chart's values.
const CHART_EXPORT: &str = "/chart";

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

/// A folder that two tools apply, with the commands of the guide.
struct ManagedFolder {
    applies: Vec<String>,
    diffs: Vec<String>,
}

impl ManagedFolder {
    fn new(folder: &str) -> Result<Self, Failure> {
        let page = fs::read_to_string(repository_root().join("docs/gitops.md"))?;
        let block = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
        let lines: Vec<&str> = block.unwrap_or_default().lines().collect();
        let [apply, diff] = lines.as_slice() else {
            return Err(format!("not two commands: {lines:?}").into());
        };
        let by_each = |line: &str| {
            let by = |manager| {
                line.replace("--field-manager=gitops", &format!("--field-manager={manager}"))
                    .replace("config/samples", folder)
            };
            ["argocd", "flux"].map(by).into()
        };
        Ok(Self {
            applies: by_each(apply),
            diffs: by_each(diff),
        })
    }

    /// Applies it with both tools. A conflict is a failure.
    async fn apply(&self, shell: &Shell) -> Test {
        for command in &self.applies {
            shell.run(command).await?;
        }
        Ok(())
    }

    /// Waits until neither tool finds a difference. `kubectl diff` reads an object and then requests what an apply would
    /// make of it: a status that is written in between is a difference that the next comparison does not find.
    async fn compare(&self, shell: &Shell) -> Test {
        for command in &self.diffs {
            wait::until("no difference", TIMEOUT, async || {
                let compared = shell.run_unchecked(command).await;
                compared.map_err(|error| error.to_string())?.map(drop)
            })
            .await?;
        }
        Ok(())
    }
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

/// Renders the chart with the options that are off by default, and with a backend and a class of its own.
async fn render_chart(guide: &GuideCluster) -> Result<String, Failure> {
    let helm = Helm::V4.find_or_build().await?;
    let spec = json!({"server": "127.0.0.1", "path": CHART_EXPORT, "nfs": {"port": guide.nfs.port()}});
    let everything = fs::read_to_string(repository_root().join("tests/chart/values/everything.yaml"))?;
    let mut values: Value = serde_norway::from_str(&everything)?;
    // Those in the file have the names of samples.
    values["backends"] = json!({"chart": {"spec": spec}});
    values["storageClasses"] = json!({"chart": {"parameters": {"backend": "chart"}}});
    let file = guide.run.path().join("values.json");
    fs::write(&file, values.to_string())?;
    let render = format!(
        "{} template nfs-operator config/helm/nfs-operator --namespace nfs-operator-system --no-hooks --kube-version {} \
         --values {}",
        helm.display(),
        Kubernetes::from_env()?.release(),
        file.display()
    );
    guide.shell.run(&render).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tools_apply_the_chart_and_every_sample_without_a_conflict_and_find_no_difference_afterwards() -> Test {
    let paths = paths(&samples(0)?);
    let exports = paths.iter().map(String::as_str).chain([CHART_EXPORT]);
    let mut guide = GuideCluster::without_operator(exports.map(Export::new).collect()).await?;
    // The credential of this sample.
    std::os::unix::fs::chown(guide.nfs.data_dir("/squashed")?, Some(1000), Some(1000))?;
    let folder = guide.run.new_dir("samples")?;
    for (name, sample) in samples(guide.nfs.port())? {
        fs::write(folder.join(name), sample)?;
    }
    let chart = guide.run.new_dir("chart")?;
    fs::write(chart.join("chart.yaml"), render_chart(&guide).await?)?;
    // In the order of the guide.
    let kinds = ManagedFolder::new("config/helm/nfs-operator/crds")?;
    kinds.apply(&guide.shell).await?;
    let prepare = "kubectl create namespace nfs-operator-system
        kubectl apply -f tests/chart/values/monitoring-kinds.yaml
        kubectl wait crd --all --for=condition=Established --timeout=240s";
    guide.shell.run(prepare).await?;
    let chart = ManagedFolder::new(&chart.display().to_string())?;
    chart.apply(&guide.shell).await?;
    let kubeconfig = Operator::kubeconfig(&guide.cluster).await?;
    guide.start_operator(kubeconfig).await?;
    let samples = ManagedFolder::new(&folder.display().to_string())?;
    samples.apply(&guide.shell).await?;
    let folders = [kinds, chart, samples];
    for round in 0..2 {
        wait_settled(&guide.objects).await?;
        for folder in &folders {
            folder.compare(&guide.shell).await?;
        }
        // An apply that changes nothing starts nothing.
        for folder in folders.iter().filter(|_| round == 0) {
            folder.apply(&guide.shell).await?;
        }
    }
    Ok(())
}
