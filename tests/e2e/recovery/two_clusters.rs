//! Two live clusters with one Secret on the same export, and a cluster whose etcd was restored from a snapshot.

use std::fs;

use rig::objects::{condition, reference};
use rig::wait;
use serde_json::{Value, json};

use crate::archives::objects::archive_of;
use crate::recovery::cluster_loss::{archived, available, done, frequent_probes, guide, renewed, said_of};
use crate::recovery::refused::assert_claim_misses_its_volume;
use crate::recovery::volumes::{ask_for, assert_recovered, with_data};
use crate::support::audit::NfsLeases;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

const ACCEPT: &str = "nfs-operator.io/accept-identity";

/// Returns a spec with rare probes, for two operators on one export. A process that does not know the beacon takes over
/// if nothing renews it for three of these intervals, for example because the machine stalls. If both renew it at the
/// same moment, the last one wins.
fn rare_probes() -> Value {
    json!({"probeInterval": "10s"})
}

fn main() -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main")
}

/// Accepts the export for a cluster, as its administrator, with the identity in the message.
async fn accept(env: &DedicatedCluster, export_id: &str) -> Test {
    // Another acceptance than the one before, of the same identity.
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let annotations = json!({"metadata": {"annotations": {ACCEPT: format!("{export_id}@{}", at.as_nanos())}}});
    env.objects.patch(&main(), annotations).await?;
    done(env, ACCEPT).await
}

async fn export_id(env: &DedicatedCluster) -> Result<String, Failure> {
    let backend = env.objects.get(&main()).await?.ok_or("no backend")?;
    Ok(text(&backend, "/status/export/id").to_owned())
}

/// Creates a claim and waits until it is not provisioned.
async fn waiting_claim(env: &DedicatedCluster, name: &str) -> Result<Value, Failure> {
    let claim = env.objects.create(&env.claim(name)).await?;
    let kind = "nfs-operator.io/Provisioned";
    env.objects.wait_condition(&claim, kind, "False", None, TIMEOUT).await?;
    Ok(claim)
}

/// Deletes a claim, and waits until it is gone.
async fn delete_claim(env: &DedicatedCluster, name: &str) -> Test {
    let claim = reference("v1", "PersistentVolumeClaim", Some("default"), name);
    env.objects.delete(&claim).await?;
    Ok(env.objects.wait_gone(&claim, TIMEOUT).await?)
}

/// Creates a Bound claim without a file in its directory. Returns its volume.
async fn empty_volume(env: &DedicatedCluster, name: &str) -> Result<Value, Failure> {
    let claim = env.objects.create(&env.claim(name)).await?;
    env.bound(&claim).await
}

/// Restarts the operator until neither beacon in a snapshot that was taken before is the one on the export.
async fn replace_beacon(env: &mut DedicatedCluster) -> Test {
    let mut beacon = renewed(env, "").await?;
    for _ in 0..2 {
        env.operator.restart().await?;
        beacon = renewed(env, &beacon).await?;
    }
    env.objects
        .wait_condition(&main(), "Ready", "True", None, TIMEOUT)
        .await?;
    Ok(())
}

