//! Backups while the operator crashes, and while their source is deleted.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use rig::proxy::{encode_rename, has_bytes};
use rig::{Action, wait};
use serde_json::{Value, json};

use crate::archives::on_demand::backup;
use crate::clones::claims::{at_full_speed, contents, slow, staging, under_way};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, TIMEOUT, Test, text};

/// Starts a cluster with a claim `old` of many files behind a slow proxy, and starts a backup of it.
async fn begun() -> Result<(DedicatedCluster, Value, BTreeMap<String, Vec<u8>>), Failure> {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let source = slow(&env).await?;
    let request = env.objects.create(&backup("nightly", "default", "old")).await?;
    under_way(&env).await?;
    Ok((env, request, source))
}

async fn available(env: &DedicatedCluster, archive: &Value) -> rig::Result<Value> {
    let is = |found: &Value| match text(found, "/status/state") {
        "Available" => Ok(found.clone()),
        said => Err(said.to_owned()),
    };
    env.objects.wait(archive, "to be Available", TIMEOUT, is).await
}

/// Waits until this number of records and no incomplete copy exist.
async fn settled(env: &DedicatedCluster, records: usize) -> Test {
    wait::until("record and copy to be gone", TIMEOUT, async || {
        let found = env.records().map_err(|error| error.to_string())?.len();
        let staged = staging(env).map_err(|error| error.to_string())?;
        if found == records && staged.is_empty() {
            Ok(())
        } else {
            Err(format!("{found} records, {staged:?}"))
        }
    })
    .await?;
    shared::wait_trash_empty(&env.data()?).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_killed_at_any_rename_of_a_backup_ends_with_one_complete_copy() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let claim = env.claim("old");
    env.objects.create(&claim).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), "text")?;
    // Drafts replace the record twice: with the fileid of the copy, and as that of the archive. Between them, the copy
    // is renamed.
    for (number, (renamed, nth)) in [(".draft-backup-0", 0), ("tree", 0), (".draft-backup-2", 1)]
        .into_iter()
        .enumerate()
    {
        let name = format!("backup-{number}");
        let (call, before) = (encode_rename(renamed.as_bytes()), AtomicUsize::new(0));
        let mut lost = env.proxy.lose_reply(Action::Drop, move |record| {
            has_bytes(record, &call) && before.fetch_add(1, Ordering::Relaxed) == nth
        });
        let request = env.objects.create(&backup(&name, "default", "old")).await?;
        lost.wait(TIMEOUT).await?;
        env.operator.kill9().await?;
        env.proxy.clear_hooks();
        env.operator.restart().await?;
        let archive = available(&env, &request).await?;
        let directory = env.data()?.join(text(&archive, "/status/directory"));
        assert_eq!(fs::read_to_string(directory.join("data"))?, "text", "{name}");
        settled(&env, number + 2).await?;
        assert_eq!(env.names()?.len(), number + 2, "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_deleted_during_the_copy_leaves_nothing_behind() -> Test {
    let (env, request, source) = begun().await?;
    env.objects.delete(&request).await?;
    env.objects.wait_gone(&request, TIMEOUT).await?;
    at_full_speed(&env);
    settled(&env, 1).await?;
    assert_eq!(env.names()?.len(), 1);
    let volume = env.bound(&env.claim("old")).await?;
    assert_eq!(contents(&env.directory(&volume)?)?, source);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_recreated_under_the_name_of_one_that_was_removed_by_force_starts_its_own_copy() -> Test {
    let (mut env, object, source) = begun().await?;
    env.operator.kill9().await?;
    let record = |env: &DedicatedCluster| -> Result<Value, Failure> {
        let records = env.records()?;
        let found = records.into_iter().find(|(name, _)| name == "nightly");
        Ok(found.map(|(_, record)| record).unwrap_or_default())
    };
    let asker = "/state/copy/askedBy";
    assert_eq!(record(&env)?.pointer(asker), object.pointer("/metadata/uid"));
    let finalizers = json!({"metadata": {"finalizers": null}});
    env.objects.patch(&object, finalizers).await?;
    env.objects.delete(&object).await?;
    env.objects.wait_gone(&object, TIMEOUT).await?;
    let again = env.objects.create(&backup("nightly", "default", "old")).await?;
    at_full_speed(&env);
    env.operator.restart().await?;
    let archive = available(&env, &again).await?;
    assert_eq!(record(&env)?.pointer(asker), again.pointer("/metadata/uid"));
    assert_eq!(
        contents(&env.data()?.join(text(&archive, "/status/directory")))?,
        source
    );
    settled(&env, 2).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_claim_that_is_deleted_meanwhile_is_discarded_and_reported() -> Test {
    let (env, request, source) = begun().await?;
    let claim = env.claim("old");
    let volume = env.bound(&claim).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    at_full_speed(&env);
    let reported = env.objects.wait_event(&request, "CopySourceGone", TIMEOUT).await?;
    assert!(text(&reported, "/note").contains("discarding the copy"), "{reported}");
    settled(&env, 1).await?;
    let names: Vec<String> = env.names()?.into_iter().collect();
    let [archived] = names.as_slice() else {
        panic!("{names:?}");
    };
    assert_eq!(contents(&env.data()?.join(archived))?, source);
    Ok(())
}
