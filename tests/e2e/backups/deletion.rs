//! Deletion: of backups in every state, by tenants and administrators.

use std::fs;

use rig::TestEnv;
use serde_json::{Value, json};

use super::{archive_of_backup, backup_of, class_with_backups, nfs_backup, ready, refused};
use crate::archives::objects::in_state;
use crate::clones::claims::{at_full_speed, slow, staging, under_way};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, TIMEOUT, Test, text};

#[tokio::test]
async fn a_held_archive_stays_when_its_backup_is_deleted() -> Test {
    let env = TestEnv::new("backup-held").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    shared::bound_with_data(&env, "data", &class, "text").await?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    ready(&env, &backup).await?;
    let archive = archive_of_backup(&backup);
    env.objects
        .patch(&archive, json!({"spec": {"legalHold": true}}))
        .await?;
    let archive = in_state(&env, &archive, "Held").await?;
    env.objects.delete(&backup).await?;
    env.objects.wait_gone(&backup, TIMEOUT).await?;
    env.objects.wait_event(&backup, "ArchiveHeld", TIMEOUT).await?;
    let kept = in_state(&env, &archive, "Held").await?;
    assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");
    Ok(())
}

#[tokio::test]
async fn a_backup_reports_that_an_administrator_deleted_its_archive_and_is_not_made_again() -> Test {
    let env = TestEnv::new("backup-lost").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    shared::bound_with_data(&env, "data", &class, "text").await?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    ready(&env, &backup).await?;
    env.objects.delete(&archive_of_backup(&backup)).await?;
    let message = refused(&env, &backup, "ArchiveNotFound").await?;
    assert!(
        message.contains("was deleted") && message.contains("delete this object"),
        "{message}"
    );
    let found = env.objects.get(&backup).await?.ok_or("no backup")?;
    assert_eq!(found["status"]["state"], "Missing");
    assert!(env.objects.get(&archive_of_backup(&backup)).await?.is_none());
    env.objects.delete(&backup).await?;
    env.objects.wait_gone(&backup, TIMEOUT).await?;
    Ok(())
}

/// Returns a cluster whose operator was killed while it made a backup, and the backup.
async fn killed_during_a_backup() -> Result<(DedicatedCluster, Value), Failure> {
    let settings = json!({"probeInterval": "1s", "backups": {"selfService": {"maxBytesPerNamespace": "10Gi"}}});
    let env = DedicatedCluster::start(settings).await?;
    slow(&env).await?;
    let spec = json!({"source": {"claimName": "old"}});
    let backup = env.objects.create(&nfs_backup("default", "nightly", &spec)).await?;
    under_way(&env).await?;
    env.operator.kill9().await?;
    Ok((env, backup))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_deleted_during_the_copy_leaves_nothing_even_if_the_operator_is_killed() -> Test {
    let (mut env, backup) = killed_during_a_backup().await?;
    env.objects.delete(&backup).await?;
    env.operator.restart().await?;
    env.objects.wait_gone(&backup, TIMEOUT).await?;
    env.objects.wait_gone(&archive_of_backup(&backup), TIMEOUT).await?;
    discarded(&env).await
}

/// Waits until nothing is left of the copy.
async fn discarded(env: &DedicatedCluster) -> Test {
    at_full_speed(env);
    rig::wait::until("the copy to be discarded", TIMEOUT, async || {
        let staged = staging(env).map_err(|error| error.to_string())?;
        let records = env.records().map_err(|error| error.to_string())?.len();
        match (staged.is_empty(), records) {
            (true, 1) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await?;
    assert_eq!(env.names()?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_whose_retention_ended_before_its_copy_continues_is_not_made() -> Test {
    let (mut env, backup) = killed_during_a_backup().await?;
    let archive = archive_of_backup(&backup);
    let past = json!({"spec": {"expirationTime": "2026-01-01T00:00:00Z"}});
    env.objects.patch(&archive, past).await?;
    env.operator.restart().await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    discarded(&env).await?;
    let events = env.objects.events(&archive).await?;
    let was_copied = events.iter().any(|event| event["reason"] == "Archived");
    assert!(!was_copied, "{events:#?}");
    Ok(())
}

/// Backup tools restore NfsArchives before NfsBackends and NfsBackups, and without their status.
#[tokio::test]
async fn an_archive_whose_backup_is_not_known_stays_until_its_backend_was_read() -> Test {
    let env = TestEnv::new("backup-abandoned").await?;
    let uid = "0d9f0f52-6c1c-4a7e-9c56-2f3b1c1e8a11";
    let backend = env.backend("later", json!({"probeInterval": "1s"}));
    let archive = json!({
        "apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsArchive",
        "metadata": {"name": format!("nfsbackup-{uid}")},
        "spec": {
            "claimRef": {"namespace": env.name, "name": "data"},
            "backupRef": {"name": "nightly", "uid": uid},
            "destination": {"backendName": text(&backend, "/metadata/name")},
        },
    });
    let archive = env.objects.create(&archive).await?;
    rig::wait::until("a condition about the backup", TIMEOUT, async || {
        let found = env.objects.get(&archive).await.map_err(|error| error.to_string())?;
        let found = found.ok_or("the archive is gone")?;
        let conditions = found["status"]["conditions"].to_string();
        match conditions.contains("that requested it does not exist") {
            true => Ok(()),
            false => Err(conditions),
        }
    })
    .await?;
    env.objects.create(&backend).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_is_killed_during_a_backup_ends_with_one_archive() -> Test {
    let (mut env, backup) = killed_during_a_backup().await?;
    at_full_speed(&env);
    env.operator.restart().await?;
    let ready = env.objects.wait_condition(&backup, "Ready", "True", None, TIMEOUT);
    ready.await?;
    assert_eq!(env.archives().await?.len(), 1);
    assert_eq!(env.names()?.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_the_kind_deletes_no_data() -> Test {
    let settings = json!({"probeInterval": "1s", "backups": {"selfService": {"maxBytesPerNamespace": "10Gi"}}});
    let env = DedicatedCluster::start(settings).await?;
    let claim = env.claim("data");
    env.objects.create(&claim).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), "text")?;
    let spec = json!({"source": {"claimName": "data"}});
    let backup = env.objects.create(&nfs_backup("default", "nightly", &spec)).await?;
    let ready = env.objects.wait_condition(&backup, "Ready", "True", None, TIMEOUT);
    ready.await?;
    env.run_as_admin("kubectl delete crd nfsbackups.nfs-operator.io --timeout=2m")
        .await?;
    let archive = env
        .objects
        .get(&archive_of_backup(&backup))
        .await?
        .ok_or("no archive")?;
    assert!(archive["metadata"]["deletionTimestamp"].is_null(), "{archive}");
    let directory = env.data()?.join(text(&archive, "/status/directory"));
    assert_eq!(fs::read_to_string(directory.join("data"))?, "text");
    Ok(())
}
