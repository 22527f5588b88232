//! Claims that share an existing directory (`existing: Share`).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rig::TestEnv;
use rig::objects::merge;
use serde_json::{Value, json};

use crate::recovery::volumes::{asking, rebuilt, wait_recovery_message};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, TIMEOUT, Test, text};

const COMMON: &str = "datasets/common";

/// Parameters of a class whose claims share the directory.
fn sharing() -> Value {
    json!({"existing": "Share", "pathPattern": COMMON})
}

/// Creates the directory as an administrator does, with data.
fn create_common(root: &Path) -> std::io::Result<()> {
    fs::create_dir_all(root.join(COMMON))?;
    fs::write(root.join(COMMON).join("data"), "everybody's")
}

/// Returns what a change of the directory would change, whoever reads it.
fn state_of(root: &Path) -> std::io::Result<(u64, u32, i64, i64, String)> {
    let found = fs::metadata(root.join(COMMON))?;
    let data = fs::read_to_string(root.join(COMMON).join("data"))?;
    Ok((found.ino(), found.mode(), found.ctime(), found.ctime_nsec(), data))
}

fn annotation<'a>(volume: &'a Value, name: &str) -> &'a str {
    volume["metadata"]["annotations"][name].as_str().unwrap_or_default()
}

#[tokio::test]
async fn claims_share_a_directory_once_it_exists_and_leave_it_as_it_is() -> Test {
    let env = TestEnv::new("share").await?;
    let policy = json!({"archivePolicy": {"onDelete": "Delete"}});
    shared::backend(&env, "backend", policy).await?;
    let mut class = env.class("class", sharing());
    let growing = json!({"allowVolumeExpansion": true, "parameters": {"backend": env.unique_name("backend")}});
    merge(&mut class, &growing);
    let class = env.objects.create(&class).await?;
    let claim = env.objects.create(&env.claim("one", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "SharedDirectoryMissing").await?;
    for part in [COMMON, "does not exist", "Create it"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(shared::names(env.data())?, Vec::<String>::new(), "it is never created");

    create_common(env.data())?;
    let before = state_of(env.data())?;
    let first = env.wait_bound(&claim).await?;
    let (other, second) = shared::bound(&env, "two", &class).await?;
    for (volume, claim) in [(&first, &claim), (&second, &other)] {
        assert_eq!(env.directory(volume)?, env.data().join(COMMON));
        assert_eq!(annotation(volume, "nfs-operator.io/existing"), "Share");
        assert_eq!(annotation(volume, "nfs-operator.io/on-delete"), "retain");
        let provisioned = "nfs-operator.io/Provisioned";
        let reported = env
            .objects
            .wait_condition(claim, provisioned, "True", None, TIMEOUT)
            .await?;
        assert!(
            text(&reported, "/message").contains("a directory that claims share"),
            "{reported}"
        );
    }
    let more = json!({"spec": {"resources": {"requests": {"storage": "5Mi"}}}});
    env.objects.patch(&other, more).await?;
    env.objects
        .wait(&second, "to grow", TIMEOUT, |volume| {
            match text(volume, "/spec/capacity/storage") {
                "5Mi" => Ok(()),
                size => Err(size.to_owned()),
            }
        })
        .await?;

    // Somebody edits the volume: the record decides.
    let edited = json!({"metadata": {"annotations": {
        "nfs-operator.io/on-delete": "delete", "nfs-operator.io/existing": null,
    }}});
    env.objects.patch(&first, edited).await?;
    shared::reclaim(&env, &claim, &first, "VolumeRetained").await?;
    assert_eq!(state_of(env.data())?, before);
    shared::reclaim(&env, &other, &second, "VolumeRetained").await?;
    assert_eq!(state_of(env.data())?, before);
    assert_eq!(shared::names(env.data())?, ["datasets"]);
    Ok(())
}

#[tokio::test]
async fn a_shared_directory_is_neither_adopted_nor_entered_and_that_of_a_volume_is_not_shared() -> Test {
    let env = TestEnv::new("share-overlap").await?;
    shared::backend(
        &env,
        "backend",
        json!({"allowedNamespaces": {"matchNames": [env.name]}}),
    )
    .await?;
    let class = shared::class(&env, "class", "backend", sharing()).await?;
    create_common(env.data())?;
    let before = state_of(env.data())?;
    shared::bound(&env, "sharing", &class).await?;
    let own = json!({"pathPattern": "own/${pvc.name}"});
    let own = shared::class(&env, "own", "backend", own).await?;
    let (_, volume) = shared::bound(&env, "volume", &own).await?;
    for (word, existing, pattern) in [
        // The class was edited: what was shared is not adopted.
        ("adopted", "Adopt", COMMON),
        ("refused", "Refuse", COMMON),
        ("inside", "Refuse", "datasets/common/${pvc.name}"),
        ("around", "Adopt", "datasets"),
        ("nested", "Share", "datasets"),
        ("of-volume", "Share", "own/volume"),
        ("of-parent", "Share", "own"),
    ] {
        let parameters = json!({"existing": existing, "pathPattern": pattern});
        let class = shared::class(&env, word, "backend", parameters).await?;
        let claim = env.objects.create(&env.claim(word, &class)).await?;
        shared::wait_refused(&env, &claim, "DirectoryOverlaps").await?;
    }
    assert_eq!(state_of(env.data())?, before);
    assert!(env.directory(&volume)?.is_dir());
    Ok(())
}

#[tokio::test]
async fn what_a_shared_directory_cannot_have_is_refused_with_the_remedy() -> Test {
    let env = TestEnv::new("share-settings").await?;
    let overrides = json!({"claimOverrides": ["Mode", "OnDelete"]});
    shared::backend(&env, "backend", overrides).await?;
    create_common(env.data())?;
    let before = state_of(env.data())?;
    for (word, parameters, reason, part) in [
        ("mode", json!({"mode": "0770"}), "InvalidParameter", "parameter mode"),
        (
            "delete",
            json!({"onDelete": "delete"}),
            "InvalidParameter",
            "always retained",
        ),
        (
            "chosen",
            json!({"pathPattern": "datasets/${pvc.name}"}),
            "DirectoryNotShareable",
            "tenants could choose it",
        ),
    ] {
        let mut all = sharing();
        merge(&mut all, &parameters);
        let class = shared::class(&env, word, "backend", all).await?;
        fs::create_dir_all(env.data().join("datasets").join(word))?;
        let claim = env.objects.create(&env.claim(word, &class)).await?;
        let message = shared::wait_refused(&env, &claim, reason).await?;
        assert!(message.contains(part), "{message}");
    }
    let class = shared::class(&env, "class", "backend", sharing()).await?;
    let annotated = |name: &str, key: &str, value: &str| {
        let mut claim = env.claim(name, &class);
        merge(&mut claim, &json!({"metadata": {"annotations": {key: value}}}));
        claim
    };
    for (claim, reason) in [
        (annotated("by-mode", "nfs-operator.io/mode", "0770"), "OverrideRefused"),
        (
            annotated("by-policy", "nfs-operator.io/on-delete", "delete"),
            "OverrideRefused",
        ),
        // No claim asks for a shared directory.
        (
            annotated("by-claim", "nfs-operator.io/existing", "Share"),
            "InvalidOverride",
        ),
    ] {
        let claim = env.objects.create(&claim).await?;
        shared::wait_refused(&env, &claim, reason).await?;
    }
    // A copy of it is a volume of its own, and it is not the target of a copy.
    shared::bound(&env, "source", &class).await?;
    let copy_of_source = |name: &str, class: &Value| {
        let mut claim = env.claim(name, class);
        let source = json!({"kind": "PersistentVolumeClaim", "name": "source"});
        merge(&mut claim, &json!({"spec": {"dataSource": source}}));
        claim
    };
    let refused = env.objects.create(&copy_of_source("into", &class)).await?;
    shared::wait_refused(&env, &refused, "DataSourceUnsupported").await?;
    let own = shared::class(&env, "own", "backend", json!({})).await?;
    let copy = env.objects.create(&copy_of_source("copy", &own)).await?;
    let copy = env.wait_bound(&copy).await?;
    assert_eq!(fs::read_to_string(env.directory(&copy)?.join("data"))?, "everybody's");
    assert_eq!(annotation(&copy, "nfs-operator.io/existing"), "");
    assert_eq!(state_of(env.data())?, before);

    for field in [
        json!({"mode": "0770"}),
        json!({"uid": 1}),
        json!({"gid": 1}),
        json!({"gidRange": {"min": 1, "max": 2}}),
    ] {
        let mut directory = json!({"existing": "Share"});
        merge(&mut directory, &field);
        let backend = env.backend("invalid", json!({"directory": directory}));
        let refused = env.objects.create(&backend).await.unwrap_err().to_string();
        assert!(refused.contains("directory.existing: Share excludes"), "{refused}");
    }
    Ok(())
}

#[tokio::test]
async fn volumes_of_a_shared_directory_come_back_after_the_loss_of_the_cluster() -> Test {
    let env = DedicatedCluster::start(json!({})).await?;
    let class = json!({"parameters": sharing()});
    env.class("sharing", class.clone()).await?;
    create_common(&env.data()?)?;
    let before = state_of(&env.data()?)?;
    let claim = |env: &DedicatedCluster, name: &str| {
        let mut claim = env.claim(name);
        merge(&mut claim, &json!({"spec": {"storageClassName": "sharing"}}));
        claim
    };
    let (one, two) = (claim(&env, "one"), claim(&env, "two"));
    let mut former = Vec::new();
    for claim in [&one, &two] {
        let claim = env.objects.create(claim).await?;
        former.push(env.bound(&claim).await?);
    }
    let env = rebuilt(env).await?;
    env.class("sharing", class).await?;
    for claim in [&one, &two] {
        env.objects.create(claim).await?;
    }
    env.backend(asking()).await?;
    wait_recovery_message(&env, "VolumesReadopted", &["2 recorded volumes exist, 2 recreated"]).await?;
    for (claim, former) in [&one, &two].into_iter().zip(&former) {
        let volume = env.bound(claim).await?;
        assert_eq!(text(&volume, "/metadata/name"), text(former, "/metadata/name"));
        assert_eq!(annotation(&volume, "nfs-operator.io/existing"), "Share");
    }
    let third = env.objects.create(&claim(&env, "three")).await?;
    let third = env.bound(&third).await?;
    assert_eq!(env.directory(&third)?, env.data()?.join(COMMON));
    env.objects.delete(&one).await?;
    let gone = former.first().expect("two volumes");
    env.objects.wait_gone(gone, TIMEOUT).await?;
    assert_eq!(state_of(&env.data()?)?, before);
    Ok(())
}
