//! Volumes that an administrator bound to another claim.

use std::fs;

use rig::TestEnv;
use rig::objects::merge;
use serde_json::{Value, json};

use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn a_volume_that_was_bound_to_another_claim_is_cloned_and_reclaimed() -> Test {
    let env = TestEnv::new("rebound").await?;
    let class = env.create_ready_class().await?;
    let (first, volume) = shared::bound_with_data(&env, "first", &class, "kept").await?;
    let policy = |policy: &str| json!({ "spec": { "persistentVolumeReclaimPolicy": policy } });
    let phase = |wanted: &'static str| {
        move |volume: &Value| match text(volume, "/status/phase") {
            phase if phase == wanted => Ok(()),
            phase => Err(phase.to_owned()),
        }
    };
    env.objects.patch(&volume, policy("Retain")).await?;
    env.objects.delete(&first).await?;
    env.objects
        .wait(&volume, "to be Released", TIMEOUT, phase("Released"))
        .await?;
    env.objects
        .patch(&volume, json!({ "spec": { "claimRef": null } }))
        .await?;
    env.objects
        .wait(&volume, "to be Available", TIMEOUT, phase("Available"))
        .await?;
    let mut second = env.claim("second", &class);
    let named = json!({ "spec": { "volumeName": text(&volume, "/metadata/name") } });
    merge(&mut second, &named);
    let second = env.objects.create(&second).await?;
    let rebound = env.wait_bound(&second).await?;
    assert_eq!(text(&rebound, "/metadata/name"), text(&volume, "/metadata/name"));

    let mut clone = env.claim("clone", &class);
    let source = json!({ "kind": "PersistentVolumeClaim", "name": text(&second, "/metadata/name") });
    merge(&mut clone, &json!({ "spec": { "dataSource": source } }));
    let clone = env.objects.create(&clone).await?;
    let copied = env.wait_bound(&clone).await?;
    assert_eq!(fs::read_to_string(env.directory(&copied)?.join("data"))?, "kept");

    env.objects.patch(&volume, policy("Delete")).await?;
    shared::reclaim(&env, &second, &volume, "VolumeArchived").await?;
    let archives = shared::archives(env.data())?;
    let [archive] = archives.as_slice() else {
        return Err(format!("{archives:?}").into());
    };
    assert_eq!(fs::read_to_string(env.data().join(archive).join("data"))?, "kept");
    Ok(())
}
