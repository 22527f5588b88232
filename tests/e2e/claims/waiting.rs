//! Claims that wait for capacity.

use std::collections::BTreeMap;

use rig::objects::{condition, merge, reference};
use rig::{Proxy, TestEnv};
use serde_json::{Value, json};

use crate::backends::reasons::nfs_address;
use crate::support::shared::{
    Failure, TIMEOUT, Test, backend, backend_reference, bound, class, own_events, reclaim, text, wait_refused,
};

const LARGE: usize = 50;

/// Returns the status of each claim of this test that waits. The rest of a claim is also written by the control plane.
async fn statuses(env: &TestEnv) -> Result<BTreeMap<String, Value>, Failure> {
    let like = reference("v1", "PersistentVolumeClaim", Some(&env.name), "any");
    let claims = env.objects.list(&like).await?;
    let pending = claims.iter().filter(|claim| text(claim, "/status/phase") == "Pending");
    let status = |claim: &Value| (text(claim, "/metadata/name").to_owned(), claim["status"].clone());
    Ok(pending.map(status).collect())
}

/// Returns the time since which the backend is Ready.
async fn ready_since(env: &TestEnv) -> Result<String, Failure> {
    let backend = env.objects.get(&backend_reference(env, "backend")).await?;
    let backend = backend.ok_or("the backend does not exist")?;
    let ready = condition(&backend, "Ready").ok_or("the backend has no condition Ready")?;
    Ok(text(ready, "/lastTransitionTime").to_owned())
}

#[tokio::test]
async fn volumes_that_come_and_go_cause_no_write_for_claims_that_do_not_fit() -> Test {
    let env = TestEnv::new("waiting").await?;
    backend(&env, "backend", json!({"capacity": {"limit": "4Mi"}})).await?;
    let class = class(&env, "class", "backend", json!({"onDelete": "delete"})).await?;
    let (holder, holders_volume) = bound(&env, "holder", &class).await?;
    for number in 0..LARGE {
        let mut claim = env.claim(&format!("large-{number}"), &class);
        merge(
            &mut claim,
            &json!({"spec": {"resources": {"requests": {"storage": "4Mi"}}}}),
        );
        env.objects.create(&claim).await?;
    }
    for attempt in 0.. {
        for number in 0..LARGE {
            wait_refused(&env, &env.claim(&format!("large-{number}"), &class), "CapacityExceeded").await?;
        }
        let (since, before) = (ready_since(&env).await?, statuses(&env).await?);
        assert_eq!(before.len(), LARGE);
        for number in 0..5 {
            let (claim, volume) = bound(&env, &format!("small-{attempt}-{number}"), &class).await?;
            reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
        }
        let after = statuses(&env).await?;
        // Claims report that the backend does not respond, whatever comes and goes.
        if ready_since(&env).await? == since {
            assert_eq!(after, before);
            break;
        }
    }
    // Once there is room, one of them gets it.
    reclaim(&env, &holder, &holders_volume, "VolumeDeleted").await?;
    rig::wait::until("one of the large claims to be provisioned", TIMEOUT, async || {
        let waiting = statuses(&env).await.map_err(|error| error.to_string())?.len();
        if waiting == LARGE - 1 {
            return Ok(());
        }
        Err(format!("{waiting} wait"))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_created_together_with_its_backend_gets_its_volume_without_a_warning() -> Test {
    let env = TestEnv::new("together").await?;
    let class = class(&env, "class", "backend", json!({})).await?;
    // Whether a claim meets the backend before its first probe is a matter of milliseconds.
    for number in 0..10 {
        let backend = env.objects.create(&env.backend("backend", json!({}))).await?;
        let claim = env
            .objects
            .create(&env.claim(&format!("data-{number}"), &class))
            .await?;
        let volume = env.wait_bound(&claim).await?;
        for event in own_events(&env.objects, &claim).await? {
            assert_eq!(text(&event, "/type"), "Normal", "{event}");
        }
        reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
        env.objects.delete(&backend).await?;
        env.objects.wait_gone(&backend, TIMEOUT).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_waits_for_a_slow_first_probe_says_so_without_a_warning() -> Test {
    let env = TestEnv::new("slow-probe").await?;
    let slow = Proxy::start(nfs_address(&env)).await?;
    slow.hang(true);
    let backend = env.backend("backend", json!({"nfs": {"port": slow.port()}}));
    env.objects.create(&backend).await?;
    let class = class(&env, "class", "backend", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    wait_refused(&env, &claim, "NotProbed").await?;
    let event = env.objects.wait_event(&claim, "NotProbed", TIMEOUT).await?;
    assert_eq!(text(&event, "/type"), "Normal", "{event}");

    slow.hang(false);
    env.wait_bound(&claim).await?;
    Ok(())
}
