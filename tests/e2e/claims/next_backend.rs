//! When a claim moves to another backend, and when it stays.

use std::net::SocketAddr;

use rig::objects::{condition, merge, reference};
use rig::proxy::has_bytes;
use rig::{Action, Proxy, Squash, TestEnv};
use serde_json::{Value, json};

use crate::faults::outages::claims_of;
use crate::ha::crashes::making_of;
use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn claims_move_to_the_next_backend_at_once_if_the_first_one_refuses_definitely() -> Test {
    let squashed = TestEnv::with_export("refusing", |export| export.squash(Squash::Root)).await?;
    std::os::unix::fs::chown(squashed.data(), Some(65534), Some(65534))?;
    let willing = TestEnv::new("willing").await?;
    // A claim that one backend refuses fails if the probe of the other one is late.
    for env in [&squashed, &willing] {
        shared::backend(env, "backend", json!({"probeInterval": "10s"})).await?;
    }
    let both = [squashed.unique_name("backend"), willing.unique_name("backend")].join(",");
    let class = squashed.class("class", json!({"backend": both, "uid": "1234"}));
    let class = squashed.objects.create(&class).await?;
    let claims = claims_of(&squashed, &class, "data", 6).await?;
    for claim in &claims {
        let volume = squashed.wait_bound(claim).await?;
        assert!(
            text(&volume, "/spec/nfs/path").starts_with(&willing.export()),
            "{volume}"
        );
        let events = squashed.objects.events(claim).await?;
        let refused = |event: &&Value| text(event, "/note").contains("RootSquashed");
        assert_eq!(
            events.iter().find(refused),
            None,
            "no failure was reported, and nothing was delayed"
        );
        let placed = squashed.objects.get(claim).await?.unwrap_or_default();
        let placed_on = text(&placed, "/metadata/annotations/nfs-operator.io~1placed-on");
        assert_eq!(placed_on, willing.unique_name("backend"), "there was a choice");
    }
    assert_eq!(shared::names(squashed.data())?, Vec::<String>::new());
    assert_eq!(shared::names(willing.data())?.len(), 6);
    Ok(())
}

#[tokio::test]
async fn a_claim_whose_directory_may_exist_is_not_moved_to_another_backend() -> Test {
    let first = TestEnv::new("unknown").await?;
    let second = TestEnv::new("second").await?;
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], first.nfs_port()))).await?;
    shared::backend(&first, "backend", json!({"nfs": {"port": proxy.port()}})).await?;
    let waiting = second
        .objects
        .create(&second.backend("backend", json!({"suspend": true})))
        .await?;
    let both = [first.unique_name("backend"), second.unique_name("backend")].join(",");
    let class = first
        .objects
        .create(&first.class("class", json!({"backend": both})))
        .await?;
    let mut claim = first.claim("data", &class);
    merge(&mut claim, &json!({"metadata": {"name": "lost-reply"}}));
    let making = making_of(&format!("{}-lost-reply-pvc-", first.name), 36);
    let mut lost = proxy.lose_reply(Action::Drop, move |request| has_bytes(request, &making));
    let claim = first.objects.create(&claim).await?;
    lost.wait(TIMEOUT).await?;
    proxy.hang(true);
    // The reply never arrives. Meanwhile, the other backend becomes available and serves other claims.
    first
        .objects
        .wait(&claim, "to report that it is not served", TIMEOUT, |claim| {
            condition(claim, "nfs-operator.io/Provisioned").map_or(Err("nothing".to_owned()), |_| Ok(()))
        })
        .await?;
    second
        .objects
        .patch(&waiting, json!({"spec": {"suspend": false}}))
        .await?;
    second
        .objects
        .wait_condition(&waiting, "Ready", "True", None, TIMEOUT)
        .await?;
    let free = shared::class(&second, "class", "backend", json!({})).await?;
    shared::bound(&second, "free", &free).await?;
    let volume = format!("pvc-{}", text(&claim, "/metadata/uid"));
    let volume = first
        .objects
        .get(&reference("v1", "PersistentVolume", None, &volume))
        .await?;
    assert_eq!(volume, None, "moved although nobody knows what the first backend has");
    proxy.clear_hooks();
    proxy.hang(false);
    let volume = first.wait_bound(&claim).await?;
    // An attempt that began before the first backend was ready removes what it has, and then moves.
    let has_moved = !text(&volume, "/spec/nfs/path").starts_with(&first.export());
    assert_eq!(shared::names(first.data())?.len(), usize::from(!has_moved));
    assert_eq!(shared::names(second.data())?.len(), 1 + usize::from(has_moved));
    Ok(())
}

#[tokio::test]
async fn a_claim_that_can_never_be_served_is_checked_again_when_its_class_is_recreated() -> Test {
    let env = TestEnv::new("anew").await?;
    let class = env.create_ready_class().await?;
    let typo = env.class(
        "typo",
        json!({"backend": env.unique_name("backend"), "onDelte": "archive"}),
    );
    let broken = env.objects.create(&typo).await?;
    let claim = env.objects.create(&env.claim("data", &broken)).await?;
    let message = shared::wait_refused(&env, &claim, "InvalidParameter").await?;
    assert!(message.contains("onDelte"), "{message}");
    env.objects.delete(&broken).await?;
    shared::wait_refused(&env, &claim, "StorageClassNotFound").await?;
    let mut right = class.clone();
    merge(
        &mut right,
        &json!({"metadata": {"name": env.unique_name("typo"), "uid": null, "resourceVersion": null}}),
    );
    env.objects.create(&right).await?;
    env.wait_bound(&claim).await?;
    Ok(())
}
