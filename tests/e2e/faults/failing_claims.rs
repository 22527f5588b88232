//! Many failing claims, and the effect on other claims.

use std::time::Instant;

use futures::future::try_join_all;
use jiff::Timestamp;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::support::audit::{is_write, requests};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

/// Number of failing claims of each kind.
const STORM: usize = 500;
/// `--retry-min` and `--retry-max` of the test, in seconds.
const PAUSES: (u64, u64) = (1, 20);

fn class(name: &str, parameters: Value) -> Value {
    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, name);
    merge(
        &mut class,
        &json!({"provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": parameters}),
    );
    class
}

/// Creates claims of a class.
async fn claims(env: &DedicatedCluster, class: &str) -> rig::Result<()> {
    let all: Vec<Value> = (0..STORM)
        .map(|n| {
            let mut claim = env.claim(&format!("{class}-{n}"));
            merge(&mut claim, &json!({"spec": {"storageClassName": class}}));
            claim
        })
        .collect();
    for some in all.chunks(50) {
        try_join_all(some.iter().map(|claim| env.objects.create(claim))).await?;
    }
    Ok(())
}

/// Returns the number of claims of a class that are not provisioned for this reason.
async fn refused(env: &DedicatedCluster, class: &str, reason: &str) -> rig::Result<usize> {
    let like = reference("v1", "PersistentVolumeClaim", Some("default"), "any");
    let all = env.objects.list(&like).await?;
    let says = |claim: &&Value| {
        let condition = rig::objects::condition(claim, "nfs-operator.io/Provisioned");
        text(claim, "/spec/storageClassName") == class
            && condition.is_some_and(|condition| condition["status"] == "False" && condition["reason"] == reason)
    };
    Ok(all.iter().filter(says).count())
}

/// Returns the number of failed attempts in the metrics.
async fn failures(env: &DedicatedCluster, class: &str) -> rig::Result<u64> {
    let name = "controller_persistentvolumeclaim_provision_failed_total{";
    let label = format!("class=\"{class}\"");
    // A busy operator may take longer than the timeout of a request.
    let metrics = rig::wait::until("the metrics", TIMEOUT, async || {
        env.operator.metrics().await.map_err(|error| error.to_string())
    })
    .await?;
    let line = metrics
        .lines()
        .find(|line| line.starts_with(name) && line.contains(&label));
    Ok(line
        .and_then(|line| line.split(' ').next_back()?.parse().ok())
        .unwrap_or(0))
}

/// Returns how often the condition Ready of the backend changed, by its events.
async fn transitions(env: &DedicatedCluster) -> Result<u64, Failure> {
    let events = env.objects.events(&env.backend_object(&json!({}))).await?;
    Ok(u64::try_from(events.len())?)
}

/// Returns the number of writes to claims of a class since then, without events, which are sent with low priority.
/// Earlier writes do not count, even if the API server records them later.
fn writes(env: &DedicatedCluster, class: &str, since: Timestamp) -> Result<usize, Failure> {
    let begin = format!("{class}-");
    let all = requests(&env.cluster.audit_log())?;
    let is_new = |request: &&Value| {
        let received = text(request, "/requestReceivedTimestamp").parse::<Timestamp>();
        received.is_ok_and(|received| received > since)
    };
    let own = all.iter().filter(is_new).filter(|request| is_write(request));
    let to_claims = own.filter(|request| text(request, "/objectRef/resource") == "persistentvolumeclaims");
    Ok(to_claims
        .filter(|request| text(request, "/objectRef/name").starts_with(&begin))
        .count())
}

/// Returns the maximum number of attempts of one claim in that many seconds after its first failure: one pause may end
/// immediately, and each following pause is twice as long.
fn most_attempts(seconds: u64) -> u64 {
    let (mut pause, mut end, mut attempts) = (PAUSES.0, 0, 1);
    loop {
        pause = (2 * pause).min(PAUSES.1);
        end += pause;
        if end > seconds {
            return attempts;
        }
        attempts += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_failing_claims_are_retried_less_and_less_often_and_delay_no_others() -> Test {
    let (least, most) = (format!("{}s", PAUSES.0), format!("{}s", PAUSES.1));
    let env = DedicatedCluster::start_with_args(json!({}), &["--retry-min", &least, "--retry-max", &most]).await?;
    // One kind fails because of the export and may succeed later, the other because of its class.
    env.objects
        .create(&class("taken", json!({"pathPattern": "taken/${pvc.name}"})))
        .await?;
    env.objects.create(&class("never", json!({"nonsense": "yes"}))).await?;
    for n in 0..STORM {
        std::fs::create_dir_all(env.data()?.join(format!("taken/taken-{n}")))?;
    }
    claims(&env, "taken").await?;
    claims(&env, "never").await?;
    rig::wait::until("every claim to have failed once", TIMEOUT, async || {
        let taken = refused(&env, "taken", "DirectoryExists")
            .await
            .map_err(|error| error.to_string())?;
        let never = refused(&env, "never", "InvalidParameter")
            .await
            .map_err(|error| error.to_string())?;
        if (taken, never) == (STORM, STORM) {
            Ok(())
        } else {
            Err(format!("{taken} and {never}"))
        }
    })
    .await?;

    let (begun, since) = (Instant::now(), Timestamp::now());
    let (failed, changed) = (failures(&env, "taken").await?, transitions(&env).await?);
    for n in 0..20 {
        let claim = env.objects.create(&env.claim(&format!("good-{n}"))).await?;
        let since = Instant::now();
        let volume = env.bound(&claim).await?;
        eprintln!("good-{n} was bound after {:?}", since.elapsed());
        // Each deleted volume is a change for which others may have waited.
        env.objects.delete(&claim).await?;
        env.objects.wait_gone(&volume, TIMEOUT).await?;
    }
    // Long enough for a retry of every claim.
    let storm = u64::try_from(STORM)?;
    rig::wait::until("further attempts", TIMEOUT, async || {
        let more = failures(&env, "taken").await.map_err(|error| error.to_string())? - failed;
        if more >= storm {
            Ok(())
        } else {
            Err(format!("{more} attempts"))
        }
    })
    .await?;
    let more = failures(&env, "taken").await? - failed;
    let written = u64::try_from(writes(&env, "taken", since)?)?;
    // Claims that are checked while the export does not respond report that. When it does again, all are retried.
    let changed = transitions(&env).await? - changed;
    let bound = storm * (most_attempts(begun.elapsed().as_secs() + 1) + changed);
    eprintln!(
        "{more} attempts and {written} writes in {:?}, at most {bound} attempts",
        begun.elapsed()
    );
    assert!(more <= bound, "{more} attempts, at most {bound}");
    // A claim that was refused before is checked without writing.
    let allowed = storm / 10 + 2 * storm * changed;
    assert!(written <= allowed, "{written} writes for {more} attempts");
    assert_eq!(
        writes(&env, "never", since)?,
        0,
        "who can never succeed waits for a change"
    );
    rig::wait::until("every claim to report the same as before", TIMEOUT, async || {
        let taken = refused(&env, "taken", "DirectoryExists").await;
        match taken.map_err(|error| error.to_string())? {
            STORM => Ok(()),
            taken => Err(taken.to_string()),
        }
    })
    .await?;

    // The change arrives.
    std::fs::remove_dir(env.data()?.join("taken/taken-7"))?;
    env.bound(&env.claim("taken-7")).await?;
    Ok(())
}
