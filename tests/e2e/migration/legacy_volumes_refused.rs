//! Volumes of nfs-subdir-external-provisioner whose address does not prove the owner of the data: nothing is touched.

use std::fs;

use rig::TestEnv;
use rig::objects::merge;
use serde_json::json;

use crate::support::legacy_provisioner::LegacyProvisioner;
use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn a_volume_that_matches_two_backends_or_not_that_of_the_alias_keeps_its_data() -> Test {
    let env = TestEnv::new("whose").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let class = legacy.class_object("class", &json!({ "archiveOnDelete": "false" }));
    fs::create_dir(env.data().join("team"))?;
    let outer = legacy.volume("outer", &class, None).await?;
    let inner = legacy.volume("inner", &class, Some("team/inner")).await?;
    env.objects.create(&class).await?;
    let before = rig::snapshot(env.data())?;
    let team = env.backend("team", json!({ "path": format!("{}/team", env.export()) }));
    let twin = env.backend("twin", json!({}));
    for backend in [&team, &twin] {
        env.objects.create(backend).await?;
    }
    env.objects
        .wait_condition(&twin, "Ready", "True", None, TIMEOUT)
        .await?;
    for (created, named) in [(&outer, "twin"), (&inner, "team")] {
        env.objects.delete(&created.claim).await?;
        let note = shared::wait_reclaim_refused(&env, &created.volume).await?;
        assert!(
            note.starts_with("ReclaimUnsafe") && note.contains(&env.unique_name(named)),
            "{note}"
        );
    }
    let mut after = rig::snapshot(env.data())?;
    let mut before = before;
    for tree in [&mut before, &mut after] {
        tree.retain(|path, _| path.ends_with("/data"));
    }
    assert_eq!(after, before);
    // With only one backend left, the owner is unambiguous.
    env.objects.delete(&twin).await?;
    env.objects.wait_gone(&twin, TIMEOUT).await?;
    env.objects.delete(&team).await?;
    env.objects.wait_gone(&team, TIMEOUT).await?;
    env.objects.wait_gone(&outer.volume, TIMEOUT).await?;
    // The marker of the inner backend is still there and could belong to another cluster.
    let reported = |events: Vec<serde_json::Value>| {
        let notes: Vec<String> = events.iter().map(|event| text(event, "/note").to_owned()).collect();
        let nested = notes.iter().any(|note| note.starts_with("DirectoryOverlaps"));
        if nested { Ok(()) } else { Err(notes.join("; ")) }
    };
    rig::wait::until("the inner volume to report the conflict", TIMEOUT, async || {
        let events = env.objects.events(&inner.volume).await;
        reported(events.map_err(|error| error.to_string())?)
    })
    .await?;
    assert!(inner.directory.join("data").exists());
    Ok(())
}

#[tokio::test]
async fn volumes_in_the_same_directory_keep_it_until_the_last_of_them_is_deleted() -> Test {
    let env = TestEnv::new("same-directory").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let class = legacy.class_object("class", &json!({ "archiveOnDelete": "false" }));
    let first = legacy.volume("first", &class, Some("shared")).await?;
    let second = legacy.volume("second", &class, Some("shared")).await?;
    env.objects.create(&class).await?;
    env.objects.delete(&first.claim).await?;
    let note = shared::wait_reclaim_refused(&env, &first.volume).await?;
    let other = text(&second.volume, "/metadata/name");
    assert!(note.starts_with("DirectoryOverlaps") && note.contains(other), "{note}");
    assert!(first.directory.join("data").exists());
    Ok(())
}

#[tokio::test]
async fn a_missing_directory_is_success_only_for_a_class_that_deletes() -> Test {
    let env = TestEnv::new("missing-old").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let deletes = legacy.class_object("deletes", &json!({ "archiveOnDelete": "false" }));
    let archives = legacy.class_object("archives", &json!({}));
    let deleted = legacy.volume("gone", &deletes, None).await?;
    let missing = legacy.volume("missing", &archives, None).await?;
    for class in [&deletes, &archives] {
        env.objects.create(class).await?;
    }
    for created in [&deleted, &missing] {
        fs::remove_dir_all(&created.directory)?;
    }
    shared::reclaim(&env, &deleted.claim, &deleted.volume, "VolumeDeleted").await?;
    env.objects.delete(&missing.claim).await?;
    let note = shared::wait_reclaim_refused(&env, &missing.volume).await?;
    assert!(note.starts_with("DirectoryMissing"), "{note}");
    let acknowledged = json!({ "metadata": { "annotations": { "nfs-operator.io/acknowledge-missing": "true" } } });
    env.objects.patch(&missing.volume, acknowledged).await?;
    env.objects.wait_gone(&missing.volume, TIMEOUT).await?;
    Ok(())
}

#[tokio::test]
async fn volumes_that_are_not_of_nfs_subdir_or_are_retained_are_left_alone() -> Test {
    let env = TestEnv::new("not-inherited").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let class = legacy.class_object("class", &json!({ "archiveOnDelete": "false" }));
    // The name does not match the claim: the owner is unknown.
    let claim = env.objects.create(&env.claim("renamed", &class)).await?;
    let (directory, mut renamed) = legacy.object(&claim, &class, None)?;
    fs::create_dir(&directory)?;
    fs::write(directory.join("data"), "kept")?;
    merge(
        &mut renamed,
        &json!({ "metadata": { "name": env.unique_name("by-hand") } }),
    );
    let renamed = env.objects.create(&renamed).await?;
    env.wait_bound(&claim).await?;
    let retained = legacy.volume("retained", &class, None).await?;
    let retain = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    env.objects.patch(&retained.volume, retain).await?;
    // A volume of another provisioner at one of our addresses.
    let other = env.objects.create(&env.claim("other", &class)).await?;
    let (others, mut volume) = legacy.object(&other, &class, None)?;
    fs::create_dir(&others)?;
    fs::write(others.join("data"), "kept")?;
    let by = json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "third.example.org/nfs" } } });
    merge(&mut volume, &by);
    let volume = env.objects.create(&volume).await?;
    env.wait_bound(&other).await?;
    let last = legacy.volume("last", &class, None).await?;
    env.objects.create(&class).await?;

    env.objects.delete(&claim).await?;
    let note = shared::wait_reclaim_refused(&env, &renamed).await?;
    assert!(note.starts_with("ReclaimUnsafe") && note.contains("pvc-<uid"), "{note}");
    for (claim, volume) in [(&retained.claim, &retained.volume), (&other, &volume)] {
        env.objects.delete(claim).await?;
        let released = |volume: &serde_json::Value| match text(volume, "/status/phase") {
            "Released" | "Failed" => Ok(()),
            phase => Err(phase.to_owned()),
        };
        env.objects.wait(volume, "to be Released", TIMEOUT, released).await?;
    }
    // The volume that is released last is reclaimed after the others would have been.
    shared::reclaim(&env, &last.claim, &last.volume, "VolumeDeleted").await?;
    for directory in [&directory, &retained.directory, &others] {
        assert!(directory.join("data").exists(), "{}", directory.display());
    }
    Ok(())
}
