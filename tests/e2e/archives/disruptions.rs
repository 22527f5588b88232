//! Archives after the deletion of their CRD, and archives of an earlier release.

use std::collections::BTreeSet;

use rig::objects::reference;
use serde_json::{Value, json};

use crate::archives::objects::archive_of;
use crate::recovery::cluster_loss::{adopt, said_of};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

const KIND: &str = "nfsarchives.nfs-operator.io";

/// Deletes the kind of archives, with all of its objects.
async fn delete_kind(env: &DedicatedCluster) -> Test {
    env.cluster.kubectl(["delete", "crd", KIND, "--wait=false"]).await?;
    let kind = reference("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, KIND);
    Ok(env.objects.wait_gone(&kind, TIMEOUT).await?)
}

/// Creates claims with data and deletes them. Returns their volumes.
async fn released(env: &DedicatedCluster, count: usize) -> Result<Vec<Value>, Failure> {
    let mut volumes = Vec::new();
    for n in 0..count {
        env.objects.create(&env.claim(&format!("data-{n}"))).await?;
    }
    for n in 0..count {
        let volume = env.bound(&env.claim(&format!("data-{n}"))).await?;
        std::fs::write(env.directory(&volume)?.join("data"), format!("data-{n}"))?;
        volumes.push(volume);
    }
    for n in 0..count {
        env.objects.delete(&env.claim(&format!("data-{n}"))).await?;
    }
    Ok(volumes)
}

async fn settle(env: &DedicatedCluster, what: &str, wanted: impl Fn(&BTreeSet<String>) -> bool) -> Test {
    let names = rig::wait::until(what, TIMEOUT, async || {
        let names = env.archives().await.map_err(|error| error.to_string())?;
        if wanted(&names) {
            Ok(names)
        } else {
            Err(format!("{names:?}"))
        }
    });
    names.await.map(drop)?;
    Ok(())
}

fn names_of(volumes: &[Value]) -> BTreeSet<String> {
    volumes
        .iter()
        .map(|volume| text(volume, "/metadata/name").to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_the_crd_purges_nothing_and_a_held_archive_is_held_again_after_reinstallation() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let volumes = released(&env, 3).await?;
    for volume in &volumes {
        env.objects.wait_gone(volume, TIMEOUT).await?;
        let delete = json!({"spec": {"deletionPolicy": "Delete"}});
        env.objects.patch(&archive_of(volume), delete).await?;
    }
    let held = archive_of(&volumes[0]);
    env.objects.patch(&held, json!({"spec": {"legalHold": true}})).await?;
    let word = |found: &Value| match text(found, "/status/state") {
        "Held" => Ok(()),
        state => Err(state.to_owned()),
    };
    env.objects.wait(&held, "to be Held", TIMEOUT, word).await?;
    delete_kind(&env).await?;
    assert_eq!(env.names()?.len(), 3, "the data stay");
    env.operator.kill9().await?;
    env.cluster
        .apply_crds(&rig::operator::repository_root().join("crds"))
        .await?;
    env.operator.restart().await?;
    let all = names_of(&volumes);
    settle(&env, "the objects to be made again", |names| *names == all).await?;
    env.objects.wait(&held, "to be Held", TIMEOUT, word).await?;
    let again = env.objects.get(&held).await?.ok_or("no object")?;
    assert_eq!(text(&again, "/spec/deletionPolicy"), "Delete");
    assert_eq!(env.names()?.len(), 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_waits_for_records_goes_with_its_crd() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let volumes = released(&env, 1).await?;
    env.objects.wait_gone(&volumes[0], TIMEOUT).await?;
    let archive = archive_of(&volumes[0]);
    env.objects
        .patch(&archive, json!({"spec": {"deletionPolicy": "Delete"}}))
        .await?;
    env.operator.kill9().await?;
    env.proxy.refuse(true).await?;
    // As if the operator had ended before it reported the archive.
    env.objects.patch_status(&archive, json!({"status": null})).await?;
    env.operator.restart().await?;
    let reported = env.objects.wait(&archive, "to wait for the records", TIMEOUT, |found| {
        let conditions = found["status"]["conditions"].to_string();
        match conditions.contains("waits until the records of all backends were read") {
            true => Ok(()),
            false => Err(conditions),
        }
    });
    reported.await?;
    delete_kind(&env).await?;
    env.proxy.refuse(false).await?;
    said_of(&env, "Ready", "AllChecksPassed", &[]).await?;
    assert_eq!(env.names()?.len(), 1, "the data stay");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_archive_that_is_deleted_despite_the_policy_stays_until_it_is_released() -> Test {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let volumes = released(&env, 1).await?;
    env.objects.wait_gone(&volumes[0], TIMEOUT).await?;
    let archive = archive_of(&volumes[0]);
    let held = json!({"spec": {"legalHold": true, "deletionPolicy": "Delete"}});
    env.objects.patch(&archive, held).await?;
    let policy = "validatingadmissionpolicybinding/nfs-operator-archive-hold";
    env.cluster.kubectl(["delete", policy]).await?;
    rig::wait::until("the deletion to be accepted", TIMEOUT, async || {
        env.objects.delete(&archive).await.map_err(|error| error.to_string())
    })
    .await?;
    let waits = |found: &Value| {
        let reported = rig::objects::condition(found, "Retained").map(|found| found["message"].to_string());
        match reported.filter(|reported| reported.contains("its data and this object stay")) {
            Some(_) => Ok(()),
            None => Err("not said".to_owned()),
        }
    };
    env.objects
        .wait(&archive, "to report that it is held", TIMEOUT, waits)
        .await?;
    env.objects.wait_event(&archive, "ArchiveHeld", TIMEOUT).await?;
    assert_eq!(env.names()?.len(), 1);
    env.objects
        .patch(&archive, json!({"spec": {"legalHold": false}}))
        .await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    assert_eq!(env.names()?.len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_of_an_earlier_release_gets_its_object_when_its_record_is_adopted() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let volumes = released(&env, 1).await?;
    env.objects.wait_gone(&volumes[0], TIMEOUT).await?;
    env.operator.kill9().await?;
    let archive = archive_of(&volumes[0]);
    env.objects
        .patch(&archive, json!({"metadata": {"finalizers": null}}))
        .await?;
    env.objects.delete(&archive).await?;
    // A record as written before records were signed and archives expired.
    for cluster in std::fs::read_dir(env.data()?.join(".nfs-operator"))? {
        let record = cluster?
            .path()
            .join("records")
            .join(text(&volumes[0], "/metadata/name"));
        let Ok(content) = std::fs::read(&record) else { continue };
        let mut content: Value = serde_json::from_slice(&content)?;
        let state = content["state"].as_object_mut().ok_or("no state")?;
        state.retain(|name, _| ["name", "target", "mode", "uid", "gid"].contains(&name.as_str()));
        content.as_object_mut().ok_or("no record")?.remove("signature");
        std::fs::write(&record, serde_json::to_vec(&content)?)?;
    }
    env.operator.restart().await?;
    let volume = text(&volumes[0], "/metadata/name");
    said_of(&env, "RecordsTrusted", "RecordsUnsigned", &[volume]).await?;
    assert_eq!(env.archives().await?, BTreeSet::new());
    adopt(&env, None, volume).await?;
    let all = names_of(&volumes);
    settle(&env, "the object to be made", |names| *names == all).await?;
    let created = env.objects.get(&archive).await?.ok_or("no object")?;
    assert!(created["status"]["archiveTime"].is_null() && created["spec"]["expirationTime"].is_null());
    assert_eq!(text(&created, "/spec/claimRef/name"), "data-0");
    Ok(())
}
