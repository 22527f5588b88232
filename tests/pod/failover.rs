//! Loss of pods and containers while claims are pending.

use std::time::{Duration, Instant};

use rig::{TIMEOUT, objects::reference, wait};
use serde_json::Value;

use crate::{
    Failure, Test,
    env::{NAMESPACE, PodEnv, RELEASE, is_pod_ready},
};

/// Enough that some are pending when the pod is deleted.
const CLAIMS: usize = 40;

fn lease() -> Value {
    reference("coordination.k8s.io/v1", "Lease", Some(NAMESPACE), RELEASE)
}

/// Returns the pod that leads. The identity of a lease holder begins with the uid of its pod.
async fn wait_for_leader(env: &PodEnv) -> Result<Value, Failure> {
    let leads = wait::until("a leader among the pods", TIMEOUT, async || {
        let lease = env
            .objects
            .get(&lease())
            .await
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let pods = env.pods().await.map_err(|error| error.to_string())?;
        let leads = |pod: &Value| {
            pod["metadata"]["uid"]
                .as_str()
                .is_some_and(|uid| holder.starts_with(uid))
        };
        pods.into_iter()
            .find(leads)
            .ok_or_else(|| format!("the holder of the Lease is {holder:?}"))
    });
    Ok(leads.await?)
}

pub async fn takes_over(env: &PodEnv) -> Test {
    env.install(env.chart(), &["--set", "replicaCount=2"]).await?;
    let pods = env.pods().await?;
    assert!(pods.len() == 2 && pods.iter().all(is_pod_ready));
    let first = wait_for_leader(env).await?;
    let claims = env.create_claims("taken-over", CLAIMS).await?;

    let deleted = Instant::now();
    env.objects.delete(&first).await?;
    let second = wait_for_leader(env).await?;
    let failover = deleted.elapsed();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    // Either the standby leads, or the pod that replaces the leader, which may start within half a second.
    let new_claims = env.create_claims("created-after", 1).await?;
    env.wait_all_bound("created-after", &new_claims).await?;
    env.print_progress(&format!(
        "the leader's pod was deleted: another pod leads after {:.1} s, and a new claim is Bound after {:.1} s",
        failover.as_secs_f64(),
        deleted.elapsed().as_secs_f64()
    ));
    env.wait_all_bound("taken-over", &claims).await
}

pub async fn resumes_after_a_kill(env: &PodEnv) -> Test {
    env.install(env.chart(), &[]).await?;
    let pod = env.pod().await?;
    let claims = env.create_claims("killed", CLAIMS).await?;
    env.node.kill_container(&pod).await?;
    wait_restarted(env, &pod, |state| state["exitCode"] == 137).await?;
    env.wait_all_bound("killed", &claims).await?;
    env.print_progress(&format!(
        "the container was killed and restarted; {CLAIMS} claims are Bound"
    ));
    Ok(())
}

pub async fn resumes_after_out_of_memory(env: &PodEnv) -> Test {
    env.install(env.chart(), &[]).await?;
    let pod = env.pod().await?;
    let claims = env.create_claims("starved", CLAIMS).await?;
    env.node.exhaust_memory(&pod).await?;
    // containerd reports the end of the container and its cause in two events, in any order.
    wait_restarted(env, &pod, |state| state["reason"] == "OOMKilled").await?;
    env.wait_all_bound("starved", &claims).await?;
    env.print_progress(&format!(
        "the container was killed by the OOM killer and restarted; {CLAIMS} claims are Bound"
    ));
    Ok(())
}

/// Waits until the pod's container has restarted and is Ready, and the status of the previous container is as expected.
async fn wait_restarted(env: &PodEnv, pod: &Value, is_expected: impl Fn(&Value) -> bool) -> Test {
    // The kubelet waits before it restarts a container; the delay is short here.
    let timeout = TIMEOUT + Duration::from_secs(30);
    let ended = env.objects.wait(pod, "to be restarted", timeout, |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        let former = &status["lastState"]["terminated"];
        match status["restartCount"].as_i64() {
            Some(1..) if !is_expected(former) => Err(format!("the former container ended with {former}")),
            Some(1..) if is_pod_ready(pod) && status["ready"] == true => Ok(()),
            _ => Err("it is not restarted and Ready".into()),
        }
    });
    Ok(ended.await?)
}
