//! Backups: archives on demand, which are copies of claims in use.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use rig::TestEnv;
use rig::objects::{condition, merge, reference};
use serde_json::{Value, json};

use crate::archives::objects::{in_state, path};
use crate::archives::restore::asking;
use crate::clones::claims::staged_on;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, TIMEOUT, Test, text, wait_refused};

/// Returns a backup with this name of a claim in this namespace.
pub fn backup(name: &str, namespace: &str, claim: &str) -> Value {
    let mut object = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, name);
    let spec = json!({"claimRef": {"namespace": namespace, "name": claim}});
    merge(&mut object, &json!({ "spec": spec }));
    object
}

fn name_of(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Returns the reason why an archive is not Available.
async fn pending(env: &TestEnv, archive: &Value, reason: &str) -> rig::Result<String> {
    let reported = env
        .objects
        .wait_condition(archive, "Available", "False", Some(reason), TIMEOUT);
    Ok(reported.await?["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_backup_of_a_claim_in_use_is_restored_with_the_same_content() -> Test {
    let env = TestEnv::new("backup").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "as it was").await?;
    let root = env.directory(&volume)?;
    chown(&root, Some(1000), Some(1001))?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o2770))?;
    let before = rig::snapshot(&root)?;
    let request = env
        .objects
        .create(&backup(&env.unique_name("nightly"), &env.name, "data"))
        .await?;
    let archive = in_state(&env, &request, "Available").await?;
    assert_eq!(rig::snapshot(&root)?, before, "the source was changed");
    let namespace = env.objects.get(&reference("v1", "Namespace", None, &env.name)).await?;
    let uid = |object: &Value| object.pointer("/metadata/uid").cloned();
    let (spec, status) = (&archive["spec"], &archive["status"]);
    assert_eq!(spec["claimRef"], json!({"namespace": env.name, "name": "data"}));
    for (field, expected) in [
        ("backendName", Some(json!(env.unique_name("backend")))),
        ("volumeName", Some(volume["metadata"]["name"].clone())),
        ("requestedSize", Some(json!("1Mi"))),
        ("storageClassName", Some(class["metadata"]["name"].clone())),
        ("claimUID", uid(&claim)),
        ("namespaceUID", namespace.as_ref().and_then(uid)),
    ] {
        assert_eq!(status.get(field), expected.as_ref(), "{field}");
    }
    assert!(
        status["archiveTime"].is_string() && spec["expirationTime"].is_null(),
        "{archive}"
    );
    let directory = path(&env, &archive);
    assert_eq!(
        directory.file_name().unwrap().to_string_lossy(),
        format!("archived-{}", name_of(&archive))
    );
    let closed = fs::metadata(&directory)?;
    assert_eq!(closed.mode() & 0o7777, 0o700);
    assert_eq!(closed.ino().to_string(), text(&archive, "/status/fileID"));
    let message = condition(&archive, "Available").cloned().unwrap_or_default();
    let reported = format!("; a copy of volume {} (1 file, 9", name_of(&volume));
    assert!(text(&message, "/message").contains(&reported), "{message}");
    let event = env.objects.wait_event(&claim, "Archived", TIMEOUT).await?;
    assert!(text(&event, "/note").contains(name_of(&archive)), "{event}");

    fs::write(root.join("data"), "changed since")?;
    let again = asking(env.claim("again", &class), name_of(&archive));
    let again = env.objects.create(&again).await?;
    let copy = env.directory(&env.wait_bound(&again).await?)?;
    assert_eq!(fs::read_to_string(copy.join("data"))?, "as it was");
    let found = fs::metadata(&copy)?;
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o2770, 1000, 1001));
    // A backup is copied, also if the claim requests a move: its files may be in other backups.
    assert_eq!(fs::read_to_string(directory.join("data"))?, "as it was");
    let mut moved = asking(env.claim("moved", &class), name_of(&archive));
    let annotations = json!({"nfs-operator.io/restore": "move"});
    merge(&mut moved, &json!({"metadata": {"annotations": annotations}}));
    let moved = env.objects.create(&moved).await?;
    let moved = env.directory(&env.wait_bound(&moved).await?)?;
    assert_ne!(fs::metadata(&moved)?.ino(), closed.ino());
    assert_ne!(
        fs::metadata(moved.join("data"))?.ino(),
        fs::metadata(directory.join("data"))?.ino()
    );
    assert_eq!(fs::read_to_string(moved.join("data"))?, "as it was");
    in_state(&env, &archive, "Available").await?;
    assert_eq!(fs::read_to_string(root.join("data"))?, "changed since");
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    Ok(())
}

