//! Policies for the data of deleted claims.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rig::TestEnv;
use serde_json::{Value, json};

use crate::support::shared::{self, REUSED, TIMEOUT, Test};

fn on_delete(policy: &str) -> Value {
    json!({ "archivePolicy": { "onDelete": policy } })
}

#[tokio::test]
async fn a_backend_that_archives_keeps_the_data_accessible_only_to_root() -> Test {
    let env = TestEnv::new("archive").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "kept").await?;
    let directory = env.directory(&volume)?;
    let logged = shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archives = shared::archives(env.data())?;
    let [archive] = archives.as_slice() else {
        panic!("{archives:?}")
    };
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    assert_eq!(*archive, format!("archived-{name}"));
    assert!(logged.contains(archive), "{logged}");
    assert!(!directory.exists());
    assert_eq!(fs::read_to_string(env.data().join(archive).join("data"))?, "kept");
    assert_eq!(fs::metadata(env.data().join(archive))?.mode() & 0o7777, 0o700);
    let counted = |backend: &Value| match &backend["status"]["archives"] {
        archives if archives == 1 => Ok(()),
        archives => Err(format!("{archives} archives")),
    };
    env.objects
        .wait(&backend, "to count an archive", TIMEOUT, counted)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_backend_that_deletes_leaves_nothing() -> Test {
    let env = TestEnv::new("delete").await?;
    shared::backend(&env, "backend", on_delete("Delete")).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "gone").await?;
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    shared::wait_trash_empty(env.data()).await?;
    Ok(())
}

