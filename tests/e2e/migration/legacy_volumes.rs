//! Volumes of nfs-subdir-external-provisioner that the operator reclaims.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rig::TestEnv;
use serde_json::{Value, json};

use crate::support::legacy_provisioner::{LegacyProvisioner, LegacyVolume, assert_untouched};
use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn volumes_of_nfs_subdir_are_left_unchanged_and_counted_until_their_claims_are_deleted() -> Test {
    let env = TestEnv::new("inherit").await?;
    let legacy =
        LegacyProvisioner::without_backend(&env, "old", json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let class = legacy.class_object("class", &json!({}));
    let first = legacy.volume("first", &class, None).await?;
    let second = legacy.volume("second", &class, None).await?;
    let before = (rig::snapshot(&first.directory)?, rig::snapshot(&second.directory)?);
    env.objects.create(&class).await?;
    legacy.create_backend().await?;
    let counted = |backend: &Value| match &backend["status"]["volumes"] {
        volumes if volumes == 2 => Ok(()),
        volumes => Err(format!("{volumes} volumes")),
    };
    env.objects
        .wait(&legacy.backend, "to count both volumes", TIMEOUT, counted)
        .await?;
    for object in [&first.claim, &first.volume, &second.claim, &second.volume] {
        assert_untouched(&env, object).await?;
    }
    assert_eq!(
        before,
        (rig::snapshot(&first.directory)?, rig::snapshot(&second.directory)?)
    );

    let logged = shared::reclaim(&env, &first.claim, &first.volume, "VolumeArchived").await?;
    let name = format!("archived-{}-first-{}", env.name, text(&first.volume, "/metadata/name"));
    assert!(logged.contains(&name), "{logged}");
    assert_eq!(fs::read_to_string(env.data().join(&name).join("data"))?, "old");
    assert_eq!(fs::metadata(env.data().join(&name))?.mode() & 0o7777, 0o700);
    assert!(!first.directory.exists());
    assert_eq!(rig::snapshot(&second.directory)?, before.1);
    assert_untouched(&env, &second.volume).await?;
    Ok(())
}

/// A class, whether it exists at the deletion, and the expected result.
struct Case {
    parameters: Value,
    reason: &'static str,
    directory: Option<&'static str>,
}

#[tokio::test]
async fn the_class_at_the_time_of_deletion_decides_and_without_one_the_data_is_archived() -> Test {
    let env = TestEnv::new("live-class").await?;
    let legacy = LegacyProvisioner::new(&env, json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let case = |parameters, reason, directory| Case {
        parameters,
        reason,
        directory,
    };
    let cases = [
        case(Value::Null, "VolumeArchived", None),
        case(json!({}), "VolumeArchived", Some("nested/a/b/c")),
        case(json!({ "archiveOnDelete": "true" }), "VolumeArchived", None),
        case(json!({ "archiveOnDelete": "false" }), "VolumeDeleted", None),
        case(
            json!({ "onDelete": "delete", "archiveOnDelete": "true" }),
            "VolumeDeleted",
            Some("nested/x/y"),
        ),
        case(json!({ "onDelete": "retain" }), "VolumeRetained", None),
        // nfs-subdir does not recognize this spelling, so it never deletes.
        case(json!({ "onDelete": "Delete" }), "VolumeArchived", None),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let class = legacy.class_object(&format!("class{number}"), &case.parameters);
        let created = legacy.volume(&format!("data{number}"), &class, case.directory).await?;
        if case.parameters != Value::Null {
            env.objects.create(&class).await?;
        }
        let archives = shared::archives(env.data())?.len();
        shared::reclaim(&env, &created.claim, &created.volume, case.reason).await?;
        assert_eq!(
            created.directory.exists(),
            case.reason == "VolumeRetained",
            "case {number}"
        );
        let archived = shared::archives(env.data())?.len() - archives;
        assert_eq!(archived, usize::from(case.reason == "VolumeArchived"), "case {number}");
    }
    // Named after the last path segment, like archives of nfs-subdir; the parents stay.
    assert_eq!(fs::read_to_string(env.data().join("archived-c/data"))?, "old");
    assert!(env.data().join("nested/a/b").is_dir() && env.data().join("nested/x").is_dir());
    shared::wait_trash_empty(env.data()).await?;
    Ok(())
}

#[tokio::test]
async fn an_unreadable_class_keeps_the_data_until_it_is_recreated() -> Test {
    let env = TestEnv::new("bad-class").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let class = legacy.class_object("class", &json!({ "archiveOnDelete": "on" }));
    let created = legacy.volume("data", &class, None).await?;
    let before = rig::snapshot(&created.directory)?;
    env.objects.create(&class).await?;
    env.objects.delete(&created.claim).await?;
    let note = shared::wait_reclaim_refused(&env, &created.volume).await?;
    assert!(
        note.starts_with("InvalidParameter") && note.contains("\"on\""),
        "{note}"
    );
    assert_eq!(rig::snapshot(&created.directory)?, before);
    // Without a class, the data would be archived, and the operator is told about the deletion at once. While two
    // backends match the volume, it is not reclaimed.
    let twin = shared::backend(&env, "twin", json!({})).await?;
    env.objects.delete(&class).await?;
    env.objects.wait_gone(&class, TIMEOUT).await?;
    let good = legacy.class_object("class", &json!({ "archiveOnDelete": "false" }));
    env.objects.create(&good).await?;
    env.objects.delete(&twin).await?;
    env.objects.wait_gone(&created.volume, TIMEOUT).await?;
    assert!(!created.directory.exists());
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn two_nfs_subdir_deployments_become_one_operator_with_each_class_on_its_own_export() -> Test {
    let env = TestEnv::new("two-old").await?;
    let mut deployments = Vec::new();
    for word in ["one", "two"] {
        fs::create_dir(env.data().join(word))?;
        let path = json!({ "path": format!("{}/{word}", env.export()) });
        let legacy = LegacyProvisioner::without_backend(&env, word, path).await?;
        let class = legacy.class_object(word, &json!({ "archiveOnDelete": "true" }));
        let created: LegacyVolume = legacy.volume(&format!("old-{word}"), &class, None).await?;
        deployments.push((word, legacy, class, created));
    }
    for (_, legacy, class, _) in &deployments {
        env.objects.create(class).await?;
        legacy.create_backend().await?;
    }
    for (word, _, class, created) in &deployments {
        let root = env.data().join(word);
        let (claim, volume) = shared::bound_with_data(&env, &format!("new-{word}"), class, "new").await?;
        assert!(env.directory(&volume)?.starts_with(&root));
        for (claim, volume) in [(&created.claim, &created.volume), (&claim, &volume)] {
            shared::reclaim(&env, claim, volume, "VolumeArchived").await?;
        }
        let mut kept: Vec<String> = Vec::new();
        for archive in shared::archives(&root)? {
            kept.push(fs::read_to_string(root.join(archive).join("data"))?);
        }
        kept.sort();
        assert_eq!(kept, ["new", *word]);
    }
    Ok(())
}

#[tokio::test]
async fn an_old_volume_at_a_former_address_is_reclaimed_there() -> Test {
    let env = TestEnv::new("former").await?;
    let legacy = LegacyProvisioner::without_backend(&env, "old", json!({})).await?;
    let class = legacy.class_object("class", &json!({}));
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let (directory, mut volume) = legacy.object(&claim, &class, None)?;
    fs::create_dir(&directory)?;
    fs::write(directory.join("data"), "old")?;
    let name = text(&volume, "/spec/nfs/path").rsplit('/').next().unwrap().to_owned();
    let former = json!({ "spec": { "nfs": { "server": "nfs.legacy.example.org", "path": format!("/srv/{name}") } } });
    rig::objects::merge(&mut volume, &former);
    let volume = env.objects.create(&volume).await?;
    env.wait_bound(&claim).await?;
    legacy.create_backend().await?;
    env.objects.delete(&claim).await?;
    let note = shared::wait_reclaim_refused(&env, &volume).await?;
    assert!(
        note.starts_with("ReclaimUnsafe") && note.contains("formerAddresses"),
        "{note}"
    );
    assert_eq!(fs::read_to_string(directory.join("data"))?, "old");
    let former = json!({ "spec": { "formerAddresses": [{ "server": "NFS.legacy.example.org", "path": "/srv" }] } });
    env.objects.patch(&legacy.backend, former).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    assert_eq!(
        fs::read_to_string(env.data().join(format!("archived-{name}/data")))?,
        "old"
    );
    Ok(())
}
