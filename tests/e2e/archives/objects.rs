//! NfsArchive objects: creation, status and deletion.

use std::fs;

use rig::TestEnv;
use rig::objects::{condition, reference};
use serde_json::{Value, json};

use crate::support::shared::{self, TIMEOUT, Test, text};

/// Returns a reference to the archive of a volume.
pub fn archive_of(volume: &Value) -> Value {
    reference(
        "nfs-operator.io/v1alpha1",
        "NfsArchive",
        None,
        text(volume, "/metadata/name"),
    )
}

/// Creates and archives a claim with a file `data`. Returns the claim, the volume and the object of the archive, once
/// it has a status.
pub async fn archived(env: &TestEnv, name: &str, class: &Value, content: &str) -> Result<[Value; 3], shared::Failure> {
    let (claim, volume) = shared::bound_with_data(env, name, class, content).await?;
    shared::reclaim(env, &claim, &volume, "VolumeArchived").await?;
    let archive = in_state(env, &archive_of(&volume), "Available").await?;
    Ok([claim, volume, archive])
}

/// Waits until an archive has this state.
pub async fn in_state(env: &TestEnv, archive: &Value, state: &str) -> rig::Result<Value> {
    let is = |found: &Value| match text(found, "/status/state") {
        said if said == state => Ok(found.clone()),
        said => Err(said.to_owned()),
    };
    env.objects.wait(archive, &format!("to be {state}"), TIMEOUT, is).await
}

pub fn path(env: &TestEnv, archive: &Value) -> std::path::PathBuf {
    env.data().join(text(archive, "/status/directory"))
}

#[tokio::test]
async fn an_archive_gets_an_object_with_its_origin_and_an_event_in_the_namespace_of_the_claim() -> Test {
    let env = TestEnv::new("object").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [claim, volume, archive] = archived(&env, "data", &class, "kept").await?;
    let (spec, status) = (&archive["spec"], &archive["status"]);
    let annotations = &volume["metadata"]["annotations"];
    let namespace = env.objects.get(&reference("v1", "Namespace", None, &env.name)).await?;
    let namespace = namespace.ok_or("no namespace")?;
    for (field, expected) in [
        ("backendName", &json!(env.unique_name("backend"))),
        ("volumeName", &volume["metadata"]["name"]),
        ("fileID", &annotations["nfs-operator.io/file-id"]),
        ("exportID", &annotations["nfs-operator.io/export-id"]),
        ("requestedSize", &json!("1Mi")),
        ("storageClassName", &class["metadata"]["name"]),
        ("claimUID", &claim["metadata"]["uid"]),
        ("namespaceUID", &namespace["metadata"]["uid"]),
        (
            "printed",
            &json!({"backend": env.unique_name("backend"), "size": "1Mi", "expires": "never"}),
        ),
    ] {
        assert_eq!(status[field], *expected, "{field}");
    }
    let requested = json!({
        "claimRef": {"namespace": env.name, "name": "data"}, "legalHold": false, "deletionPolicy": "Retain",
    });
    assert_eq!(*spec, requested);
    assert!(status["archiveTime"].is_string(), "{status}");
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "kept");
    for (kind, reason) in [("Available", "DataPresent"), ("Retained", "KeptIndefinitely")] {
        let found = condition(&archive, kind).ok_or(kind)?;
        assert_eq!((text(found, "/status"), text(found, "/reason")), ("True", reason));
    }
    let table = env
        .rig
        .cluster
        .kubectl(["get", "nfsa", text(&volume, "/metadata/name")])
        .await?;
    let heads: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(
        heads,
        [
            "NAME",
            "CLAIM",
            "NAMESPACE",
            "BACKEND",
            "STATE",
            "SIZE",
            "EXPIRES",
            "AGE"
        ]
    );
    let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row.len(), heads.len(), "an empty column: {table}");
    let renamed = json!({"spec": {"claimRef": {"name": "other"}}});
    assert!(env.objects.patch(&archive, renamed).await.is_err());
    Ok(())
}

/// Returns an NfsArchive with the name and the claim of an archive, as a user creates it.
fn import_of(archive: &Value) -> Value {
    let mut import = reference(
        "nfs-operator.io/v1alpha1",
        "NfsArchive",
        None,
        text(archive, "/metadata/name"),
    );
    rig::objects::merge(&mut import, &json!({"spec": {"claimRef": archive["spec"]["claimRef"]}}));
    import
}

#[tokio::test]
async fn an_archive_deleted_with_retain_keeps_its_data_stays_gone_and_can_be_imported_again() -> Test {
    let env = TestEnv::new("deleted").await?;
    let backend = shared::backend(&env, "backend", json!({"probeInterval": "1s"})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "kept").await?;
    let [_, _, other] = archived(&env, "other", &class, "lost").await?;
    env.objects.delete(&archive).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    env.objects.wait_event(&archive, "ArchiveReleased", TIMEOUT).await?;
    // Of two archives without an object, the one whose object was lost gets it again.
    env.objects.lose(&other, TIMEOUT).await?;
    let uid = other.pointer("/metadata/uid").cloned();
    let again = env.objects.wait(&other, "to be recreated", TIMEOUT, |found| {
        match found.pointer("/metadata/uid") {
            now if now == uid.as_ref() => Err("the former one".to_owned()),
            _ => Ok(()),
        }
    });
    again.await?;
    assert!(env.objects.get(&archive).await?.is_none());
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "kept");
    let counted = |expected: u64| {
        move |backend: &Value| match &backend["status"]["archives"] {
            archives if *archives == expected => Ok(()),
            archives => Err(format!("{archives} archives")),
        }
    };
    env.objects
        .wait(&backend, "to count the released archive", TIMEOUT, counted(2))
        .await?;

    let imported = env.objects.create(&import_of(&archive)).await?;
    let imported = in_state(&env, &imported, "Available").await?;
    for field in [
        "fileID",
        "directory",
        "claimUID",
        "namespaceUID",
        "archiveTime",
        "requestedSize",
    ] {
        assert_eq!(imported["status"][field], archive["status"][field], "{field}");
    }
    env.objects
        .patch(&imported, json!({"spec": {"deletionPolicy": "Delete"}}))
        .await?;
    env.objects.delete(&imported).await?;
    env.objects.wait_gone(&imported, TIMEOUT).await?;
    env.objects.wait_event(&imported, "ArchivePurged", TIMEOUT).await?;
    shared::wait_trash_empty(env.data()).await?;
    env.objects
        .wait(&backend, "to count the other archive", TIMEOUT, counted(1))
        .await?;
    assert!(!path(&env, &archive).exists());
    Ok(())
}

