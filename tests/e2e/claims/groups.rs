//! A group for each volume, which the pods that mount it get, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rig::TestEnv;
use rig::objects::{condition, reference};
use serde_json::{Value, json};

use crate::archives::restore::asking;
use crate::backends::reasons::{PROVISIONED, wait_reason};
use crate::faults::outages::claims_of;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, TIMEOUT, Test, text};

fn group_of(volume: &Value) -> u32 {
    let annotation = text(volume, "/metadata/annotations/pv.beta.kubernetes.io~1gid");
    annotation.parse().expect("a number")
}

fn range(min: u32, max: u32) -> Value {
    json!({"directory": {"gidRange": {"min": min, "max": max}}, "archivePolicy": {"onDelete": "Delete"}})
}

#[tokio::test]
async fn each_of_many_claims_gets_a_group_of_its_own_and_one_more_waits_for_a_free_one() -> Test {
    let env = TestEnv::new("groups").await?;
    shared::backend(&env, "backend", range(20000, 20019)).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let claims = claims_of(&env, &class, "own", 20).await?;
    let mut groups = BTreeSet::new();
    for claim in &claims {
        let volume = env.wait_bound(claim).await?;
        let directory = fs::metadata(env.directory(&volume)?)?;
        assert_eq!(directory.mode() & 0o7777, 0o2770);
        assert_eq!(directory.gid(), group_of(&volume));
        groups.insert(group_of(&volume));
    }
    assert_eq!(groups, (20000..20020).collect());

    let late = env.objects.create(&env.claim("late", &class)).await?;
    let waiting = wait_reason(&env, &late, PROVISIONED, &["GroupsExhausted"]).await?;
    let message = waiting["message"].as_str().unwrap_or_default();
    assert!(message.contains("gidRange 20000-20019"), "{message}");
    let given_up = claims.first().expect("a claim");
    let freed = group_of(&env.wait_bound(given_up).await?);
    env.objects.delete(given_up).await?;
    let volume = env.wait_bound(&late).await?;
    assert_eq!(group_of(&volume), freed);
    assert_eq!(fs::metadata(env.directory(&volume)?)?.gid(), freed);
    Ok(())
}

#[tokio::test]
async fn a_wider_range_serves_the_claims_that_wait_for_a_group() -> Test {
    let env = TestEnv::new("group-wider").await?;
    let backend = shared::backend(&env, "backend", range(20000, 20000)).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    shared::bound(&env, "first", &class).await?;
    let waiting = env.objects.create(&env.claim("second", &class)).await?;
    wait_reason(&env, &waiting, PROVISIONED, &["GroupsExhausted"]).await?;
    env.objects
        .patch(&backend, json!({"spec": range(20000, 20001)}))
        .await?;
    let volume = env.wait_bound(&waiting).await?;
    assert_eq!(group_of(&volume), 20001);
    Ok(())
}

#[tokio::test]
async fn an_archive_keeps_its_group_and_the_claim_that_restores_it_gets_it() -> Test {
    let env = TestEnv::new("group-archive").await?;
    let spec = json!({"directory": {"gidRange": {"min": 20000, "max": 20001}}});
    shared::backend(&env, "backend", spec).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "precious").await?;
    let group = group_of(&volume);
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let (_, other) = shared::bound(&env, "other", &class).await?;
    assert_ne!(group_of(&other), group, "the archive has it");
    let late = env.objects.create(&env.claim("late", &class)).await?;
    wait_reason(&env, &late, PROVISIONED, &["GroupsExhausted"]).await?;

    let again = asking(env.claim("again", &class), text(&volume, "/metadata/name"));
    let again = env.objects.create(&again).await?;
    let restored = env.wait_bound(&again).await?;
    assert_eq!(group_of(&restored), group);
    let directory = fs::metadata(env.directory(&restored)?)?;
    assert_eq!((directory.mode() & 0o7777, directory.gid()), (0o2770, group));
    Ok(())
}

#[tokio::test]
async fn neither_class_nor_claim_chooses_a_group_of_a_backend_with_a_range() -> Test {
    let env = TestEnv::new("group-chosen").await?;
    let mut spec = range(20000, 20009);
    rig::objects::merge(&mut spec, &json!({"claimOverrides": ["GID"]}));
    shared::backend(&env, "backend", spec).await?;
    let chosen = shared::class(&env, "chosen", "backend", json!({"gid": "20000"})).await?;
    let claim = env.objects.create(&env.claim("by-class", &chosen)).await?;
    shared::wait_refused(&env, &claim, "InvalidParameter").await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let mut claim = env.claim("by-claim", &class);
    let annotations = json!({"nfs-operator.io/gid": "20000"});
    rig::objects::merge(&mut claim, &json!({"metadata": {"annotations": annotations}}));
    let claim = env.objects.create(&claim).await?;
    shared::wait_refused(&env, &claim, "OverrideRefused").await?;
    for (directory, word) in [
        (
            json!({"gid": 5, "gidRange": {"min": 1, "max": 2}}),
            "exclude each other",
        ),
        (json!({"gidRange": {"min": 3, "max": 2}}), "must not be greater"),
        (json!({"gidRange": {"min": 0, "max": 2}}), "greater than or equal to 1"),
    ] {
        let backend = env.backend("invalid", json!({"directory": directory}));
        let refused = env.objects.create(&backend).await.unwrap_err().to_string();
        assert!(refused.contains(word), "{refused}");
    }
    Ok(())
}

#[tokio::test]
async fn a_restarted_operator_gives_no_group_to_a_second_volume() -> Test {
    let mut env = DedicatedCluster::start(range(20000, 20003)).await?;
    let names = ["a", "b"];
    for name in names {
        env.objects.create(&env.claim(name)).await?;
    }
    for name in names {
        env.bound(&env.claim(name)).await?;
    }
    env.operator.kill9().await?;
    env.operator.restart().await?;
    for name in ["c", "d", "e"] {
        env.objects.create(&env.claim(name)).await?;
    }
    let claim = |name: &str| reference("v1", "PersistentVolumeClaim", Some("default"), name);
    let settled = || async {
        let mut waiting = Vec::new();
        for name in ["c", "d", "e"] {
            let found = env.objects.get(&claim(name)).await.map_err(|error| error.to_string())?;
            let found = found.ok_or("no claim")?;
            if found.pointer("/status/phase") != Some(&json!("Bound")) {
                let reason = condition(&found, PROVISIONED).map(|condition| condition["reason"].clone());
                waiting.push(reason.unwrap_or_default());
            }
        }
        match waiting.as_slice() {
            [only] if *only == "GroupsExhausted" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    rig::wait::until("two more claims to be bound and one to wait", TIMEOUT, settled).await?;
    let volumes = env
        .objects
        .list(&reference("v1", "PersistentVolume", None, "any"))
        .await?;
    let groups: BTreeSet<u32> = volumes.iter().map(group_of).collect();
    assert_eq!((volumes.len(), groups), (4, (20000..20004).collect()));
    Ok(())
}
