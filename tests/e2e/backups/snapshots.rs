//! Backups and clones of snapshots of the server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rig::objects::merge;
use rig::{TestEnv, wait};
use serde_json::{Value, json};

use super::{backup_of, class_with_backups, ready, refused};
use crate::support::shared::{self, Failure, TIMEOUT, Test, text, wait_refused};

fn copy(from: &Path, to: &Path) -> Test {
    let copied = Command::new("cp").arg("-a").args([from, to]).status()?;
    assert!(copied.success());
    Ok(())
}

/// Makes a snapshot of the operator's folder, once that has a beacon: the second probe of a backend writes it.
async fn copy_own_folder(env: &TestEnv, name: &str) -> Result<PathBuf, Failure> {
    let own = env.data().join(".nfs-operator");
    wait::until("the beacon", TIMEOUT, async || {
        let folders = fs::read_dir(&own).map_err(|error| error.to_string())?.flatten();
        let mut beacons = folders.map(|folder| folder.path().join("beacon"));
        beacons
            .any(|beacon| beacon.exists())
            .then_some(())
            .ok_or("it does not exist".to_owned())
    })
    .await?;
    let snapshot = env.data().join(".snapshot").join(name);
    fs::create_dir_all(&snapshot)?;
    copy(&own, &snapshot.join(".nfs-operator"))?;
    Ok(snapshot)
}

/// Makes what the operator sees of a snapshot: a copy of its folder, and the directory of the volume with its fileid. A copy
/// takes the place of that directory.
async fn take_snapshot(env: &TestEnv, name: &str, volume: &Path) -> Test {
    let snapshot = copy_own_folder(env, name).await?;
    let directory = snapshot.join(volume.file_name().ok_or("no name")?);
    fs::rename(volume, &directory)?;
    copy(&directory, volume)
}

fn with_consistency(mut backup: Value, consistency: &str) -> Value {
    merge(&mut backup, &json!({"spec": {"consistency": consistency}}));
    backup
}

/// Returns a claim with a snapshot of the claim `data` as its data source.
fn clone_of_snapshot(env: &TestEnv, name: &str, class: &Value, snapshot: &str) -> Value {
    let mut claim = env.claim(name, class);
    let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    let annotations = json!({"nfs-operator.io/source-snapshot": snapshot});
    merge(
        &mut claim,
        &json!({"metadata": {"annotations": annotations}, "spec": {"dataSource": source}}),
    );
    claim
}

#[tokio::test]
async fn a_backup_that_requires_one_moment_is_copied_from_the_newest_snapshot() -> Test {
    let env = TestEnv::new("snapshots").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "then").await?;
    let root = env.directory(&volume)?;
    let early = with_consistency(backup_of(&env, "early", "data"), "Required");
    let early = env.objects.create(&early).await?;
    let message = refused(&env, &early, "SnapshotUnavailable").await?;
    assert!(message.contains("exposes no snapshots"), "{message}");
    let preferred = with_consistency(backup_of(&env, "preferred", "data"), "Preferred");
    let preferred = ready(&env, &env.objects.create(&preferred).await?).await?;
    assert!(preferred["status"]["snapshot"].is_null(), "{preferred}");
    assert_eq!(preferred["status"]["copied"]["files"], 1, "{preferred}");

    take_snapshot(&env, "nightly", &root).await?;
    fs::write(root.join("data"), "now")?;
    let required = with_consistency(backup_of(&env, "required", "data"), "Required");
    let required = ready(&env, &env.objects.create(&required).await?).await?;
    let status = &required["status"];
    assert_eq!(status["snapshot"]["name"], "nightly", "{status}");
    assert!(status["snapshot"]["lastProbeTime"].is_string(), "{status}");
    assert_eq!(
        status["copied"],
        json!({"files": 1, "bytes": 4, "reusedFiles": 0, "copiedBytes": 4})
    );
    let archive = env
        .data()
        .join(format!("archived-{}", text(&required, "/status/archiveName")));
    assert_eq!(fs::read_to_string(archive.join("data"))?, "then");

    let clone = clone_of_snapshot(&env, "clone", &class, "nightly");
    let clone = env.objects.create(&clone).await?;
    let directory = env.directory(&env.wait_bound(&clone).await?)?;
    assert_eq!(fs::read_to_string(directory.join("data"))?, "then");
    for (name, snapshot, reason) in [
        ("missing", "weekly", "SnapshotUnavailable"),
        ("invalid", "../nightly", "DataSourceUnsupported"),
    ] {
        let claim = env
            .objects
            .create(&clone_of_snapshot(&env, name, &class, snapshot))
            .await?;
        wait_refused(&env, &claim, reason).await?;
    }
    // The snapshot may be taken later: until then, the claim waits, and nothing has failed.
    let metrics = env.rig.operator.metrics().await?;
    let failures = "controller_persistentvolumeclaim_provision_failed_total";
    let series = format!(
        "{failures}{{class=\"{}\",source=\"PersistentVolumeClaim\"}}",
        text(&class, "/metadata/name")
    );
    assert!(!metrics.contains(&series), "{metrics}");
    let snapshots = env.data().join(".snapshot");
    fs::rename(snapshots.join("nightly"), snapshots.join("weekly"))?;
    env.wait_bound(&clone_of_snapshot(&env, "missing", &class, "weekly"))
        .await?;
    wait_snapshot_directory(&env).await?;
    Ok(())
}

async fn wait_snapshot_directory(env: &TestEnv) -> Result<(), Failure> {
    let name = env.unique_name("backend");
    let backend = rig::objects::reference("nfs-operator.io/v1alpha1", "NfsBackend", None, &name);
    wait::until("the backend to report its snapshots", TIMEOUT, async || {
        let found = env.objects.get(&backend).await.map_err(|error| error.to_string())?;
        let directory = found.map(|found| found["status"]["snapshotDirectory"].clone());
        match directory == Some(json!(".snapshot")) {
            true => Ok(()),
            false => Err(format!("{directory:?}")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_directory_that_a_snapshot_does_not_prove_to_be_the_claims_is_not_copied() -> Test {
    let env = TestEnv::new("snapshot-proof").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "then").await?;
    let root = env.directory(&volume)?;
    // Another directory had the path of the claim's when the snapshot was taken.
    let snapshot = copy_own_folder(&env, "nightly").await?;
    let other = snapshot.join(root.file_name().ok_or("no name")?);
    fs::create_dir(&other)?;
    fs::write(other.join("data"), "of another tenant")?;
    let backup = with_consistency(backup_of(&env, "nightly", "data"), "Required");
    let backup = env.objects.create(&backup).await?;
    let message = refused(&env, &backup, "SnapshotUnavailable").await?;
    assert!(message.contains("is not the directory in the record"), "{message}");
    let clone = env
        .objects
        .create(&clone_of_snapshot(&env, "clone", &class, "nightly"))
        .await?;
    wait_refused(&env, &clone, "SnapshotUnavailable").await?;
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    Ok(())
}
