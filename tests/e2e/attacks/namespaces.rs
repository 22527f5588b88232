//! Two attackers in namespaces of their own, who request and delete everything at the same time.

use std::collections::{HashMap, HashSet};

use rig::Objects;
use rig::objects::merge;
use serde_json::{Value, json};

use super::attacked_cluster::{
    ATTACKED, ATTACKER, AttackedCluster, BYSTANDER, Bounds, STORAGE_PROVISIONER, TIMEOUT, claim, create_attacker,
};
use crate::support::audit;
use crate::support::shared::{Failure, Test, text};

const SECOND_ATTACKER: &str = "attacker-2";
/// Claims of each attacker, and of the other tenant.
const MANY: usize = 80;
const FEW: usize = 10;
/// Concurrent claims, and concurrent reclaims, of a backend.
const SLOTS: usize = 4;
/// Maximum number of objects that are served until all of the other tenant are, if three namespaces take turns. The
/// objects that get the first slots have no turns yet. In the order in which a controller gets them, it would be almost
/// all.
const MAX_SERVED: usize = 3 * FEW + 4 * SLOTS;

/// Creates claims as the binder leaves them.
async fn create(objects: &Objects, namespace: &str, count: usize) -> Result<Vec<Value>, Failure> {
    let mut created = Vec::new();
    for number in 0..count {
        let mut claim = claim(namespace, &format!("turns-{number}"), ATTACKED, "1Mi");
        let annotations = json!({STORAGE_PROVISIONER: "nfs-operator.io/nfs"});
        merge(&mut claim, &json!({"metadata": {"annotations": annotations}}));
        created.push(objects.create(&claim).await?);
    }
    Ok(created)
}

/// Returns how many objects had their turn until the last one of the other tenant, after the first `since` requests.
/// `turn` returns the object and its namespace for the first request to the API server that is sent once it has a slot: how
/// long the rest takes depends on the machine.
fn served_until_last_of_bystander(
    env: &AttackedCluster,
    since: usize,
    turn: impl Fn(&Value) -> Option<(String, String)>,
) -> Result<usize, Failure> {
    let (mut order, mut served) = (Vec::new(), HashSet::new());
    let requests = audit::requests(&env.cluster.audit_log())?;
    for (object, namespace) in requests.iter().skip(since).filter_map(turn) {
        if served.insert(object) {
            order.push(namespace);
        }
    }
    let count = order.iter().filter(|namespace| *namespace == BYSTANDER).count();
    assert_eq!(count, FEW, "objects of the other tenant");
    let last = order.iter().rposition(|namespace| namespace == BYSTANDER);
    Ok(last.map_or(0, |position| position + 1))
}

/// Returns the number of requests so far.
fn sent(env: &AttackedCluster) -> Result<usize, Failure> {
    Ok(audit::requests(&env.cluster.audit_log())?.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_namespaces_take_turns_on_one_backend() -> Test {
    let slots = SLOTS.to_string();
    let mut env = AttackedCluster::start_with(json!({}), &["--concurrency", &slots]).await?;
    let second = create_attacker(&env.cluster, &env.objects, SECOND_ATTACKER).await?;

    // The operator finds all claims at once.
    env.operator.kill9().await?;
    let mut claims = create(&env.attacker, ATTACKER, MANY).await?;
    claims.extend(create(&second, SECOND_ATTACKER, MANY).await?);
    claims.extend(create(&env.objects, BYSTANDER, FEW).await?);
    let namespaces = claims.iter().map(|claim| {
        let volume = format!("pvc-{}", text(claim, "/metadata/uid"));
        (volume, text(claim, "/metadata/namespace").to_owned())
    });
    let namespaces: HashMap<String, String> = namespaces.collect();
    let before = sent(&env)?;
    env.restart().await?;
    let bounds = Bounds {
        count: claims.len(),
        requests: 12,
        log_bytes: 2048,
        cpu_milliseconds: 100,
    };
    let mut volumes = Vec::new();
    env.attack("claims of two attackers", bounds, async {
        for claim in &claims {
            volumes.push(env.bound(claim).await?);
        }
        Ok(())
    })
    .await?;
    let turn = |verb: &'static str| {
        let namespaces = &namespaces;
        move |request: &Value| {
            let is_turn = (text(request, "/verb"), text(request, "/objectRef/resource")) == (verb, "persistentvolumes");
            let volume = text(request, "/objectRef/name");
            let namespace = namespaces.get(volume).filter(|_| is_turn)?;
            Some((volume.to_owned(), namespace.clone()))
        }
    };
    let created = served_until_last_of_bystander(&env, before, turn("create"))?;
    println!(
        "{created} of {} claims had their turn until the last of the other tenant",
        claims.len()
    );
    assert!(created <= MAX_SERVED, "{created}");

    env.operator.kill9().await?;
    for claim in &claims {
        let deleted_by = match text(claim, "/metadata/namespace") {
            ATTACKER => &env.attacker,
            SECOND_ATTACKER => &second,
            _ => &env.objects,
        };
        deleted_by.delete(claim).await?;
    }
    for volume in &volumes {
        let released = |volume: &Value| match text(volume, "/status/phase") {
            "Released" => Ok(()),
            other => Err(other.to_owned()),
        };
        env.objects.wait(volume, "to be Released", TIMEOUT, released).await?;
    }
    let before = sent(&env)?;
    env.restart().await?;
    let bounds = Bounds {
        count: claims.len(),
        requests: 12,
        log_bytes: 4096,
        cpu_milliseconds: 200,
    };
    env.attack(
        "deletions of two attackers",
        bounds,
        env.wait_purged(ATTACKED, &volumes),
    )
    .await?;
    // A volume is read before its reclaim.
    let deleted = served_until_last_of_bystander(&env, before, turn("get"))?;
    println!(
        "{deleted} of {} volumes had their turn until the last of the other tenant",
        claims.len()
    );
    assert!(deleted <= MAX_SERVED, "{deleted}");
    Ok(())
}
