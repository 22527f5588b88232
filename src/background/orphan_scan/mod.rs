//! Slow scans of a backend's export for orphans: directories and volumes that have lost each other. They are reported,
//! and never removed. What is signed on the way are records of volumes that agree with them.
//!
//! Only names of ours are looked at: those of this cluster's records, and those that our volumes name. A scan begins with
//! its export at peace and ends whole, or counts for nothing: what is cut off is begun again.

mod judge;
mod verdict;
mod vouch;
mod walk;

use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tokio::time::Instant;

pub(crate) use verdict::verdict;

use crate::api::{NfsBackend, OrphansStatus};
use crate::background::next_run::next_run;
use crate::runtime::retry::jittered;
use crate::state::backends::{Backend, ScanResult};
use crate::state::context::Context;
pub(crate) use walk::speaks_of_the_export;
use walk::{OrphanScan, ScanError};

/// The first scan of a life, and the next try after one that was cut off, come after this part of the interval: what a
/// start has to do is over by then, and a process that is started anew ever and again comes to scan all the same.
const SOONER: u32 = 12;

/// The same for one that was asked for, where there is no interval.
const AGAIN: Duration = Duration::from_secs(600);

/// Keeps a backend scanned from now on, and shows what a former life found until then.
pub(crate) fn begin(ctx: &Arc<Context>, backend: &Arc<Backend>, object: &NfsBackend) {
    let former = former(object);
    let pause = first_pause(
        ctx.settings.scan_interval,
        former.as_ref().and_then(|former| age(&former.orphans)),
    );
    if let Some(former) = former {
        ctx.metrics.backend_scanned(&backend.name, &former.orphans, None);
        backend.set_last_scan(former);
    }
    tokio::spawn(keep_scanned(Arc::clone(ctx), Arc::downgrade(backend), pause));
}

/// What the status says of the last scan of a former life.
fn former(object: &NfsBackend) -> Option<ScanResult> {
    let status = object.status.as_ref()?;
    Some(ScanResult {
        export_id: status.export_id.clone()?,
        orphans: status.orphans.clone()?,
    })
}

/// How long ago a scan ended, by a clock that nothing hangs on.
fn age(orphans: &OrphansStatus) -> Option<Duration> {
    let ended = orphans.last_scan.as_ref()?.0;
    Timestamp::now().duration_since(ended).try_into().ok()
}

/// When the first scan of a life is due, by how long ago a former life's was.
fn first_pause(interval: Duration, age: Option<Duration>) -> Duration {
    let rest = age.map_or(Duration::ZERO, |age| interval.saturating_sub(age));
    pause(rest.max(interval / SOONER))
}

/// That long and a little more, or for ever.
fn pause(length: Duration) -> Duration {
    if length.is_zero() {
        return Duration::MAX;
    }
    jittered(length)
}

/// Scans a backend's export whenever it is due or asked for, until the operator stops or the backend is forgotten.
async fn keep_scanned(ctx: Arc<Context>, backend: Weak<Backend>, mut until: Duration) {
    while let Some(backend) = next_run(&ctx.shutdown, &backend, |backend| &backend.scan_requested, until).await {
        let Some(ended) = ctx.shutdown.run_until_cancelled(scan(&ctx, &backend)).await else {
            return;
        };
        let interval = ctx.settings.scan_interval;
        until = match ended {
            Ok(()) => pause(interval),
            Err(error) => {
                tracing::warn!(backend = backend.name, "not scanned for orphans: {error}");
                pause(if interval.is_zero() { AGAIN } else { interval / SOONER })
            }
        };
    }
}

/// One scan, and what it found made known.
async fn scan(ctx: &Context, backend: &Backend) -> Result<(), ScanError> {
    let known = backend.known();
    let (Some(export), Some(identity)) = (known.store.clone(), &known.identity) else {
        return Err(ScanError::NotConfirmed);
    };
    if !backend.is_recovered_on(&export) {
        return Err(ScanError::NotConfirmed);
    }
    let began = Instant::now();
    let (mut orphans, looked) = OrphanScan::new(ctx, backend, &known.object, &export, &identity.id)
        .run()
        .await?;
    let took = began.elapsed();
    // What is written has whole seconds.
    orphans.last_scan = Timestamp::from_second(Timestamp::now().as_second()).ok().map(Time);
    tracing::info!(
        backend = backend.name,
        looked,
        orphans = orphans.total,
        skipped = orphans.skipped,
        seconds = took.as_secs_f64(),
        "scanned for orphans"
    );
    // A backend that went meanwhile has no series any more.
    let current = ctx.backends.get(&backend.name);
    if current.is_some_and(|current| current.uid == backend.uid) {
        ctx.metrics.backend_scanned(&backend.name, &orphans, Some(took));
    }
    backend.set_last_scan(ScanResult {
        export_id: identity.id.clone(),
        orphans,
    });
    Ok(())
}

/// A scan is asked for by an annotation.
pub(crate) fn is_asked_for(object: &NfsBackend) -> Option<&str> {
    object
        .annotations()
        .get(crate::api::names::SCAN_NOW)
        .map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_scan_comes_when_the_last_one_is_old_and_not_with_the_start() {
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        for (interval, age, least) in [
            (hours(6), None, hours(6) / 12),
            (hours(6), Some(hours(1)), hours(5)),
            (hours(6), Some(hours(100)), hours(6) / 12),
            (hours(6), Some(hours(6)), hours(6) / 12),
        ] {
            let pause = first_pause(interval, age);
            assert!(pause >= least && pause <= least.mul_f64(1.1), "{age:?}: {pause:?}");
        }
        assert_eq!(first_pause(Duration::ZERO, None), Duration::MAX, "only when asked");
    }
}
