//! Pods that go while claims are in flight.

use std::time::{Duration, Instant};

use rig::{TIMEOUT, objects::reference, wait};
use serde_json::Value;

use crate::{
    Failure, Test,
    stage::{NAMESPACE, RELEASE, Stage, is_ready},
};

/// More than are done before the pod goes.
const CLAIMS: usize = 40;

fn lease() -> Value {
    reference("coordination.k8s.io/v1", "Lease", Some(NAMESPACE), RELEASE)
}

/// The pod that leads: a holder's name begins with the uid of its pod.
async fn leader(stage: &Stage) -> Result<Value, Failure> {
    let leads = wait::until("a leader among the pods", TIMEOUT, async || {
        let lease = stage
            .objects
            .get(&lease())
            .await
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let pods = stage.pods().await.map_err(|error| error.to_string())?;
        let leads = |pod: &Value| {
            pod["metadata"]["uid"]
                .as_str()
                .is_some_and(|uid| holder.starts_with(uid))
        };
        pods.into_iter()
            .find(leads)
            .ok_or_else(|| format!("the holder is {holder:?}"))
    });
    Ok(leads.await?)
}

pub async fn takes_over(stage: &Stage) -> Test {
    stage.install(&Stage::chart(), &["--set", "replicas=2"]).await?;
    let pods = stage.pods().await?;
    assert!(pods.len() == 2 && pods.iter().all(is_ready));
    let first = leader(stage).await?;
    let claims = stage.claims("taken-over", CLAIMS).await?;

    let deleted = Instant::now();
    stage.objects.delete(&first).await?;
    let second = leader(stage).await?;
    let took_over = deleted.elapsed();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    // The standby, or the leader's successor, which may start within half a second and be as fast.
    let further = stage.claims("made-after", 1).await?;
    stage.all_bound("made-after", &further).await?;
    stage.say(&format!(
        "the leader's pod was deleted: the other leads after {:.1} s, and a new claim is Bound after {:.1} s",
        took_over.as_secs_f64(),
        deleted.elapsed().as_secs_f64()
    ));
    stage.all_bound("taken-over", &claims).await
}

pub async fn resumes_after_a_kill(stage: &Stage) -> Test {
    stage.install(&Stage::chart(), &[]).await?;
    let pod = stage.pod().await?;
    let claims = stage.claims("killed", CLAIMS).await?;
    stage.node.kill_container(&pod).await?;
    let state = restarted(stage, &pod).await?;
    assert_eq!(state["exitCode"], 137, "{state}");
    stage.all_bound("killed", &claims).await?;
    stage.say(&format!(
        "the container was killed and started again; {CLAIMS} claims are Bound"
    ));
    Ok(())
}

pub async fn resumes_after_no_memory(stage: &Stage) -> Test {
    stage.install(&Stage::chart(), &[]).await?;
    let pod = stage.pod().await?;
    let claims = stage.claims("starved", CLAIMS).await?;
    stage.node.exhaust_memory(&pod).await?;
    let state = restarted(stage, &pod).await?;
    assert_eq!(state["reason"], "OOMKilled", "{state}");
    stage.all_bound("starved", &claims).await?;
    stage.say(&format!(
        "the kernel killed it for memory and it was started again; {CLAIMS} claims are Bound"
    ));
    Ok(())
}

/// Waits until the pod's container was started again and is Ready, and gives back how the one before ended.
async fn restarted(stage: &Stage, pod: &Value) -> Result<Value, Failure> {
    // A crash is followed by a pause; it is short here.
    let timeout = TIMEOUT + Duration::from_secs(30);
    let ended = stage.objects.wait(pod, "to be started again", timeout, |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        match status["restartCount"].as_i64() {
            Some(1..) if is_ready(pod) && status["ready"] == true => Ok(status["lastState"]["terminated"].clone()),
            _ => Err("it was not".into()),
        }
    });
    Ok(ended.await?)
}
