//! Many claims that fail, and what becomes of the others meanwhile.

use std::time::Instant;

use futures::future::try_join_all;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::support::audit::{is_write, requests};
use crate::support::dedicated_cluster::Stage;
use crate::support::shared::{Failure, PATIENCE, Test, text};

/// How many fail, of each kind.
const STORM: usize = 500;
/// `--retry-min` and `--retry-max` in the test, in seconds.
const PAUSES: (u64, u64) = (1, 20);

fn class(name: &str, parameters: Value) -> Value {
    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, name);
    merge(
        &mut class,
        &json!({"provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": parameters}),
    );
    class
}

/// Claims of a class, created.
async fn claims(stage: &Stage, class: &str) -> rig::Result<()> {
    let all: Vec<Value> = (0..STORM)
        .map(|n| {
            let mut claim = stage.claim(&format!("{class}-{n}"));
            merge(&mut claim, &json!({"spec": {"storageClassName": class}}));
            claim
        })
        .collect();
    for some in all.chunks(50) {
        try_join_all(some.iter().map(|claim| stage.objects.create(claim))).await?;
    }
    Ok(())
}

/// How many claims of a class say that they are not provisioned for this reason.
async fn refused(stage: &Stage, class: &str, reason: &str) -> rig::Result<usize> {
    let like = reference("v1", "PersistentVolumeClaim", Some("default"), "any");
    let all = stage.objects.list(&like).await?;
    let says = |claim: &&Value| {
        let condition = rig::objects::condition(claim, "nfs-operator.io/Provisioned");
        text(claim, "/spec/storageClassName") == class
            && condition.is_some_and(|condition| condition["status"] == "False" && condition["reason"] == reason)
    };
    Ok(all.iter().filter(says).count())
}

/// Attempts that failed so far, by the operator's own count.
async fn failures(stage: &Stage, class: &str) -> Result<u64, Failure> {
    let name = "controller_persistentvolumeclaim_provision_failed_total{";
    let label = format!("class=\"{class}\"");
    let metrics = stage.operator.metrics().await?;
    let line = metrics
        .lines()
        .find(|line| line.starts_with(name) && line.contains(&label));
    Ok(line
        .and_then(|line| line.split(' ').next_back()?.parse().ok())
        .unwrap_or(0))
}

/// The writes to claims of a class so far; their events, which come when there is time, apart.
fn writes(stage: &Stage, class: &str) -> Result<usize, Failure> {
    let begin = format!("{class}-");
    let all = requests(&stage.cluster.audit_log())?;
    let own = all.iter().filter(|request| is_write(request));
    let to_claims = own.filter(|request| text(request, "/objectRef/resource") == "persistentvolumeclaims");
    Ok(to_claims
        .filter(|request| text(request, "/objectRef/name").starts_with(&begin))
        .count())
}

/// The most attempts of one claim in that many seconds, if it had failed once before: one pause may end just now, and
/// the next ones are twice as long each time.
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
    let stage = Stage::set_with(json!({}), &["--retry-min", &least, "--retry-max", &most]).await?;
    // One kind fails for what is on the export, and may succeed later; the other for what its class says.
    stage
        .objects
        .create(&class("taken", json!({"pathPattern": "taken/${pvc.name}"})))
        .await?;
    stage
        .objects
        .create(&class("never", json!({"nonsense": "yes"})))
        .await?;
    for n in 0..STORM {
        std::fs::create_dir_all(stage.data()?.join(format!("taken/taken-{n}")))?;
    }
    claims(&stage, "taken").await?;
    claims(&stage, "never").await?;
    rig::wait::until("every claim to have failed once", PATIENCE, async || {
        let taken = refused(&stage, "taken", "DirectoryExists")
            .await
            .map_err(|error| error.to_string())?;
        let never = refused(&stage, "never", "InvalidParameter")
            .await
            .map_err(|error| error.to_string())?;
        if (taken, never) == (STORM, STORM) {
            Ok(())
        } else {
            Err(format!("{taken} and {never}"))
        }
    })
    .await?;

    let begun = Instant::now();
    let (failed, written) = (failures(&stage, "taken").await?, writes(&stage, "taken")?);
    let never = writes(&stage, "never")?;
    for n in 0..20 {
        let claim = stage.objects.create(&stage.claim(&format!("good-{n}"))).await?;
        let since = Instant::now();
        let volume = stage.bound(&claim).await?;
        eprintln!("good-{n} was bound after {:?}", since.elapsed());
        // Each volume that goes is a change that others may have waited for.
        stage.objects.delete(&claim).await?;
        stage.objects.wait_gone(&volume, PATIENCE).await?;
    }
    // Long enough for every claim to be tried again.
    let storm = u64::try_from(STORM)?;
    rig::wait::until("the storm to go on", PATIENCE, async || {
        let more = failures(&stage, "taken").await.map_err(|error| error.to_string())? - failed;
        if more >= storm {
            Ok(())
        } else {
            Err(format!("{more} attempts"))
        }
    })
    .await?;
    let more = failures(&stage, "taken").await? - failed;
    let written = u64::try_from(writes(&stage, "taken")? - written)?;
    let bound = storm * most_attempts(begun.elapsed().as_secs() + 1);
    eprintln!(
        "{more} attempts and {written} writes in {:?}, at most {bound} attempts",
        begun.elapsed()
    );
    assert!(more <= bound, "{more} attempts, at most {bound}");
    // Who was refused before looks first, and announces nothing that would be refused again.
    assert!(written <= storm / 10, "{written} writes for {more} attempts");
    assert_eq!(
        writes(&stage, "never")?,
        never,
        "who can never succeed waits for a change"
    );
    assert_eq!(refused(&stage, "taken", "DirectoryExists").await?, STORM);

    // The change comes.
    std::fs::remove_dir(stage.data()?.join("taken/taken-7"))?;
    stage.bound(&stage.claim("taken-7")).await?;
    Ok(())
}
