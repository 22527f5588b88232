//! Scans a backend's export for orphans: directories without a volume, and volumes without a directory. Orphans are reported
//! and never removed. A scan also signs the unsigned records of volumes that agree with them.
//!
//! Only names that this cluster's records and volumes contain are checked. An interrupted scan reports nothing; the next one
//! starts from the beginning.

mod classify;
mod condition;
mod missing_directory;
mod scan;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use condition::condition;
pub use missing_directory::DIRECTORY_MISSING;
pub use scan::CHECKS_PER_SECOND;
pub(super) use scan::is_export_error;

use super::runner::{self, BackendTask};
use crate::api::requests::BackendRequest;
use crate::api::{NfsBackend, OrphansStatus};
use crate::runtime::retry::jittered;
use crate::state::backends::{Backend, ScanResult};
use crate::state::context::Context;
use scan::{OrphanScan, ScanError};

/// Divisor of the scan interval. The quotient is the minimum delay of the first scan after a start, and the delay after
/// a failure. The work of a start is complete by then, and a process that restarts repeatedly still scans.
const RETRY_DIVISOR: u32 = 12;
/// Maximum time until the next scan after a failure if one was requested, or if there is no interval.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// Minimum of that time.
const MIN_RETRY: Duration = Duration::from_secs(10);

/// Starts the scans of a backend, and shows the result of the previous process until the first scan is complete.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>, object: &NfsBackend) {
    let previous = previous_result(object);
    let delay = first_delay(
        ctx.settings.scan_interval,
        previous
            .as_ref()
            .and_then(|previous| age(&previous.orphans, ctx.clock.now())),
    );
    if let Some(previous) = previous {
        ctx.metrics.backends.scanned(&backend.name, &previous.orphans, None);
        backend.set_last_scan(previous);
    }
    runner::spawn(ctx, backend, OrphanScanner, delay);
}

/// Returns the result of the last scan of the previous process, from the status.
fn previous_result(object: &NfsBackend) -> Option<ScanResult> {
    let status = object.status.as_ref()?;
    Some(ScanResult {
        export_id: status.export.id.clone()?,
        orphans: status.orphans.clone()?,
    })
}

/// Returns the time since a scan ended. A wrong clock affects only when the next scan begins.
fn age(orphans: &OrphansStatus, now: Timestamp) -> Option<Duration> {
    let ended = orphans.last_scan_time.as_ref()?.0;
    now.duration_since(ended).try_into().ok()
}

/// Returns the delay of the first scan, given the age of the previous process's last scan.
fn first_delay(interval: Duration, age: Option<Duration>) -> Duration {
    let left = age.map_or(Duration::ZERO, |age| interval.saturating_sub(age));
    delay(left.max(interval / RETRY_DIVISOR))
}

/// Returns the duration with jitter, or forever if it is zero.
fn delay(length: Duration) -> Duration {
    if length.is_zero() {
        return Duration::MAX;
    }
    jittered(length)
}

struct OrphanScanner;

impl BackendTask for OrphanScanner {
    const INTERRUPTIBLE: bool = true;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.scan_requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let interval = ctx.settings.scan_interval;
        // A request that is made during a scan is for the next one.
        let requested = backend.requests.submitted(BackendRequest::Scan);
        match scan(ctx, backend).await {
            Ok(()) => {
                if let Some(value) = requested {
                    let now = ctx.clock.now();
                    backend.requests.complete(BackendRequest::Scan, &value, now);
                }
                // The status reports the result.
                ctx.request_probe(&backend.name);
                delay(interval)
            }
            Err(error) => {
                tracing::warn!(backend = backend.name, "not scanned for orphans: {error}");
                delay(match interval / RETRY_DIVISOR {
                    _ if interval.is_zero() => RETRY_INTERVAL,
                    retry if requested.is_some() => retry.clamp(MIN_RETRY, RETRY_INTERVAL),
                    retry => retry,
                })
            }
        }
    }
}

/// Scans once and publishes the result.
async fn scan(ctx: &Context, backend: &Backend) -> Result<(), ScanError> {
    let known = backend.last_probe();
    let (Some(export), Some(identity)) = (known.store.clone(), &known.identity) else {
        return Err(ScanError::NotConfirmed);
    };
    if !backend.is_recovered_on(&export) {
        return Err(ScanError::NotConfirmed);
    }
    let started = Instant::now();
    let (mut orphans, checked) = OrphanScan::new(ctx, backend, &known.object, &export, &identity.id)
        .run()
        .await?;
    let took = started.elapsed();
    // The API has whole seconds.
    orphans.last_scan_time = Timestamp::from_second(ctx.clock.now().as_second()).ok().map(Time);
    tracing::info!(
        backend = backend.name,
        looked = checked,
        orphans = orphans.total,
        skipped = orphans.skipped,
        seconds = took.as_secs_f64(),
        "scanned for orphans"
    );
    // A backend that was removed in the meantime no longer has metrics.
    if ctx.backends.is_current(backend) {
        ctx.metrics.backends.scanned(&backend.name, &orphans, Some(took));
    }
    backend.set_last_scan(ScanResult {
        export_id: identity.id.clone(),
        orphans,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_scan_runs_once_the_last_one_is_old_but_not_at_the_start() {
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        for (interval, age, least) in [
            (hours(6), None, hours(6) / 12),
            (hours(6), Some(hours(1)), hours(5)),
            (hours(6), Some(hours(100)), hours(6) / 12),
            (hours(6), Some(hours(6)), hours(6) / 12),
        ] {
            let delay = first_delay(interval, age);
            assert!(delay >= least && delay <= least.mul_f64(1.1), "{age:?}: {delay:?}");
        }
        assert_eq!(first_delay(Duration::ZERO, None), Duration::MAX, "only on request");
    }
}
