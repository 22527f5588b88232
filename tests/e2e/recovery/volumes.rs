//! Recovery of volumes after the loss of a cluster, for the claims that had them and for no others.

use std::collections::BTreeMap;
use std::fs;

use rig::objects::{condition, merge, reference};
use rig::wait;
use serde_json::{Value, json};

use crate::recovery::cluster_loss::{archived, available, done, frequent_probes, guide, said_of};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

const READOPT: &str = "nfs-operator.io/readopt";
pub const READOPT_ALL: &str = "nfs-operator.io/readopt-requested-at";
const ABANDON_LOST: &str = "nfs-operator.io/abandon-lost-volumes";
const CLAIM_UID: &str = "nfs-operator.io/claim-uid";
const READOPTED: &str = "nfs-operator.io/readopted";
const NAMESPACE_UID: &str = "nfs-operator.io/namespace-uid";
const RECREATED: &str = "nfs-operator.io/recreated";

/// Returns the fields of a backend that request the recovery of all its volumes.
pub fn asking() -> Value {
    json!({"metadata": {"annotations": {READOPT_ALL: "1"}}, "spec": frequent_probes()})
}

/// Requests recovery with the command of the guide.
pub async fn ask(env: &DedicatedCluster) -> Test {
    env.run_as_admin(&guide()?.readopt.replace("NAME", "main")).await?;
    Ok(())
}

/// Requests the recovery of volumes by name.
pub async fn ask_for(env: &DedicatedCluster, names: &str) -> Test {
    annotate(env, READOPT, names).await
}

/// Gives lost volumes up, by name or by the UID of the backend.
pub async fn give_up(env: &DedicatedCluster, ids: &str) -> Test {
    annotate(env, ABANDON_LOST, ids).await
}

async fn annotate(env: &DedicatedCluster, annotation: &str, value: &str) -> Test {
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let request = json!({"metadata": {"annotations": {annotation: value}}});
    env.objects.patch(&backend, request).await?;
    Ok(())
}

/// Loses the cluster, and rebuilds it as described in the guide.
pub async fn rebuilt(env: DedicatedCluster) -> Result<DedicatedCluster, Failure> {
    let guide = guide()?;
    env.run_as_admin(&guide.save).await?;
    env.rebuilt(Some(&guide.restore), &[]).await
}

/// Waits until the condition on volumes has this reason and contains these texts. Returns its message.
pub async fn wait_recovery_message(env: &DedicatedCluster, reason: &str, parts: &[&str]) -> Result<String, Failure> {
    said_of(env, "Readopted", reason, parts).await
}

/// Creates a Bound claim with its name in a file. Returns its volume.
pub async fn with_data(env: &DedicatedCluster, claim: &Value) -> Result<Value, Failure> {
    let claim = env.objects.create(claim).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), text(&claim, "/metadata/name"))?;
    Ok(volume)
}

/// Checks that the claim has this volume with its data.
pub async fn assert_recovered(env: &DedicatedCluster, claim: &Value, volume: &Value) -> Result<Value, Failure> {
    let bound = env.bound(claim).await?;
    assert_eq!(text(&bound, "/metadata/name"), text(volume, "/metadata/name"));
    let path = env.directory(&bound)?.join("data");
    assert_eq!(fs::read_to_string(path)?, text(claim, "/metadata/name"));
    Ok(bound)
}

/// Returns a claim in this namespace.
pub fn claim_in(env: &DedicatedCluster, namespace: &str, name: &str) -> Value {
    let mut claim = env.claim(name);
    merge(&mut claim, &json!({"metadata": {"namespace": namespace}}));
    claim
}

pub fn namespace(name: &str) -> Value {
    reference("v1", "Namespace", None, name)
}

/// Waits until the record of a volume satisfies the predicate. Returns it.
async fn recorded(
    env: &DedicatedCluster,
    volume: &Value,
    what: &str,
    so: impl Fn(&Value) -> bool,
) -> Result<Value, Failure> {
    let found = wait::until(what, TIMEOUT, async || {
        let records = env.records().map_err(|error| error.to_string())?;
        let own = records
            .into_iter()
            .find(|(name, _)| name == text(volume, "/metadata/name"));
        let (_, record) = own.ok_or("no record")?;
        if so(&record) {
            Ok(record)
        } else {
            Err(record.to_string())
        }
    });
    Ok(found.await?)
}

