//! Claims on backends with enforced sizes.

use std::time::Duration;

use export_store::quota::AgentProblem;
use rig::objects::{condition, merge, reference};
use rig::{TestEnv, wait};
use serde_json::{Value, json};

use super::agent::{Answer, ScriptedAgent};
use super::wait_no_condition;
use crate::support::shared::{self, Failure, TIMEOUT, Test, backend_reference, text};

const SIZE_ENFORCED: &str = "nfs-operator.io/SizeEnforced";

/// Creates a backend with these settings, and a class whose claims can grow. Does not wait for the backend.
async fn class_with_quota(env: &TestEnv, quota: Value) -> Result<Value, Failure> {
    env.objects
        .create(&env.backend("main", json!({"quota": quota})))
        .await?;
    let mut class = env.class("class", json!({"backend": env.unique_name("main")}));
    merge(&mut class, &json!({"allowVolumeExpansion": true}));
    Ok(env.objects.create(&class).await?)
}

fn volume_of(claim: &Value) -> String {
    format!("pvc-{}", text(claim, "/metadata/uid"))
}

async fn wait_backend(env: &TestEnv, kind: &str, status: &str, reason: Option<&str>) -> rig::Result<Value> {
    let backend = backend_reference(env, "main");
    env.objects
        .wait_condition(&backend, kind, status, reason, TIMEOUT)
        .await
}

async fn wait_enforced(env: &TestEnv, claim: &Value, status: &str, reason: &str) -> rig::Result<Value> {
    env.objects
        .wait_condition(claim, SIZE_ENFORCED, status, Some(reason), TIMEOUT)
        .await
}

async fn ask(env: &TestEnv, claim: &Value, size: &str) -> rig::Result<Value> {
    let request = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    env.objects.patch(claim, request).await
}

async fn exists(env: &TestEnv, volume: &str) -> rig::Result<bool> {
    let volume = reference("v1", "PersistentVolume", None, volume);
    Ok(env.objects.get(&volume).await?.is_some())
}

