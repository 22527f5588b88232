//! Expansion of claims.

use rig::TestEnv;
use rig::objects::{condition, merge, reference};
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, TIMEOUT, Test, text};

const CLAIM_SAYS: &str = "/status/capacity/storage";
const VOLUME_HAS: &str = "/spec/capacity/storage";
const STATE: &str = "/status/allocatedResourceStatuses/storage";

async fn growing_class(env: &TestEnv, backend: &str) -> rig::Result<Value> {
    let mut class = env.class("class", json!({"backend": env.unique_name(backend)}));
    merge(&mut class, &json!({"allowVolumeExpansion": true}));
    env.objects.create(&class).await
}

async fn ask(env: &TestEnv, claim: &Value, size: &str) -> rig::Result<Value> {
    let request = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    env.objects.patch(claim, request).await
}

/// Waits until a claim reports this capacity and no pending expansion.
async fn has(env: &TestEnv, claim: &Value, size: &str) -> rig::Result<Value> {
    env.objects
        .wait(claim, "to report its size", TIMEOUT, |claim| {
            let silent = condition(claim, "ControllerResizeError").is_none() && claim.pointer(STATE).is_none();
            match text(claim, CLAIM_SAYS) {
                said if said == size && silent => Ok(claim.clone()),
                said => Err(format!("{said}, {silent}")),
            }
        })
        .await
}

/// Waits until the expansion of a claim is refused. Returns the message.
async fn refused(env: &TestEnv, claim: &Value) -> rig::Result<String> {
    env.objects
        .wait(claim, "to be refused", TIMEOUT, |claim| {
            match condition(claim, "ControllerResizeError") {
                Some(error) if text(claim, STATE) == "ControllerResizeInfeasible" => {
                    Ok(text(error, "/message").to_owned())
                }
                _ => Err("no error".to_owned()),
            }
        })
        .await
}

