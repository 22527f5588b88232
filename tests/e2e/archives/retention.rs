//! Expired archives.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use rig::objects::reference;
use serde_json::{Value, json};

use crate::archives::objects::archive_of;
use crate::archives::on_demand::backup;
use crate::archives::restore::asking;
use crate::recovery::cluster_loss::available;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

/// Interval of purges that is shorter than the timeout of the tests.
const QUICK: [&str; 2] = ["--archive-purge-pause", "200ms"];
/// Interval of purges that is longer than any test.
const NEVER: [&str; 2] = ["--archive-purge-pause", "24h"];

fn policy(policy: Value) -> Value {
    json!({"probeInterval": "1s", "archivePolicy": policy})
}

async fn archives(env: &DedicatedCluster) -> rig::Result<Vec<Value>> {
    let any = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, "any");
    env.objects.list(&any).await
}

/// Creates and archives a claim with its name in a file. Returns the object of the archive.
async fn archived(env: &DedicatedCluster, name: &str, content: &str) -> Result<Value, Failure> {
    let claim = env.claim(name);
    env.objects.create(&claim).await?;
    let volume = env.bound(&claim).await?;
    std::fs::write(env.directory(&volume)?.join("data"), content)?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    let archive = env.objects.get(&archive_of(&volume)).await?;
    Ok(archive.unwrap_or_else(|| archive_of(&volume)))
}

