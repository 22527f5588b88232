//! Monitoring of the operator: metrics, alert rules and the dashboard.

use std::fs;
use std::path::{Path, PathBuf};

use nfs_operator::api::Reason;
use rig::operator::repository_root;
use rig::{Assets, Error, RunDir, TestEnv, wait};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::backends::reasons::SEEN;
use crate::support::shared::{Failure, Test, bound};

/// Returns promtool, or None with a notice if it is not available.
async fn promtool() -> Result<Option<PathBuf>, Failure> {
    match Assets::find_or_install_promtool().await {
        Ok(program) => Ok(Some(program)),
        Err(missing @ Error::Missing { .. }) => {
            eprintln!("SKIPPED, nothing was checked: {missing}");
            Ok(None)
        }
        Err(other) => Err(other.into()),
    }
}

/// Runs promtool. Fails with its output if it does not succeed.
async fn check(promtool: &Path, folder: &Path, args: &[&str], input: &str) -> Result<String, Failure> {
    let mut command = Command::new(promtool);
    command.args(args).current_dir(folder).kill_on_drop(true);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "promtool {args:?}: {text}");
    Ok(text)
}

fn config() -> PathBuf {
    repository_root().join("config/prometheus")
}

#[tokio::test]
async fn promtool_accepts_the_metrics_of_a_running_operator() -> Test {
    let Some(promtool) = promtool().await? else {
        return Ok(());
    };
    let env = TestEnv::new("promtool").await?;
    let class = env.create_ready_class().await?;
    let (claim, volume) = bound(&env, "data", &class).await?;
    // A waiting claim, so that this metric has a series, too.
    let mut waiting = env.claim("waiting", &class);
    waiting["spec"]["volumeMode"] = json!("Block");
    env.objects.create(&waiting).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, SEEN).await?;
    let series = "nfs_operator_claims_waiting{reason=\"BlockVolumeUnsupported\"} ";
    let text = wait::until("the waiting claim in the metrics", SEEN, async || {
        let text = env.rig.operator.metrics().await.map_err(|error| error.to_string())?;
        if text.lines().any(|line| line.starts_with(series)) {
            Ok(text)
        } else {
            Err(text)
        }
    })
    .await?;
    let output = check(&promtool, &repository_root(), &["check", "metrics"], &text).await?;
    assert_eq!(output, "", "{text}");
    Ok(())
}

#[tokio::test]
async fn the_metrics_count_the_calls_to_each_server_until_its_backend_is_deleted() -> Test {
    let env = TestEnv::new("calls").await?;
    let object = env.backend("backend", json!({"archivePolicy": {"onDelete": "Delete"}}));
    let object = env.objects.create(&object).await?;
    env.objects.wait_condition(&object, "Ready", "True", None, SEEN).await?;
    let name = env.unique_name("backend");
    let class = env.class("class", json!({ "backend": name }));
    let class = env.objects.create(&class).await?;
    let backend = format!("backend=\"{name}\"");
    let (claim, volume) = bound(&env, "data", &class).await?;
    let value = |text: &str, name: &str, labels: &str| {
        let series = format!("{name}{{{backend}{labels}}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok())
    };
    // The claim is bound before the operator has reported it.
    let text = wait::until("the slots to be free", SEEN, async || {
        let text = env.rig.operator.metrics().await.map_err(|error| error.to_string())?;
        let is_idle = |name: &str, work: &str| value(&text, name, &format!(",work=\"{work}\"")) == Some(0.0);
        let works = ["claims", "reclaims", "archives"];
        let idle = works.iter().all(|work| {
            is_idle("nfs_operator_backend_slots_used", work) && is_idle("nfs_operator_backend_queued", work)
        });
        if idle { Ok(text) } else { Err(text) }
    })
    .await?;
    let calls = "nfs_operator_nfs_call_duration_seconds_count";
    for operation in ["lookup", "list", "change"] {
        let count = value(&text, calls, &format!(",operation=\"{operation}\""));
        assert!(count.is_some_and(|count| count > 0.0), "{operation}: {text}");
    }
    // The first connection only observes the export, the second one writes. A stalled machine may need more.
    let connections = value(&text, "nfs_operator_nfs_connections_total", "");
    assert!(connections.is_some_and(|count| count >= 2.0), "{text}");
    let failures = value(&text, "nfs_operator_nfs_connection_failures_total", "");
    assert!(failures.is_some(), "{text}");
    for work in ["claims", "reclaims", "archives"] {
        let slots = value(&text, "nfs_operator_backend_slots", &format!(",work=\"{work}\""));
        assert!(slots.is_some_and(|slots| slots >= 4.0), "{work}: {text}");
    }
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, SEEN).await?;
    env.objects.delete(&object).await?;
    env.objects.wait_gone(&object, SEEN).await?;
    // The object goes with its finalizer, its series right after that.
    let gone = wait::until("the series to be removed", SEEN, async || {
        let text = env.rig.operator.metrics().await.map_err(|error| error.to_string())?;
        match text.lines().find(|line| line.contains(&backend)) {
            None => Ok(()),
            Some(left) => Err(left.to_owned()),
        }
    });
    Ok(gone.await?)
}

