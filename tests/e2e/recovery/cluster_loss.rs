//! Archives after the loss of a cluster: an empty cluster on the same exports, with and without the saved Secret.

use std::fs;
use std::path::PathBuf;

use rig::objects::{condition, merge, reference};
use rig::operator::repository_root;
use serde_json::{Value, json};

use crate::archives::objects::archive_of;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, is_handled, text};

/// Returns a spec with frequent probes, because a probe updates the condition.
pub fn frequent_probes() -> Value {
    json!({"probeInterval": "1s"})
}

const NAMESPACE: &str = "nfs-operator-system";
const NAME: &str = "nfs-operator-records";

fn secret() -> Value {
    reference("v1", "Secret", Some(NAMESPACE), NAME)
}

/// The commands of docs/disaster-recovery.md, by block.
pub struct Guide {
    pub save: String,
    pub restore: String,
    replace: String,
    pub readopt: String,
    pub readopted: String,
    adopt: String,
}

pub fn guide() -> Result<Guide, Failure> {
    let page = fs::read_to_string(repository_root().join("docs/disaster-recovery.md"))?;
    let fenced = page.split("```").skip(1).step_by(2);
    let blocks: Vec<String> = fenced
        .map(|block| block.trim_start_matches("sh\n").to_owned())
        .collect();
    let blocks = <[String; 6]>::try_from(blocks).map_err(|blocks| format!("a block is not tested: {blocks:?}"))?;
    let [save, restore, replace, readopt, readopted, adopt] = blocks;
    Ok(Guide {
        save,
        restore,
        replace,
        readopt,
        readopted,
        adopt,
    })
}

/// Creates and archives a claim with a file. Returns the object of the archive.
pub async fn archived(env: &DedicatedCluster, name: &str) -> Result<Value, Failure> {
    let claim = env.objects.create(&env.claim(name)).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), name)?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    available(env, &archive_of(&volume)).await
}

/// Waits until an archive is Available.
pub async fn available(env: &DedicatedCluster, archive: &Value) -> Result<Value, Failure> {
    let reported = |found: &Value| match text(found, "/status/state") {
        "Available" => Ok(found.clone()),
        other => Err(other.to_owned()),
    };
    Ok(env.objects.wait(archive, "to be Available", TIMEOUT, reported).await?)
}

/// Waits until the condition on records has this reason and contains these texts. Returns its message.
async fn wait_recovery_message(env: &DedicatedCluster, reason: &str, parts: &[&str]) -> Result<String, Failure> {
    said_of(env, "RecordsTrusted", reason, parts).await
}

/// Waits until a condition of the backend has this reason and contains these texts. Returns its message.
pub async fn said_of(env: &DedicatedCluster, kind: &str, reason: &str, parts: &[&str]) -> Result<String, Failure> {
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let has = |found: &Value| {
        let reported = condition(found, kind).cloned().unwrap_or_default();
        let message = text(&reported, "/message");
        let all = parts.iter().all(|part| message.contains(part));
        match all && reported["reason"] == reason {
            true => Ok(message.to_owned()),
            false => Err(reported.to_string()),
        }
    };
    let what = format!("to report {reason} and {parts:?}");
    Ok(env.objects.wait(&backend, &what, TIMEOUT, has).await?)
}

/// Adopts a record with the command of the guide, for the folder of this cluster or of another one.
pub async fn adopt(env: &DedicatedCluster, cluster: Option<&str>, volume: &str) -> Test {
    let commands = guide()?.adopt;
    let (own, foreign) = commands.trim().split_once('\n').ok_or("two commands")?;
    let command = match cluster {
        None => own.replace("VOLUME", volume),
        Some(cluster) => foreign.replace("VOLUME", volume).replace("CLUSTER-ID", cluster),
    };
    env.run_as_admin(&command.replace("NAME", "main")).await?;
    done(env, "nfs-operator.io/adopt-record").await
}

/// Waits until an annotation of the backend is removed.
pub async fn done(env: &DedicatedCluster, annotation: &str) -> Test {
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let what = format!("to handle {annotation}");
    let handled = |found: &Value| is_handled(found, annotation);
    Ok(env.objects.wait(&backend, &what, TIMEOUT, handled).await?)
}

