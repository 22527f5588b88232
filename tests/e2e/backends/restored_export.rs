//! Exports that were restored or moved file by file: their directories have other fileids, and an administrator accepts them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;

use rig::{TestEnv, wait};
use serde_json::{Value, json};

use super::identity::{Swapped, lasting};
use crate::archives::objects::{archive_of, in_state};
use crate::archives::restore::asking;
use crate::cli::kubectl_nfs::{fine, problem, refused};
use crate::support::shared::{self, TIMEOUT, Test, text};

const FILE_ID: &str = "/metadata/annotations/nfs-operator.io~1file-id";

/// Returns the directory of a volume on the disk of the export.
fn directory(swapped: &Swapped, volume: &Value) -> rig::Result<PathBuf> {
    let inside = text(volume, "/metadata/annotations/nfs-operator.io~1directory");
    Ok(swapped.disk()?.join(inside))
}

/// Creates a bound claim with a file `data`. Returns it with its volume.
async fn with_data(swapped: &Swapped, name: &str, class: &Value) -> Result<(Value, Value), shared::Failure> {
    let (claim, volume) = shared::bound(&swapped.env, name, class).await?;
    fs::write(directory(swapped, &volume)?.join("data"), name)?;
    Ok((claim, volume))
}

/// Runs `kubectl nfs accept-directories` for directories that are accepted, and returns what it prints.
async fn accept(env: &TestEnv, which: &[&str]) -> String {
    let backend = env.unique_name("backend");
    let command = [&["accept-directories", &backend], which, &["--wait", "--timeout", "4m"]].concat();
    fine(&env.rig.cluster, &command).await
}

/// The same for directories of which some are refused.
async fn accept_refused(env: &TestEnv, which: &[&str]) -> String {
    let backend = env.unique_name("backend");
    let command = [&["accept-directories", &backend], which, &["--wait", "--timeout", "4m"]].concat();
    problem(&env.rig.cluster, &command).await
}

/// Returns the fileid in the record of a volume.
fn recorded(swapped: &Swapped, volume: &Value) -> Result<u64, shared::Failure> {
    for folder in fs::read_dir(swapped.disk()?.join(".nfs-operator"))?.flatten() {
        if let Ok(record) = fs::read_to_string(folder.path().join("records").join(text(volume, "/metadata/name"))) {
            // The signature follows in another line.
            let content: Value = serde_json::from_str(record.lines().next().unwrap_or_default())?;
            return Ok(content["fileID"].as_u64().ok_or("no fileid")?);
        }
    }
    Err("no record".into())
}

#[tokio::test]
async fn volumes_and_archives_of_an_export_restored_file_by_file_are_accepted_at_once() -> Test {
    let mut swapped = Swapped::start("restored-files").await?;
    let archiving = shared::class(&swapped.env, "archiving", "backend", json!({"onDelete": "archive"})).await?;
    let (kept, kept_volume) = with_data(&swapped, "kept", &swapped.class).await?;
    let (gone, gone_volume) = with_data(&swapped, "gone", &archiving).await?;
    shared::reclaim(&swapped.env, &gone, &gone_volume, "VolumeArchived").await?;
    let archive = in_state(&swapped.env, &archive_of(&gone_volume), "Available").await?;
    swapped.swap_by_copy().await?;
    swapped.accept().await?;
    let env = &swapped.env;
    let inode = |path: PathBuf| fs::metadata(path).map(|metadata| metadata.ino());
    let now = inode(directory(&swapped, &kept_volume)?)?;
    assert_ne!(text(&kept_volume, FILE_ID), now.to_string());
    in_state(env, &archive, "Missing").await?;
    // Its directory is not deleted, because it is not the one that was created for it.
    env.objects.delete(&swapped.claim).await?;
    swapped.reclaim_is_refused("ReclaimUnsafe").await?;
    assert!(directory(&swapped, &swapped.volume)?.join("data").exists());

    let (cluster, backend) = (&env.rig.cluster, env.unique_name("backend"));
    let usage = refused(cluster, 2, &["accept-directories", &backend]).await;
    assert!(usage.contains("--all"), "{usage}");
    let planned = fine(cluster, &["accept-directories", &backend, "--all", "--plan"]).await;
    assert!(
        planned.contains("would set nfs-operator.io/accept-directories=*@"),
        "{planned}"
    );
    let first = accept(env, &[text(&kept_volume, "/metadata/name")]).await;
    assert!(
        first.contains("1 directory is accepted, 1 of them changed now, 0 volumes not accepted"),
        "{first}"
    );
    let all = accept(env, &["--all"]).await;
    assert!(
        all.contains("3 directories are accepted, 2 of them changed now, 0 volumes not accepted"),
        "{all}"
    );

    let found = env.objects.get(&kept_volume).await?.ok_or("the volume is gone")?;
    assert_eq!(text(&found, FILE_ID), now.to_string());
    assert_eq!(recorded(&swapped, &kept_volume)?, now);
    // What waited for it goes on, and everything works again.
    env.objects.wait_gone(&swapped.volume, TIMEOUT).await?;
    assert!(!directory(&swapped, &swapped.volume)?.exists());
    let archive = in_state(env, &archive, "Available").await?;
    let again = asking(env.claim("again", &archiving), text(&archive, "/metadata/name"));
    let restored = env.wait_bound(&env.objects.create(&again).await?).await?;
    assert_eq!(
        fs::read_to_string(directory(&swapped, &restored)?.join("data"))?,
        "gone"
    );
    env.objects.delete(&kept).await?;
    env.objects.wait_gone(&kept_volume, TIMEOUT).await?;
    assert!(!directory(&swapped, &kept_volume)?.exists());
    Ok(())
}

