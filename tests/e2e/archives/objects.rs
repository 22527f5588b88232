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
    env.data().join(text(archive, "/spec/directory"))
}

#[tokio::test]
async fn an_archive_gets_an_object_with_its_origin_and_an_event_in_the_namespace_of_the_claim() -> Test {
    let env = TestEnv::new("object").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [claim, volume, archive] = archived(&env, "data", &class, "kept").await?;
    let spec = &archive["spec"];
    assert_eq!(spec["backend"], env.unique_name("backend"));
    assert_eq!(spec["volume"], volume["metadata"]["name"]);
    assert_eq!(
        spec["fileID"],
        volume["metadata"]["annotations"]["nfs-operator.io/file-id"]
    );
    assert_eq!(
        spec["exportID"],
        volume["metadata"]["annotations"]["nfs-operator.io/export-id"]
    );
    assert_eq!(
        (&spec["size"], &spec["storageClassName"]),
        (&json!("1Mi"), &class["metadata"]["name"])
    );
    let namespace = env.objects.get(&reference("v1", "Namespace", None, &env.name)).await?;
    let uid = |object: &Value| object.pointer("/metadata/uid").cloned();
    let from = json!({
        "namespace": env.name,
        "namespaceUID": namespace.as_ref().and_then(uid),
        "name": "data",
        "uid": uid(&claim),
    });
    assert_eq!(spec["claim"], from);
    assert_eq!(
        (&spec["legalHold"], &spec["deletionPolicy"]),
        (&json!(false), &json!("Retain"))
    );
    assert!(spec["expiresAt"].is_null() && spec["archivedAt"].is_string(), "{spec}");
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "kept");
    assert_eq!(
        condition(&archive, "Available").map(|found| &found["status"]),
        Some(&json!("True"))
    );
    let event = env.objects.wait_event(&claim, "Archived", TIMEOUT).await?;
    assert!(
        text(&event, "/note").contains(text(&volume, "/metadata/name")),
        "{event}"
    );
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
            "AGE",
            "EXPIRES",
            "REQUEST",
            "SIZE",
            "STATE"
        ]
    );
    for change in [
        json!({"fileID": "1"}),
        json!({"directory": "archived-x"}),
        json!({"claim": {"namespaceUID": "x"}}),
    ] {
        assert!(env.objects.patch(&archive, json!({ "spec": change })).await.is_err());
    }
    Ok(())
}

#[tokio::test]
async fn a_deleted_archive_keeps_its_data_and_its_object_is_recreated_unless_its_policy_is_delete() -> Test {
    let env = TestEnv::new("deleted").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, volume, archive] = archived(&env, "data", &class, "kept").await?;
    env.objects.delete(&archive).await?;
    let uid = archive.pointer("/metadata/uid").cloned();
    let again = env.objects.wait(&archive, "to be recreated", TIMEOUT, |found| {
        match found.pointer("/metadata/uid") {
            now if now == uid.as_ref() => Err("the former one".to_owned()),
            _ => Ok(found.clone()),
        }
    });
    assert_eq!(again.await?["spec"], archive["spec"]);
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "kept");
    let archive = in_state(&env, &archive, "Available").await?;
    env.objects
        .patch(&archive, json!({"spec": {"deletionPolicy": "Delete"}}))
        .await?;
    env.objects.delete(&archive).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    env.objects.wait_event(&archive, "ArchivePurged", TIMEOUT).await?;
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    shared::wait_trash_empty(env.data()).await?;
    let counted = |backend: &Value| match &backend["status"]["archives"] {
        archives if archives == 0 => Ok(()),
        archives => Err(format!("{archives} archives")),
    };
    env.objects
        .wait(&backend, "to count no archives", TIMEOUT, counted)
        .await?;
    assert!(env.objects.get(&archive_of(&volume)).await?.is_none());
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
    assert!(refused.contains("the archive is held"), "{refused}");
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
    let (claim, volume) = shared::bound_with_data(&env, "live", &class, "in use").await?;
    let [_, kept_volume, kept] = archived(&env, "kept", &class, "kept").await?;
    let before = rig::snapshot(env.data())?;
    let forge = |name: &str, volume: &Value, claim: &Value| {
        let mut forged = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, name);
        let annotations = &volume["metadata"]["annotations"];
        let spec = json!({
            "backend": env.unique_name("backend"),
            "exportID": annotations["nfs-operator.io/export-id"],
            "directory": annotations["nfs-operator.io/directory"],
            "fileID": annotations["nfs-operator.io/file-id"],
            "volume": volume["metadata"]["name"],
            "claim": {"namespace": env.name, "name": "live", "uid": claim["metadata"]["uid"]},
            "deletionPolicy": "Delete",
        });
        rig::objects::merge(&mut forged, &json!({ "spec": spec }));
        forged
    };
    // One object names a volume in use, the other an archive under another name.
    let in_use = forge(text(&volume, "/metadata/name"), &volume, &claim);
    let alias = forge(&env.unique_name("alias"), &kept_volume, &kept);
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
        env.objects
            .patch(&created, json!({"spec": {"deletionPolicy": "Retain"}}))
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