/// Returns the folders of clusters on the export.
pub fn clusters(env: &DedicatedCluster) -> Result<Vec<PathBuf>, Failure> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(env.data()?.join(".nfs-operator"))? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    Ok(folders)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_rebuilt_with_the_saved_secret_continues_in_its_own_folder_and_recovers_its_archives() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let archive = archived(&env, "data").await?;
    let held = json!({"spec": {"legalHold": true, "expirationTime": "2100-01-01T00:00:00Z"}});
    let archive = env.objects.patch(&archive, held).await?;
    let is_held = |found: &Value| match text(found, "/status/state") {
        "Held" => Ok(()),
        other => Err(other.to_owned()),
    };
    env.objects.wait(&archive, "to be Held", TIMEOUT, is_held).await?;
    let guide = guide()?;
    env.run_as_admin(&guide.save).await?;
    let env = env.rebuilt(Some(&guide.restore), &[]).await?;
    env.create_backend_and_class(frequent_probes()).await?;
    env.objects.wait(&archive, "to be Held", TIMEOUT, is_held).await?;
    let again = env.objects.get(&archive).await?.unwrap_or_default();
    assert_eq!(again["spec"], archive["spec"]);
    let path = env.data()?.join(text(&again, "/status/directory")).join("data");
    assert_eq!(fs::read_to_string(path)?, "data");
    wait_recovery_message(&env, "RecordsSigned", &[]).await?;
    // New directories are created beside the old ones.
    let another = archived(&env, "another").await?;
    assert_eq!(clusters(&env)?.len(), 1);
    let mut both = [&archive, &another].map(|archive| text(archive, "/metadata/name").to_owned());
    both.sort();
    assert_eq!(Vec::from_iter(env.archives().await?), both);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_secret_replaces_the_one_that_an_already_running_operator_created() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let archive = archived(&env, "data").await?;
    let guide = guide()?;
    env.run_as_admin(&guide.save).await?;
    let env = env.rebuilt(None, &[]).await?;
    env.create_backend_and_class(frequent_probes()).await?;
    wait_recovery_message(&env, "RecordsSigned", &[text(&archive, "/metadata/name")]).await?;
    assert_eq!(Vec::from_iter(env.archives().await?), Vec::<String>::new());
    env.operator.terminate().await?;
    env.run_as_admin(&guide.replace).await?;
    let operator = env.start_operator(&[]).await?;
    operator.wait_ready().await?;
    available(&env, &archive).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_rebuilt_without_its_secret_recovers_nothing_reports_it_and_adopts_by_name() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let archive = archived(&env, "data").await?;
    let claim = env.objects.create(&env.claim("live")).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), "live")?;
    let former = clusters(&env)?.remove(0);
    let id = former.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let env = env.rebuilt(None, &[]).await?;
    env.create_backend_and_class(frequent_probes()).await?;
    let cluster = format!("cluster {id} has 2 records here");
    let (name, live) = (text(&archive, "/metadata/name"), text(&volume, "/metadata/name"));
    wait_recovery_message(&env, "RecordsSigned", &[&cluster, name, live]).await?;
    // The same holds after more probes.
    let other = archived(&env, "other").await?;
    assert_eq!(Vec::from_iter(env.archives().await?), [text(&other, "/metadata/name")]);
    assert_eq!(fs::read_dir(former.join("records"))?.count(), 2);

    adopt(&env, Some(&id), name).await?;
    let again = available(&env, &archive).await?;
    // The age of its data is the word of another cluster.
    let adopted = &archive["status"];
    assert!(adopted["volumeCreationTime"].is_string(), "{archive:#}");
    assert_eq!(again["status"].get("volumeCreationTime"), None);
    for field in ["fileID", "directory", "volumeName", "archiveTime"] {
        assert_eq!(again["status"][field], adopted[field], "{field}");
    }
    assert_eq!(again["spec"], archive["spec"]);
    wait_recovery_message(
        &env,
        "RecordsSigned",
        &[&format!("cluster {id} has 1 record here"), live],
    )
    .await?;
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let event = env.objects.wait_event(&backend, "RecordAdopted", TIMEOUT).await?;
    assert!(text(&event, "/note").contains(name), "{event}");
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "live");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_secret_of_another_cluster_nothing_is_changed_until_the_own_one_is_restored() -> Test {
    let mut env = DedicatedCluster::start(frequent_probes()).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), "data")?;
    let guide = guide()?;
    env.run_as_admin(&guide.save).await?;
    env.operator.kill9().await?;
    env.objects.delete(&secret()).await?;
    let mut foreign = secret();
    let (id, key) = (
        "MTExMTExMTEtMjIyMi0zMzMzLTQ0NDQtNTU1NTU1NTU1NTU1",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    );
    merge(
        &mut foreign,
        &json!({"immutable": true, "data": {"cluster-id": id, "key": key}}),
    );
    env.objects.create(&foreign).await?;
    env.operator.restart().await?;
    let message = said_of(&env, "Ready", "RecordsSecretMismatch", &["restore the Secret"]).await?;
    assert!(message.contains("11111111-2222-3333-4444-555555555555"), "{message}");
    // Neither a claim nor a reclaim proceeds.
    let another = env.objects.create(&env.claim("another")).await?;
    let kind = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&another, kind, "False", None, TIMEOUT)
        .await?;
    env.objects.delete(&claim).await?;
    said_of(&env, "IdentityConfirmed", "RecordsSecretMismatch", &[]).await?;
    assert_eq!(clusters(&env)?.len(), 1, "no folder was created for the other cluster");
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "data");

    env.operator.kill9().await?;
    env.run_as_admin(&guide.replace).await?;
    env.operator.restart().await?;
    env.bound(&another).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    available(&env, &archive_of(&volume)).await?;
    Ok(())
}