#[tokio::test]
async fn with_required_a_claim_waits_for_the_agent_and_for_its_limit() -> Test {
    let env = TestEnv::new("quotareq").await?;
    let class = class_with_quota(&env, json!({"enforce": "Required", "inodes": 1000})).await?;
    let missing = wait_backend(&env, "QuotasEnforced", "False", Some("QuotaAgentMissing")).await?;
    assert!(text(&missing, "/message").contains("quota-agent"), "{missing}");
    wait_backend(&env, "Ready", "False", Some("QuotaAgentMissing")).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "QuotaAgentMissing").await?;
    assert!(message.contains("no quota agent"), "{message}");

    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::Nothing).await?;
    wait_backend(&env, "Ready", "True", None).await?;
    let volume = volume_of(&claim);
    let order = agent.wait_order(&volume, |_| true).await?;
    assert_eq!((order.bytes, order.inodes), (Some(1 << 20), Some(1000)));
    let message = shared::wait_refused(&env, &claim, "LimitPending").await?;
    assert!(message.contains("was ordered"), "{message}");
    for answer in [Answer::Forged, Answer::OtherGeneration, Answer::OtherDirectory] {
        agent.answer(answer);
        agent.wait_report(&volume).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!exists(&env, &volume).await?, "{answer:?} is believed");
    }
    agent.answer(Answer::Failed);
    let message = shared::wait_refused(&env, &claim, "LimitFailed").await?;
    assert!(message.contains("no project ID is free"), "{message}");
    assert!(!exists(&env, &volume).await?);
    agent.answer(Answer::InForce);
    let bound = env.wait_bound(&claim).await?;
    let directory = env.directory(&bound)?;
    let file_id = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&directory)?);
    assert_eq!(agent.order(&volume).map(|order| order.file_id), Some(file_id));
    assert!(directory.ends_with(order.directory.to_string()), "{order:?}");
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;

    drop(agent);
    wait_backend(&env, "QuotasEnforced", "False", Some("QuotaAgentNotResponding")).await?;
    let late = env.objects.create(&env.claim("late", &class)).await?;
    shared::wait_refused(&env, &late, "QuotaAgentNotResponding").await?;
    let claim = env.objects.get(&claim).await?.unwrap();
    assert_eq!(text(&claim, "/status/phase"), "Bound");
    let enforced = condition(&claim, SIZE_ENFORCED).unwrap();
    assert_eq!(
        text(enforced, "/status"),
        "True",
        "its limit is in force without the agent"
    );
    let _agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    env.wait_bound(&late).await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_whose_limit_is_not_in_force_is_provisioned_by_the_next_operator() -> Test {
    let env = crate::support::dedicated_cluster::DedicatedCluster::start(json!({})).await?;
    let main = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let quota = json!({"spec": {"quota": {"enforce": "Required"}}});
    env.objects.patch(&main, quota).await?;
    let agent = ScriptedAgent::start(&env.objects, &env.data()?, Answer::Nothing).await?;
    env.objects
        .wait_condition(&main, "QuotasEnforced", "True", None, TIMEOUT)
        .await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let order = agent.wait_order(&volume_of(&claim), |_| true).await?;
    env.operator.kill9().await?;
    agent.answer(Answer::InForce);
    let _next = env.start_operator(&[]).await?;
    let volume = env.bound(&claim).await?;
    // Until the next operator has seen that the agent runs, it may give up the empty directory, and order another one.
    let last = agent.order(&volume_of(&claim)).unwrap();
    assert!(last.generation >= order.generation, "{last:?}");
    let directory = env.directory(&volume)?;
    let file_id = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&directory)?);
    assert_eq!(last.file_id, file_id);
    wait::until("one directory", TIMEOUT, async || {
        let names = env.data().and_then(|data| Ok(shared::names(&data)?));
        match names.map_err(|error| error.to_string())? {
            one if one.len() == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn with_preferred_a_claim_gets_its_volume_at_once_and_reports_its_limit_later() -> Test {
    let env = TestEnv::new("quotapref").await?;
    let class = class_with_quota(&env, json!({"enforce": "Preferred"})).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    let pending = |claim: &Value| {
        let reported = condition(claim, SIZE_ENFORCED).cloned().unwrap_or_default();
        let names_the_cause = text(&reported, "/message").contains("QuotaAgentMissing");
        match text(&reported, "/reason") == "LimitPending" && names_the_cause {
            true => Ok(()),
            false => Err(reported.to_string()),
        }
    };
    env.objects
        .wait(&claim, "to name the missing agent", TIMEOUT, pending)
        .await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::Failed).await?;
    wait_enforced(&env, &claim, "False", "LimitFailed").await?;
    env.objects.wait_event(&claim, "LimitFailed", TIMEOUT).await?;
    agent.answer(Answer::InForce);
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;
    let name = text(&volume, "/metadata/name");
    assert_eq!(agent.order(name).and_then(|order| order.inodes), None);
    Ok(())
}

#[tokio::test]
async fn an_expansion_is_complete_once_the_new_limit_is_in_force() -> Test {
    let env = TestEnv::new("quotagrow").await?;
    let class = class_with_quota(&env, json!({"enforce": "Required"})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    let name = text(&volume, "/metadata/name").to_owned();
    let first = agent.order(&name).unwrap();
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;

    agent.answer(Answer::Failed);
    ask(&env, &claim, "9Mi").await?;
    let grown = agent.wait_order(&name, |order| order.bytes == Some(9 << 20)).await?;
    assert!(grown.generation > first.generation);
    let refused = |claim: &Value| match condition(claim, "ControllerResizeError") {
        Some(error) if text(error, "/reason") == "LimitFailed" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    env.objects.wait(&claim, "to be refused", TIMEOUT, refused).await?;
    let unchanged = env.objects.get(&volume).await?.unwrap();
    assert_eq!(text(&unchanged, "/spec/capacity/storage"), "1Mi");

    // A smaller request takes the limit back.
    ask(&env, &claim, "2Mi").await?;
    let shrunk = agent.wait_order(&name, |order| order.bytes == Some(2 << 20)).await?;
    assert!(shrunk.generation > grown.generation);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let unchanged = env.objects.get(&volume).await?.unwrap();
    assert_eq!(
        text(&unchanged, "/spec/capacity/storage"),
        "1Mi",
        "the limit is not in force"
    );
    agent.answer(Answer::InForce);
    let complete = |claim: &Value| match (
        text(claim, "/status/capacity/storage"),
        condition(claim, "ControllerResizeError"),
    ) {
        ("2Mi", None) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    env.objects.wait(&claim, "to be expanded", TIMEOUT, complete).await?;
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_reports_that_its_size_is_not_enforced_any_more_although_its_report_is_as_it_was() -> Test {
    let env = TestEnv::new("quotaoff").await?;
    let class = class_with_quota(&env, json!({"enforce": "Preferred"})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (claim, _) = shared::bound(&env, "data", &class).await?;
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;
    agent.problem(Some(AgentProblem::QuotasOff));
    let off = wait_enforced(&env, &claim, "False", "QuotasNotSupported").await?;
    let reported = text(&off, "/message");
    assert!(reported.contains("QuotasOff: mount the file system"), "{reported}");
    wait_backend(&env, "QuotasEnforced", "False", Some("QuotasNotSupported")).await?;
    // The agent cannot change limits; those in force stay.
    agent.problem(Some(AgentProblem::ToolFailed));
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;
    agent.problem(Some(AgentProblem::QuotasOff));
    wait_enforced(&env, &claim, "False", "QuotasNotSupported").await?;
    agent.problem(None);
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_reports_that_its_limit_failed_after_it_was_in_force() -> Test {
    let env = TestEnv::new("quotalost").await?;
    let class = class_with_quota(&env, json!({"enforce": "Required"})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (claim, _) = shared::bound(&env, "data", &class).await?;
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;
    // Nobody waits for a report by then.
    tokio::time::sleep(Duration::from_secs(10)).await;
    agent.answer(Answer::Failed);
    wait_enforced(&env, &claim, "False", "LimitFailed").await?;
    agent.answer(Answer::InForce);
    wait_enforced(&env, &claim, "True", "LimitInForce").await?;
    Ok(())
}

#[tokio::test]
async fn a_shared_directory_is_refused_where_limits_are_required_and_reported_where_they_are_preferred() -> Test {
    let env = TestEnv::new("quotashare").await?;
    let spec = json!({"quota": {"enforce": "Required"}, "directory": {"existing": "Share", "pattern": "common"}});
    let refused = env
        .objects
        .create(&env.backend("other", spec))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("quota.enforce: Required excludes directory.existing: Share"),
        "{refused}"
    );
    class_with_quota(&env, json!({"enforce": "Required"})).await?;
    let _agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let parameters = json!({"backend": env.unique_name("main"), "existing": "Share", "pathPattern": "common"});
    let class = env.objects.create(&env.class("sharing", parameters)).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    shared::wait_refused(&env, &claim, "SharedDirectoryUnlimited").await?;

    std::fs::create_dir(env.data().join("common"))?;
    let main = backend_reference(&env, "main");
    let preferred = json!({"spec": {"quota": {"enforce": "Preferred"}}});
    env.objects.patch(&main, preferred.clone()).await?;
    env.wait_bound(&claim).await?;
    wait_enforced(&env, &claim, "False", "SharedDirectoryUnlimited").await?;
    env.objects.patch(&main, json!({"spec": {"quota": null}})).await?;
    wait_no_condition(&env, &claim, SIZE_ENFORCED).await?;
    env.objects.patch(&main, preferred).await?;
    wait_enforced(&env, &claim, "False", "SharedDirectoryUnlimited").await?;
    Ok(())
}
