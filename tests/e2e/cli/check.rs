//! `nfs-operator check`: its results, and what it leaves behind.

use rig::objects::{merge, reference};
use rig::operator::find_binary;
use rig::{Cluster, TestEnv};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cli::program::text;
use crate::support::shared::{self, TIMEOUT, Test};

/// Timeout of a step that succeeds: that of the tests, because the default is for a cluster that does nothing else.
const SLOW: &str = "--timeout=240s";

/// Runs it as an administrator in the test's namespace. Returns its exit code and its steps.
async fn check(cluster: &Cluster, env: &TestEnv, class: &str, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let mut command = Command::new(find_binary().unwrap());
    command.args([
        "check",
        "--output=json",
        "--storage-class",
        class,
        "--namespace",
        &env.name,
    ]);
    command
        .args(args)
        .env("KUBECONFIG", cluster.kubeconfig())
        .kill_on_drop(true);
    let output = command.output().await.unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_eq!(report["exitCode"], json!(output.status.code()));
    (output.status.code(), report["steps"].as_array().unwrap().clone())
}

/// Steps with their results, such as `bound=ok`.
fn results(steps: &[Value]) -> Vec<String> {
    let word = |step: &Value, field| step[field].as_str().unwrap_or_default().to_owned();
    steps
        .iter()
        .map(|step| format!("{}={}", word(step, "check"), word(step, "result")))
        .collect()
}

#[tokio::test]
async fn a_check_of_a_class_that_works_passes_every_step_and_leaves_nothing() -> Test {
    let env = TestEnv::new("check").await?;
    env.create_ready_class().await?;
    let (code, steps) = check(&env.rig.cluster, &env, &env.unique_name("class"), &[SLOW]).await;
    let all = [
        "class=ok",
        "claim=ok",
        "bound=ok",
        "volume=ok",
        "delete=ok",
        "reclaim=ok",
    ];
    assert_eq!(
        (code, results(&steps)),
        (Some(0), all.map(str::to_owned).to_vec()),
        "{steps:?}"
    );
    assert_eq!(
        shared::names(env.data())?,
        Vec::<String>::new(),
        "an empty directory is no archive"
    );
    Ok(())
}

#[tokio::test]
async fn a_check_reports_why_its_claim_waits_and_removes_the_claim() -> Test {
    let env = TestEnv::new("check-waits").await?;
    let suspended = env
        .objects
        .create(&env.backend("backend", json!({"suspend": true})))
        .await?;
    let ready = env
        .objects
        .wait_condition(&suspended, "Ready", "False", Some("Suspended"), TIMEOUT);
    ready.await?;
    shared::class(&env, "class", "backend", json!({})).await?;
    // It waits for all of this time, in which the operator has to report why, and the claim has to be deleted.
    let (code, steps) = check(&env.rig.cluster, &env, &env.unique_name("class"), &["--timeout=60s"]).await;
    let all = ["class=ok", "claim=ok", "bound=failed", "delete=ok", "reclaim=skipped"];
    assert_eq!(
        (code, results(&steps)),
        (Some(1), all.map(str::to_owned).to_vec()),
        "{steps:?}"
    );
    assert!(steps[2]["message"].as_str().unwrap().contains("Suspended"), "{steps:?}");
    let claims = reference("v1", "PersistentVolumeClaim", Some(&env.name), "any");
    assert_eq!(env.objects.list(&claims).await?, Vec::<Value>::new());
    Ok(())
}

#[tokio::test]
async fn a_check_of_a_class_that_can_never_work_does_not_wait_for_its_timeout() -> Test {
    let env = TestEnv::new("check-invalid").await?;
    shared::class(&env, "class", "backend", json!({"mod": "0755"})).await?;
    let class = env.unique_name("class");
    let check = check(&env.rig.cluster, &env, &class, &["--timeout=1h"]);
    let (code, steps) = tokio::time::timeout(TIMEOUT, check).await?;
    let all = ["class=ok", "claim=ok", "bound=failed", "delete=ok", "reclaim=skipped"];
    assert_eq!(
        (code, results(&steps)),
        (Some(1), all.map(str::to_owned).to_vec()),
        "{steps:?}"
    );
    assert!(
        steps[2]["message"].as_str().unwrap().contains("InvalidParameter"),
        "{steps:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_check_reports_the_volume_that_a_class_with_retain_keeps() -> Test {
    let env = TestEnv::new("check-keeps").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let mut class = env.class("class", json!({"backend": env.unique_name("backend")}));
    merge(&mut class, &json!({"reclaimPolicy": "Retain"}));
    env.objects.create(&class).await?;
    let (code, steps) = check(&env.rig.cluster, &env, &env.unique_name("class"), &[SLOW]).await;
    assert_eq!(code, Some(3), "{steps:?}");
    let last = steps.last().unwrap();
    assert_eq!((&last["check"], &last["result"]), (&json!("reclaim"), &json!("left")));
    let message = last["message"].as_str().unwrap();
    let volume = message.split(' ').next().unwrap();
    let volume = reference("v1", "PersistentVolume", None, volume);
    assert!(env.objects.get(&volume).await?.is_some(), "{message}");
    env.objects.delete(&volume).await?;
    Ok(())
}

#[tokio::test]
async fn a_check_creates_nothing_if_the_class_is_missing_or_binds_late_without_a_node() -> Test {
    let env = TestEnv::new("check-late").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let mut class = env.class("class", json!({"backend": env.unique_name("backend")}));
    merge(&mut class, &json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    env.objects.create(&class).await?;
    let cluster = &env.rig.cluster;
    let (code, steps) = check(cluster, &env, &env.unique_name("class"), &[]).await;
    assert_eq!((code, results(&steps)), (Some(1), vec!["class=failed".to_owned()]));
    assert!(steps[0]["message"].as_str().unwrap().contains("--node"), "{steps:?}");
    let (code, steps) = check(cluster, &env, "no-such-class", &[]).await;
    assert_eq!((code, results(&steps)), (Some(1), vec!["class=failed".to_owned()]));
    let missing = "cannot read StorageClass no-such-class: storageclasses.storage.k8s.io \"no-such-class\" not found";
    assert_eq!(steps[0]["message"], missing);
    let (code, steps) = check(cluster, &env, &env.unique_name("class"), &["--node=n1", SLOW]).await;
    assert_eq!(code, Some(0), "{steps:?}");
    Ok(())
}
