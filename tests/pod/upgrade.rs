//! From a chart that was released to the one of the working tree.

use std::{fs, path::PathBuf, process::Command};

use rig::{assets::Kubernetes, operator::repository_root, process};

use crate::{
    Failure, Test,
    stage::{Stage, is_ready},
};

/// More than are done before the upgrade begins.
const CLAIMS: usize = 60;

pub async fn loses_no_claim(stage: &Stage) -> Test {
    let previous = for_this_release(stage, previous()?).await?;
    stage.install(&previous, &[]).await?;
    let before = stage.pod().await?;
    let claims = stage.claims("upgraded", CLAIMS).await?;
    let chart = Stage::chart();
    let wait = ["--wait", "--timeout", "120s"];
    // Also where nothing else of the chart has changed, the pod is another.
    let other = ["--set", "podAnnotations.upgraded=yes"];
    stage
        .helm(&["upgrade"], Some(&chart), &[wait.as_slice(), &other].concat())
        .await?;
    let after = stage.pod().await?;
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert!(is_ready(&after));
    stage.say(&format!("upgraded from {}", previous.display()));
    stage.all_bound("upgraded", &claims).await?;
    stage.say(&format!(
        "{CLAIMS} claims that were in flight are Bound, each to one directory"
    ));
    Ok(())
}

/// The newest packaged chart of the fixtures.
fn previous() -> Result<PathBuf, Failure> {
    let mut charts = Vec::new();
    for entry in fs::read_dir(repository_root().join("tests/pod/charts"))? {
        charts.push(entry?.path());
    }
    charts.sort();
    charts
        .pop()
        .ok_or_else(|| "there is no chart in tests/pod/charts".into())
}

/// The chart as it is; on a release of Kubernetes that it refuses, since it was packaged before tests ran there, one that
/// has all of it but that word.
async fn for_this_release(stage: &Stage, packaged: PathBuf) -> Result<PathBuf, Failure> {
    if Kubernetes::from_env()? == Kubernetes::Newest {
        return Ok(packaged);
    }
    let folder = stage.folder("previous")?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&packaged).arg("-C").arg(&folder);
    process::run(unpack).await?;
    let chart = folder.join("nfs-operator");
    let about = chart.join("Chart.yaml");
    let text = fs::read_to_string(&about)?;
    let kept = text.lines().filter(|line| !line.starts_with("kubeVersion:"));
    fs::write(&about, kept.collect::<Vec<_>>().join("\n"))?;
    stage.say("the chart of before is taken without its kubeVersion");
    Ok(chart)
}
