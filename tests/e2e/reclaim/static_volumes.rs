//! Static volumes with one of our classes.

use std::fs;

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::support::legacy_provisioner::{LegacyProvisioner, assert_untouched};
use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn a_static_volume_is_bound_and_left_alone_when_its_claim_is_deleted() -> Test {
    let env = TestEnv::new("by-hand").await?;
    let legacy = LegacyProvisioner::new(&env, json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let alias = legacy.class("alias", json!({ "archiveOnDelete": "false" })).await?;
    let backend = text(&legacy.backend, "/metadata/name");
    let own = env
        .objects
        .create(&env.class("own", json!({ "backend": backend })))
        .await?;
    let mut kept = Vec::new();
    for (word, class) in [("own", &own), ("alias", &alias)] {
        let volume = shared::static_volume(&env, word, text(class, "/metadata/name")).await?;
        let before = rig::snapshot(&env.data().join(word))?;
        let claim = env.objects.create(&env.claim(word, class)).await?;
        let bound = env.wait_bound(&claim).await?;
        assert_eq!(text(&bound, "/metadata/name"), text(&volume, "/metadata/name"));
        assert_untouched(&env, &claim).await?;
        env.objects.delete(&claim).await?;
        let released = |volume: &Value| match text(volume, "/status/phase") {
            "Released" | "Failed" => Ok(()),
            phase => Err(phase.to_owned()),
        };
        env.objects.wait(&volume, "to be Released", TIMEOUT, released).await?;
        kept.push((word, volume, before));
    }
    // One of our volumes, released later, is reclaimed after these would have been.
    let (claim, volume) = shared::bound_with_data(&env, "last", &own, "last").await?;
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    for (word, volume, before) in kept {
        assert_eq!(rig::snapshot(&env.data().join(word))?, before);
        assert_untouched(&env, &volume).await?;
        assert!(env.objects.get(&volume).await?.is_some());
        let reported = env.objects.events(&volume).await?;
        let ours = reported
            .iter()
            .any(|event| event["note"].to_string().contains("nfs-operator"));
        assert!(!ours, "{reported:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_names_its_volume_gets_no_other() -> Test {
    let env = TestEnv::new("named-volume").await?;
    let class = env.create_ready_class().await?;
    let volume = shared::static_volume(&env, "data", text(&class, "/metadata/name")).await?;
    let mut claim = env.claim("data", &class);
    merge(
        &mut claim,
        &json!({ "spec": { "volumeName": text(&volume, "/metadata/name") } }),
    );
    let claim = env.objects.create(&claim).await?;
    env.wait_bound(&claim).await?;
    // A volume for another claim shows that there was time to provision one for this claim.
    shared::bound(&env, "other", &class).await?;
    let created = shared::names(env.data())?;
    assert_eq!(created.len(), 2, "{created:?}");
    assert_untouched(&env, &claim).await?;
    Ok(())
}

#[tokio::test]
async fn an_adopted_directory_is_used_unchanged_and_archived_although_the_policy_is_delete() -> Test {
    let env = TestEnv::new("adopt").await?;
    let spec = json!({
        "archivePolicy": { "onDelete": "Delete" },
        "directory": { "existing": "Adopt", "pattern": "${pvc.name}" },
        "allowedNamespaces": { "matchNames": [env.name] },
    });
    shared::backend(&env, "backend", spec).await?;
    let cases = [
        ("by-backend", json!({})),
        ("by-class", json!({ "existing": "Adopt", "onDelete": "delete" })),
    ];
    for (word, parameters) in cases {
        let class = shared::class(&env, word, "backend", parameters).await?;
        let directory = env.data().join(word);
        fs::create_dir(&directory)?;
        fs::write(directory.join("data"), word)?;
        let before = rig::snapshot(&directory)?;
        let (claim, volume) = shared::bound(&env, word, &class).await?;
        assert_eq!(env.directory(&volume)?, directory);
        assert_eq!(rig::snapshot(&directory)?, before);
        shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
        let archive = env.data().join(format!("archived-{word}"));
        assert_eq!(fs::read_to_string(archive.join("data"))?, word);
    }
    // A directory that did not exist before is deleted according to the policy.
    let class = shared::class(&env, "new", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "new", &class, "new").await?;
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    assert_eq!(shared::archives(env.data())?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_static_volume_keeps_its_directory_although_it_spells_the_server_differently() -> Test {
    let env = TestEnv::new("other-spelling").await?;
    shared::backend(&env, "backend", json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    for word in ["nfs", "csi"] {
        let (claim, volume) = shared::bound_with_data(&env, word, &class, word).await?;
        let path = text(&volume, "/spec/nfs/path").to_owned();
        let source = match word {
            "nfs" => json!({ "nfs": { "server": "localhost", "path": path } }),
            _ => json!({ "csi": {
                "driver": "nfs.csi.k8s.io",
                "volumeHandle": word,
                "volumeAttributes": { "server": "localhost", "share": path },
            } }),
        };
        let mut other = reference(
            "v1",
            "PersistentVolume",
            None,
            &env.unique_name(&format!("static-{word}")),
        );
        let spec = json!({
            "accessModes": ["ReadWriteMany"], "capacity": { "storage": "1Mi" }, "storageClassName": "",
        });
        merge(&mut other, &json!({ "spec": spec }));
        merge(&mut other, &json!({ "spec": source }));
        let other = env.objects.create(&other).await?;
        // The claims that follow in the watch show that the operator knows the volume.
        shared::bound(&env, &format!("after-{word}"), &class).await?;
        env.objects.delete(&claim).await?;
        let note = shared::wait_reclaim_refused(&env, &volume).await?;
        assert!(
            note.starts_with("DirectoryOverlaps") && note.contains("localhost"),
            "{note}"
        );
        assert!(env.directory(&volume)?.join("data").exists());
        env.objects.delete(&other).await?;
        env.objects.wait_gone(&volume, TIMEOUT).await?;
    }
    Ok(())
}
