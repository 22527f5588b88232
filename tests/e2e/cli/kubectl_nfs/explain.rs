//! `kubectl nfs explain`: the verdict on each backend is that of the operator.

use rig::TestEnv;
use rig::objects::merge;
use serde_json::{Value, json as object};

use super::{OPERATOR_NAMESPACE, fine, json, refused};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Test, wait_refused};

/// Returns the verdict on a backend.
fn verdict<'a>(found: &'a Value, backend: &str) -> &'a Value {
    let mut backends = found["backends"].as_array().unwrap().iter();
    let verdict = backends.find(|verdict| verdict["backend"] == backend);
    verdict.unwrap_or_else(|| panic!("{backend}: {found:#}"))
}

#[tokio::test]
async fn a_waiting_claim_is_explained_backend_by_backend_and_a_bound_one_by_its_volume() -> Test {
    let env = TestEnv::new("explain").await?;
    shared::backend(&env, "elsewhere", object!({})).await?;
    shared::backend(
        &env,
        "foreign",
        object!({"allowedNamespaces": {"matchNames": ["another"]}}),
    )
    .await?;
    shared::backend(&env, "small", object!({"capacity": {"limit": "1Ki"}})).await?;
    let suspended = env
        .objects
        .create(&env.backend("suspended", object!({"suspend": true})))
        .await?;
    env.objects
        .wait_condition(&suspended, "Ready", "False", Some("Suspended"), shared::TIMEOUT)
        .await?;
    let names = ["foreign", "small", "suspended", "missing"].map(|word| env.unique_name(word));
    let class = env
        .objects
        .create(&env.class("class", object!({"backend": names.join(",")})))
        .await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let condition = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, condition, "False", None, shared::TIMEOUT)
        .await?;
    let arguments = ["explain", "pvc/data", "-n", &env.name];
    let (code, found) = json(&env.rig.cluster, &arguments).await;
    assert_eq!(code, Some(1), "{found:#}");
    for (word, reason) in [
        ("elsewhere", "NotPermittedByClass"),
        ("foreign", "NamespaceNotAllowed"),
        ("small", "CapacityExceeded"),
        ("suspended", "Suspended"),
        ("missing", "BackendNotFound"),
    ] {
        let verdict = verdict(&found, &env.unique_name(word));
        assert_eq!(
            (&verdict["serves"], &verdict["reason"]),
            (&object!(false), &object!(reason)),
            "{found:#}"
        );
        assert!(!verdict["message"].as_str().unwrap().is_empty(), "{verdict:#}");
    }

    env.objects
        .patch(&suspended, object!({"spec": {"suspend": false}}))
        .await?;
    env.wait_bound(&claim).await?;
    let (code, found) = json(&env.rig.cluster, &arguments).await;
    assert_eq!(code, Some(0), "{found:#}");
    assert_eq!(found["volume"]["backend"], env.unique_name("suspended"), "{found:#}");
    assert!(
        found["volume"]["onDelete"].as_str().unwrap().starts_with("archive"),
        "{found:#}"
    );
    let table = fine(&env.rig.cluster, &arguments).await;
    assert!(table.contains("Provisioned") && table.contains("on delete"), "{table}");
    Ok(())
}

#[tokio::test]
async fn provisioner_names_are_those_of_the_deployment_of_the_operator() -> Test {
    let interval = object!({"probeInterval": "1s"});
    let env = DedicatedCluster::start_with_args(interval, &["--provisioner-name=example.com/renamed"]).await?;
    fine(&env.cluster, &["suspend", "main"]).await;
    let class = env
        .class("renamed", object!({"provisioner": "example.com/renamed"}))
        .await?;
    let mut claim = env.claim("data");
    claim["spec"]["storageClassName"] = class["metadata"]["name"].clone();
    let claim = env.objects.create(&claim).await?;
    let condition = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, condition, "False", Some("Suspended"), shared::TIMEOUT)
        .await?;
    let explained = async || json(&env.cluster, &["explain", "pvc/data"]).await.1;
    let unknown = explained().await;
    let obstacle = unknown["obstacle"].as_str().unwrap_or_default();
    assert!(obstacle.contains("example.com/renamed"), "{unknown:#}");
    // Whatever the chart calls it.
    let mut operator = object!({"apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"namespace": "default", "name": "renamed", "labels": {"nfs-operator.io/component": "operator"}},
    "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": {
        "metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{
            "name": "operator", "image": "none", "args": ["run", "--provisioner-name=example.com/renamed"],
        }]}}}});
    env.objects.create(&operator).await?;
    // Anybody's Deployment can have the label.
    assert_eq!(explained().await["obstacle"], obstacle);
    operator["metadata"]["namespace"] = object!(OPERATOR_NAMESPACE);
    env.objects.create(&operator).await?;
    let found = explained().await;
    assert_eq!(verdict(&found, "main")["reason"], "Suspended", "{found:#}");
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_not_placed_at_all_is_explained_by_its_obstacle() -> Test {
    let env = TestEnv::new("explain-never").await?;
    shared::backend(&env, "backend", object!({})).await?;
    let mut late = env.class("late", object!({"backend": env.unique_name("backend")}));
    merge(&mut late, &object!({"volumeBindingMode": "WaitForFirstConsumer"}));
    let late = env.objects.create(&late).await?;
    let invalid = shared::class(&env, "invalid", "backend", object!({"mod": "0755"})).await?;
    let mut other = env.class("other", object!({}));
    merge(&mut other, &object!({"provisioner": "example.com/other"}));
    let other = env.objects.create(&other).await?;
    let explained = async |name: &str| {
        let (code, found) = json(&env.rig.cluster, &["explain", name, "-n", &env.name]).await;
        assert_eq!(code, Some(1), "{found:#}");
        found["obstacle"].as_str().unwrap_or_default().to_owned()
    };
    env.objects.create(&env.claim("late", &late)).await?;
    let claim = env.objects.create(&env.claim("invalid", &invalid)).await?;
    env.objects.create(&env.claim("other", &other)).await?;
    wait_refused(&env, &claim, "InvalidParameter").await?;
    let obstacle = explained("pvc/invalid").await;
    assert!(
        obstacle.contains("InvalidParameter") && obstacle.contains("mod"),
        "{obstacle}"
    );
    let obstacle = rig::wait::until("the claim to be requested", shared::TIMEOUT, async || {
        let obstacle = explained("late").await;
        if obstacle.contains("WaitForFirstConsumer") {
            Ok(obstacle)
        } else {
            Err(obstacle)
        }
    });
    obstacle.await?;
    let obstacle = explained("other").await;
    assert!(
        obstacle.contains("example.com/other") || obstacle.contains("not requested"),
        "{obstacle}"
    );
    let missing = refused(&env.rig.cluster, 1, &["explain", "pvc/none", "-n", &env.name]).await;
    assert!(
        missing.contains("does not exist") && missing.contains("-n"),
        "{missing}"
    );
    let invalid = refused(&env.rig.cluster, 2, &["explain", "pvc/a?limit=1"]).await;
    assert!(invalid.contains("not a valid name"), "{invalid}");
    Ok(())
}
