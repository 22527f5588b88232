//! The program as a user runs it: subcommands, endpoints, signals.

use std::process::Output;

use rig::operator::{find_binary, repository_root};
use rig::{Cluster, NfsOptions, NfsServer, Operator, OperatorOptions, RunDir, TestEnv};
use serde_json::json;
use tokio::process::Command;

use crate::backends::reasons::{PROVISIONED, SEEN, wait_reason};
use crate::faults::outages::{bound_once, claims_of, private};
use crate::support::shared::Test;

pub async fn program(args: &[&str]) -> Output {
    let binary = find_binary().unwrap();
    Command::new(binary).args(args).output().await.unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn the_program_prints_its_version() {
    let output = program(&["--version"]).await;
    assert!(output.status.success());
    assert_eq!(
        text(&output.stdout),
        format!("nfs-operator {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[tokio::test]
async fn an_old_client_certificate_is_refused_by_every_command_with_the_file_and_the_remedy() -> Test {
    let run = RunDir::new()?;
    let old = run.path().join("old.yaml");
    std::fs::write(&old, include_str!("kubectl_nfs/x509_v1.yaml"))?;
    let old = old.to_str().unwrap();
    for command in [&["run"][..], &["check", "--storage-class", "any"]] {
        let refused = program(&[command, &["--kubeconfig", old]].concat()).await;
        assert!(!refused.status.success());
        let message = text(&refused.stderr);
        for expected in [old, "X.509 version 1", "openssl"] {
            assert!(message.contains(expected), "{message}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn crd_prints_the_content_of_the_folder_crds() {
    let output = program(&["crd"]).await;
    assert!(output.status.success());
    let kept = std::fs::read_to_string(repository_root().join("crds/nfs-operator.yaml")).unwrap();
    assert_eq!(text(&output.stdout), kept);
}

/// Returns the value of a metric with this label; None if it is not printed.
fn metric(text: &str, name: &str, label: (&str, &str)) -> Option<f64> {
    let label = format!("{}=\"{}\"", label.0, label.1);
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")) && line.contains(&label))?;
    line.split_whitespace().last()?.parse().ok()
}

#[tokio::test]
async fn the_endpoints_respond_and_metrics_count_provisions_and_deletes() -> Test {
    let env = TestEnv::new("metrics").await?;
    let operator = &env.rig.operator;
    assert_eq!(operator.probe("/healthz").await?, "ok\n");
    // It is not ready while it cannot renew its Lease, for example because the machine stalls.
    rig::wait::until("/readyz to succeed", SEEN, async || {
        match operator.probe("/readyz").await {
            Ok(reported) if reported == "ok\n" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let class = env.create_ready_class().await?;
    let name = env.unique_name("class");
    let begun = rig::wait::until("the counters of a new class", SEEN, async || {
        let text = operator.metrics().await.map_err(|error| error.to_string())?;
        let counts = [
            "controller_persistentvolumeclaim_provision_total",
            "controller_persistentvolumeclaim_provision_failed_total",
            "controller_persistentvolume_delete_total",
            "controller_persistentvolume_delete_failed_total",
        ]
        .map(|count| metric(&text, count, ("class", &name)));
        if counts == [Some(0.0); 4] {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    });
    begun.await?;
    let claims = claims_of(&env, &class, "claim", 3).await?;
    bound_once(&env, &claims).await?;
    let removed = claims.first().unwrap();
    let volume = env.wait_bound(removed).await?;
    env.objects.delete(removed).await?;
    env.objects.wait_gone(&volume, SEEN).await?;

    let class = env.unique_name("class");
    // A claim can be Bound before its provision is counted, and a probe may fail on a machine that stalls.
    let backend = env.unique_name("backend");
    let (class, backend) = (("class", class.as_str()), ("backend", backend.as_str()));
    let expected = [
        ("controller_persistentvolumeclaim_provision_total", class, 3.0),
        (
            "controller_persistentvolumeclaim_provision_duration_seconds_count",
            class,
            3.0,
        ),
        ("controller_persistentvolume_delete_total", class, 1.0),
        ("controller_persistentvolume_delete_duration_seconds_count", class, 1.0),
        ("nfs_operator_backend_ready", backend, 1.0),
    ];
    rig::wait::until("everything to be counted", SEEN, async || {
        let text = operator.metrics().await.map_err(|error| error.to_string())?;
        for (name, label, count) in expected {
            let found = metric(&text, name, label);
            if found != Some(count) {
                return Err(format!("{name}: {found:?}"));
            }
        }
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn metrics_count_failures() -> Test {
    let env = TestEnv::new("metrics-failed").await?;
    env.create_ready_class().await?;
    let taken = json!({"backend": env.unique_name("backend"), "pathPattern": "taken-${pvc.name}"});
    let class = env.objects.create(&env.class("taken", taken)).await?;
    std::fs::create_dir(env.data().join("taken-late"))?;
    let refused = env.objects.create(&env.claim("late", &class)).await?;
    wait_reason(&env, &refused, PROVISIONED, &["DirectoryExists"]).await?;
    let claim = env.objects.create(&env.claim("moved", &class)).await?;
    let volume = env.wait_bound(&claim).await?;
    std::fs::rename(env.directory(&volume)?, env.data().join("elsewhere"))?;
    env.objects.delete(&claim).await?;

    let class = env.unique_name("taken");
    let counted = rig::wait::until("the failures to be counted", SEEN, async || {
        let text = env.rig.operator.metrics().await.map_err(|error| error.to_string())?;
        let failed = |name| metric(&text, name, ("class", &class)).unwrap_or_default();
        let claims = failed("controller_persistentvolumeclaim_provision_failed_total");
        let volumes = failed("controller_persistentvolume_delete_failed_total");
        if claims >= 1.0 && volumes >= 1.0 {
            Ok(())
        } else {
            Err(format!("{claims} and {volumes}"))
        }
    });
    counted.await?;
    env.objects.wait_event(&volume, "VolumeFailedDelete", SEEN).await?;
    Ok(())
}

#[tokio::test]
async fn sigterm_stops_it_cleanly_during_provisioning_and_the_next_start_completes_the_claims() -> Test {
    let run = RunDir::new()?;
    let (cluster, nfs) = tokio::try_join!(Cluster::start(&run), NfsServer::start(&run, NfsOptions::default()))?;
    let kubeconfig = Operator::install(&cluster).await?;
    let options = OperatorOptions::new(find_binary()?, kubeconfig);
    let mut operator = Operator::start(&run, options).await?;
    operator.wait_ready().await?;
    let own = private(&cluster, nfs.port(), nfs.data_dir("/export")?).await?;
    let claims = own.claims(60).await?;
    own.wait_first(&claims).await?;
    let ended = operator.terminate().await?;
    assert_eq!(ended.code(), Some(0));
    operator.restart().await?;
    own.bound_once(&claims).await?;
    Ok(())
}