/// Returns a volume without the fields that differ between clusters.
fn visible_fields(volume: &Value) -> Value {
    let mut spec = volume["spec"].clone();
    let mut annotations = volume["metadata"]["annotations"].clone();
    spec["claimRef"] = json!([
        text(volume, "/spec/claimRef/namespace"),
        text(volume, "/spec/claimRef/name")
    ]);
    annotations[NAMESPACE_UID] = Value::Null;
    annotations[RECREATED] = Value::Null;
    annotations[CLAIM_UID] = Value::Null;
    json!({"spec": spec, "annotations": annotations, "finalizers": volume["metadata"]["finalizers"]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_rebuilt_with_the_saved_secret_recovers_every_volume_for_the_claim_of_its_name() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let classes = [
        ("growing", json!({"mountOptions": ["hard", "timeo=70"]})),
        ("kept", json!({"reclaimPolicy": "Retain"})),
    ];
    let of_class = |name: &str, class: &str| {
        let mut claim = env.claim(name);
        merge(&mut claim, &json!({"spec": {"storageClassName": class}}));
        claim
    };
    let (data, grown, empty, kept) = (
        env.claim("data"),
        of_class("grown", "growing"),
        env.claim("empty"),
        of_class("kept", "kept"),
    );
    for (name, fields) in &classes {
        env.class(name, fields.clone()).await?;
    }
    let mut former = BTreeMap::new();
    former.insert("data", with_data(&env, &data).await?);
    let volume = with_data(&env, &grown).await?;
    let more = json!({"spec": {"resources": {"requests": {"storage": "5Mi"}}}});
    env.objects.patch(&grown, more).await?;
    recorded(&env, &volume, "the new size to be noted", |record| {
        record["note"]["size"] == "5Mi"
    })
    .await?;
    former.insert("grown", env.bound(&grown).await?);
    let nothing_in_it = env.objects.create(&empty).await?;
    former.insert("empty", env.bound(&nothing_in_it).await?);
    let volume = with_data(&env, &kept).await?;
    env.objects.delete(&kept).await?;
    recorded(&env, &volume, "to be recorded as released", |record| {
        record["note"]["released"] == true
    })
    .await?;
    former.insert("kept", volume);
    let archive = archived(&env, "old").await?;
    let names = env.names()?;

    let env = rebuilt(env).await?;
    env.class("nfs", json!({})).await?;
    for (name, fields) in &classes {
        env.class(name, fields.clone()).await?;
    }
    // Two claims exist before the backend and must not get new volumes; one is created after the recovery.
    for claim in [&data, &grown] {
        env.objects.create(claim).await?;
    }
    let backend = env.backend(asking()).await?;
    wait_recovery_message(&env, "VolumesReadopted", &["4 recorded volumes exist, 4 recreated"]).await?;
    env.objects.wait_event(&backend, "VolumesReadopted", TIMEOUT).await?;
    done(&env, READOPT_ALL).await?;
    env.objects.create(&empty).await?;
    for (claim, name) in [(&data, "data"), (&grown, "grown")] {
        assert_recovered(&env, claim, &former[name]).await?;
    }
    assert_eq!(
        text(&env.bound(&empty).await?, "/metadata/name"),
        text(&former["empty"], "/metadata/name")
    );
    available(&env, &archive).await?;
    let default = env.objects.get(&namespace("default")).await?.unwrap_or_default();
    for (name, claim) in [("data", &data), ("grown", &grown), ("empty", &empty)] {
        let claim = env.objects.get(claim).await?.unwrap_or_default();
        let uid = &claim["metadata"]["uid"];
        recorded(&env, &former[name], "to belong to the claim", |record| {
            record["claim"]["uid"] == *uid
        })
        .await?;
        let handed = |volume: &Value| match &volume["metadata"]["annotations"][READOPTED] {
            Value::Null => Ok(volume.clone()),
            first => Err(format!("it is still that of {first}")),
        };
        let volume = env
            .objects
            .wait(&former[name], "to be transferred", TIMEOUT, handed)
            .await?;
        assert_eq!(
            volume["metadata"]["annotations"][NAMESPACE_UID],
            default["metadata"]["uid"]
        );
        assert_eq!(visible_fields(&volume), visible_fields(&former[name]));
    }
    // Also the claim that was bound at once, and never waited.
    for claim in [&data, &grown, &empty] {
        let reported = env
            .objects
            .wait_condition(claim, "nfs-operator.io/Provisioned", "True", None, TIMEOUT);
        reported.await?;
    }
    let nobodys = env.objects.wait(&former["kept"], "to be Released", TIMEOUT, |volume| {
        let phase = text(volume, "/status/phase");
        if phase == "Released" {
            Ok(volume.clone())
        } else {
            Err(phase.to_owned())
        }
    });
    assert_eq!(nobodys.await?["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(env.names()?, names, "no directory was made or moved");
    assert_eq!(env.volumes().await?.len(), 4);

    // The recovered volume can be used and deleted.
    env.objects.delete(&data).await?;
    env.objects.wait_gone(&former["data"], TIMEOUT).await?;
    let archive = available(&env, &crate::archives::objects::archive_of(&former["data"])).await?;
    assert_eq!(
        archive["status"]["namespaceUID"], default["metadata"]["uid"],
        "{archive}"
    );
    let path = env.data()?.join(text(&archive, "/status/directory")).join("data");
    assert_eq!(fs::read_to_string(path)?, "data");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_killed_repeatedly_during_recovery_loses_and_duplicates_no_volume() -> Test {
    const VOLUMES: usize = 40;
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let claims: Vec<Value> = (0..VOLUMES).map(|n| env.claim(&format!("data-{n}"))).collect();
    for claim in &claims {
        env.objects.create(claim).await?;
    }
    let mut former = Vec::new();
    for claim in &claims {
        let volume = env.bound(claim).await?;
        fs::write(env.directory(&volume)?.join("data"), text(claim, "/metadata/name"))?;
        former.push(volume);
    }
    let names = env.names()?;
    let mut env = rebuilt(env).await?;
    env.class("nfs", json!({})).await?;
    for claim in &claims {
        env.objects.create(claim).await?;
    }
    env.backend(asking()).await?;
    for created in [1, 10, 20, 30, VOLUMES] {
        wait::until("some volumes to be recreated", TIMEOUT, async || {
            let there = env.volumes().await.map_err(|error| error.to_string())?.len();
            if there >= created {
                Ok(())
            } else {
                Err(format!("{there} of {created}"))
            }
        })
        .await?;
        env.operator.restart().await?;
    }
    let mut uids = BTreeMap::new();
    for (claim, volume) in claims.iter().zip(&former) {
        assert_recovered(&env, claim, volume).await?;
        let claim = env.objects.get(claim).await?.unwrap_or_default();
        uids.insert(
            text(volume, "/metadata/name").to_owned(),
            claim["metadata"]["uid"].clone(),
        );
    }
    done(&env, READOPT_ALL).await?;
    assert_eq!(env.volumes().await?.len(), VOLUMES);
    assert_eq!(env.names()?, names);
    wait::until("each record to belong to its claim", TIMEOUT, async || {
        let records = env.records().map_err(|error| error.to_string())?;
        let whose: BTreeMap<String, Value> = records
            .into_iter()
            .map(|(name, record)| (name, record["claim"]["uid"].clone()))
            .collect();
        if whose == uids {
            Ok(())
        } else {
            Err(format!("{whose:?}"))
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_waits_for_the_volumes_of_a_backend_that_cannot_be_reached_although_another_could_serve_it() -> Test {
    let mut env = DedicatedCluster::start(frequent_probes()).await?;
    let mut silent = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "silent");
    // Nothing listens there.
    let spec = json!({"server": "127.0.0.1", "path": "/export", "nfs": {"port": 9}});
    merge(
        &mut silent,
        &json!({"metadata": {"annotations": {READOPT_ALL: "1"}}, "spec": spec}),
    );
    let silent = env.objects.create(&silent).await?;
    // The operator has seen it: its watches of backends and of claims are independent.
    said_of_silent(&env, &silent).await?;
    let kind = "nfs-operator.io/Provisioned";
    for name in ["first", "second"] {
        let claim = env.objects.create(&env.claim(name)).await?;
        let waits = env
            .objects
            .wait_condition(&claim, kind, "False", Some("Readopting"), TIMEOUT)
            .await?;
        assert!(text(&waits, "/message").contains("silent"), "{waits}");
        // The same holds for an operator that has just started and has scanned nothing.
        env.operator.restart().await?;
    }
    said_of_silent(&env, &silent).await?;
    assert_eq!(env.volumes().await?.len(), 0);
    let enough = json!({"metadata": {"annotations": {READOPT_ALL: Value::Null}}});
    env.objects.patch(&silent, enough).await?;
    for name in ["first", "second"] {
        env.bound(&env.claim(name)).await?;
    }
    Ok(())
}

async fn said_of_silent(env: &DedicatedCluster, backend: &Value) -> Test {
    let begins = |found: &Value| {
        let reported = condition(found, "Readopted").cloned().unwrap_or_default();
        let message = text(&reported, "/message");
        let waits = message.contains("begins once the export is confirmed");
        if waits { Ok(()) } else { Err(reported.to_string()) }
    };
    Ok(env
        .objects
        .wait(backend, "to wait for its export", TIMEOUT, begins)
        .await?)
}

/// Records of another backend name belong to that backend, not to a later one on the same export.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_was_renamed_during_the_rebuild_is_reported_and_claims_wait_for_the_missing_one() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let claim = env.claim("data");
    let volume = with_data(&env, &claim).await?;
    let env = rebuilt(env).await?;
    env.class("nfs", json!({})).await?;
    env.objects.create(&claim).await?;
    let mut renamed = asking();
    merge(&mut renamed, &json!({"metadata": {"name": "renamed"}}));
    let renamed = env.backend(renamed).await?;
    let says = |part: &'static str| {
        move |found: &Value| {
            let message = condition(found, "Readopted").cloned().unwrap_or_default();
            let reported = text(&message, "/message").contains(part);
            if reported { Ok(()) } else { Err(message.to_string()) }
        }
    };
    let missing = says("recorded for backend main, which does not exist");
    env.objects
        .wait(&renamed, "to report the missing backend", TIMEOUT, missing)
        .await?;
    let kind = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, kind, "False", Some("VolumeLeftOut"), TIMEOUT)
        .await?;
    assert_eq!(env.volumes().await?.len(), 0);
    env.backend(asking()).await?;
    assert_recovered(&env, &claim, &volume).await?;
    let all = says("0 recorded volumes exist");
    env.objects
        .wait(&renamed, "to report no missing backend", TIMEOUT, all)
        .await?;
    done(&env, READOPT_ALL).await
}
