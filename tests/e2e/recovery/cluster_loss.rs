//! The cluster is lost, and an empty one takes its place on the same exports: with the saved Secret, and without.

use std::fs;
use std::path::PathBuf;

use rig::objects::{condition, reference};
use rig::operator::repository_root;
use serde_json::{Value, json};

use crate::archives::objects::archive_of;
use crate::support::dedicated_cluster::Stage;
use crate::support::shared::{Failure, PATIENCE, Test, text};

/// Probed often: what the condition says comes with a probe.
pub fn often() -> Value {
    json!({"probeInterval": "1s"})
}

const NAMESPACE: &str = "nfs-operator-system";
const NAME: &str = "nfs-operator-records";

fn secret() -> Value {
    reference("v1", "Secret", Some(NAMESPACE), NAME)
}

/// The commands of docs/disaster-recovery.md, block by block.
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
    let blocks = <[String; 6]>::try_from(blocks).map_err(|blocks| format!("a block is tried by nobody: {blocks:?}"))?;
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

/// A claim with a file in it, archived; the archive's object.
pub async fn archived(stage: &Stage, name: &str) -> Result<Value, Failure> {
    let claim = stage.objects.create(&stage.claim(name)).await?;
    let volume = stage.bound(&claim).await?;
    fs::write(stage.directory(&volume)?.join("data"), name)?;
    stage.objects.delete(&claim).await?;
    stage.objects.wait_gone(&volume, PATIENCE).await?;
    available(stage, &archive_of(&volume)).await
}

/// Waits until an archive's object says that the data are there.
pub async fn available(stage: &Stage, archive: &Value) -> Result<Value, Failure> {
    let said = |found: &Value| match text(found, "/status/state") {
        "Available" => Ok(found.clone()),
        other => Err(other.to_owned()),
    };
    Ok(stage.objects.wait(archive, "to be Available", PATIENCE, said).await?)
}

/// What the backend says of records, once it says all of that.
async fn said(stage: &Stage, reason: &str, parts: &[&str]) -> Result<String, Failure> {
    said_of(stage, "RecordsTrusted", reason, parts).await
}

/// What a condition of the backend says, once it says all of that.
pub async fn said_of(stage: &Stage, kind: &str, reason: &str, parts: &[&str]) -> Result<String, Failure> {
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let has = |found: &Value| {
        let said = condition(found, kind).cloned().unwrap_or_default();
        let message = text(&said, "/message");
        let all = parts.iter().all(|part| message.contains(part));
        match all && said["reason"] == reason {
            true => Ok(message.to_owned()),
            false => Err(said.to_string()),
        }
    };
    let what = format!("to say {reason} and {parts:?}");
    Ok(stage.objects.wait(&backend, &what, PATIENCE, has).await?)
}

/// Adopts a record, by the guide's command for one of this cluster's folder, or of another's.
pub async fn adopt(stage: &Stage, cluster: Option<&str>, volume: &str) -> Test {
    let commands = guide()?.adopt;
    let (own, foreign) = commands.trim().split_once('\n').ok_or("two commands")?;
    let command = match cluster {
        None => own.replace("VOLUME", volume),
        Some(cluster) => foreign.replace("VOLUME", volume).replace("CLUSTER-ID", cluster),
    };
    stage.does(&command.replace("NAME", "main")).await?;
    done(stage, "nfs-operator.io/adopt-record").await
}

/// Waits until an annotation of the backend is taken off.
pub async fn done(stage: &Stage, annotation: &str) -> Test {
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let gone = |found: &Value| match &found["metadata"]["annotations"][annotation] {
        Value::Null => Ok(()),
        asked => Err(format!("it asks for {asked}")),
    };
    let what = format!("to have followed {annotation}");
    Ok(stage.objects.wait(&backend, &what, PATIENCE, gone).await?)
}

async fn archives(stage: &Stage) -> rig::Result<Vec<String>> {
    let any = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, "any");
    let found = stage.objects.list(&any).await?;
    Ok(found
        .iter()
        .map(|archive| text(archive, "/metadata/name").to_owned())
        .collect())
}