#[tokio::test]
async fn a_deleted_backup_keeps_its_data_and_is_imported_by_the_same_request_unless_its_policy_is_delete() -> Test {
    let env = TestEnv::new("backup-life").await?;
    shared::backend(&env, "backend", json!({"archivePolicy": {"retention": "1s"}})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "text").await?;
    let request = backup(&env.unique_name("kept"), &env.name, "data");
    let kept = env.objects.create(&request).await?;
    // The retention of the policy applies to archives of deleted claims.
    let kept = in_state(&env, &kept, "Available").await?;
    assert!(kept["spec"]["expirationTime"].is_null(), "{kept}");
    env.objects.delete(&kept).await?;
    env.objects.wait_gone(&kept, TIMEOUT).await?;
    // The same request does not copy again: it imports what was kept.
    let fresh = env.objects.create(&request).await?;
    let again = in_state(&env, &fresh, "Available").await?;
    assert_eq!(again["status"]["fileID"], kept["status"]["fileID"]);
    let kept = again;
    env.objects
        .patch(&kept, json!({"spec": {"deletionPolicy": "Delete"}}))
        .await?;
    env.objects.delete(&kept).await?;
    env.objects.wait_gone(&kept, TIMEOUT).await?;
    shared::wait_trash_empty(env.data()).await?;
    assert_eq!(shared::names(env.data())?.len(), 1);
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "text");
    Ok(())
}

#[tokio::test]
async fn a_backup_that_cannot_be_made_reports_the_reason_and_leaves_nothing() -> Test {
    let env = TestEnv::new("backup-refused").await?;
    let backend = shared::backend(&env, "backend", json!({"probeInterval": "1s"})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let make = async |name: &str, claim: &str| {
        let request = backup(&env.unique_name(name), &env.name, claim);
        env.objects.create(&request).await
    };
    let absent = make("absent", "nothing").await?;
    let message = pending(&env, &absent, "CopySourceNotReady").await?;
    assert!(message.contains("source claim nothing does not exist"), "{message}");
    let mut waits = env.claim("waits", &class);
    waits["spec"]["storageClassName"] = json!("no-such-class");
    env.objects.create(&waits).await?;
    let unbound = make("unbound", "waits").await?;
    let message = pending(&env, &unbound, "CopySourceNotReady").await?;
    assert!(message.contains("is Pending: it must be Bound"), "{message}");

    let (theirs, volume) = shared::bound_static_volume(&env, "secret", "theirs").await?;
    let foreign = make("foreign", "theirs").await?;
    let message = pending(&env, &foreign, "CopySourceUnsuitable").await?;
    assert!(message.contains("was not provisioned by this operator"), "{message}");
    assert_eq!(shared::names(env.data())?, ["secret"]);

    shared::bound_with_data(&env, "data", &class, "text").await?;
    env.objects.patch(&backend, json!({"spec": {"suspend": true}})).await?;
    let not_ready = env
        .objects
        .wait_condition(&backend, "Ready", "False", Some("Suspended"), TIMEOUT);
    not_ready.await?;
    let suspended = make("suspended", "data").await?;
    let message = pending(&env, &suspended, "Suspended").await?;
    assert!(message.contains("takes no copies now"), "{message}");
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    // The end of the cause is sufficient.
    env.objects.patch(&backend, json!({"spec": {"suspend": false}})).await?;
    in_state(&env, &suspended, "Available").await?;
    for refused in [&absent, &unbound, &foreign] {
        env.objects.delete(refused).await?;
        env.objects.wait_gone(refused, TIMEOUT).await?;
    }
    env.objects.delete(&theirs).await?;
    env.objects.delete(&volume).await?;
    Ok(())
}

#[tokio::test]
async fn a_backup_is_refused_where_owners_cannot_be_preserved() -> Test {
    let env = TestEnv::new("backup-owner").await?;
    chown(env.data(), Some(4711), Some(4711))?;
    let credential = json!({"nfs": {"auth": {"sys": {"uid": 4711, "gid": 4711}}}});
    shared::backend(&env, "backend", credential).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "text").await?;
    let request = backup(&env.unique_name("nightly"), &env.name, "data");
    let request = env.objects.create(&request).await?;
    let message = pending(&env, &request, "CopyNeedsChown").await?;
    assert!(message.contains("no_root_squash"), "{message}");
    shared::wait_trash_empty(env.data()).await?;
    assert_eq!(shared::names(env.data())?.len(), 1);
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "text");
    Ok(())
}

