//! Counts the usage of a backend's volumes and archives (`spec.usage`).
//!
//! Volumes are counted in the order of their names, with one call at a time and at a limited rate. After a restart, a
//! scan that was interrupted begins again. The result is written to the volume; a claim that
//! uses more than it requests gets a condition.

mod plan;
mod publish;
mod scan;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::Notify;

use super::runner::{self, BackendTask};
use crate::api::requests::BackendRequest;
use crate::api::{NfsBackend, UsageStatus};
use crate::decide::quantity;
use crate::runtime::retry::jittered;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::usage::UsageProgress;
use scan::{UsageScan, UsageScanError, remove_results};

/// Time until an interrupted scan resumes.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum delay of the first scan after a restart.
const MAX_FIRST_DELAY: Duration = Duration::from_secs(60);
/// Divisor of the interval, for that delay.
const RETRY_DIVISOR: u32 = 12;

/// Starts the usage scans of a backend, as its object requests.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>, object: &NfsBackend) {
    if let Some(status) = object.status.as_ref().and_then(|status| status.usage.as_ref()) {
        backend
            .usage_scan
            .update(|progress| *progress = previous_progress(status));
    }
    runner::spawn(ctx, backend, UsageScanner::default(), first_delay(object));
}

/// Returns the usage in the backend's status; `None` if it is not counted, or nothing was counted yet.
pub fn status(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Option<UsageStatus> {
    object.spec.usage.as_ref()?;
    let (total, progress) = (ctx.usage.total(&backend.name), backend.usage_scan.progress());
    if total.volumes == 0 && progress.last_completed.is_none() {
        return None;
    }
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Some(UsageStatus {
        volumes: number(total.volumes),
        size: quantity::exact(total.bytes.into()),
        files: number(total.files),
        archived_size: quantity::exact(archived_bytes(ctx, &backend.name)),
        skipped: progress.skipped,
        last_completion_time: progress.last_completed.map(Time),
    })
}

/// Returns the usage of a backend's counted archives, in bytes.
fn archived_bytes(ctx: &Context, backend: &str) -> u128 {
    let archives = ctx.stores.archives.state();
    let here = archives
        .iter()
        .filter(|archive| archive.observed().backend_name == backend);
    let counted = here.filter_map(|archive| archive.status.as_ref()?.usage.as_ref());
    let sizes = counted.filter_map(|usage| quantity::bytes(&usage.size.0));
    sizes.fold(0, u128::saturating_add)
}

/// Returns the progress of the previous process.
fn previous_progress(status: &UsageStatus) -> UsageProgress {
    UsageProgress {
        under_way: None,
        large: Vec::new(),
        requested: false,
        request: None,
        skipped: status.skipped,
        last_completed: status.last_completion_time.as_ref().map(|at| at.0),
    }
}

/// Returns the interval between two scans; `None` if usage is not counted.
fn interval(object: &NfsBackend) -> Option<Duration> {
    let interval = object.spec.usage.as_ref()?.interval.get();
    // The schema validates it. If it is invalid nevertheless, a day is a safe default.
    Some(interval.unwrap_or(Duration::from_secs(24 * 3600)))
}

/// Returns the delay of the first scan of this process. If an earlier one may have been interrupted by it, the process does
/// other work first: a volume that makes the process fail must not do so at each start.
fn first_delay(object: &NfsBackend) -> Duration {
    let was_counted = object.status.as_ref().is_some_and(|status| status.usage.is_some());
    match interval(object) {
        Some(interval) if was_counted => jittered((interval / RETRY_DIVISOR).min(MAX_FIRST_DELAY)),
        _ => Duration::ZERO,
    }
}

#[derive(Default)]
struct UsageScanner {
    /// Last error that was logged.
    last_error: String,
}

impl BackendTask for UsageScanner {
    const INTERRUPTIBLE: bool = true;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.usage_scan.requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        match scan_if_due(ctx, backend).await {
            Ok(next) => next,
            Err(error) => {
                let text = error.to_string();
                // An export that is not probed yet is not an error.
                if text != self.last_error && !matches!(error, UsageScanError::NotConfirmed) {
                    tracing::info!(backend = backend.name, "not counted for now: {text}");
                }
                self.last_error = text;
                jittered(RETRY_INTERVAL)
            }
        }
    }
}

/// Scans if a scan is due. Returns the time until the next check.
async fn scan_if_due(ctx: &Context, backend: &Backend) -> Result<Duration, UsageScanError> {
    let known = backend.last_probe();
    let Some(interval) = interval(&known.object) else {
        ctx.usage.disable(&backend.name);
        backend
            .usage_scan
            .update(|progress| *progress = UsageProgress::default());
        // There is nothing to count; once there is, it is counted at once.
        complete_request(ctx, backend, backend.requests.submitted(BackendRequest::Count));
        remove_results(ctx, backend).await?;
        return Ok(Duration::MAX);
    };
    let progress = backend.usage_scan.progress();
    ctx.usage.enable(&backend.name, progress.last_completed);
    let wait = plan::time_until_scan(&progress, interval, ctx.clock.now());
    if !wait.is_zero() {
        return Ok(jittered(wait));
    }
    UsageScan::new(ctx, backend, &known)?.run().await?;
    let request = backend.usage_scan.take_request();
    complete_request(ctx, backend, request);
    // The status reports the result.
    ctx.request_probe(&backend.name);
    ctx.usage
        .enable(&backend.name, backend.usage_scan.progress().last_completed);
    // Another scan may have been requested in the meantime.
    Ok(Duration::ZERO)
}

/// Records that the requested scan is complete.
fn complete_request(ctx: &Context, backend: &Backend, request: Option<String>) {
    if let Some(value) = request {
        backend
            .requests
            .complete(BackendRequest::Count, &value, ctx.clock.now());
    }
}
