//! How long a lone claim waits for its volume.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    stage::Stage,
    work::{claim, uid},
};
use crate::error::Result;

/// A claim and its volume are gone within a second.
const GONE: Duration = Duration::from_secs(60);

/// The latencies of lone claims, sorted.
#[derive(Debug)]
pub struct Latencies {
    /// From the claim's creation to its volume, the binder's part included.
    pub whole: Vec<Duration>,
    /// The same for claims that came with the binder's annotation.
    pub without_binder: Vec<Duration>,
}

/// Creates claims one after the other, each when the one before has come and gone: by turns as a user does, and with
/// the annotation that the binder would write first.
pub async fn claims(stage: &Stage, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies {
        whole: Vec::new(),
        without_binder: Vec::new(),
    };
    // The first of each kind opens connections and fills caches, and counts as every other.
    for number in 0..count {
        let name = format!("lone-{number}");
        latencies.whole.push(one(stage, &claim(&name, None)).await?);
        let asked = claim(&format!("{name}-asked"), Some("nfs-operator.io/nfs"));
        latencies.without_binder.push(one(stage, &asked).await?);
    }
    latencies.whole.sort();
    latencies.without_binder.sort();
    Ok(latencies)
}

async fn one(stage: &Stage, claim: &Value) -> Result<Duration> {
    let started = Instant::now();
    let created = stage.objects.create(claim).await?;
    let volume = format!("pvc-{}", uid(&created)?);
    let latency = stage.sightings.appeared(&volume).await?.duration_since(started);
    stage
        .objects
        .wait(claim, "to be Bound", GONE, |claim| {
            match claim.pointer("/status/phase") {
                Some(phase) if phase == "Bound" => Ok(()),
                phase => Err(format!("{phase:?}")),
            }
        })
        .await?;
    stage.objects.delete(claim).await?;
    stage.sightings.gone(&volume).await?;
    Ok(latency)
}