#[tokio::test]
async fn all_archives_without_an_object_are_imported_on_request_once_for_each_value() -> Test {
    let env = TestEnv::new("import-all").await?;
    let backend = shared::backend(&env, "backend", json!({"probeInterval": "1s"})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "kept").await?;
    let request = json!({"metadata": {"annotations": {"nfs-operator.io/import-archives-requested-at": "1"}}});
    let handled = |backend: &Value| match backend.pointer("/status/handledRequests/0/value") {
        Some(value) if value == "1" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    for is_requested in [true, false] {
        env.objects.delete(&archive).await?;
        env.objects.wait_gone(&archive, TIMEOUT).await?;
        if is_requested {
            env.objects.patch(&backend, request.clone()).await?;
            let again = in_state(&env, &archive, "Available").await?;
            assert_eq!(again["status"]["fileID"], archive["status"]["fileID"]);
        }
        env.objects
            .wait(&backend, "to have handled the request", TIMEOUT, handled)
            .await?;
    }
    assert!(env.objects.get(&archive).await?.is_none());
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "kept");
    Ok(())
}

#[tokio::test]
async fn a_lost_status_of_an_archive_is_written_again_from_its_record() -> Test {
    let env = TestEnv::new("status-lost").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "kept").await?;
    let name = text(&archive, "/metadata/name");
    let removed = json!([{"op": "remove", "path": "/status"}]).to_string();
    let patch = [
        "patch",
        "nfsa",
        name,
        "--subresource=status",
        "--type=json",
        "-p",
        removed.as_str(),
    ];
    env.rig.cluster.kubectl(patch).await?;
    let again = in_state(&env, &archive, "Available").await?;
    for field in [
        "backendName",
        "exportID",
        "fileID",
        "directory",
        "volumeName",
        "claimUID",
    ] {
        assert_eq!(again["status"][field], archive["status"][field], "{field}");
    }
    Ok(())
}

#[tokio::test]
async fn a_held_archive_cannot_be_deleted() -> Test {
    let env = TestEnv::new("held").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "kept").await?;
    let held = json!({"spec": {"legalHold": true, "deletionPolicy": "Delete"}});
    env.objects.patch(&archive, held).await?;
    in_state(&env, &archive, "Held").await?;
    let refused = env.objects.delete(&archive).await.unwrap_err().to_string();
    assert!(refused.contains("the archive has a legal hold"), "{refused}");
    env.objects
        .patch(&archive, json!({"spec": {"legalHold": false}}))
        .await?;
    env.objects.delete(&archive).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn an_archive_object_created_by_hand_causes_no_purge() -> Test {
    let env = TestEnv::new("forged").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (_, volume) = shared::bound_with_data(&env, "live", &class, "in use").await?;
    archived(&env, "kept", &class, "kept").await?;
    let before = rig::snapshot(env.data())?;
    let forge = |name: &str, claim: &str| {
        let mut forged = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, name);
        let spec = json!({
            "claimRef": {"namespace": env.name, "name": claim},
            "deletionPolicy": "Delete",
            "expirationTime": "2020-01-01T00:00:00Z",
        });
        rig::objects::merge(&mut forged, &json!({ "spec": spec }));
        forged
    };
    // One object has the name of a volume in use, the other a reserved name that no volume has.
    let in_use = forge(text(&volume, "/metadata/name"), "live");
    let alias = forge(&format!("pvc-{}", env.unique_name("alias")), "kept");
    for forged in [in_use, alias] {
        let created = env.objects.create(&forged).await?;
        env.objects
            .wait(&created, "to be checked", TIMEOUT, |found| {
                match text(found, "/status/state") {
                    "Missing" | "Unknown" => Ok(()),
                    state => Err(state.to_owned()),
                }
            })
            .await?;
        env.objects.delete(&created).await?;
        env.objects.wait_gone(&created, TIMEOUT).await?;
    }
    let unchanged = |tree: std::collections::BTreeMap<String, String>| {
        let data = tree.into_iter().filter(|(path, _)| !path.contains("/.nfs-operator/"));
        data.collect::<Vec<_>>()
    };
    assert_eq!(unchanged(rig::snapshot(env.data())?), unchanged(before));
    Ok(())
}

#[tokio::test]
async fn a_backend_that_is_deleted_waits_for_its_archives() -> Test {
    let env = TestEnv::new("waits").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "kept").await?;
    env.objects.delete(&backend).await?;
    let waits = env
        .objects
        .wait_condition(&backend, "Ready", "False", Some("Deleting"), TIMEOUT);
    let waits = waits.await?;
    assert!(text(&waits, "/message").contains("1 archive"), "{waits}");
    env.objects
        .patch(&archive, json!({"spec": {"deletionPolicy": "Delete"}}))
        .await?;
    env.objects.delete(&archive).await?;
    env.objects.wait_gone(&backend, TIMEOUT).await?;
    Ok(())
}