#[tokio::test]
async fn a_backup_without_space_leaves_nothing_and_succeeds_once_there_is_space() -> Test {
    let env = TestEnv::with_export("backup-full", |export| export.tmpfs(4 << 20, None)).await?;
    shared::backend(&env, "backend", json!({"probeInterval": "1s"})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "text").await?;
    let large = env.directory(&volume)?.join("large");
    fs::write(&large, vec![7; 5 << 19])?;
    let request = backup(&env.unique_name("nightly"), &env.name, "data");
    let request = env.objects.create(&request).await?;
    let message = pending(&env, &request, "NoSpace").await?;
    assert!(message.contains(&env.unique_name("backend")), "{message}");
    // The backup is tried again after a pause, which may be over.
    rig::wait::until("the copy to be discarded", TIMEOUT, async || {
        match staged_on(env.data()) {
            Ok(staged) if staged.is_empty() => Ok(()),
            staged => Err(format!("{staged:?}")),
        }
    })
    .await?;
    shared::wait_trash_empty(env.data()).await?;
    assert_eq!(shared::names(env.data())?.len(), 1);
    assert_eq!(fs::metadata(&large)?.len(), 5 << 19);
    fs::remove_file(&large)?;
    let archive = in_state(&env, &request, "Available").await?;
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "text");
    Ok(())
}

#[tokio::test]
async fn a_backup_uses_no_name_that_exists_on_the_export() -> Test {
    let env = TestEnv::new("backup-name").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    shared::bound_with_data(&env, "one", &class, "one").await?;
    shared::bound_with_data(&env, "two", &class, "two").await?;
    let first = backup(&env.unique_name("nightly"), &env.name, "one");
    let first = env.objects.create(&first).await?;
    let first = in_state(&env, &first, "Available").await?;
    // The data and the name stay reserved, although another object has the name now.
    env.objects.delete(&first).await?;
    env.objects.wait_gone(&first, TIMEOUT).await?;
    let second = backup(&env.unique_name("nightly"), &env.name, "two");
    let second = env.objects.create(&second).await?;
    let message = pending(&env, &second, "ArchiveNameTaken").await?;
    assert!(message.contains("which is not the claim in spec.claimRef"), "{message}");
    env.objects.delete(&second).await?;
    env.objects.wait_gone(&second, TIMEOUT).await?;
    let third = backup(&env.unique_name("nightly"), &env.name, "one");
    let third = env.objects.create(&third).await?;
    let back = in_state(&env, &third, "Available").await?;
    assert_eq!(back["status"]["fileID"], first["status"]["fileID"]);
    assert_eq!(fs::read_to_string(path(&env, &back).join("data"))?, "one");
    Ok(())
}