#[tokio::test]
async fn a_backend_that_retains_releases_the_volume_and_leaves_the_directory_unchanged() -> Test {
    let env = TestEnv::new("retain").await?;
    shared::backend(&env, "backend", on_delete("Retain")).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "stays").await?;
    let directory = env.directory(&volume)?;
    let before = rig::snapshot(&directory)?;
    shared::reclaim(&env, &claim, &volume, "VolumeRetained").await?;
    assert_eq!(rig::snapshot(&directory)?, before);
    assert_eq!(fs::metadata(&directory)?.mode() & 0o7777, 0o777);
    assert_eq!(shared::names(env.data())?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_class_takes_precedence_over_its_backend() -> Test {
    let env = TestEnv::new("class-wins").await?;
    shared::backend(&env, "archives", on_delete("Archive")).await?;
    shared::backend(&env, "deletes", on_delete("Delete")).await?;
    let cases = [
        ("archives", json!({"onDelete": "Delete"}), "VolumeDeleted"),
        ("archives", json!({"onDelete": "retain"}), "VolumeRetained"),
        ("archives", json!({"archiveOnDelete": "false"}), "VolumeDeleted"),
        ("deletes", json!({"onDelete": "archive"}), "VolumeArchived"),
        ("deletes", json!({"archiveOnDelete": "true"}), "VolumeArchived"),
        // onDelete takes precedence over the parameter of nfs-subdir.
        (
            "archives",
            json!({"archiveOnDelete": "true", "onDelete": "delete"}),
            "VolumeDeleted",
        ),
    ];
    for (number, (backend, parameters, reason)) in cases.into_iter().enumerate() {
        let class = shared::class(&env, &format!("class{number}"), backend, parameters).await?;
        let (claim, volume) = shared::bound_with_data(&env, &format!("data{number}"), &class, "data").await?;
        let directory = env.directory(&volume)?;
        let before = shared::archives(env.data())?.len();
        shared::reclaim(&env, &claim, &volume, reason).await?;
        assert_eq!(directory.exists(), reason == "VolumeRetained", "case {number}");
        let archived = shared::archives(env.data())?.len() - before;
        assert_eq!(archived, usize::from(reason == "VolumeArchived"), "case {number}");
    }
    Ok(())
}

#[tokio::test]
async fn the_backends_policy_at_the_time_of_deletion_applies() -> Test {
    let env = TestEnv::new("policy-time").await?;
    let backend = shared::backend(&env, "backend", on_delete("Archive")).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "gone").await?;
    let edited = env
        .objects
        .patch(&backend, json!({ "spec": on_delete("Delete") }))
        .await?;
    let generation = edited.pointer("/metadata/generation").cloned();
    // The status shows which generation the operator observed.
    let seen = |found: &Value| match found.pointer("/status/observedGeneration") {
        observed if observed == generation.as_ref() => Ok(()),
        observed => Err(format!("{observed:?}")),
    };
    env.objects
        .wait(&backend, "to be observed as edited", TIMEOUT, seen)
        .await?;
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_volume_with_reclaim_policy_retain_is_not_touched() -> Test {
    let env = TestEnv::new("reclaim-retain").await?;
    shared::backend(&env, "backend", on_delete("Delete")).await?;
    let deleting = shared::class(&env, "deleting", "backend", json!({})).await?;
    let mut retaining = env.class("retaining", json!({ "backend": env.unique_name("backend") }));
    retaining["reclaimPolicy"] = json!("Retain");
    let retaining = env.objects.create(&retaining).await?;
    let (claim, made_so) = shared::bound_with_data(&env, "made-so", &retaining, "stays").await?;
    let (edited_claim, edited) = shared::bound_with_data(&env, "edited", &deleting, "stays").await?;
    assert_eq!(made_so.pointer("/metadata/finalizers/1"), None);
    let retain = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    env.objects.patch(&edited, retain).await?;
    let without_ours = |volume: &Value| {
        let finalizers = volume.pointer("/metadata/finalizers").map(Value::to_string);
        match finalizers.filter(|all| all.contains("nfs-operator.io/reclaim")) {
            None => Ok(()),
            Some(all) => Err(all),
        }
    };
    let what = "to lose our finalizer";
    env.objects.wait(&edited, what, TIMEOUT, without_ours).await?;
    let before = rig::snapshot(env.data())?;
    let before: Vec<_> = before.iter().filter(|(path, _)| path.ends_with("/data")).collect();
    for (claim, volume) in [(&claim, &made_so), (&edited_claim, &edited)] {
        env.objects.delete(claim).await?;
        let released = |volume: &Value| match shared::text(volume, "/status/phase") {
            "Released" => Ok(()),
            phase => Err(phase.to_owned()),
        };
        env.objects.wait(volume, "to be Released", TIMEOUT, released).await?;
    }
    // A volume that is released after them is reclaimed, so the operator has processed them.
    let (last_claim, last) = shared::bound_with_data(&env, "last", &deleting, "gone").await?;
    shared::reclaim(&env, &last_claim, &last, "VolumeDeleted").await?;
    let after = rig::snapshot(env.data())?;
    assert!(before.len() == 2 && before.iter().all(|(path, seen)| after.get(*path) == Some(seen)));
    for volume in [&made_so, &edited] {
        assert!(env.objects.get(volume).await?.is_some());
        assert_eq!(env.objects.events(volume).await?.len(), 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_volume_edited_to_recycle_is_refused_and_keeps_its_data() -> Test {
    let env = TestEnv::new("recycle").await?;
    shared::backend(&env, "backend", on_delete("Delete")).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "stays").await?;
    let recycle = json!({ "spec": { "persistentVolumeReclaimPolicy": "Recycle" } });
    env.objects.patch(&volume, recycle).await?;
    env.objects.delete(&claim).await?;
    let note = shared::wait_reclaim_refused(&env, &volume).await?;
    assert!(note.starts_with("RecycleUnsupported"), "{note}");
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "stays");
    // The remedy in the message works.
    let delete = json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
    env.objects.patch(&volume, delete).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    Ok(())
}

#[tokio::test]
async fn a_second_archive_of_a_name_gets_its_own_name_and_the_name_can_be_reused_at_once() -> Test {
    let env = TestEnv::new("twice").await?;
    shared::backend(&env, "backend", json!({ "directory": { "pattern": REUSED } })).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    for round in 1..=3 {
        let (claim, volume) = shared::bound(&env, "data", &class).await?;
        let directory = env.directory(&volume)?;
        assert_eq!(fs::read_dir(&directory)?.count(), 0, "round {round}: old data");
        fs::write(directory.join("data"), format!("round {round}"))?;
        shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
        let archives = shared::archives(env.data())?;
        let read = |name: &String| fs::read_to_string(env.data().join(name).join("data"));
        let mut kept = archives.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        kept.sort();
        let expected: Vec<_> = (1..=round).map(|number| format!("round {number}")).collect();
        assert_eq!(kept, expected);
    }
    Ok(())
}

#[tokio::test]
async fn an_empty_directory_is_removed_instead_of_archived() -> Test {
    let env = TestEnv::new("empty").await?;
    shared::backend(&env, "backend", on_delete("Archive")).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    let logged = shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    assert!(logged.contains("empty"), "{logged}");
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn an_adopted_directory_is_archived_although_the_policy_is_delete() -> Test {
    let env = TestEnv::new("adopted").await?;
    shared::backend(&env, "backend", on_delete("Delete")).await?;
    let named = json!({ "existing": "Adopt", "pathPattern": "${pvc.namespace}/${pvc.name}" });
    let class = shared::class(&env, "class", "backend", named).await?;
    let directory = env.data().join(&env.name).join("data");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("theirs"), "older than the operator")?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    assert_eq!(env.directory(&volume)?, directory);
    let placed = env.objects.get(&claim).await?.unwrap_or_default();
    let placed_on = shared::text(&placed, "/metadata/annotations/nfs-operator.io~1placed-on");
    assert_eq!(placed_on, env.unique_name("backend"), "the directory has data");
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archive = env.data().join("archived-data");
    assert_eq!(fs::read_to_string(archive.join("theirs"))?, "older than the operator");
    assert_eq!(fs::metadata(&archive)?.mode() & 0o7777, 0o700);
    assert!(!directory.exists());
    Ok(())
}

#[tokio::test]
async fn a_directory_that_exists_is_refused_unless_adoption_is_requested() -> Test {
    let env = TestEnv::new("exists").await?;
    shared::backend(&env, "backend", json!({ "directory": { "pattern": REUSED } })).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let directory = env.data().join(format!("{}-data", env.name));
    fs::create_dir(&directory)?;
    fs::write(directory.join("theirs"), "theirs")?;
    let before = rig::snapshot(&directory)?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "DirectoryExists").await?;
    assert!(message.contains(&format!("{}-data", env.name)), "{message}");
    assert_eq!(rig::snapshot(&directory)?, before);
    Ok(())
}
