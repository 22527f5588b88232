//! Claims that request archives and sizes that they do not get.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use rig::objects::merge;
use serde_json::{Value, json};

use super::attacked_cluster::{ATTACKED, ATTACKER, AttackedCluster, Bounds, MAX_REPORTS, TIMEOUT, claim};
use crate::support::shared::{Test, text};

/// Claims of archives that do not exist.
const RESTORES: usize = 3000;
/// Bound claims that request more than the backend has left.
const EXPANSIONS: usize = 100;

fn restore(number: usize) -> Value {
    let mut claim = claim(ATTACKER, &format!("restore-{number}"), ATTACKED, "1Mi");
    let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": format!("pvc-missing-{number}")});
    merge(&mut claim, &json!({"spec": {"dataSourceRef": source}}));
    claim
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_archives_and_sizes_that_they_do_not_get_stop_nobody() -> Test {
    let mut env = AttackedCluster::start(json!({"capacity": {"limit": "1Gi"}})).await?;
    // A condition and an event for each.
    let bounds = Bounds {
        count: RESTORES,
        requests: 2,
        log_bytes: 2048,
        cpu_milliseconds: 50,
    };
    env.attack("claims of archives that do not exist", bounds, async {
        env.create_claims((0..RESTORES).map(restore)).await?;
        env.serve_bystander("missing").await?;
        env.wait_waiting("ArchiveNotFound", RESTORES).await?;
        env.wait_events(RESTORES).await
    })
    .await?;
    let (requests_before, reads_before) = env.requests()?;
    let peak = env.restart().await?;
    env.serve_bystander("restarted").await?;
    env.wait_waiting("ArchiveNotFound", RESTORES).await?;
    let (requests, reads) = env.requests()?;
    let (requests, reads) = (requests - requests_before, reads - reads_before);
    println!(
        "start with {RESTORES} claims of missing archives: {requests} requests with {reads} reads, at most {:.1} MiB",
        peak as f64 / f64::from(1 << 20)
    );
    assert!(reads <= 200, "{reads}: nothing is read for claims that wait");
    // Claims that are checked before the first probe report that their backend was not probed, and then the former
    // reason again. How many these are depends on the machine.
    assert!(requests <= 200 + 4 * RESTORES, "{requests}");

    let bounds = Bounds {
        count: EXPANSIONS,
        requests: 16,
        log_bytes: 2048,
        cpu_milliseconds: 200,
    };
    env.attack("expansions over the limit", bounds, async {
        let claims = (0..EXPANSIONS).map(|number| claim(ATTACKER, &format!("large-{number}"), ATTACKED, "1Mi"));
        let claims = env.create_claims(claims).await?;
        for claim in &claims {
            env.bound(claim).await?;
        }
        let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        let patches = stream::iter(&claims).map(|claim| env.attacker.patch(claim, larger.clone()));
        patches.buffered(32).try_collect::<Vec<Value>>().await?;
        for claim in &claims {
            env.objects
                .wait_condition(claim, "ControllerResizeError", "True", None, TIMEOUT)
                .await?;
        }
        env.serve_bystander("expansions").await
    })
    .await?;
    let is_read_of_claim = |request: &Value| {
        (text(request, "/verb"), text(request, "/objectRef/resource")) == ("get", "persistentvolumeclaims")
            && text(request, "/objectRef/namespace") == ATTACKER
    };
    let reads = env.concurrent_requests(is_read_of_claim)?;
    println!("{reads} claims were read at the same time");
    assert!((1..=MAX_REPORTS).contains(&reads), "{reads}");
    Ok(())
}