/// Returns a test of promtool for the alerts that depend on a reason. For each reason, there are a backend and a cluster of
/// its name: the backend has this reason, and in the cluster, a claim waits for it.
fn tests_of_reasons() -> Value {
    let series = |name: &str| json!({"series": name, "values": "1x30"});
    let series = Reason::ALL.iter().flat_map(|reason| {
        [
            format!("nfs_operator_backend_reason{{backend=\"{reason}\",reason=\"{reason}\"}}"),
            format!("nfs_operator_claims_waiting{{cluster=\"{reason}\",reason=\"{reason}\"}}"),
        ]
        .map(|name| series(&name))
    });
    let fires = |alert: &str, label: &str, is_reported: fn(Reason) -> bool| {
        let reported = Reason::ALL.iter().filter(|reason| is_reported(**reason));
        let samples = reported.map(|reason| json!({"labels": format!("{{{label}=\"{reason}\"}}"), "value": 1}));
        json!({
            "expr": format!("count by ({label}) (ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}})"),
            "eval_time": "30m",
            "exp_samples": samples.collect::<Vec<_>>(),
        })
    };
    let cases = [
        fires("NfsClaimsWaiting", "cluster", Reason::is_platform_fault),
        fires("NfsBackendInDoubt", "backend", Reason::is_export_in_doubt),
        fires("NfsBackendNotReady", "backend", |reason| {
            !reason.is_intended() && !reason.is_export_in_doubt() && !reason.is_quota_agent_failure()
        }),
    ];
    let test = json!({"interval": "1m", "input_series": series.collect::<Vec<_>>(), "promql_expr_test": cases});
    json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
}

#[tokio::test]
async fn the_alert_rules_fire_when_they_should_and_not_otherwise() -> Test {
    let Some(promtool) = promtool().await? else {
        return Ok(());
    };
    let run = RunDir::new()?;
    let folder = run.new_dir("rules")?;
    let object: Value = serde_norway::from_str(&fs::read_to_string(config().join("rules.yaml"))?)?;
    fs::write(folder.join("rules.yaml"), serde_norway::to_string(&object["spec"])?)?;
    fs::copy(config().join("rules_test.yaml"), folder.join("rules_test.yaml"))?;
    check(&promtool, &folder, &["check", "rules", "rules.yaml"], "").await?;
    check(&promtool, &folder, &["test", "rules", "rules_test.yaml"], "").await?;
    fs::write(folder.join("reasons_test.yaml"), tests_of_reasons().to_string())?;
    check(&promtool, &folder, &["test", "rules", "reasons_test.yaml"], "").await?;
    Ok(())
}

#[tokio::test]
async fn kustomize_builds_a_rule_and_a_dashboard_from_the_folder() -> Test {
    let env = TestEnv::new("kustomize").await?;
    let printed = env
        .rig
        .cluster
        .kubectl(["kustomize", &config().display().to_string()])
        .await?;
    assert!(printed.contains("kind: PrometheusRule"), "{printed}");
    assert!(printed.contains("name: nfs-operator-dashboard"), "{printed}");
    Ok(())
}
