//! Upgrade from a released chart to the chart in the repository. Until there is a release, the latter is upgraded to itself
//! with another annotation, which replaces the pod too.

use std::{fs, path::PathBuf};

use rig::operator::repository_root;
use serde_json::Value;

use crate::{
    Failure, Test,
    env::{HELM_TIMEOUT, PodEnv, is_pod_ready},
};

/// Enough that some are pending when the upgrade begins.
const CLAIMS: usize = 60;

pub async fn keeps_pending_claims(env: &PodEnv) -> Test {
    let previous = newest_released_chart()?.unwrap_or_else(|| env.chart().to_owned());
    env.install(&previous, &[]).await?;
    let before = env.pod().await?;
    let claims = env.create_claims("upgraded", CLAIMS).await?;
    let chart = env.chart();
    let wait = ["--wait", "--timeout", HELM_TIMEOUT];
    // Ensures that the pod is replaced even if the chart has no other change.
    let annotation = ["--set", "podAnnotations.upgraded=yes"];
    env.helm(&["upgrade"], Some(chart), &[wait.as_slice(), &annotation].concat())
        .await?;
    let after = env.pod().await?;
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert!(is_pod_ready(&after));
    env.print_progress(&format!("upgraded from {}", previous.display()));
    env.wait_all_bound("upgraded", &claims).await?;
    env.print_progress(&format!("{CLAIMS} pending claims are Bound, each to one directory"));
    Ok(())
}

pub async fn rolls_back(env: &PodEnv) -> Test {
    let chart = env.chart();
    env.install(chart, &[]).await?;
    let wait = ["--wait", "--timeout", HELM_TIMEOUT];
    let annotation = ["--set", "podAnnotations.upgraded=yes"];
    env.helm(&["upgrade"], Some(chart), &[wait.as_slice(), &annotation].concat())
        .await?;
    let before = env.pod().await?;
    assert_eq!(before["metadata"]["annotations"]["upgraded"], "yes");
    let claims = env.create_claims("rolled-back", CLAIMS).await?;
    env.helm(&["rollback"], None, &wait).await?;
    let after = env.pod().await?;
    assert_eq!(after["metadata"]["annotations"]["upgraded"], Value::Null);
    assert!(is_pod_ready(&after));
    env.wait_all_bound("rolled-back", &claims).await?;
    env.print_progress(&format!(
        "rolled back; {CLAIMS} pending claims are Bound, each to one directory"
    ));
    Ok(())
}

/// Returns the newest released chart, if any: `tests/pod/charts` has each of them, as it was published.
fn newest_released_chart() -> Result<Option<PathBuf>, Failure> {
    let folder = repository_root().join("tests/pod/charts");
    if !folder.exists() {
        return Ok(None);
    }
    let mut charts = Vec::new();
    for entry in fs::read_dir(folder)? {
        charts.push(entry?.path());
    }
    charts.sort();
    Ok(charts.pop())
}
