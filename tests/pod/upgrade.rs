//! Upgrade from a released chart to the chart in the repository.

use std::{fs, path::PathBuf, process::Command};

use rig::{assets::Kubernetes, operator::repository_root, process};

use crate::{
    Failure, Test,
    env::{HELM_TIMEOUT, PodEnv, is_pod_ready},
};

/// Enough that some are pending when the upgrade begins.
const CLAIMS: usize = 60;

pub async fn keeps_pending_claims(env: &PodEnv) -> Test {
    let previous = unpack_for_cluster(env, newest_released_chart()?).await?;
    env.install(&previous, &[]).await?;
    let before = env.pod().await?;
    let claims = env.create_claims("upgraded", CLAIMS).await?;
    let chart = PodEnv::chart();
    let wait = ["--wait", "--timeout", HELM_TIMEOUT];
    // Ensures that the pod is replaced even if the chart has no other change.
    let annotation = ["--set", "podAnnotations.upgraded=yes"];
    env.helm(&["upgrade"], Some(&chart), &[wait.as_slice(), &annotation].concat())
        .await?;
    let after = env.pod().await?;
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert!(is_pod_ready(&after));
    env.print_progress(&format!("upgraded from {}", previous.display()));
    env.wait_all_bound("upgraded", &claims).await?;
    env.print_progress(&format!("{CLAIMS} pending claims are Bound, each to one directory"));
    Ok(())
}

/// Returns the newest released chart in the fixtures.
fn newest_released_chart() -> Result<PathBuf, Failure> {
    let mut charts = Vec::new();
    for entry in fs::read_dir(repository_root().join("tests/pod/charts"))? {
        charts.push(entry?.path());
    }
    charts.sort();
    charts.pop().ok_or_else(|| "no chart in tests/pod/charts".into())
}

/// Returns the chart, without `kubeVersion` on the oldest version of Kubernetes: it was packaged before that version
/// was supported.
async fn unpack_for_cluster(env: &PodEnv, packaged: PathBuf) -> Result<PathBuf, Failure> {
    if Kubernetes::from_env()? == Kubernetes::Newest {
        return Ok(packaged);
    }
    let folder = env.new_dir("previous")?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&packaged).arg("-C").arg(&folder);
    process::run(unpack).await?;
    let chart = folder.join("nfs-operator");
    let manifest = chart.join("Chart.yaml");
    let text = fs::read_to_string(&manifest)?;
    let lines = text.lines().filter(|line| !line.starts_with("kubeVersion:"));
    fs::write(&manifest, lines.collect::<Vec<_>>().join("\n"))?;
    env.print_progress("the previous chart is installed without its kubeVersion");
    Ok(chart)
}
