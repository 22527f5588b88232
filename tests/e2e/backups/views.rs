//! Archives of deleted claims, which appear in their namespaces.

use std::fs;

use rig::TestEnv;
use rig::objects::reference;
use serde_json::{Value, json};

use super::{class_with_backups, ready, restoring};
use crate::archives::objects::{archive_of, in_state};
use crate::support::shared::{self, TIMEOUT, Test, text};

/// Deletes a claim, and returns its archive and the NfsBackup that shows it.
async fn shown(env: &TestEnv, class: &Value, claim: &str, content: &str) -> Result<(Value, Value), shared::Failure> {
    let (claim, volume) = shared::bound_with_data(env, claim, class, content).await?;
    shared::reclaim(env, &claim, &volume, "VolumeArchived").await?;
    let archive = in_state(env, &archive_of(&volume), "Available").await?;
    let name = text(&archive, "/metadata/name");
    let view = reference("nfs-operator.io/v1alpha1", "NfsBackup", Some(&env.name), name);
    let exists = |found: &Value| match found["status"]["conditions"].is_array() {
        true => Ok(found.clone()),
        false => Err(found.to_string()),
    };
    let view = env.objects.wait(&view, "to show the archive", TIMEOUT, exists).await?;
    Ok((archive, view))
}

#[tokio::test]
async fn an_archive_of_a_deleted_claim_appears_in_its_namespace_and_is_restored_from_there() -> Test {
    let env = TestEnv::new("view").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "1Mi"})).await?;
    let (archive, view) = shown(&env, &class, "data", "precious").await?;
    ready(&env, &view).await?;
    let status = &view["status"];
    assert_eq!(
        (&status["origin"], &status["claimName"]),
        (&json!("ClaimDeleted"), &json!("data"))
    );
    let again = restoring(env.claim("again", &class), text(&view, "/metadata/name"));
    let again = env.objects.create(&again).await?;
    let copy = env.directory(&env.wait_bound(&again).await?)?;
    assert_eq!(fs::read_to_string(copy.join("data"))?, "precious");
    // A tenant who deletes the object deletes no data: it shows what exists.
    env.objects.delete(&view).await?;
    let replaced = |found: &Value| match found["metadata"]["uid"] == view["metadata"]["uid"] {
        true => Err("the same".to_owned()),
        false => Ok(()),
    };
    env.objects
        .wait(&view, "to be created again", TIMEOUT, replaced)
        .await?;
    let kept = in_state(&env, &archive, "Available").await?;
    assert_eq!(kept["metadata"]["uid"], archive["metadata"]["uid"]);
    env.objects.delete(&archive).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    env.objects.wait_gone(&view, TIMEOUT).await?;
    Ok(())
}

#[tokio::test]
async fn archives_appear_once_the_backend_allows_backups() -> Test {
    let env = TestEnv::new("view-later").await?;
    let backend = shared::backend(&env, "backend", json!({"probeInterval": "1s"})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "text").await?;
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archive = in_state(&env, &archive_of(&volume), "Available").await?;
    let name = text(&archive, "/metadata/name");
    let view = reference("nfs-operator.io/v1alpha1", "NfsBackup", Some(&env.name), name);
    assert!(env.objects.get(&view).await?.is_none());
    let settings = json!({"spec": {"backups": {"selfService": {"maxBytesPerNamespace": "1Mi"}}}});
    env.objects.patch(&backend, settings).await?;
    let shown = |found: &Value| match text(found, "/status/origin") {
        "ClaimDeleted" => Ok(()),
        _ => Err(found.to_string()),
    };
    env.objects.wait(&view, "to show the archive", TIMEOUT, shown).await?;
    Ok(())
}
