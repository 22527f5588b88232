//! Backups during which the operator or a server dies, or a server cannot be used.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rig::objects::{condition, merge, reference};
use rig::{Access, TestEnv, wait};
use serde_json::{Value, json};

use super::server::{Server, backed_up_to};
use super::{SETTLED, archive_of_backup, backup_of, nfs_backup, ready, refused, restoring};
use crate::cli::program::program;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, TIMEOUT, Test, text};

/// A bandwidth at which a backup takes a second for each MiB.
const SLOW: &str = "1Mi";

/// Creates the claim `data` of 64 MiB, with a file of 1 MiB for each number. Returns its directory.
async fn claim_with_files(env: &TestEnv, server: &Server, files: u8) -> Result<PathBuf, Failure> {
    let class = shared::class(env, "class", "primary", json!({})).await?;
    let mut claim = env.claim("data", &class);
    merge(
        &mut claim,
        &json!({"spec": {"resources": {"requests": {"storage": "64Mi"}}}}),
    );
    let claim = env.objects.create(&claim).await?;
    let directory = server.directory(&env.wait_bound(&claim).await?)?;
    fill(&directory, files)?;
    Ok(directory)
}

fn fill(directory: &Path, files: u8) -> std::io::Result<()> {
    (0..files).try_for_each(|number| fs::write(directory.join(format!("file-{number}")), vec![number; 1 << 20]))
}

/// Waits until so many files of a copy that is being made are there.
async fn copied(server: &Server, files: usize) -> Result<(), Failure> {
    let own = server.data()?.join(".nfs-operator");
    wait::until("files to be copied", TIMEOUT, async || {
        let found = files_below(&own).map_err(|error| error.to_string())?;
        match found >= files {
            true => Ok(()),
            false => Err(format!("{found} files")),
        }
    })
    .await?;
    Ok(())
}

/// Returns the number of files of [`fill`] below a directory.
fn files_below(directory: &Path) -> std::io::Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found += files_below(&entry.path()).unwrap_or_default(),
            _ => found += usize::from(entry.file_name().to_string_lossy().starts_with("file-")),
        }
    }
    Ok(found)
}

/// Checks that the only archive on an export has the files of [`fill`].
fn is_complete(export: &Path, files: u8) -> Test {
    let archives = shared::archives(export)?;
    let [archive] = archives.as_slice() else {
        return Err(format!("{archives:?}").into());
    };
    let archive = export.join(archive);
    for number in 0..files {
        let content = fs::read(archive.join(format!("file-{number}")))?;
        assert!(content == vec![number; 1 << 20], "file-{number}");
    }
    assert_eq!(fs::read_dir(archive)?.count(), usize::from(files));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_during_which_the_operator_is_killed_resumes_file_by_file() -> Test {
    let settings = json!({
        "probeInterval": "1s",
        "copies": {"maxBytesPerSecond": SLOW},
        "backups": {"selfService": {"maxBytesPerNamespace": "1Gi"}},
    });
    let mut env = DedicatedCluster::start(settings).await?;
    let mut claim = env.claim("data");
    merge(
        &mut claim,
        &json!({"spec": {"resources": {"requests": {"storage": "256Mi"}}}}),
    );
    let claim = env.objects.create(&claim).await?;
    let directory = env.directory(&env.bound(&claim).await?)?;
    fill(&directory, 200)?;
    tokio::time::sleep(SETTLED).await;
    let backup = nfs_backup("default", "nightly", &json!({"source": {"claimName": "data"}}));
    let backup = env.objects.create(&backup).await?;
    wait::until("a checkpoint", TIMEOUT, async || {
        let records = env.records().map_err(|error| error.to_string())?;
        let saved = |(_, record): &(String, Value)| record.pointer("/state/copy/checkpoint").is_some();
        match records.iter().any(saved) {
            true => Ok(()),
            false => Err(format!("{records:?}")),
        }
    })
    .await?;
    env.operator.kill9().await?;
    let main = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let unlimited = json!({"spec": {"copies": {"maxBytesPerSecond": null}}});
    env.objects.patch(&main, unlimited).await?;
    env.operator.restart().await?;
    let message = env
        .objects
        .wait_condition(&backup, "Ready", "True", None, TIMEOUT)
        .await?;
    let message = text(&message, "/message").to_owned();
    assert!(message.contains("copied by an interrupted attempt"), "{message}");
    is_complete(&env.data()?, 200)?;
    shared::wait_trash_empty(&env.data()?).await?;
    Ok(())
}

#[tokio::test]
async fn a_backup_over_two_protocols_outlives_restarts_of_both_servers() -> Test {
    let env = TestEnv::new("backup-restarts").await?;
    let mut safe = Server::start_with_v3(&env, "safe", json!({"copies": {"maxBytesPerSecond": SLOW}})).await?;
    let mut primary = Server::start(&env, "primary", backed_up_to(&env, "safe")).await?;
    claim_with_files(&env, &primary, 24).await?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    copied(&safe, 4).await?;
    primary.restart().await?;
    copied(&safe, 10).await?;
    safe.restart().await?;
    let made = ready(&env, &backup).await?;
    assert_eq!(made["status"]["copied"]["files"], 24, "{made}");
    is_complete(&safe.data()?, 24)?;
    let target = format!("127.0.0.1:{}", safe.export);
    let (port, mount_port) = (safe.nfs.port().to_string(), safe.nfs.mount_port().to_string());
    let arguments = [
        "archives",
        &target,
        "--nfs-version",
        "3",
        "--port",
        &port,
        "--mount-port",
        &mount_port,
        "--verify",
    ];
    let verified = program(&arguments).await;
    let printed = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        printed.contains("24 files verified by checksum, 25165824 bytes; 0 problems"),
        "{printed}"
    );
    Ok(())
}