#[tokio::test]
async fn a_claim_that_requests_more_gets_it_on_its_volume_and_in_its_status() -> Test {
    let env = TestEnv::new("expand").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = growing_class(&env, "backend").await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    env.objects
        .wait_condition(&claim, "nfs-operator.io/Provisioned", "True", None, TIMEOUT)
        .await?;
    ask(&env, &claim, "5Mi").await?;
    let claim = has(&env, &claim, "5Mi").await?;
    let volume = env.objects.get(&volume).await?.unwrap();
    assert_eq!(text(&volume, VOLUME_HAS), "5Mi");
    assert_eq!(text(&claim, "/status/allocatedResources/storage"), "5Mi");
    assert!(
        condition(&claim, "nfs-operator.io/Provisioned").is_some(),
        "the other condition stays"
    );
    env.objects
        .wait_event(&claim, "VolumeResizeSuccessful", TIMEOUT)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_class_without_expansion_lets_no_claim_request_more() -> Test {
    let env = TestEnv::new("fixed").await?;
    let class = env.create_ready_class().await?;
    let (claim, _) = shared::bound(&env, "data", &class).await?;
    let refused = ask(&env, &claim, "5Mi").await.unwrap_err().to_string();
    assert!(refused.contains("must support resize"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn an_expansion_above_the_limit_is_refused_until_less_is_requested() -> Test {
    let env = TestEnv::new("toomuch").await?;
    shared::backend(&env, "backend", json!({"capacity": {"limit": "10Mi"}})).await?;
    let class = growing_class(&env, "backend").await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    ask(&env, &claim, "11Mi").await?;
    let message = refused(&env, &claim).await?;
    assert!(
        message.contains("more than capacity.limit 10Mi has left") && message.contains("request less"),
        "{message}"
    );
    env.objects.wait_event(&claim, "VolumeResizeFailed", TIMEOUT).await?;
    let unchanged = env.objects.get(&volume).await?.unwrap();
    assert_eq!(text(&unchanged, VOLUME_HAS), "1Mi");
    // A refused expansion reserves nothing; another claim can use the rest.
    shared::bound(&env, "other", &class).await?;
    // The API server accepts a smaller request if it is above the capacity of the claim.
    ask(&env, &claim, "1025Ki").await?;
    has(&env, &claim, "1025Ki").await?;
    // Everything that fits is granted, to the last byte.
    ask(&env, &claim, "9Mi").await?;
    has(&env, &claim, "9Mi").await?;
    let late = env.objects.create(&env.claim("late", &class)).await?;
    shared::wait_refused(&env, &late, "CapacityExceeded").await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_expansion_succeeds_when_the_limit_is_raised_or_another_claim_is_deleted() -> Test {
    let env = TestEnv::new("raised").await?;
    let backend = shared::backend(&env, "backend", json!({"capacity": {"limit": "4Mi"}})).await?;
    let class = growing_class(&env, "backend").await?;
    let (claim, _) = shared::bound(&env, "data", &class).await?;
    let (other, _) = shared::bound(&env, "other", &class).await?;
    ask(&env, &claim, "4Mi").await?;
    refused(&env, &claim).await?;
    env.objects.delete(&other).await?;
    has(&env, &claim, "4Mi").await?;
    ask(&env, &claim, "6Mi").await?;
    refused(&env, &claim).await?;
    let raise = json!({"spec": {"capacity": {"limit": "6Mi"}}});
    env.objects.patch(&backend, raise).await?;
    has(&env, &claim, "6Mi").await?;
    Ok(())
}

#[tokio::test]
async fn expansions_that_race_for_a_limit_never_exceed_it() -> Test {
    let env = TestEnv::new("grow-race").await?;
    shared::backend(&env, "backend", json!({"capacity": {"limit": "30Mi"}})).await?;
    let class = growing_class(&env, "backend").await?;
    let claims = crate::faults::outages::claims_of(&env, &class, "data", 20).await?;
    for claim in &claims {
        env.wait_bound(claim).await?;
    }
    // 20 of 30 are in use: five claims can get two more each.
    futures::future::try_join_all(claims.iter().map(|claim| ask(&env, claim, "3Mi"))).await?;
    let sizes = rig::wait::until("a result for every claim", TIMEOUT, async || {
        let mut grown = 0;
        for claim in &claims {
            let now = env.objects.get(claim).await.map_err(|error| error.to_string())?;
            let now = now.ok_or("it is gone")?;
            match (text(&now, CLAIM_SAYS), text(&now, STATE)) {
                ("3Mi", "") => grown += 1,
                ("1Mi", "ControllerResizeInfeasible") => {}
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(grown)
    })
    .await?;
    assert_eq!(sizes, 5);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_killed_between_volume_and_claim_updates_the_claim_after_its_restart() -> Test {
    let mut env = DedicatedCluster::start(json!({})).await?;
    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, "growing");
    let rest = json!({"provisioner": "nfs-operator.io/nfs", "allowVolumeExpansion": true});
    merge(&mut class, &rest);
    env.objects.create(&class).await?;
    let mut claim = env.claim("data");
    merge(&mut claim, &json!({"spec": {"storageClassName": "growing"}}));
    let claim = env.objects.create(&claim).await?;
    let volume = env.bound(&claim).await?;
    env.operator.kill9().await?;
    // The state after a crash: the volume is expanded, the claim does not show it, and the request is smaller now.
    let request = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    env.objects.patch(&claim, request("8Mi")).await?;
    let capacity = json!({"spec": {"capacity": {"storage": "8Mi"}}});
    env.objects.patch(&volume, capacity).await?;
    env.objects.patch(&claim, request("2Mi")).await?;
    env.operator.restart().await?;
    env.objects
        .wait(
            &claim,
            "to report the capacity of the volume",
            TIMEOUT,
            |claim| match text(claim, CLAIM_SAYS) {
                "8Mi" => Ok(()),
                other => Err(other.to_owned()),
            },
        )
        .await?;
    Ok(())
}
