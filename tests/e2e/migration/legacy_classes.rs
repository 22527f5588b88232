//! New claims of classes that were written for nfs-subdir-external-provisioner.

use std::fs;

use rig::TestEnv;
use serde_json::{Value, json};

use crate::support::legacy_provisioner::LegacyProvisioner;
use crate::support::shared::{self, TIMEOUT, Test, text};

fn on_delete(volume: &Value) -> &str {
    volume["metadata"]["annotations"]["nfs-operator.io/on-delete"]
        .as_str()
        .unwrap_or("absent")
}

#[tokio::test]
async fn a_class_of_an_alias_archives_regardless_of_its_backend_unless_the_class_overrides_it() -> Test {
    let env = TestEnv::new("alias-policy").await?;
    let legacy = LegacyProvisioner::new(&env, json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let cases = [
        (json!({}), "archive", "VolumeArchived"),
        (json!({ "archiveOnDelete": "true" }), "archive", "VolumeArchived"),
        (json!({ "archiveOnDelete": "0" }), "delete", "VolumeDeleted"),
        (
            json!({ "archiveOnDelete": "false", "onDelete": "retain" }),
            "retain",
            "VolumeRetained",
        ),
        (
            json!({ "archiveOnDelete": "true", "onDelete": "delete" }),
            "delete",
            "VolumeDeleted",
        ),
    ];
    for (number, (parameters, recorded, reason)) in cases.into_iter().enumerate() {
        let class = legacy.class(&format!("class{number}"), parameters).await?;
        let (claim, volume) = shared::bound_with_data(&env, &format!("data{number}"), &class, "data").await?;
        assert_eq!(on_delete(&volume), recorded, "case {number}");
        assert_eq!(
            volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"],
            json!(legacy.provisioner)
        );
        shared::reclaim(&env, &claim, &volume, reason).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_value_that_parse_bool_rejects_refuses_the_claim() -> Test {
    let env = TestEnv::new("alias-bool").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let class = legacy.class("class", json!({ "archiveOnDelete": "yes" })).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "InvalidParameter").await?;
    assert!(
        message.contains("archiveOnDelete") && message.contains("yes"),
        "{message}"
    );
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn an_unknown_parameter_is_a_warning_under_an_alias_and_a_failure_elsewhere() -> Test {
    let env = TestEnv::new("alias-unknown").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let unknown = json!({ "server": "elsewhere", "onDelete": "Delete" });
    let class = legacy.class("class", unknown.clone()).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    assert_eq!(on_delete(&volume), "archive", "only nfs-subdir's own spelling deletes");
    rig::wait::until("a warning for each parameter", TIMEOUT, async || {
        let mut events = env.objects.events(&claim).await.map_err(|error| error.to_string())?;
        events.retain(|event| event["reason"] == "ParameterIgnored" && event["type"] == "Warning");
        let named = |parameter| events.iter().any(|event| text(event, "/note").contains(parameter));
        if named("\"server\"") && named("onDelete") {
            Ok(())
        } else {
            Err(format!("{events:?}"))
        }
    })
    .await?;
    let class = shared::class(&env, "own", "any", json!({ "server": "elsewhere" })).await?;
    let claim = env.objects.create(&env.claim("own", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "InvalidParameter").await?;
    assert!(message.contains("\"server\""), "{message}");
    Ok(())
}

#[tokio::test]
async fn patterns_in_both_spellings_produce_the_directories_of_nfs_subdir() -> Test {
    let env = TestEnv::new("alias-pattern").await?;
    let legacy = LegacyProvisioner::new(&env, json!({ "directory": { "pattern": "elsewhere/${pvc.name}" } })).await?;
    let namespace = &env.name;
    let cases = [
        ("${.PVC.namespace}/${.PVC.name}", format!("{namespace}/data0")),
        (
            "/${.PVC.namespace}/${.PVC.labels.team}/x/",
            format!("{namespace}/red/x"),
        ),
        ("${pvc.annotations.nfs.io/storage-path}-1", "here-1".to_owned()),
        // The pattern results in an empty name: the default name of nfs-subdir.
        ("${.PVC.annotations.absent}", String::new()),
        ("${.PVC.labels.absent}${.PVC.uid}", String::new()),
    ];
    for (number, (pattern, directory)) in cases.into_iter().enumerate() {
        let class = legacy
            .class(&format!("class{number}"), json!({ "pathPattern": pattern }))
            .await?;
        let mut claim = env.claim(&format!("data{number}"), &class);
        rig::objects::merge(
            &mut claim,
            &json!({ "metadata": {
                "labels": { "team": "red" }, "annotations": { "nfs.io/storage-path": "here" },
            } }),
        );
        let claim = env.objects.create(&claim).await?;
        let volume = env.wait_bound(&claim).await?;
        let volume_name = text(&volume, "/metadata/name");
        let expected = match directory.as_str() {
            "" => format!("{namespace}-data{number}-{volume_name}"),
            directory => directory.to_owned(),
        };
        let path = format!("{}/{expected}", env.export());
        assert_eq!(text(&volume, "/spec/nfs/path"), path, "{pattern}");
        assert!(env.directory(&volume)?.is_dir());
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_value_inside_a_longer_pattern_is_refused() -> Test {
    let env = TestEnv::new("alias-missing").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let pattern = "${.PVC.namespace}/${.PVC.annotations.nfs.io/storage-path}";
    let class = legacy.class("class", json!({ "pathPattern": pattern })).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "InvalidDirectoryName").await?;
    assert!(message.contains("nfs.io/storage-path"), "{message}");
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    // The remedy in the message works.
    let path = json!({ "metadata": { "annotations": { "nfs.io/storage-path": "mine" } } });
    env.objects.patch(&claim, path).await?;
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(env.directory(&volume)?, env.data().join(&env.name).join("mine"));
    Ok(())
}

#[tokio::test]
async fn an_existing_directory_is_used_unchanged_and_never_deleted() -> Test {
    let env = TestEnv::new("alias-existing").await?;
    // The policy of the backend is Refuse.
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let parameters = json!({ "pathPattern": "${.PVC.namespace}/${.PVC.name}", "archiveOnDelete": "false" });
    let class = legacy.class("class", parameters).await?;
    let directory = env.data().join(&env.name).join("data");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("theirs"), "before")?;
    let before = rig::snapshot(&directory)?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    assert_eq!(env.directory(&volume)?, directory);
    assert_eq!(rig::snapshot(&directory)?, before);
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    assert_eq!(fs::read_to_string(env.data().join("archived-data/theirs"))?, "before");
    Ok(())
}

#[tokio::test]
async fn records_that_cannot_be_adopted_are_refused_with_the_remedy() -> Test {
    let env = TestEnv::new("alias-never").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    fs::create_dir(env.data().join("red"))?;
    fs::create_dir(env.data().join("real"))?;
    std::os::unix::fs::symlink("real", env.data().join("linked"))?;
    let cases = [
        ("label", "${.PVC.labels.team}", "DirectoryNotAdoptable", "label"),
        ("link", "linked", "NotADirectory", "symbolic link"),
        ("archive", "archived-old", "InvalidDirectoryName", "archived-"),
        ("out", "../${.PVC.name}", "InvalidDirectoryName", ".."),
    ];
    for (word, pattern, reason, remedy) in cases {
        let class = legacy.class(word, json!({ "pathPattern": pattern })).await?;
        let mut claim = env.claim(word, &class);
        rig::objects::merge(&mut claim, &json!({ "metadata": { "labels": { "team": "red" } } }));
        let claim = env.objects.create(&claim).await?;
        let message = shared::wait_refused(&env, &claim, reason).await?;
        assert!(message.contains(remedy), "{pattern}: {message}");
    }
    assert_eq!(shared::names(env.data())?, ["linked", "real", "red"]);
    Ok(())
}

#[tokio::test]
async fn a_class_of_an_alias_reaches_no_other_backend() -> Test {
    let env = TestEnv::new("alias-only").await?;
    let legacy = LegacyProvisioner::without_backend(&env, "old", json!({})).await?;
    shared::backend(&env, "other", json!({})).await?;
    let class = legacy.class("class", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let name = text(&legacy.backend, "/metadata/name").to_owned();
    let message = shared::wait_refused(&env, &claim, "BackendNotFound").await?;
    assert!(message.contains(&name), "{message}");
    let named = legacy
        .class("named", json!({ "backend": env.unique_name("other") }))
        .await?;
    let refused = env.objects.create(&env.claim("named", &named)).await?;
    let message = shared::wait_refused(&env, &refused, "InvalidParameter").await?;
    assert!(message.contains(&name), "{message}");
    legacy.create_backend().await?;
    env.wait_bound(&claim).await?;
    // Its problem is over.
    env.objects.wait_event(&claim, "ProvisioningSucceeded", TIMEOUT).await?;
    let claim = env.objects.get(&claim).await?.unwrap_or_default();
    assert_eq!(text(&claim, "/metadata/annotations/nfs-operator.io~1placed-on"), name);
    Ok(())
}