#[tokio::test]
async fn a_backup_waits_for_a_destination_that_cannot_be_written() -> Test {
    let env = TestEnv::new("backup-read-only").await?;
    let mut safe = Server::start(&env, "safe", json!({})).await?;
    let primary = Server::start(&env, "primary", backed_up_to(&env, "safe")).await?;
    claim_with_files(&env, &primary, 2).await?;
    let export = safe.export.clone();
    safe.nfs
        .change_export(&export, |export| export.access = Access::ReadOnly)
        .await?;
    let backend = shared::backend_reference(&env, "safe");
    env.objects
        .wait_condition(&backend, "Ready", "False", None, TIMEOUT)
        .await?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let message = refused(&env, &backup, "ReadOnly").await?;
    assert!(
        message.starts_with(&format!("waits for backend {}", safe.backend)),
        "{message}"
    );
    assert!(message.contains("export it read-write"), "{message}");
    safe.nfs
        .change_export(&export, |export| export.access = Access::ReadWrite)
        .await?;
    ready(&env, &backup).await?;
    is_complete(&safe.data()?, 2)
}

#[tokio::test]
async fn a_backup_of_data_that_change_all_the_time_is_made_and_reports_the_changes() -> Test {
    let env = TestEnv::new("backup-changing").await?;
    let safe = Server::start(&env, "safe", json!({"copies": {"maxBytesPerSecond": SLOW}})).await?;
    let primary = Server::start(&env, "primary", backed_up_to(&env, "safe")).await?;
    let directory = claim_with_files(&env, &primary, 4).await?;
    let (done, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = std::thread::spawn({
        let (done, rounds) = (Arc::clone(&done), Arc::clone(&rounds));
        move || -> std::io::Result<()> {
            while !done.load(Ordering::Relaxed) {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                fill(&directory, 4)?;
                let name = |round: u64| directory.join(format!("temporary-{round}"));
                fs::write(name(round), "text")?;
                if let Some(earlier) = round.checked_sub(3) {
                    fs::remove_file(name(earlier))?;
                }
            }
            Ok(())
        }
    });
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let made = ready(&env, &backup).await;
    done.store(true, Ordering::Relaxed);
    writer.join().map_err(|_| "the writer panicked")??;
    let made = made?;
    assert!(rounds.load(Ordering::Relaxed) > 3);
    let message = condition(&made, "Ready").cloned().unwrap_or_default();
    assert!(
        text(&message, "/message").contains("changed while they were copied"),
        "{message}"
    );
    let archive = env.objects.get(&archive_of_backup(&made)).await?.ok_or("no archive")?;
    assert_eq!(archive["status"]["backendName"], safe.backend);
    // It is restored like any other.
    let class = reference("storage.k8s.io/v1", "StorageClass", None, &env.unique_name("class"));
    let mut claim = restoring(env.claim("again", &class), "nightly");
    merge(
        &mut claim,
        &json!({"spec": {"resources": {"requests": {"storage": "64Mi"}}}}),
    );
    let claim = env.objects.create(&claim).await?;
    let restored = primary.directory(&env.wait_bound(&claim).await?)?;
    assert!(files_below(&restored)? == 4);
    Ok(())
}
