//! Archives that somebody asks for, while the operator dies, and while what they are about goes.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rig::proxy::{encode_rename, has_bytes};
use rig::{Action, wait};
use serde_json::{Value, json};

use crate::archives::on_demand::backup;
use crate::clones::claims::{contents, slow, staging, under_way};
use crate::support::dedicated_cluster::Stage;
use crate::support::shared::{self, Failure, PATIENCE, Test, text};

/// A stage with a claim `old` of many files, a way to its server that is slow, and a backup of it under way.
async fn begun() -> Result<(Stage, Value, BTreeMap<String, Vec<u8>>), Failure> {
    let stage = Stage::set(json!({"probeInterval": "1s"})).await?;
    let source = slow(&stage).await?;
    let asked = stage.objects.create(&backup("nightly", "default", "old")).await?;
    under_way(&stage).await?;
    Ok((stage, asked, source))
}

fn at_full_speed(stage: &Stage) {
    stage.proxy.clear_hooks();
    stage.proxy.delay(Duration::ZERO, Duration::ZERO);
}

async fn available(stage: &Stage, archive: &Value) -> rig::Result<Value> {
    let is = |found: &Value| match text(found, "/status/state") {
        "Available" => Ok(found.clone()),
        said => Err(said.to_owned()),
    };
    stage.objects.wait(archive, "to be Available", PATIENCE, is).await
}

/// Waits until so many records are there, and no copy that is not complete.
async fn settled(stage: &Stage, records: usize) -> Test {
    wait::until("record and copy to be gone", PATIENCE, async || {
        let found = stage.records().map_err(|error| error.to_string())?.len();
        let staged = staging(stage).map_err(|error| error.to_string())?;
        if found == records && staged.is_empty() {
            Ok(())
        } else {
            Err(format!("{found} records, {staged:?}"))
        }
    })
    .await?;
    shared::trash_empty(&stage.data()?).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_killed_repeatedly_during_a_backup_ends_with_one_complete_copy() -> Test {
    let (mut stage, asked, source) = begun().await?;
    let told = stage
        .objects
        .wait_condition(&asked, "Available", "False", Some("Copying"), PATIENCE);
    let message = text(&told.await?, "/message").to_owned();
    assert!(message.starts_with("copying claim default/old: "), "{message}");
    let metrics = stage.operator.metrics().await?;
    assert!(
        metrics.contains("nfs_operator_copy_files{namespace=\"default\",claim=\"old\",archive=\"nightly\"}"),
        "{metrics}"
    );
    for _ in 0..3 {
        under_way(&stage).await?;
        let seen = stage.names()?;
        assert_eq!(seen.len(), 1, "seen before it was complete: {seen:?}");
        stage.operator.kill9().await?;
        stage.operator.restart().await?;
    }
    at_full_speed(&stage);
    let archive = available(&stage, &asked).await?;
    assert_eq!(
        contents(&stage.data()?.join(text(&archive, "/spec/directory")))?,
        source
    );
    settled(&stage, 2).await?;
    assert_eq!(stage.names()?.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_killed_at_any_rename_of_a_backup_ends_with_one_complete_copy() -> Test {
    let mut stage = Stage::set(json!({"probeInterval": "1s"})).await?;
    let claim = stage.claim("old");
    stage.objects.create(&claim).await?;
    let volume = stage.bound(&claim).await?;
    fs::write(stage.directory(&volume)?.join("data"), "text")?;
    // Drafts become the record, first with the copy's fileid and then as the archive's; between them the copy gets its name.
    for (number, (renamed, nth)) in [(".draft-backup-0", 0), ("tree", 0), (".draft-backup-2", 1)]
        .into_iter()
        .enumerate()
    {
        let name = format!("backup-{number}");
        let (call, before) = (encode_rename(renamed.as_bytes()), AtomicUsize::new(0));
        let mut lost = stage.proxy.lose_reply(Action::Drop, move |record| {
            has_bytes(record, &call) && before.fetch_add(1, Ordering::Relaxed) == nth
        });
        let asked = stage.objects.create(&backup(&name, "default", "old")).await?;
        lost.wait(PATIENCE).await?;
        stage.operator.kill9().await?;
        stage.proxy.clear_hooks();
        stage.operator.restart().await?;
        let archive = available(&stage, &asked).await?;
        let directory = stage.data()?.join(text(&archive, "/spec/directory"));
        assert_eq!(fs::read_to_string(directory.join("data"))?, "text", "{name}");
        settled(&stage, number + 2).await?;
        assert_eq!(stage.names()?.len(), number + 2, "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_deleted_during_the_copy_leaves_nothing_behind() -> Test {
    let (stage, asked, source) = begun().await?;
    stage.objects.delete(&asked).await?;
    stage.objects.wait_gone(&asked, PATIENCE).await?;
    settled(&stage, 1).await?;
    assert_eq!(stage.names()?.len(), 1);
    let volume = stage.bound(&stage.claim("old")).await?;
    assert_eq!(contents(&stage.directory(&volume)?)?, source);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_recreated_under_the_name_of_one_that_was_removed_by_force_starts_its_own_copy() -> Test {
    let (mut stage, asked, source) = begun().await?;
    stage.operator.kill9().await?;
    let record = |stage: &Stage| -> Result<Value, Failure> {
        let records = stage.records()?;
        let found = records.into_iter().find(|(name, _)| name == "nightly");
        Ok(found.map(|(_, record)| record).unwrap_or_default())
    };
    let asker = "/state/copy/askedBy";
    assert_eq!(record(&stage)?.pointer(asker), asked.pointer("/metadata/uid"));
    let finalizers = json!({"metadata": {"finalizers": null}});
    stage.objects.patch(&asked, finalizers).await?;
    stage.objects.delete(&asked).await?;
    stage.objects.wait_gone(&asked, PATIENCE).await?;
    let again = stage.objects.create(&backup("nightly", "default", "old")).await?;
    at_full_speed(&stage);
    stage.operator.restart().await?;
    let archive = available(&stage, &again).await?;
    assert_eq!(record(&stage)?.pointer(asker), again.pointer("/metadata/uid"));
    assert_eq!(
        contents(&stage.data()?.join(text(&archive, "/spec/directory")))?,
        source
    );
    settled(&stage, 2).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_claim_that_is_deleted_meanwhile_is_discarded_and_reported() -> Test {
    let (stage, asked, source) = begun().await?;
    let claim = stage.claim("old");
    let volume = stage.bound(&claim).await?;
    stage.objects.delete(&claim).await?;
    stage.objects.wait_gone(&volume, PATIENCE).await?;
    at_full_speed(&stage);
    let told = stage.objects.wait_event(&asked, "CopySourceGone", PATIENCE).await?;
    assert!(text(&told, "/note").contains("is thrown away"), "{told}");
    settled(&stage, 1).await?;
    let names: Vec<String> = stage.names()?.into_iter().collect();
    let [archived] = names.as_slice() else {
        panic!("{names:?}");
    };
    assert_eq!(contents(&stage.data()?.join(archived))?, source);
    Ok(())
}
