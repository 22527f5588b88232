//! Latency of a single claim.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    baseline::Baseline,
    env::BenchEnv,
    workload::{claim, uid},
};
use crate::error::{Error, Result};

/// A claim and its volume are deleted within a second.
const BOUND_TIMEOUT: Duration = Duration::from_secs(60);

/// Latencies of single claims, sorted.
#[derive(Debug)]
pub struct Latencies {
    /// From the creation of the claim to its volume, including the binder.
    pub whole: Vec<Duration>,
    /// The same for claims that were created with the binder's annotation.
    pub without_binder: Vec<Duration>,
}

impl Latencies {
    /// Adds the latencies of another round.
    pub fn add(&mut self, other: Self) {
        for (all, more) in [
            (&mut self.whole, other.whole),
            (&mut self.without_binder, other.without_binder),
        ] {
            all.extend(more);
            all.sort();
        }
    }
}

/// Creates claims one after the other, each after the previous one was deleted: alternately as a user does, and with
/// the annotation that the binder would add.
pub async fn measure(env: &BenchEnv, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies {
        whole: Vec::new(),
        without_binder: Vec::new(),
    };
    let batch = crate::random_suffix();
    // The first claim of each kind opens connections and fills caches. It is counted, too.
    for number in 0..count {
        let name = format!("single-{batch}-{number}");
        latencies.whole.push(measure_one(env, &claim(&name, None)).await?);
        let annotated = claim(&format!("{name}-annotated"), Some("nfs-operator.io/nfs"));
        latencies.without_binder.push(measure_one(env, &annotated).await?);
    }
    latencies.whole.sort();
    latencies.without_binder.sort();
    Ok(latencies)
}

/// Measures the same with a client that only creates the volume of each claim, and reclaims it afterwards.
pub async fn measure_floor(env: &BenchEnv, baseline: &Baseline, count: usize) -> Result<Latencies> {
    tokio::select! {
        latencies = measure(env, count) => latencies,
        ended = baseline.provision() => ended.and(Err(Error::Usage("the watches of the floor ended".into()))),
    }
}

async fn measure_one(env: &BenchEnv, claim: &Value) -> Result<Duration> {
    let started = Instant::now();
    let created = env.objects.create(claim).await?;
    let volume = format!("pvc-{}", uid(&created)?);
    let latency = env.volumes.wait_created(&volume).await?.duration_since(started);
    env.objects.wait_bound(claim, BOUND_TIMEOUT).await?;
    env.objects.delete(claim).await?;
    env.volumes.wait_deleted(&volume).await?;
    Ok(latency)
}