/// Waits until exactly these contents are left on the export.
async fn left(env: &DedicatedCluster, wanted: &[&str]) -> Test {
    let wanted: BTreeSet<String> = wanted.iter().map(|&content| content.to_owned()).collect();
    rig::wait::until("the others to be purged", TIMEOUT, async || {
        let mut found = BTreeSet::new();
        for name in env.names().map_err(|error| error.to_string())? {
            let data = env.data().map_err(|error| error.to_string())?.join(name).join("data");
            found.extend(std::fs::read_to_string(data));
        }
        if found == wanted {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_archive_is_purged_but_not_a_held_or_a_foreign_one() -> Test {
    let env = DedicatedCluster::start_with_args(policy(json!({"retention": "1h"})), &QUICK).await?;
    let foreign = env.data()?.join("archived-by-others");
    std::fs::create_dir(&foreign)?;
    std::fs::write(foreign.join("data"), "foreign")?;
    let (held, deleted, prolonged) = (
        archived(&env, "held", "held").await?,
        archived(&env, "gone", "gone").await?,
        archived(&env, "prolonged", "prolonged").await?,
    );
    for archive in [&held, &deleted, &prolonged] {
        assert!(archive["spec"]["expirationTime"].is_string(), "{archive}");
    }
    env.objects
        .patch(&prolonged, json!({"spec": {"expirationTime": null}}))
        .await?;
    let past = json!({"expirationTime": "2020-01-01T00:00:00Z"});
    let mut both = past.clone();
    both["legalHold"] = json!(true);
    env.objects.patch(&held, json!({ "spec": both })).await?;
    env.objects.patch(&deleted, json!({ "spec": past })).await?;
    env.objects.wait_gone(&deleted, TIMEOUT).await?;
    env.objects.wait_event(&deleted, "ArchivePurged", TIMEOUT).await?;
    left(&env, &["foreign", "held", "prolonged"]).await?;
    env.objects
        .wait_condition(&held, "Retained", "True", Some("LegalHold"), TIMEOUT)
        .await?;
    env.objects.patch(&held, json!({"spec": {"legalHold": false}})).await?;
    env.objects.wait_gone(&held, TIMEOUT).await?;
    left(&env, &["foreign", "prolonged"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_maximum_number_of_archives_a_volume_stays() -> Test {
    let env = DedicatedCluster::start(policy(json!({"maxPerNamespace": 1}))).await?;
    let first = archived(&env, "first", "1").await?;
    // The operator counts the archives in its cache. It has reported this one, so the cache has it.
    env.objects
        .wait_condition(&first, "Available", "True", None, TIMEOUT)
        .await?;
    let claim = env.claim("second");
    env.objects.create(&claim).await?;
    let volume = env.bound(&claim).await?;
    std::fs::write(env.directory(&volume)?.join("data"), "2")?;
    env.objects.delete(&claim).await?;
    // A server that did not respond for a moment is reported by such an event, too.
    rig::wait::until("the limit to be reported", TIMEOUT, async || {
        let events = env.objects.events(&volume).await.map_err(|error| error.to_string())?;
        let is_limit = |event: &Value| {
            event["reason"] == "VolumeFailedDelete" && text(event, "/note").starts_with("ArchiveLimitReached")
        };
        match events.iter().any(is_limit) {
            true => Ok(()),
            false => Err(format!("{events:?}")),
        }
    })
    .await?;
    left(&env, &["1", "2"]).await?;
    assert!(env.directory(&volume)?.join("data").exists(), "it was not moved");
    let main = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let raised = json!({"spec": {"archivePolicy": {"maxPerNamespace": 2}}});
    env.objects.patch(&main, raised).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    // Its problem is over.
    env.objects.wait_event(&volume, "VolumeArchived", TIMEOUT).await?;
    left(&env, &["1", "2"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_archives_of_each_claim_are_kept_and_the_others_go() -> Test {
    let env = DedicatedCluster::start_with_args(policy(json!({"keepLast": 2})), &QUICK).await?;
    let mut former = Value::Null;
    for round in ["first", "second", "third", "fourth"] {
        let archive = archived(&env, "data", round).await?;
        // The status is written after the object.
        let archive = available(&env, &archive).await?;
        // Of two archives with data of the same second, none is newer.
        assert!(archive["status"]["volumeCreationTime"].is_string(), "{archive}");
        assert_ne!(former, archive["status"]["volumeCreationTime"]);
        former = archive["status"]["volumeCreationTime"].clone();
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    archived(&env, "other", "another claim's").await?;
    left(&env, &["third", "fourth", "another claim's"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_reports_that_its_archive_expired_and_gets_it_if_an_administrator_extends_the_retention() -> Test {
    let env = DedicatedCluster::start_with_args(policy(json!({})), &NEVER).await?;
    let archive = archived(&env, "data", "late").await?;
    let past = json!({"spec": {"expirationTime": "2020-01-01T00:00:00Z"}});
    env.objects.patch(&archive, past).await?;
    env.objects
        .wait_condition(&archive, "Retained", "False", Some("ArchiveExpired"), TIMEOUT)
        .await?;
    let claim = asking(env.claim("again"), text(&archive, "/metadata/name"));
    let claim = env.objects.create(&claim).await?;
    let kind = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, kind, "False", Some("ArchiveExpired"), TIMEOUT)
        .await?;
    env.objects
        .patch(&archive, json!({"spec": {"expirationTime": null}}))
        .await?;
    let volume = env.bound(&claim).await?;
    assert_eq!(std::fs::read_to_string(env.directory(&volume)?.join("data"))?, "late");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_does_not_count_as_a_last_archive_and_is_purged_when_it_expires() -> Test {
    let env = DedicatedCluster::start_with_args(policy(json!({"keepLast": 1})), &QUICK).await?;
    let claim = env.claim("data");
    env.objects.create(&claim).await?;
    let volume = env.bound(&claim).await?;
    std::fs::write(env.directory(&volume)?.join("data"), "backup")?;
    let mut nightly = backup("nightly", "default", "data");
    let nightly_made = env.objects.create(&nightly).await?;
    env.objects
        .wait_condition(&nightly_made, "Available", "True", None, TIMEOUT)
        .await?;
    nightly["metadata"]["name"] = json!("brief");
    nightly["spec"]["expirationTime"] = json!("2020-01-01T00:00:00Z");
    let brief = env.objects.create(&nightly).await?;
    env.objects.wait_event(&brief, "ArchivePurged", TIMEOUT).await?;
    std::fs::write(env.directory(&volume)?.join("data"), "first")?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    archived(&env, "data", "second").await?;
    left(&env, &["backup", "second"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_archive_is_the_one_with_the_newest_data_and_not_the_one_archived_last() -> Test {
    let env = DedicatedCluster::start_with_args(policy(json!({"keepLast": 1})), &QUICK).await?;
    let claim = env.claim("data");
    env.objects.create(&claim).await?;
    let old = env.bound(&claim).await?;
    std::fs::write(env.directory(&old)?.join("data"), "old")?;
    let retain = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    env.objects.patch(&old, retain("Retain")).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    // Creation times have a precision of one second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let new = archived(&env, "data", "new").await?;
    env.objects
        .wait_condition(&new, "Available", "True", None, TIMEOUT)
        .await?;
    env.objects.patch(&old, retain("Delete")).await?;
    env.objects
        .wait_event(&archive_of(&old), "ArchivePurged", TIMEOUT)
        .await?;
    left(&env, &["new"]).await?;
    assert!(env.objects.get(&new).await?.is_some());
    Ok(())
}

/// Returns the messages of the condition Available of all archives.
async fn messages(env: &DedicatedCluster) -> rig::Result<BTreeSet<String>> {
    let archives = archives(env).await?;
    let message = |archive: &Value| {
        let available = rig::objects::condition(archive, "Available")?;
        Some(text(available, "/message").to_owned())
    };
    Ok(archives.iter().filter_map(message).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_archives_are_available_and_no_message_denies_their_backend() -> Test {
    let mut env = DedicatedCluster::start(policy(json!({}))).await?;
    let mut kept = Vec::new();
    for n in 0..8 {
        kept.push(archived(&env, &format!("data-{n}"), &format!("{n}")).await?);
    }
    for round in 0..3 {
        for archive in &kept {
            env.objects
                .wait_condition(archive, "Available", "True", None, TIMEOUT)
                .await?;
        }
        env.operator.kill9().await?;
        env.operator.restart().await?;
        let claim = env.objects.create(&env.claim(&format!("later-{round}"))).await?;
        let reported = Mutex::new(BTreeSet::new());
        rig::wait::until("the backend to serve claims again", TIMEOUT, async || {
            let now = messages(&env).await.map_err(|error| error.to_string())?;
            reported.lock().extend(now);
            let claim = env.objects.get(&claim).await.map_err(|error| error.to_string())?;
            let bound = claim.and_then(|claim| Some(claim.pointer("/spec/volumeName")?.clone()));
            bound.map(drop).ok_or_else(|| "not bound".into())
        })
        .await?;
        let reported = reported.into_inner();
        assert!(
            reported.iter().all(|message| !message.contains("does not exist")),
            "{reported:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_restored_from_a_backup_does_not_shorten_the_retention_of_its_archive() -> Test {
    let mut env = DedicatedCluster::start_with_args(policy(json!({})), &QUICK).await?;
    let archive = archived(&env, "data", "kept").await?;
    let mut older = archive.clone();
    let late = "2100-01-01T00:00:00Z";
    env.objects
        .patch(&archive, json!({"spec": {"expirationTime": late}}))
        .await?;
    rig::wait::until("the record to have the expiry", TIMEOUT, async || {
        let records = env.records().map_err(|error| error.to_string())?;
        // Not a draft of it, which does not count if the operator is killed now.
        let record = records
            .iter()
            .find(|(name, _)| *name == archive["metadata"]["name"])
            .map(|(_, record)| &record["state"]["terms"]["expires"]);
        match record.and_then(Value::as_i64) {
            Some(4_102_444_800) => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await?;
    env.operator.kill9().await?;
    // A tool that restores objects recreates them.
    env.objects
        .patch(&archive, json!({"metadata": {"finalizers": null}}))
        .await?;
    env.objects.delete(&archive).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    older["metadata"] = json!({"name": archive["metadata"]["name"]});
    older["spec"]["expirationTime"] = json!("2020-01-01T00:00:00Z");
    older["spec"]["deletionPolicy"] = json!("Delete");
    let older = env.objects.create(&older).await?;
    env.operator.restart().await?;
    env.objects.wait_event(&older, "RetentionRestored", TIMEOUT).await?;
    let restored = env.objects.get(&older).await?.ok_or("the archive is gone")?;
    assert_eq!(text(&restored, "/spec/expirationTime"), late);
    assert_eq!(text(&restored, "/spec/deletionPolicy"), "Retain");
    left(&env, &["kept"]).await?;
    // From then on, this object decides.
    rig::wait::until("an edit to count", TIMEOUT, async || {
        let past = json!({"spec": {"expirationTime": "2020-01-01T00:00:00Z"}});
        match env.objects.patch(&older, past).await {
            Ok(_) => {}
            Err(error) if error.to_string().contains("not found") => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        match env.objects.get(&older).await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(_) => Err("it exists".into()),
        }
    })
    .await?;
    left(&env, &[]).await
}