/// The folders of clusters on the export.
pub fn clusters(stage: &Stage) -> Result<Vec<PathBuf>, Failure> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(stage.data()?.join(".nfs-operator"))? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    Ok(folders)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_rebuilt_with_the_saved_secret_continues_in_its_own_folder_and_recovers_its_archives() -> Test {
    let stage = Stage::set(often()).await?;
    let archive = archived(&stage, "data").await?;
    let held = json!({"spec": {"legalHold": true, "expiresAt": "2100-01-01T00:00:00Z"}});
    let archive = stage.objects.patch(&archive, held).await?;
    let is_held = |found: &Value| match text(found, "/status/state") {
        "Held" => Ok(()),
        other => Err(other.to_owned()),
    };
    stage.objects.wait(&archive, "to be Held", PATIENCE, is_held).await?;
    let guide = guide()?;
    stage.does(&guide.save).await?;
    let stage = stage.rebuilt(Some(&guide.restore), &[]).await?;
    stage.serve(often()).await?;
    stage.objects.wait(&archive, "to be Held", PATIENCE, is_held).await?;
    let again = stage.objects.get(&archive).await?.unwrap_or_default();
    assert_eq!(again["spec"], archive["spec"]);
    let path = stage.data()?.join(text(&again, "/spec/directory")).join("data");
    assert_eq!(fs::read_to_string(path)?, "data");
    said(&stage, "RecordsSigned", &[]).await?;
    // What is made now lies beside what was made then.
    let another = archived(&stage, "another").await?;
    assert_eq!(clusters(&stage)?.len(), 1);
    let mut both = [&archive, &another].map(|archive| text(archive, "/metadata/name").to_owned());
    both.sort();
    assert_eq!(archives(&stage).await?, both);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_secret_replaces_the_one_that_an_already_running_operator_created() -> Test {
    let stage = Stage::set(often()).await?;
    let archive = archived(&stage, "data").await?;
    let guide = guide()?;
    stage.does(&guide.save).await?;
    let stage = stage.rebuilt(None, &[]).await?;
    stage.serve(often()).await?;
    said(&stage, "RecordsSigned", &[text(&archive, "/metadata/name")]).await?;
    assert_eq!(archives(&stage).await?, Vec::<String>::new());
    stage.operator.terminate().await?;
    stage.does(&guide.replace).await?;
    let operator = stage.another(&[]).await?;
    operator.wait_ready().await?;
    available(&stage, &archive).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_rebuilt_without_its_secret_recovers_nothing_reports_it_and_adopts_by_name() -> Test {
    let stage = Stage::set(often()).await?;
    let archive = archived(&stage, "data").await?;
    let claim = stage.objects.create(&stage.claim("live")).await?;
    let volume = stage.bound(&claim).await?;
    fs::write(stage.directory(&volume)?.join("data"), "live")?;
    let former = clusters(&stage)?.remove(0);
    let id = former.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stage = stage.rebuilt(None, &[]).await?;
    stage.serve(often()).await?;
    let cluster = format!("cluster {id} has 2 records here");
    let (name, live) = (text(&archive, "/metadata/name"), text(&volume, "/metadata/name"));
    said(&stage, "RecordsSigned", &[&cluster, name, live]).await?;
    // Some probes later as well.
    let other = archived(&stage, "other").await?;
    assert_eq!(archives(&stage).await?, [text(&other, "/metadata/name")]);
    assert_eq!(fs::read_dir(former.join("records"))?.count(), 2);

    adopt(&stage, Some(&id), name).await?;
    let again = available(&stage, &archive).await?;
    assert_eq!(again["spec"], archive["spec"]);
    said(
        &stage,
        "RecordsSigned",
        &[&format!("cluster {id} has 1 records here"), live],
    )
    .await?;
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let event = stage.objects.wait_event(&backend, "RecordAdopted", PATIENCE).await?;
    assert!(text(&event, "/note").contains(name), "{event}");
    assert_eq!(fs::read_to_string(stage.directory(&volume)?.join("data"))?, "live");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_records_become_no_objects_and_are_reported() -> Test {
    let stage = Stage::set(often()).await?;
    let own = archived(&stage, "own").await?;
    let edited = archived(&stage, "edited").await?;
    let records = clusters(&stage)?.remove(0).join("records");
    let guide = guide()?;
    stage.does(&guide.save).await?;
    // Whose it was is changed, and a second one is made up for a directory that is none of ours.
    let path = records.join(text(&edited, "/metadata/name"));
    let record = fs::read_to_string(&path)?;
    fs::write(&path, record.replace("\"default\"", "\"of-a-thief\""))?;
    fs::create_dir(stage.data()?.join("archived-secret"))?;
    let mut made_up: Value = serde_json::from_str(&record)?;
    made_up["volume"] = json!("pvc-made-up");
    made_up["state"]["target"] = json!("archived-secret");
    fs::write(records.join("pvc-made-up"), made_up.to_string())?;
    let stage = stage.rebuilt(Some(&guide.restore), &[]).await?;
    stage.serve(often()).await?;
    // The one that is as it was comes back: the others had their chance.
    available(&stage, &own).await?;
    let named = [
        "2 records",
        text(&edited, "/metadata/name"),
        "pvc-made-up",
        "of claim of-a-thief/edited, signed wrongly",
    ];
    said(&stage, "RecordsUnsigned", &named).await?;
    assert_eq!(archives(&stage).await?, [text(&own, "/metadata/name")]);
    // Even an administrator's word makes nothing of what is not so.
    adopt(&stage, None, "pvc-made-up,../x").await?;
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let event = stage.objects.wait_event(&backend, "RecordNotAdopted", PATIENCE).await?;
    assert!(
        text(&event, "/note").contains("Nothing was touched") || text(&event, "/note").contains("../x"),
        "{event}"
    );
    said(&stage, "RecordsUnsigned", &["2 records"]).await?;
    assert_eq!(archives(&stage).await?, [text(&own, "/metadata/name")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_secret_stops_the_operator_which_reports_it_and_the_remedy() -> Test {
    let stage = Stage::set(often()).await?;
    let found = stage.objects.get(&secret()).await?.ok_or("no Secret was made")?;
    assert_eq!(found["immutable"], true);
    let fails = async |stage: &Stage, args: &[&str]| -> Result<String, Failure> {
        let operator = stage.another(args).await?;
        rig::wait::until("the operator to end", PATIENCE, async || {
            operator.exit_status().map(drop).ok_or_else(|| "it runs".to_owned())
        })
        .await?;
        assert!(!operator.exit_status().is_some_and(|ended| ended.success()));
        Ok(fs::read_to_string(operator.log())?)
    };
    stage
        .cluster
        .expect_violation("refused: get secrets in nfs-operator-system")?;
    let log = fails(&stage, &["--records-secret", "another"]).await?;
    for part in [
        "cannot read the Secret nfs-operator-system/another",
        "config/rbac",
        "--records-secret",
    ] {
        assert!(log.contains(part), "{part} is not in: {log}");
    }

    stage.objects.delete(&secret()).await?;
    let mut half = secret();
    rig::objects::merge(&mut half, &json!({"data": {"cluster-id": found["data"]["cluster-id"]}}));
    let half = stage.objects.create(&half).await?;
    let log = fails(&stage, &[]).await?;
    for part in [
        "the Secret nfs-operator-system/nfs-operator-records can't be used: data.key is missing",
        "docs/disaster-recovery.md",
    ] {
        assert!(log.contains(part), "{part} is not in: {log}");
    }
    let after = stage.objects.get(&secret()).await?;
    assert_eq!(after.as_ref(), Some(&half), "it was written over");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_signs_the_records_that_agree_with_their_volumes_and_leaves_the_others() -> Test {
    let stage = Stage::set_with(often(), &["--scan-interval", "2s"]).await?;
    let mut volumes = Vec::new();
    for name in ["agrees", "differs"] {
        let claim = stage.objects.create(&stage.claim(name)).await?;
        volumes.push(stage.bound(&claim).await?);
    }
    let records = clusters(&stage)?.remove(0).join("records");
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
    rig::wait::until("the record to be signed", PATIENCE, async || {
        let record = read(agrees).map_err(|error| error.to_string())?;
        record.get("signature").map(drop).ok_or_else(|| record.to_string())
    })
    .await?;
    assert!(read(differs)?.get("signature").is_none());
    Ok(())
}