/// Checks that the directories of these volumes exist, with the name of the claim in their file unless they are empty.
fn assert_kept(env: &DedicatedCluster, volumes: &[&Value]) -> Test {
    for volume in volumes {
        let (directory, claim) = (env.directory(volume)?, text(volume, "/spec/claimRef/name"));
        if claim.contains("empty") {
            assert!(directory.is_dir(), "{directory:?}");
        } else {
            assert_eq!(fs::read_to_string(directory.join("data"))?, claim);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_live_clusters_with_one_secret_only_the_accepted_one_changes_the_export() -> Test {
    let first = DedicatedCluster::start(rare_probes()).await?;
    let id = export_id(&first).await?;
    let data = with_data(&first, &first.claim("data")).await?;
    let empty = empty_volume(&first, "empty").await?;
    let old = archived(&first, "old").await?;
    let guide = guide()?;
    first.run_as_admin(&guide.save).await?;

    let second = first.second_cluster(&guide.restore).await?;
    let backend = second.backend_object(&json!({"spec": rare_probes()}));
    second.objects.create(&backend).await?;
    second.class("nfs", json!({})).await?;
    let remedy = ["another process renews it", "stop a second operator", ACCEPT, &id];
    said_of(&second, "Ready", "BeaconMismatch", &remedy).await?;
    let (same_name, other) = (
        waiting_claim(&second, "data").await?,
        waiting_claim(&second, "other").await?,
    );
    // The first cluster is not disturbed.
    let further = with_data(&first, &first.claim("further")).await?;
    archived(&first, "gone").await?;
    said_of(&second, "Ready", "BeaconMismatch", &[]).await?;
    assert_eq!(second.volumes().await?.len(), 0);
    assert_eq!(second.archives().await?.len(), 0);
    assert_kept(&first, &[&data, &empty, &further])?;

    // The second cluster takes over, and the first one stops.
    accept(&second, &id).await?;
    let other = second.bound(&other).await?;
    fs::write(second.directory(&other)?.join("data"), "other")?;
    said_of(&first, "Ready", "BeaconMismatch", &["another process", ACCEPT, &id]).await?;
    assert_claim_misses_its_volume(&second, &same_name, text(&data, "/metadata/name")).await?;
    let waiting = waiting_claim(&first, "waiting").await?;
    delete_claim(&first, "further").await?;
    archived(&second, "of-the-second").await?;
    assert_kept(&first, &[&data, &empty, &further, &other])?;

    // And back.
    accept(&first, &id).await?;
    let waiting = first.bound(&waiting).await?;
    first.objects.wait_gone(&further, TIMEOUT).await?;
    available(&first, &archive_of(&further)).await?;
    available(&first, &old).await?;
    said_of(&second, "Ready", "BeaconMismatch", &["another process"]).await?;
    waiting_claim(&second, "late").await?;
    assert_kept(&first, &[&data, &empty, &other])?;
    assert!(first.directory(&waiting)?.is_dir());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_cloned_from_a_snapshot_changes_nothing_and_the_first_one_continues() -> Test {
    let mut first = DedicatedCluster::start(frequent_probes()).await?;
    let data = with_data(&first, &first.claim("data")).await?;
    let snapshot = first.snapshot().await?;
    // The clone has no objects of these claims.
    let later = with_data(&first, &first.claim("later")).await?;
    let empty = empty_volume(&first, "later-empty").await?;
    // The clone connects through the same proxy, because its backend has the same address.
    let leases = NfsLeases::observe(&first.proxy);
    replace_beacon(&mut first).await?;
    let before = leases.seen();
    let own = before.last().ok_or("the first cluster did not connect")?;

    let second = first.cloned_cluster(&snapshot).await?;
    said_of(
        &second,
        "Ready",
        "BeaconMismatch",
        &["newer than", "another process", ACCEPT],
    )
    .await?;
    waiting_claim(&second, "another").await?;
    delete_claim(&second, "data").await?;
    // The first cluster continues.
    let further = with_data(&first, &first.claim("further")).await?;
    archived(&first, "gone").await?;
    said_of(&second, "Ready", "BeaconMismatch", &["newer than"]).await?;
    assert!(second.objects.get(&data).await?.is_some(), "it is not reclaimed");
    assert_kept(&first, &[&data, &later, &empty, &further])?;
    // Nobody ended its session: the clone connected only with an owner of its own.
    let after = leases.seen().split_off(before.len());
    assert!(after.iter().all(|client| client == own), "{own:?} {after:?}");
    Ok(())
}

/// The beacon in the snapshot may still be the one on the export, and NFSv3 has no fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_nfsv3_at_least_one_of_a_cluster_and_its_clone_stops_until_one_is_accepted() -> Test {
    let first = DedicatedCluster::start_with_v3(rare_probes()).await?;
    let id = export_id(&first).await?;
    let data = with_data(&first, &first.claim("data")).await?;
    let empty = empty_volume(&first, "empty").await?;
    let snapshot = first.snapshot().await?;
    let second = first.cloned_cluster(&snapshot).await?;
    wait::until("one of the clusters to stop", TIMEOUT, async || {
        let mut reasons = Vec::new();
        for env in [&first, &second] {
            let found = env.objects.get(&main()).await;
            let backend = found.map_err(|error| error.to_string())?;
            let ready = backend.as_ref().and_then(|backend| condition(backend, "Ready"));
            reasons.push(ready.map(|ready| text(ready, "/reason").to_owned()));
        }
        match reasons.iter().flatten().any(|reason| reason == "BeaconMismatch") {
            true => Ok(()),
            false => Err(format!("{reasons:?}")),
        }
    })
    .await?;
    assert_kept(&first, &[&data, &empty])?;

    accept(&first, &id).await?;
    said_of(&second, "Ready", "BeaconMismatch", &[ACCEPT, &id]).await?;
    let later = with_data(&first, &first.claim("later")).await?;
    waiting_claim(&second, "another").await?;
    delete_claim(&second, "data").await?;
    archived(&first, "gone").await?;
    said_of(&second, "Ready", "BeaconMismatch", &[]).await?;
    assert!(second.objects.get(&data).await?.is_some(), "it is not reclaimed");
    assert_kept(&first, &[&data, &empty, &later])
}

/// The steps of docs/disaster-recovery.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_a_restored_etcd_changes_nothing_until_its_exports_are_accepted() -> Test {
    let mut env = DedicatedCluster::start(frequent_probes()).await?;
    let id = export_id(&env).await?;
    let data = with_data(&env, &env.claim("data")).await?;
    let snapshot = env.snapshot().await?;
    let late = env.claim("late");
    let volume = with_data(&env, &late).await?;
    let empty = empty_volume(&env, "late-empty").await?;
    replace_beacon(&mut env).await?;

    env.operator.kill9().await?;
    env.cluster.restore(&snapshot).await?;
    env.operator.restart().await?;
    let why = ["newer than", "etcd was restored from a backup", ACCEPT, &id];
    said_of(&env, "Ready", "BeaconMismatch", &why).await?;
    waiting_claim(&env, "late").await?;
    assert_kept(&env, &[&data, &volume, &empty])?;

    accept(&env, &id).await?;
    let name = text(&volume, "/metadata/name");
    assert_claim_misses_its_volume(&env, &late, name).await?;
    ask_for(&env, name).await?;
    assert_recovered(&env, &late, &volume).await?;
    let deleted = reference("v1", "PersistentVolumeClaim", Some("default"), "data");
    env.objects.delete(&deleted).await?;
    available(&env, &archive_of(&data)).await?;
    assert_kept(&env, &[&volume])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_from_before_the_deletion_of_a_backend_is_noticed() -> Test {
    let mut env = DedicatedCluster::start(frequent_probes()).await?;
    replace_beacon(&mut env).await?;
    let snapshot = env.snapshot().await?;
    env.objects.delete(&main()).await?;
    env.objects.wait_gone(&main(), TIMEOUT).await?;

    env.operator.kill9().await?;
    env.cluster.restore(&snapshot).await?;
    env.operator.restart().await?;
    let why = ["newer than", "etcd was restored from a backup", ACCEPT];
    said_of(&env, "Ready", "BeaconMismatch", &why).await?;
    Ok(())
}