#[tokio::test]
async fn a_directory_of_another_volume_or_backend_or_none_is_not_accepted() -> Test {
    let env = TestEnv::new("accept-not").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let mut volumes = Vec::new();
    for name in ["one", "two", "link", "lost"] {
        volumes.push(shared::bound_with_data(&env, name, &class, name).await?.1);
    }
    let [one, two, link, lost] = volumes.as_slice() else {
        unreachable!("four were created")
    };
    // Somebody swapped two directories, replaced one by a symbolic link to another, and moved one away.
    let aside = env.data().join("aside");
    fs::rename(env.directory(one)?, &aside)?;
    fs::rename(env.directory(two)?, env.directory(one)?)?;
    fs::rename(&aside, env.directory(two)?)?;
    fs::rename(env.directory(link)?, env.data().join("linked"))?;
    symlink("linked", env.directory(link)?)?;
    fs::rename(env.directory(lost)?, env.data().join("away"))?;
    shared::backend(&env, "other", json!({})).await?;
    let elsewhere = shared::class(&env, "elsewhere", "other", json!({})).await?;
    let (_, others) = shared::bound(&env, "others", &elsewhere).await?;
    let before = rig::snapshot(env.data())?;

    let name = |volume: &Value| text(volume, "/metadata/name").to_owned();
    let names: Vec<String> = volumes.iter().chain([&others]).map(name).collect();
    let mut which: Vec<&str> = names.iter().map(String::as_str).collect();
    which.push("pvc-unknown");
    let refused = accept_refused(&env, &which).await;
    assert!(
        refused.contains("0 directories are accepted, 0 of them changed now, 6 volumes not accepted"),
        "{refused}"
    );
    let all = accept_refused(&env, &["--all"]).await;
    assert!(
        all.contains("0 directories are accepted, 0 of them changed now, 4 volumes not accepted"),
        "{all}"
    );
    let expected = [
        (
            name(one),
            format!("has the fileid of the directory of volume {}", name(two)),
        ),
        (
            name(two),
            format!("has the fileid of the directory of volume {}", name(one)),
        ),
        (name(link), "or is not a directory".to_owned()),
        (name(lost), "does not exist".to_owned()),
        (
            name(&others),
            format!("it belongs to backend {}", env.unique_name("other")),
        ),
        ("pvc-unknown".to_owned(), "there is no record of it".to_owned()),
    ];
    wait::until("each refusal to have an event", TIMEOUT, async || {
        let events = env.objects.events(&backend).await.map_err(|error| error.to_string())?;
        let notes: Vec<&str> = events
            .iter()
            .filter(|event| event["reason"] == "DirectoryNotAccepted")
            .map(|event| text(event, "/note"))
            .collect();
        let has = |(name, why): &(String, String)| notes.iter().any(|note| note.contains(name) && note.contains(why));
        match expected.iter().all(has) {
            true => Ok(()),
            false => Err(format!("{notes:#?}")),
        }
    })
    .await?;
    for volume in &volumes {
        let found = env.objects.get(volume).await?.ok_or("the volume is gone")?;
        assert_eq!(text(&found, FILE_ID), text(volume, FILE_ID));
    }
    assert_eq!(lasting(rig::snapshot(env.data())?), lasting(before));
    let handled = env.objects.get(&backend).await?.ok_or("the backend is gone")?;
    shared::is_handled(&handled, "nfs-operator.io/accept-directories")?;
    Ok(())
}
