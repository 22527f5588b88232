//! Several backends on one export.

use std::collections::BTreeSet;
use std::fs;
use std::pin::pin;

use futures::StreamExt;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use nfs_operator::api::NfsBackend;
use rig::objects::{condition, merge, reference};
use serde_json::{Value, json};

use crate::recovery::cluster_loss::{clusters, renewed};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, TIMEOUT, Test, text};

/// Creates a Bound claim with a file in its directory, on a backend. Returns it with its volume.
async fn claim_on(env: &DedicatedCluster, backend: &str, name: &str) -> Result<(Value, Value), Failure> {
    let mut claim = env.claim(name);
    merge(&mut claim, &json!({"spec": {"storageClassName": backend}}));
    let claim = env.objects.create(&claim).await?;
    let volume = env.bound(&claim).await?;
    let annotations = &volume["metadata"]["annotations"];
    assert_eq!(annotations["nfs-operator.io/backend"], backend);
    fs::write(env.directory(&volume)?.join("data"), name)?;
    Ok((claim, volume))
}

/// Returns the warnings and errors in the operator's log, without those about late answers of the API server or the NFS
/// server: they depend on the machine.
fn warnings(env: &DedicatedCluster) -> Result<Vec<String>, Failure> {
    let log = fs::read_to_string(env.operator.log())?;
    let lines = log
        .lines()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .filter(|line| !line.contains("nfs_operator::runtime::") && !line.contains("ServerNotResponding"));
    Ok(lines.map(str::to_owned).collect())
}

#[tokio::test]
async fn backends_on_one_export_leave_each_others_volumes_alone_and_both_archive_and_delete() -> Test {
    let policy = |on_delete: &str| json!({"probeInterval": "1s", "archivePolicy": {"onDelete": on_delete}});
    let mut env = DedicatedCluster::start(policy("Archive")).await?;
    let mut second = json!({"metadata": {"name": "second"}, "spec": policy("Delete")});
    // Another name for the same server.
    merge(&mut second, &json!({"spec": {"server": "localhost"}}));
    env.backend(second).await?;
    let mut claims = Vec::new();
    for backend in ["main", "second"] {
        env.class(backend, json!({"parameters": {"backend": backend}})).await?;
        for number in 0..2 {
            claims.push(claim_on(&env, backend, &format!("{backend}-{number}")).await?);
        }
        let (claim, volume) = claim_on(&env, backend, &format!("{backend}-old")).await?;
        env.objects.delete(&claim).await?;
        env.objects.wait_gone(&volume, TIMEOUT).await?;
    }
    let archives = env.archives().await?;
    assert_eq!(archives.len(), 1, "{archives:?}");
    shared::wait_trash_empty(&env.data()?).await?;
    let (names, warned) = (env.names()?, warnings(&env)?);
    env.operator.restart().await?;
    env.operator.wait_ready().await?;
    // Provisioning and reclaims take several probes of both backends.
    let mut left = BTreeSet::new();
    for (claim, volume) in &claims {
        let on = text(claim, "/spec/storageClassName");
        let name = format!("new-{}", text(claim, "/metadata/name"));
        let (_, new) = claim_on(&env, on, &name).await?;
        left.insert(env.directory(&new)?);
        assert!(env.names()?.is_superset(&names), "{:?}", env.names()?);
        assert_eq!(
            fs::read_to_string(env.directory(volume)?.join("data"))?,
            text(claim, "/metadata/name")
        );
    }
    for backend in ["main", "second"] {
        let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, backend);
        // A probe that the server answered late knows nothing about the records.
        let trusted = env.objects.wait(&backend, "to be Ready", TIMEOUT, |found| {
            let status = |kind| condition(found, kind).map(|found| found["status"].clone());
            match status("Ready") {
                Some(ready) if ready == "True" => Ok(status("RecordsTrusted")),
                other => Err(format!("{other:?}")),
            }
        });
        assert_eq!(trusted.await?, Some(json!("True")), "{backend}");
    }
    assert_eq!(env.archives().await?, archives);
    for (claim, volume) in &claims {
        env.objects.delete(claim).await?;
        env.objects.wait_gone(volume, TIMEOUT).await?;
        assert!(!env.directory(volume)?.exists());
    }
    assert_eq!(env.archives().await?.len(), 3);
    shared::wait_trash_empty(&env.data()?).await?;
    assert_eq!(env.names()?.len(), left.len() + 3, "{:?}", env.names()?);
    assert!(left.iter().all(|directory| directory.join("data").exists()));
    assert_eq!(warnings(&env)?, warned);
    Ok(())
}

/// Returns the beacons in the statuses of all backends from a resource version on, until `removed` backends are deleted.
async fn reported_beacons(env: &DedicatedCluster, version: &str, removed: usize) -> Result<BTreeSet<String>, Failure> {
    let api: Api<NfsBackend> = Api::all(env.objects.client());
    let mut events = pin!(api.watch(&WatchParams::default(), version).await?);
    let (mut beacons, mut left) = (BTreeSet::new(), removed);
    while left > 0 {
        let object = match events.next().await.ok_or("the watch ended")?? {
            WatchEvent::Modified(object) => object,
            WatchEvent::Deleted(object) => {
                left -= 1;
                object
            }
            WatchEvent::Error(error) => return Err(format!("{error:?}").into()),
            WatchEvent::Added(_) | WatchEvent::Bookmark(_) => continue,
        };
        let export = object.status.unwrap_or_default().export;
        beacons.extend([export.beacon, export.next_beacon].into_iter().flatten());
    }
    Ok(beacons)
}

/// If etcd is restored from a snapshot with these backends, only the beacon shows that its state is older.
#[tokio::test]
async fn backends_that_are_removed_together_leave_a_beacon_that_no_status_had() -> Test {
    let spec = json!({"probeInterval": "1s"});
    let env = DedicatedCluster::start(spec.clone()).await?;
    let second = env
        .backend(json!({"metadata": {"name": "second"}, "spec": spec}))
        .await?;
    renewed(&env, "").await?;
    let backends = env.objects.list(&second).await?;
    // The operator learns of both at the same time.
    env.operator.pause()?;
    for backend in &backends {
        env.objects.delete(backend).await?;
    }
    env.operator.resume()?;
    let reported = reported_beacons(&env, text(&second, "/metadata/resourceVersion"), backends.len());
    let reported = tokio::time::timeout(TIMEOUT, reported).await??;
    let file: Value = serde_json::from_slice(&fs::read(clusters(&env)?.remove(0).join("beacon"))?)?;
    let left = text(&file, "/beacon");
    assert!(reported.len() > 1 && !reported.contains(left), "{left}, {reported:?}");
    Ok(())
}
