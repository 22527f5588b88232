//! How long a lone claim waits for its volume.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    env::BenchEnv,
    workload::{claim, uid},
};
use crate::error::Result;

/// A claim and its volume are gone within a second.
const BOUND_TIMEOUT: Duration = Duration::from_secs(60);

/// The latencies of lone claims, sorted.
#[derive(Debug)]
pub struct Latencies {
    /// From the claim's creation to its volume, the binder's part included.
    pub whole: Vec<Duration>,
    /// The same for claims that came with the binder's annotation.
    pub stop_binder: Vec<Duration>,
}

/// Creates claims one after the other, each when the one before has come and gone: by turns as a user does, and with
/// the annotation that the binder would write first.
pub async fn measure(env: &BenchEnv, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies {
        whole: Vec::new(),
        stop_binder: Vec::new(),
    };
    // The first of each kind opens connections and fills caches, and counts as every other.
    for number in 0..count {
        let name = format!("lone-{number}");
        latencies.whole.push(one(env, &claim(&name, None)).await?);
        let asked = claim(&format!("{name}-asked"), Some("nfs-operator.io/nfs"));
        latencies.stop_binder.push(one(env, &asked).await?);
    }
    latencies.whole.sort();
    latencies.stop_binder.sort();
    Ok(latencies)
}

async fn one(env: &BenchEnv, claim: &Value) -> Result<Duration> {
    let started = Instant::now();
    let created = env.objects.create(claim).await?;
    let volume = format!("pvc-{}", uid(&created)?);
    let latency = env.volumes_seen.wait_created(&volume).await?.duration_since(started);
    env.objects
        .wait(claim, "to be Bound", BOUND_TIMEOUT, |claim| {
            match claim.pointer("/status/phase") {
                Some(phase) if phase == "Bound" => Ok(()),
                phase => Err(format!("{phase:?}")),
            }
        })
        .await?;
    env.objects.delete(claim).await?;
    env.volumes_seen.wait_deleted(&volume).await?;
    Ok(latency)
}
