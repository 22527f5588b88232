//! Counts the usage of a backend's volumes and archives (`spec.usage`).
//!
//! Volumes are counted in the order of their names, with one call at a time and at a limited rate. The progress is
//! stored in the backend's status, and a restart resumes from there. The result is written to the volume; a claim that
//! uses more than it requests gets a condition.

mod plan;
mod publish;
mod scan;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tokio::sync::Notify;

use super::runner::{self, BackendTask};
use crate::api::names::COUNT_NOW;
use crate::api::{NfsBackend, UsageStatus};
use crate::runtime::retry::jittered;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::usage::UsageProgress;
use export_store::text::format_bytes;
use scan::{UsageScan, UsageScanError, remove_results};

/// Time until an interrupted scan resumes.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Starts the usage scans of a backend, as its object requests.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>, object: &NfsBackend) {
    if let Some(status) = object.status.as_ref().and_then(|status| status.usage.as_ref()) {
        backend
            .usage_scan
            .update(|progress| *progress = previous_progress(status));
    }
    runner::spawn(ctx, backend, UsageScanner::default(), Duration::ZERO);
}

/// Returns the value of the annotation that requests a scan.
pub fn request(object: &NfsBackend) -> Option<&str> {
    object.annotations().get(COUNT_NOW).map(String::as_str)
}

/// Returns the usage in the backend's status; `None` if it is not counted.
pub fn status(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Option<UsageStatus> {
    object.spec.usage.as_ref()?;
    let (total, progress) = (ctx.usage.total(&backend.name), backend.usage_scan.progress());
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Some(UsageStatus {
        volumes: number(total.volumes),
        bytes: number(total.bytes),
        size: format_bytes(total.bytes.into()),
        files: number(total.files),
        archived_bytes: archived_bytes(ctx, &backend.name),
        skipped: progress.skipped,
        last_completed: progress.last_completed.map(Time),
        under_way: progress.under_way,
    })
}

/// Returns the usage of a backend's counted archives, in bytes.
fn archived_bytes(ctx: &Context, backend: &str) -> i64 {
    let archives = ctx.stores.archives.state();
    let here = archives.iter().filter(|archive| archive.spec.backend == backend);
    let counted = here.filter_map(|archive| archive.status.as_ref()?.usage.as_ref());
    counted.fold(0, |sum, usage| sum.saturating_add(usage.bytes))
}

/// Returns the progress of the previous process.
fn previous_progress(status: &UsageStatus) -> UsageProgress {
    UsageProgress {
        under_way: status.under_way.clone(),
        requested: false,
        skipped: status.skipped,
        last_completed: status.last_completed.as_ref().map(|at| at.0),
    }
}

/// Returns the interval between two scans; `None` if usage is not counted.
fn interval(object: &NfsBackend) -> Option<Duration> {
    let interval = object.spec.usage.as_ref()?.interval.parse::<kube::core::Duration>();
    // The schema validates it. If it is invalid nevertheless, a day is a safe default.
    Some(interval.map_or(Duration::from_secs(24 * 3600), Duration::from))
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
    ctx.usage
        .enable(&backend.name, backend.usage_scan.progress().last_completed);
    // Another scan may have been requested in the meantime.
    Ok(Duration::ZERO)
}