#[tokio::test]
async fn the_api_server_refuses_backups_of_impossible_claims_and_changes_of_the_claim() -> Test {
    let env = TestEnv::new("backup-schema").await?;
    let usual = backup(&env.unique_name("nightly"), &env.name, "data");
    let changed = |change: Value| {
        let mut object = usual.clone();
        merge(&mut object, &change);
        object
    };
    for (change, words) in [
        (json!({"metadata": {"name": "n".repeat(111)}}), "at most 110 characters"),
        (
            json!({"spec": {"claimRef": {"name": "../data"}}}),
            "claimRef.name must be a valid name of a claim",
        ),
        (
            json!({"spec": {"claimRef": {"namespace": "../team"}}}),
            "claimRef.namespace must be a valid name of a namespace",
        ),
    ] {
        let object = changed(change.clone());
        let refused = env.objects.create(&object).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{change}: {refused}");
    }
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    shared::bound_with_data(&env, "data", &class, "text").await?;
    let created = env.objects.create(&usual).await?;
    let created = in_state(&env, &created, "Available").await?;
    for change in [
        json!({"claimRef": {"name": "other"}}),
        json!({"claimRef": {"namespace": "other"}}),
        json!({"deletionPolicy": "Recycle"}),
    ] {
        let patch = json!({ "spec": change });
        assert!(env.objects.patch(&created, patch).await.is_err(), "{change}");
    }
    Ok(())
}

#[tokio::test]
async fn a_backup_is_available_to_another_namespace_only_if_it_allows_that() -> Test {
    let (env, other) = (TestEnv::new("backup-of").await?, TestEnv::new("backup-for").await?);
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    shared::bound_with_data(&env, "data", &class, "precious").await?;
    let name = env.unique_name("nightly");
    let claim = asking(other.claim("theirs", &class), &name);
    let claim = other.objects.create(&claim).await?;
    wait_refused(&other, &claim, "ArchiveNotFound").await?;
    let archive = env.objects.create(&backup(&name, &env.name, "data")).await?;
    in_state(&env, &archive, "Available").await?;
    other.objects.delete(&claim).await?;
    let claim = other
        .objects
        .create(&asking(other.claim("again", &class), &name))
        .await?;
    wait_refused(&other, &claim, "ArchiveNotFound").await?;
    let allowed = json!({"spec": {"allowedNamespaces": {"matchNames": [other.name]}}});
    env.objects.patch(&archive, allowed).await?;
    let volume = other.wait_bound(&claim).await?;
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "precious");
    Ok(())
}

/// Waits until the columns of an archive are these, of Backend, State, Size and Expires. A blank one shifts the others.
async fn printed(env: &DedicatedCluster, name: &str, expected: [&str; 4]) -> Test {
    let what = format!("{expected:?} to be printed");
    let columns = rig::wait::until(&what, TIMEOUT, async || {
        let row = env.cluster.kubectl(["get", "nfsa", name, "--no-headers"]).await;
        let row = row.map_err(|error| error.to_string())?;
        let columns: Vec<&str> = row.split_whitespace().collect();
        match columns.as_slice() {
            [_, "data", "default", columns @ .., _age] if columns == expected => Ok(()),
            _ => Err(row),
        }
    });
    Ok(columns.await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_column_of_an_archive_is_ever_blank() -> Test {
    let mut env = DedicatedCluster::start(json!({})).await?;
    env.operator.kill9().await?;
    env.objects.create(&backup("early", "default", "data")).await?;
    env.objects.create(&backup("pvc-reserved", "default", "data")).await?;
    // Before the operator has seen them.
    for name in ["early", "pvc-reserved"] {
        printed(&env, name, ["Unknown", "Unknown", "Unknown", "Unknown"]).await?;
    }
    env.operator.restart().await?;
    printed(&env, "early", ["Unknown", "Pending", "Unknown", "never"]).await?;
    printed(&env, "pvc-reserved", ["Unknown", "Missing", "Unknown", "never"]).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), "text")?;
    printed(&env, "early", ["main", "Available", "1Mi", "never"]).await?;
    env.objects.delete(&claim).await?;
    let archive = text(&volume, "/metadata/name");
    printed(&env, archive, ["main", "Available", "1Mi", "never"]).await?;
    let held = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, archive);
    let spec = json!({"legalHold": true, "expirationTime": "2100-01-01T00:00:00Z"});
    env.objects.patch(&held, json!({ "spec": spec })).await?;
    printed(&env, archive, ["main", "Held", "1Mi", "2100-01-01T00:00:00Z"]).await
}
