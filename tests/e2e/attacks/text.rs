//! Claims whose text or references are not what they should be.

use rig::objects::{condition, merge, reference};
use serde_json::{Value, json};

use super::attacked_cluster::{ATTACKED, ATTACKER, AttackedCluster, Bounds, TIMEOUT, claim, copy_of};
use crate::support::shared::{Failure, Test, text};

/// Claims with control characters.
const FORGED: usize = 200;
/// A line of its own in a log, and a character that the API server rejects in what the operator applies.
const FORGED_TEXT: &str = "x\n2026-01-01T00:00:00.000000Z  INFO nfs_operator: forged\u{1b}[2J\u{9b}31m";
/// Claims whose volume name is no name.
const MISNAMED: usize = 50;
/// Claims that copy each other in a cycle.
const CYCLE: usize = 500;

/// Waits until each claim has a condition. Returns the reasons.
async fn wait_reported(env: &AttackedCluster, prefix: &str) -> Result<Vec<String>, Failure> {
    let like = reference("v1", "PersistentVolumeClaim", Some(ATTACKER), "any");
    let reasons = rig::wait::until("each claim to report a reason", TIMEOUT, async || {
        let claims = env.objects.list(&like).await.map_err(|error| error.to_string())?;
        let claims: Vec<&Value> = claims
            .iter()
            .filter(|claim| text(claim, "/metadata/name").starts_with(prefix))
            .collect();
        let reasons: Vec<String> = claims
            .iter()
            .filter_map(|claim| Some(text(condition(claim, "nfs-operator.io/Provisioned")?, "/reason").to_owned()))
            .collect();
        match reasons.len() == claims.len() {
            true => Ok(reasons),
            false => Err(format!("{} of {}", reasons.len(), claims.len())),
        }
    });
    Ok(reasons.await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_text_and_references_cause_few_requests_and_short_logs() -> Test {
    let env = AttackedCluster::start(json!({})).await?;
    env.serve_bystander("before").await?;
    let (_, bystanders_volume) = env.neighbour("neighbour").await?;

    let bounds = Bounds {
        count: FORGED,
        requests: 4,
        log_bytes: 2048,
        cpu_milliseconds: 50,
    };
    env.attack("claims with control characters", bounds, async {
        let forged = (0..FORGED).map(|number| {
            let mut forged = claim(ATTACKER, &format!("forged-{number}"), ATTACKED, "1Mi");
            let annotations = json!({"nfs-operator.io/backend": FORGED_TEXT});
            merge(&mut forged, &json!({"metadata": {"annotations": annotations}}));
            forged
        });
        env.create_claims(forged).await?;
        env.serve_bystander("forged").await?;
        let reasons = wait_reported(&env, "forged-").await?;
        assert!(reasons.iter().all(|reason| reason == "OverrideRefused"), "{reasons:?}");
        env.wait_events(FORGED).await
    })
    .await?;
    let log = std::fs::read_to_string(env.operator.log())?;
    assert!(!log.contains('\u{9b}') && !log.lines().any(|line| line.starts_with("2026-01-01T")));

    let bounds = Bounds {
        count: MISNAMED,
        requests: 1,
        log_bytes: 1024,
        cpu_milliseconds: 50,
    };
    env.attack("claims that name other volumes", bounds, async {
        let names = ["?limit=0", "../pods", text(&bystanders_volume, "/metadata/name")];
        let misnamed = (0..MISNAMED).map(|number| {
            let mut misnamed = claim(ATTACKER, &format!("misnamed-{number}"), ATTACKED, "1Mi");
            merge(
                &mut misnamed,
                &json!({"spec": {"volumeName": names[number % names.len()]}}),
            );
            misnamed
        });
        env.create_claims(misnamed).await?;
        env.serve_bystander("misnamed").await?;
        let like = reference("v1", "PersistentVolumeClaim", Some(ATTACKER), "any");
        let path = text(&bystanders_volume, "/spec/nfs/path");
        let claims = env.objects.list(&like).await?;
        assert!(
            claims.iter().all(|claim| !claim.to_string().contains(path)),
            "a condition has {path}"
        );
        Ok(())
    })
    .await?;

    let bounds = Bounds {
        count: CYCLE,
        requests: 4,
        log_bytes: 2048,
        cpu_milliseconds: 50,
    };
    env.attack("claims that copy each other", bounds, async {
        let cycle = (0..CYCLE).map(|number| {
            let source = claim(ATTACKER, &format!("cycle-{}", (number + 1) % CYCLE), ATTACKED, "1Mi");
            copy_of(&source, claim(ATTACKER, &format!("cycle-{number}"), ATTACKED, "1Mi"))
        });
        env.create_claims(cycle).await?;
        env.serve_bystander("cycle").await?;
        wait_reported(&env, "cycle-").await?;
        env.wait_events(FORGED + CYCLE).await
    })
    .await?;
    // None of them is polled.
    let bounds = Bounds {
        count: 0,
        requests: 0,
        log_bytes: 0,
        cpu_milliseconds: 0,
    };
    env.attack("the same, afterwards", bounds, env.serve_bystander("idle"))
        .await?;
    Ok(())
}
