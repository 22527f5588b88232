//! Concurrent claims and capacity limits, and suspended backends.

use std::collections::BTreeSet;

use rig::TestEnv;
use rig::objects::{condition, reference};
use serde_json::{Value, json};

use crate::backends::reasons::{PROVISIONED, SEEN, wait_reason};
use crate::faults::outages::{bound_once, claims_of};
use crate::support::shared::{self, TIMEOUT, Test};

/// Returns the Bound claims of this test, and the reasons of the others.
async fn divided(env: &TestEnv) -> rig::Result<(Vec<Value>, Vec<Value>)> {
    let like = reference("v1", "PersistentVolumeClaim", Some(&env.name), "any");
    let claims = env.objects.list(&like).await?;
    Ok(claims
        .into_iter()
        .map(with_kind)
        .partition(|claim| claim.pointer("/status/phase") == Some(&json!("Bound"))))
}

/// Fields that a list omits from its items.
fn with_kind(mut claim: Value) -> Value {
    rig::objects::merge(
        &mut claim,
        &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim"}),
    );
    claim
}

fn has_reason(claim: &Value) -> bool {
    condition(claim, PROVISIONED).is_some_and(|found| {
        let message = found["message"].as_str().unwrap_or_default();
        found["reason"] == "CapacityExceeded" && message.contains("more than capacity.limit 20Mi has left")
    })
}

/// Waits until this number of claims are Bound and every other claim has a reason. Returns both.
async fn settled(env: &TestEnv, bound: usize) -> rig::Result<(Vec<Value>, Vec<Value>)> {
    rig::wait::until("the expected result of every claim", SEEN, async || {
        let (have, wait) = divided(env).await.map_err(|error| error.to_string())?;
        if have.len() == bound && wait.iter().all(has_reason) {
            return Ok((have, wait));
        }
        let silent: Vec<_> = wait
            .iter()
            .filter(|claim| !has_reason(claim))
            .map(|claim| &claim["status"])
            .collect();
        Err(format!("{} are bound, silent are {silent:?}", have.len()))
    })
    .await
}

#[tokio::test]
async fn claims_that_race_for_a_limit_never_exceed_it_and_a_delete_admits_one_more() -> Test {
    let env = TestEnv::new("limit").await?;
    // Each claim requests 1Mi.
    let spec = json!({"capacity": {"limit": "20Mi"}});
    let backend = env.objects.create(&env.backend("backend", spec)).await?;
    env.objects
        .wait_condition(&backend, "Ready", "True", None, SEEN)
        .await?;
    let class = env
        .objects
        .create(&env.class("class", json!({"backend": env.unique_name("backend")})))
        .await?;
    claims_of(&env, &class, "racing", 50).await?;
    let (bound, _) = settled(&env, 20).await?;
    bound_once(&env, &bound).await?;

    let given_up = bound.first().unwrap();
    let volume = env.wait_bound(given_up).await?;
    env.objects.delete(given_up).await?;
    env.objects.wait_gone(&volume, SEEN).await?;
    let (now, waiting) = settled(&env, 20).await?;
    assert_eq!(waiting.len(), 29);
    let names = |claims: &[Value]| {
        claims
            .iter()
            .map(|claim| claim["metadata"]["name"].to_string())
            .collect()
    };
    let (before, after): (BTreeSet<String>, BTreeSet<String>) = (names(&bound), names(&now));
    assert_eq!(after.difference(&before).count(), 1, "one of those that waited");
    bound_once(&env, &now).await?;
    Ok(())
}

#[tokio::test]
async fn a_suspended_backend_takes_no_new_volume_and_still_reclaims() -> Test {
    let env = TestEnv::new("suspended").await?;
    let class = env.create_ready_class().await?;
    let old = env.objects.create(&env.claim("old", &class)).await?;
    let volume = env.wait_bound(&old).await?;
    std::fs::write(env.directory(&volume)?.join("data"), "kept")?;
    let backend = env.backend("backend", json!({}));
    env.objects.patch(&backend, json!({"spec": {"suspend": true}})).await?;
    wait_reason(&env, &backend, "Ready", &["Suspended"]).await?;

    let new = env.objects.create(&env.claim("new", &class)).await?;
    wait_reason(&env, &new, PROVISIONED, &["Suspended"]).await?;
    env.objects.delete(&old).await?;
    env.objects.wait_gone(&volume, SEEN).await?;
    let names: Vec<_> = std::fs::read_dir(env.data())?
        .map(|entry| entry.unwrap().file_name())
        .collect();
    let archived = names
        .iter()
        .filter(|name| name.to_string_lossy().starts_with("archived-"));
    assert_eq!(
        (archived.count(), names.len()),
        (1, 2),
        "the archive and our own folder: {names:?}"
    );

    env.objects.patch(&backend, json!({"spec": {"suspend": false}})).await?;
    env.wait_bound(&new).await?;
    Ok(())
}

#[tokio::test]
async fn the_number_of_volumes_is_reported_within_seconds_although_the_next_probe_is_due_in_an_hour() -> Test {
    let env = TestEnv::new("number").await?;
    let spec = json!({"probeInterval": "1h"});
    let backend = shared::backend(&env, "backend", spec).await?;
    let class = shared::class(&env, "class", "backend", json!({"onDelete": "delete"})).await?;
    let mut bound = Vec::new();
    for number in 0..3 {
        bound.push(shared::bound(&env, &format!("data-{number}"), &class).await?);
    }
    let reports = |volumes: i64| {
        let is_reported = move |found: &Value| match found.pointer("/status/volumes").and_then(Value::as_i64) {
            Some(reported) if reported == volumes => Ok(()),
            reported => Err(format!("{reported:?} volumes are reported instead of {volumes}")),
        };
        env.objects
            .wait(&backend, "to report its volumes", TIMEOUT, is_reported)
    };
    reports(3).await?;
    for (claim, volume) in &bound {
        env.objects.delete(claim).await?;
        env.objects.wait_gone(volume, TIMEOUT).await?;
    }
    reports(0).await?;
    Ok(())
}