/// Waits until the beacon on the export is the one that the status announced, and another one than before.
pub async fn renewed(env: &DedicatedCluster, before: &str) -> Result<String, Failure> {
    let path = clusters(env)?.remove(0).join("beacon");
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let found = rig::wait::until("the beacon to be renewed", TIMEOUT, async || {
        let content = fs::read(&path).map_err(|error| error.to_string())?;
        let file: Value = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
        let status = env.objects.get(&backend).await.map_err(|error| error.to_string())?;
        let status = status.unwrap_or_default();
        let beacon = text(&file, "/beacon");
        match beacon != before && beacon == text(&status, "/status/export/nextBeacon") {
            true => Ok(beacon.to_owned()),
            false => Err(format!("{file}, {}", status["status"])),
        }
    });
    Ok(found.await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_that_was_rolled_back_is_not_changed_although_the_operator_restarts_until_it_is_accepted() -> Test {
    let mut env = DedicatedCluster::start(frequent_probes()).await?;
    let mut beacon = renewed(&env, "").await?;
    let path = clusters(&env)?.remove(0).join("beacon");
    let snapshot = fs::read(&path)?;
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    for _ in 0..3 {
        env.operator.restart().await?;
        beacon = renewed(&env, &beacon).await?;
        let ready = env.objects.wait_condition(&backend, "Ready", "True", None, TIMEOUT);
        ready.await?;
    }
    env.operator.kill9().await?;
    fs::write(&path, &snapshot)?;
    env.operator.restart().await?;
    said_of(&env, "Ready", "BeaconMismatch", &["the export was rolled back"]).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let kind = "nfs-operator.io/Provisioned";
    env.objects.wait_condition(&claim, kind, "False", None, TIMEOUT).await?;
    // The next process does not accept it either.
    env.operator.restart().await?;
    env.operator.wait_ready().await?;
    said_of(&env, "IdentityConfirmed", "BeaconMismatch", &[]).await?;
    assert_eq!(env.names()?.len(), 0);
    assert_eq!(fs::read(&path)?, snapshot);

    let found = env.objects.get(&backend).await?.unwrap_or_default();
    let accepted = json!({"nfs-operator.io/accept-identity": text(&found, "/status/export/id")});
    env.objects
        .patch(&backend, json!({"metadata": {"annotations": accepted}}))
        .await?;
    env.bound(&claim).await?;
    done(&env, "nfs-operator.io/accept-identity").await?;
    renewed(&env, &beacon).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_records_become_no_objects_and_are_reported() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let own = archived(&env, "own").await?;
    let edited = archived(&env, "edited").await?;
    let records = clusters(&env)?.remove(0).join("records");
    let guide = guide()?;
    env.run_as_admin(&guide.save).await?;
    // One record gets another owner, and a second one is forged for a foreign directory.
    let path = records.join(text(&edited, "/metadata/name"));
    let record = fs::read_to_string(&path)?;
    fs::write(&path, record.replace("\"default\"", "\"of-a-thief\""))?;
    fs::create_dir(env.data()?.join("archived-secret"))?;
    let mut made_up: Value = serde_json::from_str(&record)?;
    made_up["volume"] = json!("pvc-made-up");
    made_up["state"]["target"] = json!("archived-secret");
    fs::write(records.join("pvc-made-up"), made_up.to_string())?;
    let env = env.rebuilt(Some(&guide.restore), &[]).await?;
    env.create_backend_and_class(frequent_probes()).await?;
    // The unchanged record is recovered, so the others were checked, too.
    available(&env, &own).await?;
    let named = [
        "2 records",
        text(&edited, "/metadata/name"),
        "pvc-made-up",
        "of claim of-a-thief/edited, signed incorrectly",
    ];
    wait_recovery_message(&env, "RecordsUnsigned", &named).await?;
    assert_eq!(Vec::from_iter(env.archives().await?), [text(&own, "/metadata/name")]);
    // Even an administrator cannot adopt a record that does not match.
    adopt(&env, None, "pvc-made-up,../x").await?;
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let event = env.objects.wait_event(&backend, "RecordNotAdopted", TIMEOUT).await?;
    assert!(
        text(&event, "/note").contains("Nothing was changed") || text(&event, "/note").contains("../x"),
        "{event}"
    );
    wait_recovery_message(&env, "RecordsUnsigned", &["2 records"]).await?;
    assert_eq!(Vec::from_iter(env.archives().await?), [text(&own, "/metadata/name")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_secret_stops_the_operator_which_reports_it_and_the_remedy() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let found = env.objects.get(&secret()).await?.ok_or("no Secret was made")?;
    assert_eq!(found["immutable"], true);
    let fails = async |env: &DedicatedCluster, args: &[&str]| -> Result<String, Failure> {
        let operator = env.start_operator(args).await?;
        rig::wait::until("the operator to end", TIMEOUT, async || {
            operator.exit_status().map(drop).ok_or_else(|| "it runs".to_owned())
        })
        .await?;
        assert!(!operator.exit_status().is_some_and(|ended| ended.success()));
        Ok(fs::read_to_string(operator.log())?)
    };
    env.cluster
        .expect_violation("refused: get secrets in nfs-operator-system")?;
    let log = fails(&env, &["--records-secret", "another"]).await?;
    for part in [
        "cannot read the Secret nfs-operator-system/another",
        "config/rbac",
        "--records-secret",
    ] {
        assert!(log.contains(part), "{part} is not in: {log}");
    }

    env.objects.delete(&secret()).await?;
    let mut half = secret();
    rig::objects::merge(&mut half, &json!({"data": {"cluster-id": found["data"]["cluster-id"]}}));
    let half = env.objects.create(&half).await?;
    let log = fails(&env, &[]).await?;
    for part in [
        "the Secret nfs-operator-system/nfs-operator-records is invalid: data.key is missing",
        "docs/disaster-recovery.md",
    ] {
        assert!(log.contains(part), "{part} is not in: {log}");
    }
    let after = env.objects.get(&secret()).await?;
    assert_eq!(after.as_ref(), Some(&half), "it was written over");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_signs_the_records_that_agree_with_their_volumes_and_leaves_the_others() -> Test {
    let env = DedicatedCluster::start_with_args(frequent_probes(), &["--scan-interval", "2s"]).await?;
    let mut volumes = Vec::new();
    for name in ["agrees", "differs"] {
        let claim = env.objects.create(&env.claim(name)).await?;
        volumes.push(env.bound(&claim).await?);
    }
    let records = clusters(&env)?.remove(0).join("records");
    let path = |volume: &Value| records.join(text(volume, "/metadata/name"));
    let read = |volume: &Value| -> Result<Value, Failure> { Ok(serde_json::from_slice(&fs::read(path(volume))?)?) };
    let (agrees, differs) = (&volumes[0], &volumes[1]);
    for (volume, directory) in [(differs, Some("elsewhere")), (agrees, None)] {
        let mut record = read(volume)?;
        record.as_object_mut().ok_or("no record")?.remove("signature");
        if let Some(directory) = directory {
            record["directory"] = json!(directory);
        }
        fs::write(path(volume), record.to_string())?;
    }
    rig::wait::until("the record to be signed", TIMEOUT, async || {
        let record = read(agrees).map_err(|error| error.to_string())?;
        record.get("signature").map(drop).ok_or_else(|| record.to_string())
    })
    .await?;
    assert!(read(differs)?.get("signature").is_none());
    Ok(())
}
