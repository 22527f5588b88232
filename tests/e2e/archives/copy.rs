//! Claims that get a copy of an archive's data.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::archives::objects::{archive_of, archived, in_state, path};
use crate::archives::restore::asking;
use crate::clones::claims::{at_full_speed, claim_condition_message, contents, copy_gone, slow, under_way};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, TIMEOUT, Test, text};

fn name_of(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Returns a claim that requests a copy of an archive.
fn copying(claim: Value, archive: &Value) -> Value {
    let mut claim = asking(claim, name_of(archive));
    let annotations = json!({"nfs-operator.io/restore": "copy"});
    merge(&mut claim, &json!({"metadata": {"annotations": annotations}}));
    claim
}

#[tokio::test]
async fn a_claim_gets_a_copy_of_an_archive_if_it_requests_one_or_the_archive_is_held() -> Test {
    let env = TestEnv::new("archive-copy").await?;
    shared::backend(&env, "backend", json!({})).await?;
    // The class's mode and owner are for new directories; a restored one keeps its own.
    let class = shared::class(&env, "class", "backend", json!({"mode": "0700", "uid": "7"})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "precious").await?;
    let directory = env.directory(&volume)?;
    chown(&directory, Some(1000), Some(1001))?;
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o2770))?;
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archive = in_state(&env, &archive_of(&volume), "Available").await?;
    let request = env
        .objects
        .create(&copying(env.claim("asked", &class), &archive))
        .await?;
    let first = env.wait_bound(&request).await?;
    env.objects
        .patch(&archive, json!({"spec": {"legalHold": true}}))
        .await?;
    in_state(&env, &archive, "Held").await?;
    let held = asking(env.claim("held", &class), name_of(&archive));
    let held = env.objects.create(&held).await?;
    let second = env.wait_bound(&held).await?;
    for volume in [&first, &second] {
        let copy = env.directory(volume)?;
        let found = fs::metadata(&copy)?;
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o2770, 1000, 1001));
        assert_eq!(fs::read_to_string(copy.join("data"))?, "precious");
        assert_ne!(found.ino().to_string(), text(&archive, "/status/fileID"));
    }
    let reported = format!("a copy of NfsArchive {} (1 file, 8", name_of(&archive));
    assert!(claim_condition_message(&env, &request).await?.contains(&reported));
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "precious");
    assert_eq!(fs::metadata(path(&env, &archive))?.mode() & 0o7777, 0o700);
    // Once the hold is lifted, the archive is restored at once by a rename.
    let released = json!({"spec": {"legalHold": false}});
    env.objects.patch(&archive, released).await?;
    let archive = in_state(&env, &archive, "Available").await?;
    let moved = asking(env.claim("moved", &class), name_of(&archive));
    let moved = env.objects.create(&moved).await?;
    let third = fs::metadata(env.directory(&env.wait_bound(&moved).await?)?)?;
    assert_eq!(third.ino().to_string(), text(&archive, "/status/fileID"));
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    Ok(())
}

#[tokio::test]
async fn an_archive_is_copied_to_another_backend_if_the_class_does_not_include_its_own() -> Test {
    let (env, other) = (TestEnv::new("copy-from").await?, TestEnv::new("copy-to").await?);
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "precious").await?;
    other.create_ready_class().await?;
    let there = json!({ "backend": other.unique_name("backend") });
    let class = env.objects.create(&env.class("there", there)).await?;
    let claim = asking(env.claim("again", &class), name_of(&archive));
    let claim = env.objects.create(&claim).await?;
    env.wait_bound(&claim).await?;
    let names = shared::names(other.data())?;
    let [name] = names.as_slice() else {
        panic!("{names:?}");
    };
    assert_eq!(fs::read_to_string(other.data().join(name).join("data"))?, "precious");
    assert_eq!(fs::read_to_string(path(&env, &archive).join("data"))?, "precious");
    Ok(())
}

/// Starts a cluster with an archive of many files behind a slow proxy. Returns the content of the archive, too.
async fn kept() -> Result<(DedicatedCluster, Value, Contents), shared::Failure> {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let source = slow(&env).await?;
    let claim = env.claim("old");
    let volume = env.bound(&claim).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    let archive = archive_of(&volume);
    let there = |found: &Value| match text(found, "/status/state") {
        "Available" => Ok(found.clone()),
        state => Err(state.to_owned()),
    };
    let archive = env.objects.wait(&archive, "to be Available", TIMEOUT, there).await?;
    Ok((env, archive, source))
}

type Contents = std::collections::BTreeMap<String, Vec<u8>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_is_deleted_during_a_copy_is_removed_when_the_copy_is_complete() -> Test {
    let (env, archive, source) = kept().await?;
    let claim = env.objects.create(&copying(env.claim("new"), &archive)).await?;
    under_way(&env).await?;
    let reported = env
        .objects
        .wait_condition(&claim, "nfs-operator.io/Provisioned", "False", Some("Copying"), TIMEOUT);
    let message = text(&reported.await?, "/message").to_owned();
    assert!(
        message.starts_with(&format!("copying NfsArchive {}: ", name_of(&archive))),
        "{message}"
    );
    env.objects
        .patch(&archive, json!({"spec": {"deletionPolicy": "Delete"}}))
        .await?;
    env.objects.delete(&archive).await?;
    let waits = |found: &Value| {
        let condition = rig::objects::condition(found, "Available").cloned().unwrap_or_default();
        match text(&condition, "/message") {
            message if message.contains("copies in progress") => Ok(()),
            message => Err(message.to_owned()),
        }
    };
    env.objects
        .wait(&archive, "to wait for the copy", TIMEOUT, waits)
        .await?;
    at_full_speed(&env);
    let volume = env.bound(&claim).await?;
    assert_eq!(contents(&env.directory(&volume)?)?, source);
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    shared::wait_trash_empty(&env.data()?).await?;
    assert_eq!(env.names()?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_for_another_namespace_stops_when_its_permission_is_revoked() -> Test {
    let (env, archive, _) = kept().await?;
    let other = reference("v1", "Namespace", None, "other");
    env.objects.create(&other).await?;
    let allowed = json!({"spec": {"allowedNamespaces": {"matchNames": ["other"]}}});
    env.objects.patch(&archive, allowed).await?;
    let mut claim = asking(env.claim("new"), name_of(&archive));
    merge(&mut claim, &json!({"metadata": {"namespace": "other"}}));
    let claim = env.objects.create(&claim).await?;
    under_way(&env).await?;
    env.objects
        .patch(&archive, json!({"spec": {"allowedNamespaces": null}}))
        .await?;
    let refused = env.objects.wait_condition(
        &claim,
        "nfs-operator.io/Provisioned",
        "False",
        Some("ArchiveNotFound"),
        TIMEOUT,
    );
    refused.await?;
    copy_gone(&env).await?;
    assert_eq!(env.names()?.len(), 1);
    at_full_speed(&env);
    shared::wait_trash_empty(&env.data()?).await?;
    Ok(())
}
